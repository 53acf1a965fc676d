"""``twinproof verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinproof.auditing.verify import verify_run
from twinproof.cli.output import DataPlace, DataRoot, Json, RunPath, print_json
from twinproof.cli.summaries import show_verification
from twinproof.data.load import SOURCES
from twinproof.data.record import parse_data_config
from twinproof.errors import UserError
from twinproof.runs.run import Run, load_again, load_run_data
from twinproof_verify import Originals


def verify(
    run: RunPath,
    with_data: Annotated[bool, typer.Option("--with-data", help="Require the test set: stop if it cannot be loaded.")] = False,
    data: DataPlace = None,
    data_root: DataRoot = None,
    redraw: Annotated[
        int | None,
        typer.Option(metavar="K", help="Draw the votes of K randomly chosen certificates again; needs the test set."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Checks a run against its evidence.

    Recomputes epsilon from the ledger, every radius from its votes and both guarantees from the settings. With the test set
    (embedded and standard data sets are found automatically, others with --data) it also runs the network again: labels,
    accuracy, answers to attacked inputs. With --redraw it draws votes again. Exits with 1 if anything is wrong. The last line
    names what was not checked; how training was done, beyond its ledger, never is.

    Example: twinproof verify runs/mnist --redraw 20
    """
    wanted = with_data or data is not None or redraw is not None
    result = verify_run(run, originals=_originals(run, data, data_root, wanted=wanted), redraw=redraw)
    if as_json:
        print_json(result.as_dict())
    else:
        show_verification(result)
    if not result.ok:
        raise typer.Exit(1)


def _originals(run: Path, data: str | None, data_root: Path | None, *, wanted: bool) -> Originals | None:
    """The test set. Unless it is ``wanted``, only that of a known data set, and None if it is not on this machine."""
    if wanted:
        test = load_run_data(Run.open(run), source=data, data_root=data_root).test
        return Originals(test.inputs, test.labels)
    try:
        record = Run.open(run).record
        if record["data"]["name"] not in SOURCES:
            return None
        # Verification itself reports data that do not fit the run, and anything else that is wrong with it.
        test = load_again(parse_data_config({"source": record["data"]["name"]}), record, data_root).test
    except (UserError, LookupError, TypeError, ValueError):
        return None
    return Originals(test.inputs, test.labels)
