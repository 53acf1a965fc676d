"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else there.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
DataRoot = Annotated[Path | None, typer.Option(help="Where standard data sets lie; default: the variable TWINPROOF_DATA.")]
Test = Annotated[
    Path | None, typer.Option("--test", help="File or folder of test records, which are public; for own data without them.")
]
PublicFraction = Annotated[
    float | None,
    typer.Option(
        "--public-fraction",
        help="Or: the share of your records that becomes the test part. They get no privacy: raw values and labels may appear "
        "in certificates.csv, attacks.safetensors and the report.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
