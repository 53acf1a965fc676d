"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where standard data sets lie; default: the variable TWINPROOF_DATA.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
