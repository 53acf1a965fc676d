"""The command ``twinproof``: collects the verbs, and turns every error into one message and an exit code.

Exit codes: 0 success, 1 a check failed, 2 a user's mistake, 3 the system (disk, permission, memory), 130 interrupted.
With ``--json`` one JSON object is on stdout and nothing else.
Verbs import what they need when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

# Before anything loads torch: threads that spin while they wait slow each other down by orders of magnitude on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from twinproof.cli import attack, audit, calculators, certify, demo, federate, listings, report, reproduce, train, verify
from twinproof.cli.output import print_error, wants_json
from twinproof.cli.ranks import leave
from twinproof.errors import TwinproofError, UserError, fault_of

# typer re-exports only the leaves of its error classes; their common base is what a mistyped command line raises.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

INTERRUPTED = 130  # what shells expect after Ctrl-C

app = typer.Typer(
    name="twinproof",
    help="Train classifiers that are differentially private and certifiably robust at once, and check both proofs.",
    epilog="Exit codes: 0 success, 1 a check failed, 2 a mistake in the call, 3 the system (disk, permission, memory), "
    "130 interrupted.",
    add_completion=False,
    rich_markup_mode=None,
)
for verb in (demo.demo, train.train, certify.certify, attack.attack, audit.audit, verify.verify, report.report):
    app.command()(verb)
app.command()(reproduce.reproduce)
app.command()(federate.federate)
app.command("sigma")(calculators.sigma)
app.command("epsilon")(calculators.epsilon)
app.command("recipes")(listings.recipes)
app.command("data")(listings.data)


@app.callback()
def _main() -> None:
    """Every verb takes --json. Start with: twinproof demo."""


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    # A warning is for the person at the terminal: one line, without the place in our code that raised it.
    warnings.showwarning = lambda message, *_: typer.echo(f"warning: {message}", err=True)
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = app(arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):  # before RuntimeError, which Abort is
        code = INTERRUPTED
    except (TwinproofError, OSError, MemoryError, RuntimeError) as error:
        known = error if isinstance(error, TwinproofError) else fault_of(error)
        if known is None:
            raise
        with suppress(OSError):  # where not even the answer can be written, the exit code says it
            print_error(known, as_json=wants_json(arguments))
        code = known.exit_code
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
        mistake = UserError(
            message or "the command line is incomplete",
            where="command line",
            got=" ".join(["twinproof", *arguments]),
            fix="see `twinproof --help`, or `--help` after the verb",
        )
        print_error(mistake, as_json=wants_json(arguments))
        code = 2
    if code == INTERRUPTED:  # some versions of typer return it instead of raising
        typer.echo(
            "interrupted: nothing is lost; train and federate go on with --resume, certify, attack, audit and reproduce with "
            "the same command again",
            err=True,
        )
    leave(code if isinstance(code, int) else 0)
