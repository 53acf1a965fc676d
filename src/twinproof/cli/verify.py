"""``twinproof verify``."""

from __future__ import annotations

import typer

from twinproof.cli.options import Json, RunPath


def verify(run: RunPath, as_json: Json = False) -> None:
    """Checks every claim of a run.

    Recomputes epsilon and every radius from the evidence, and exits with 1 if anything is a lie.

    Example: twinproof verify runs/mnist
    """
    from twinproof.audit.verify import verify_run
    from twinproof.cli.output import print_json
    from twinproof.cli.summaries import show_verification

    result = verify_run(run)
    if as_json:
        print_json(result.as_dict())
    else:
        show_verification(result)
    if not result.ok:
        raise typer.Exit(1)
