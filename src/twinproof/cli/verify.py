"""``twinproof verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinproof.cli.options import DataRoot, Json, RunPath

if TYPE_CHECKING:
    from twinproof.audit.verify_originals import Originals


def verify(
    run: RunPath,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Measure attacked inputs against the test records themselves.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Where the data lie, if they moved; implies --with-data.")] = None,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Checks every claim of a run.

    Recomputes epsilon and every radius from the evidence, and exits with 1 if anything is a lie. The data are not needed,
    except to measure how far attacked inputs are from the records they were made of.

    Example: twinproof verify runs/mnist
    """
    from twinproof.audit.verify import verify_run
    from twinproof.cli.output import print_json
    from twinproof.cli.summaries import show_verification

    result = verify_run(run, originals=_originals(run, data, data_root) if with_data or data else None)
    if as_json:
        print_json(result.as_dict())
    else:
        show_verification(result)
    if not result.ok:
        raise typer.Exit(1)


def _originals(run: Path, data: str | None, data_root: Path | None) -> Originals:
    from twinproof.audit.verify_originals import Originals
    from twinproof.recipes.run_data import load_run_data
    from twinproof.runs.run import Run

    test = load_run_data(Run.open(run), source=data, data_root=data_root).test
    return Originals(test.inputs, test.labels)
