"""Verbs that torchrun starts in several processes: one of them prints, all of them end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from twinproof.cli.output import print_error, shown
from twinproof.errors import TwinproofError

if TYPE_CHECKING:
    from twinproof.compute.ranks import Ranks
    from twinproof.progress import Progress

# Set before torch is loaded: the loss of a rank is reported by our message, not by C++ stack traces.
if "RANK" in os.environ:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@contextmanager
def launched_ranks(*, as_json: bool) -> Iterator[Ranks]:
    """Joins the ranks of ``torchrun ... -m twinproof``. An error is printed once, by rank 0 while it is there."""
    from twinproof.compute.process_ranks import launched
    from twinproof.compute.ranks import ALONE

    if not launched():
        yield ALONE
        return
    from twinproof.compute.process_ranks import join

    try:
        with join() as ranks:
            yield ranks
    except TwinproofError as error:
        if not getattr(error, "quiet", False):
            print_error(error, as_json=as_json)
        _end_now(error.exit_code)


def leave(code: int) -> NoReturn:
    """Ends the process with ``code``; a rank without its exit handlers.

    At the exit of about one rank in ten torch's threads abort the process after all work is written, which its launcher then
    takes for a failure.
    """
    if "RANK" in os.environ:
        _end_now(code)
    sys.exit(code)


def _end_now(code: int) -> NoReturn:
    """Ends the process without exit handlers: those of torch may wait for a rank that never answers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def bars_of(ranks: Ranks) -> Iterator[Progress]:
    """Progress on rank 0; the others print nothing."""
    from twinproof.progress import Silent

    if not ranks.is_first:
        yield Silent()
        return
    with shown() as bars:
        yield bars
