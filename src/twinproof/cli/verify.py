"""``twinproof verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinproof.cli.output import DataRoot, Json, RunPath

if TYPE_CHECKING:
    from twinproof.auditing.verify_originals import Originals


def verify(
    run: RunPath,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Insist on the test set: where it cannot be loaded, stop instead of going on.")
    ] = False,
    data: Annotated[str | None, typer.Option(help="Where the data lie, if they moved; implies --with-data.")] = None,
    data_root: DataRoot = None,
    redraw: Annotated[
        int | None,
        typer.Option(metavar="K", help="Draw the votes of K certificates, chosen at random, again; needs the test set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Checks what a run says against its evidence, and exits with 1 if anything is wrong.

    Recomputes epsilon from the ledger, every radius from its votes and both promises from the settings. With the test set
    (embedded and standard data sets are loaded by themselves) it asks the network again: labels, accuracy, answers to attacked
    inputs. With --redraw it draws votes again. The last line names what was not checked; how training was done, beyond its
    ledger, never is.

    Example: twinproof verify runs/mnist --redraw 20
    """
    from twinproof.auditing.verify import verify_run
    from twinproof.cli.output import print_json
    from twinproof.cli.summaries import show_verification

    wanted = with_data or data is not None or redraw is not None
    result = verify_run(run, originals=_originals(run, data, data_root, wanted=wanted), redraw=redraw)
    if as_json:
        print_json(result.as_dict())
    else:
        show_verification(result)
    if not result.ok:
        raise typer.Exit(1)


def _originals(run: Path, data: str | None, data_root: Path | None, *, wanted: bool) -> Originals | None:
    """The test set; unless it is ``wanted``, that of a known data set alone, and None where it is not here."""
    from twinproof.auditing.verify_originals import Originals
    from twinproof.data.config import parse_data_config
    from twinproof.data.sources import SOURCES
    from twinproof.errors import UserError
    from twinproof.recipes.run_data import load_again, load_run_data
    from twinproof.runs.run import Run

    if wanted:
        test = load_run_data(Run.open(run), source=data, data_root=data_root).test
        return Originals(test.inputs, test.labels)
    try:
        record = Run.open(run).record
        if record["data"]["name"] not in SOURCES:
            return None
        # Whether it fits the run is asked by its verification, as is whatever else is wrong with the run.
        test = load_again(parse_data_config({"source": record["data"]["name"]}), record, data_root).test
    except (UserError, LookupError, TypeError, ValueError):
        return None
    return Originals(test.inputs, test.labels)
