"""The command ``twinproof``: collects the verbs, and turns every error into one message and an exit code.

Exit codes: 0 success, 1 a check failed, 2 a mistake in the call, 3 the system (disk, permission, memory), 130 interrupted.
With ``--json`` stdout holds one JSON object and nothing else.
A verb's file is loaded when it is named, so that ``--help`` answers at once.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

# Set before torch is loaded: threads that spin while they wait slow each other down by orders of magnitude on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from twinproof import __version__
from twinproof.cli.output import print_error
from twinproof.cli.ranks import leave
from twinproof.errors import TwinproofError, UserError, fault_of
from twinproof.extensions import Group, find, names, plugin_of, where_to_get

# typer exports only the leaves of its error classes; their common base is what a mistyped command line raises.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

INTERRUPTED = 130  # what shells expect after Ctrl-C

_VERBS = {
    "demo": ("demo", "Runs the main job on embedded data."),
    "train": ("train", "Trains a model under a privacy plan."),
    "certify": ("certify", "Certifies the test set of a run."),
    "attack": ("attack", "Attacks the test set of a run."),
    "audit": ("audit", "Tries to refute the certificates of a run."),
    "verify": ("verify", "Checks a run against its evidence."),
    "report": ("report", "Writes the report of a run, or compares runs."),
    "federate": ("federate", "Trains over parties that do not pool records."),
    "sigma": ("calculators", "Calculates the noise for a target epsilon."),
    "epsilon": ("calculators", "Calculates the epsilon of DP-SGD."),
    "recipes": ("listings", "Lists the recipes and their guarantees."),
    "data": ("listings", "Lists the data sets known by name."),
    "settings": ("settings", "Lists the settings of a training."),
}
"""The file of each verb, and the first line of its help."""
_OF_PAPERS = "reproduce"
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def application(arguments: Sequence[str]) -> typer.Typer:
    """The verbs of this package, and those that others register; one is loaded only if ``arguments`` name it."""
    app = typer.Typer(
        name="twinproof",
        help="Train classifiers that are differentially private and certifiably robust at once, and check both proofs.",
        epilog="Exit codes: 0 success, 1 a check failed, 2 a mistake in the call, 3 the system (disk, permission, memory), "
        "130 interrupted.",
        rich_markup_mode=None,
    )
    app.callback()(_main)
    # Shells ask for completions in variables.
    named = {
        *arguments,
        *(word for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS") for word in os.environ.get(name, "").split()),
    }
    for name, (file, help_) in _VERBS.items():
        if name in named:
            _add(app, name, getattr(importlib.import_module(f"twinproof.cli.{file}"), name))
        else:
            app.command(name, help=help_)(_missing)
    others = names(Group.COMMANDS)
    for name in dict.fromkeys([*others, _OF_PAPERS]):
        if name in _VERBS:
            continue
        if name in named and (other := find(Group.COMMANDS, name)) is not None:
            _add(app, name, other)
            continue
        plugin = plugin_of(Group.COMMANDS, name)
        help_ = "" if plugin is None else f"From {plugin.package} {plugin.version}."
        hidden = name not in others
        app.command(name, help=help_, hidden=hidden, add_help_option=False, context_settings=_ANY_ARGUMENTS)(_missing)
    return app


def _add(app: typer.Typer, name: str, verb: Callable[..., Any]) -> None:
    # \b keeps a paragraph from being wrapped, so that an example can be copied as one line.
    app.command(name, help=inspect.cleandoc(verb.__doc__ or "").replace("\n\nExample", "\n\n\n\b\nExample"))(verb)


def _missing(context: typer.Context) -> None:
    """Stands for a verb that is not installed, or that could not be loaded."""
    name = str(context.info_name)
    raise UserError(
        f"the verb {name} is not installed" if name == _OF_PAPERS else f"the verb {name} cannot be loaded",
        where="command line",
        got=name,
        wanted=", ".join(_VERBS),
        fix=where_to_get(name) or "repair or remove the package that it comes from",
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinproof {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Every verb takes --json. Start with: twinproof demo."""


def run(arguments: list[str] | None = None) -> None:
    # A warning is for the person at the terminal: one line, without the place in our code that raised it.
    warnings.showwarning = lambda message, *_: typer.echo(f"warning: {message}", err=True)
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    as_json = "--json" in arguments  # an error may come before the arguments are parsed
    try:
        code = application(arguments)(arguments, prog_name="twinproof", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):  # before RuntimeError, which Abort is
        code = INTERRUPTED
    except (TwinproofError, OSError, MemoryError, RuntimeError) as error:
        known = error if isinstance(error, TwinproofError) else fault_of(error)
        if known is None:
            raise
        with suppress(OSError):  # if even the message cannot be written, the exit code says it
            print_error(known, as_json=as_json)
        code = known.exit_code
    except _UsageError as error:
        message = getattr(error, "format_message", error.__str__)()
        mistake = UserError(
            message or "the command line is incomplete",
            where="command line",
            got=" ".join(["twinproof", *arguments]),
            fix="see `twinproof --help`, or `--help` after the verb",
        )
        print_error(mistake, as_json=as_json)
        code = mistake.exit_code
    if code == INTERRUPTED:  # some versions of typer return it instead of raising
        typer.echo(
            "interrupted: finished work is kept; continue train and federate with --resume, and certify, attack, audit and "
            "reproduce with the same command",
            err=True,
        )
    leave(code if isinstance(code, int) else 0)
