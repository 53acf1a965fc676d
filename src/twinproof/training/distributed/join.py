"""Joining the ranks that a launcher has started, and parting from them so that each learns why."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import torch

from twinproof.errors import ConfigError, TwinproofError
from twinproof.training.distributed.farewell import Farewell
from twinproof.training.distributed.process_ranks import LONGEST_WAIT, ProcessRanks, local_rank
from twinproof.training.distributed.rank_error import RankError, stopped
from twinproof.training.distributed.share import Share
from twinproof.training.distributed.watch import PATIENCE, Watch

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

# Ranks of one command start together; a machine that is busy may take a while.
_TO_MEET = timedelta(seconds=120)
# An answer of the store; together with the watch's patience it stays below 30 seconds.
_ANSWER = timedelta(seconds=5)


@contextmanager
def join(*, patience: float = PATIENCE) -> Iterator[ProcessRanks]:
    """Inside, this process is one of the ranks that ``torchrun`` (or another launcher, by the same variables) has started.

    Guarantees
        - A rank that leaves with an error tells the others why, and their next word to each other ends in that error. Rank 0,
          which may keep the store, leaves only when the others have read it, however busy the machine is (15 seconds at most).
        - A rank that is killed, frozen or cut off is named by the others within 30 seconds.
        - Nobody leaves in peace before all have done their work.
    """
    share = _met()
    farewell = Farewell(_store(), share.rank, share.world)
    farewell.give_sign()
    watch = Watch(farewell, speaks=share.rank == 0, patience=patience)
    ranks = ProcessRanks(share, farewell, watch)
    watch.start()
    try:
        with _stopped_by_launcher(farewell):
            try:
                ranks.wait()
                yield ranks
                farewell.speak({})  # before anybody leaves, as rank 0 may take the store along
                ranks.wait()
            except Exception as error:
                _heed_no_launcher()  # what it would stop is stopping
                _part(farewell, error, share.rank)
                raise
    finally:
        # In this order: closing connections may wait for a rank that is frozen.
        _hang_up()
        watch.end()


def _met() -> Share:
    """Connects all ranks."""
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if torch.cuda.is_available() and local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(local_rank())  # what is put on "cuda" then lies on this rank's own GPU
    try:
        store, number, count = next(rendezvous("env://", timeout=_TO_MEET))
        distributed.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=LONGEST_WAIT)
        return Share(number, count)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            "the ranks did not find each other",
            where=f"rank {rank} of {world}",
            got=str(error).partition("\n")[0],
            wanted=f"{world} processes that reach {os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}",
            fix="start them together: torchrun --nproc-per-node N -m twinproof ...",
        ) from error


def _store() -> Store:
    """A connection of its own to the launcher's store: that of the process group may be waiting for something."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = TCPStore(host, port, is_master=False, timeout=_ANSWER, wait_for_workers=False)
    named: Store = PrefixStore(f"twinproof/{attempt}", store)
    return named


def _part(farewell: Farewell, error: Exception, rank: int) -> None:
    """Tells the others why this rank leaves; where rank 0 will say it, this one ends in an error that is told already."""
    known = error if isinstance(error, TwinproofError) else TwinproofError(f"{type(error).__name__}: {error}")
    lost = known.lost if isinstance(known, RankError) else ()
    try:
        farewell.speak(known.as_dict())
        if rank == 0:
            farewell.wait_until_read(lost)
    except RuntimeError:
        return
    if rank == 0 or 0 in lost:
        return
    if farewell.first_tells():
        raise stopped(rank, known.as_dict()).told_elsewhere() from error


def _hang_up() -> None:
    """Closes all connections."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def _stopped_by_launcher(farewell: Farewell) -> Iterator[None]:
    """torchrun stops all ranks when one has failed, often before they notice: that must not end without a word."""
    if not _in_main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        _heed_no_launcher()
        raise farewell.reason()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _heed_no_launcher() -> None:
    if _in_main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
