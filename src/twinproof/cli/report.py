"""``twinproof report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.cli.output import DataRoot, Json


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run, or several to compare.")],
    out: Annotated[Path | None, typer.Option(help="Where the comparison of several runs goes.")] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Show raw test records of your own data; those of known sets are always shown.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Where the data lie, if they moved.")] = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Writes the report of a run, or compares runs.

    One self-contained HTML file with the guarantee card first, and its JSON copy.

    Example: twinproof report runs/mnist
    """
    from twinproof.cli.output import print_json, print_rows
    from twinproof.errors import ConfigError
    from twinproof.reporting.run import report_run, write_comparison

    if len(runs) > 1:
        if out is None:
            raise ConfigError("a comparison needs a place", where="--out", got="nothing", wanted="the name of an HTML file")
        if examples:
            raise ConfigError("a comparison shows no records", where="--examples", got="several runs", wanted="one run")
        files = write_comparison(runs, out)
    else:
        if out is not None:
            raise ConfigError("one run's report lies in the run", where="--out", got=out, wanted="no --out, or several runs")
        files = report_run(runs[0], source=data, data_root=data_root, examples=examples)
    if as_json:
        print_json({"html": str(files.html), "json": str(files.json)})
    else:
        print_rows([("report", str(files.html)), ("for machines", str(files.json))])
