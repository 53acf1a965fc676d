"""``twinproof report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.cli.output import DataPlace, DataRoot, Json, print_json, print_rows
from twinproof.errors import ConfigError
from twinproof.reporting.run import report_run, write_comparison


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run, or several to compare.")],
    out: Annotated[Path | None, typer.Option(help="HTML file for the comparison of several runs.")] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Show raw test records of your own data; those of known sets are always shown.")
    ] = False,
    data: DataPlace = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Writes the report of a run, or compares runs.

    One self-contained HTML file that begins with the guarantee card, and the same content as JSON.

    Example: twinproof report runs/mnist
    """
    if len(runs) > 1:
        if out is None:
            raise ConfigError(
                "a comparison needs an output file", where="--out", got="nothing", wanted="the name of an HTML file"
            )
        if examples:
            raise ConfigError("a comparison shows no records", where="--examples", got="several runs", wanted="one run")
        files = write_comparison(runs, out)
    else:
        if out is not None:
            raise ConfigError(
                "the report of one run is written into the run", where="--out", got=out, wanted="no --out, or several runs"
            )
        files = report_run(runs[0], source=data, data_root=data_root, examples=examples)
    if as_json:
        print_json({"html": str(files.html), "json": str(files.json)})
    else:
        print_rows([("report", str(files.html)), ("for machines", str(files.json))])
