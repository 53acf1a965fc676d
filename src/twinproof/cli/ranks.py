"""The ranks of a verb that torchrun has started several times; by itself it is alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from twinproof.cli.output import print_error
from twinproof.errors import TwinproofError

if TYPE_CHECKING:
    from twinproof.compute.ranks import Ranks
    from twinproof.progress import Progress

# Before anything loads torch: what breaks when a rank is lost is told in our words, not as its traces of C++ frames.
if "RANK" in os.environ:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@contextmanager
def launched_ranks(*, as_json: bool) -> Iterator[Ranks]:
    """Inside, the ranks of ``torchrun ... -m twinproof``. An error is told once, by rank 0 as long as there is one."""
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
    """Ends the process with ``code``.

    A rank is not taken apart: at the exit of one in ten, torch's own threads end it by an abort when all is done and written,
    and its launcher then takes the work for failed.
    """
    if "RANK" in os.environ:
        _end_now(code)
    sys.exit(code)


def _end_now(code: int) -> NoReturn:
    """Ends the process without taking torch apart, which may wait for a rank that never answers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def bars_of(ranks: Ranks) -> Iterator[Progress]:
    """Progress on rank 0; the others work in silence."""
    from twinproof.cli.output import shown
    from twinproof.progress import Silent

    if not ranks.is_first:
        yield Silent()
        return
    with shown() as bars:
        yield bars
