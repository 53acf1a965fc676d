"""The command ``twinproof-verify``. Exit codes: 0 all is right, 1 a check failed, 2 a mistake in the call, 3 the system."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Annotated, NoReturn

import numpy as np
import typer

from twinproof_verify import Originals, Verification, VerifyError, __version__, verify

MOST_BYTES = 4 * 2**30
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twinproof-verify {__version__}")
        raise typer.Exit


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)],
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="The test set in stored levels: arrays x and y.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Checks what a run of twinproof says against its evidence, without torch and without its network.

    Recomputes epsilon from the ledger, every radius from its votes and both promises from the settings. With the test set,
    labels are compared and attacked inputs measured. The last line names what was not checked.

    Example: twinproof-verify runs/mnist --inputs mnist-test.npz
    """
    try:
        result = verify(run, None if inputs is None else read_inputs(inputs))
    except VerifyError as error:
        _fail(error, 2, as_json=as_json)
    except (OSError, MemoryError) as error:
        fault = VerifyError("the system failed", got=str(error) or type(error).__name__, fix="run the same command again")
        _fail(fault, 3, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_dict(), allow_nan=False))
    else:
        show(result)
    if not result.ok:
        raise typer.Exit(1)


def read_inputs(path: Path) -> Originals:
    """The arrays ``x`` and ``y`` of an npz file; nothing in it is unpickled."""
    wanted = "an npz file with x (records, ...) in stored levels and y (classes)"
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise VerifyError("the test set is too large", where=str(path), got=f"{size} bytes", wanted=f"{MOST_BYTES} at most")
        with np.load(path, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError, EOFError, SyntaxError, zipfile.BadZipFile, NotImplementedError) as error:
        raise VerifyError("the test set cannot be read", where=str(path), got=str(error), wanted=wanted) from error
    if x.ndim < 2 or y.ndim != 1 or x.dtype.kind not in "iu" or y.dtype.kind not in "iu":
        got = f"x {x.dtype}{list(x.shape)}, y {y.dtype}{list(y.shape)}"
        raise VerifyError("these arrays are no test set", where=str(path), got=got, wanted=wanted)
    return Originals(x, y)


def show(result: Verification) -> None:
    """Checks and problems, one line each."""
    for check in result.checks:
        typer.echo(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    for problem in result.problems:
        typer.echo(f"problem  {problem.file}: {problem.what}; got {problem.got}, wanted {problem.wanted}")
    typer.echo(f"not checked: {'; '.join(result.not_checked)}")
    typer.echo("everything that was checked is right" if result.ok else f"{len(result.problems)} problems")


def _fail(error: VerifyError, code: int, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"error": error.as_dict()}))
    else:
        typer.echo(f"error: {error}", err=True)
    raise typer.Exit(code)


def run() -> None:
    """The entry point."""
    sys.exit(app())
