"""Ranks as processes: started by torchrun, joined by ``torch.distributed`` (gloo; NCCL for sums on GPUs)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

from twinproof.compute.heartbeat import PATIENCE, Heartbeat
from twinproof.compute.ranks import RankError, Ranks, Share, stopped
from twinproof.errors import ConfigError, TwinproofError

if distributed.is_available():  # some builds of torch come without it
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous
if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work
    from torch.distributed.distributed_c10d import Store


# Numbers of the sum that travel at once: every rank holds those of all ranks for a moment.
_AT_ONCE = 1 << 22
# How long ranks wait for each other while all are alive: one may have a whole model to make. Loss is found otherwise.
LONGEST_WAIT = timedelta(days=7)
_MOMENT = timedelta(seconds=0.5)


class ProcessRanks(Ranks):
    """One of several processes that were started together: bytes go over gloo, sums over the backend of their device.

    Nothing that is sent is pickled.
    """

    def __init__(self, share: Share, heartbeat: Heartbeat) -> None:
        self.share = share
        self._heartbeat = heartbeat
        self._nccl: ProcessGroup | None = None
        self._rows_of_numbers = 0

    def sum_in_order(self, flat: Tensor) -> Tensor:
        """See :class:`Ranks`. On a GPU the host waits for nothing."""
        sums = []
        for part in torch.split(flat.double().contiguous(), _AT_ONCE):
            total, *others = self._all(part)
            for other in others:
                total += other
            sums.append(total)
        return torch.cat(sums)

    def gathered(self, content: bytes) -> list[bytes]:
        sizes = [int(size) for size in self._all(torch.tensor([len(content)]))]
        parts = self._all(_bytes(content, max(sizes)))
        return [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def from_first(self, content: bytes | None) -> bytes:
        given = (content or b"") if self.is_first else b""
        size = torch.tensor([len(given)])
        self._done(lambda: distributed.broadcast(size, 0, async_op=True))
        sent = _bytes(given, int(size))
        if int(size):
            self._done(lambda: distributed.broadcast(sent, 0, async_op=True))
        return sent.numpy().tobytes()

    def _all(self, part: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        parts = [torch.empty_like(part) for _ in range(self.world)]
        if part.numel():
            group = self._gpu_group() if part.is_cuda else None
            self._done(lambda: distributed.all_gather(parts, part, group=group, async_op=True), waits=not part.is_cuda)
        return parts

    def _done(self, start: Callable[[], Work | None], *, waits: bool = True) -> None:
        """Starts an operation of all ranks and waits for it, unless one of them stops or is lost meanwhile."""
        work = None
        try:
            work = start()
            if work is not None and not waits:
                work.wait()  # on a GPU that only lets the device wait
            while work is not None and waits and not self._over(work):
                if self._heartbeat.error is not None:
                    raise self._heartbeat.error
        except RuntimeError as error:  # what torch raises when a connection breaks
            raise self._heartbeat.reason() from error

    @staticmethod
    def _over(work: Work) -> bool:
        """Whether an operation has ended, within a moment: signals and lost ranks must be noticed meanwhile."""
        try:
            work.wait(_MOMENT)
        except RuntimeError:
            if not work.is_completed():
                return False
            # It has ended since the moment was over, or it has failed: asked again, it says which.
            work.wait()
        return True

    def numbers(self) -> Iterator[int]:
        """See :class:`Ranks`. Ranks that ask for a row of numbers in the same order get the same row."""
        self._rows_of_numbers += 1
        return self._numbers(str(self._rows_of_numbers))

    def _numbers(self, row: str) -> Iterator[int]:
        while True:
            if self._heartbeat.error is not None:
                raise self._heartbeat.error
            try:
                number = self._heartbeat.next_number(row)
            except RuntimeError as error:  # the store is gone
                raise self._heartbeat.reason() from error
            yield number

    def check_device(self, device: torch.device) -> None:
        if device.type == "cuda" and local_rank() >= torch.cuda.device_count():
            raise ConfigError(
                "there are more ranks than GPUs on this machine",
                where=f"rank {self.rank}",
                got=f"rank {local_rank()} of this machine, {torch.cuda.device_count()} GPUs",
                wanted="one GPU for each rank",
                fix="start fewer ranks (--nproc-per-node), or use --device cpu",
            )
        self.agree("the kind of device", device.type)

    def _gpu_group(self) -> ProcessGroup:
        """Made for the first sum on a GPU, by all ranks at once."""
        if self._nccl is None:
            self._nccl = distributed.new_group(backend="nccl", timeout=LONGEST_WAIT)
        return self._nccl


def launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_rank() -> int:
    """The number of this rank on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _bytes(content: bytes, length: int) -> Tensor:
    padded = bytearray(content.ljust(length, b"\0"))
    return torch.frombuffer(padded, dtype=torch.uint8) if length else torch.empty(0, dtype=torch.uint8)


# Ranks of one command start together; a machine that is busy may take a while.
_TO_MEET = timedelta(seconds=120)
# An answer of the store; together with the patience it stays below 30 seconds.
_ANSWER = timedelta(seconds=5)


@contextmanager
def join(*, patience: float = PATIENCE) -> Iterator[ProcessRanks]:
    """Inside, this process is one of the ranks that ``torchrun`` (or another launcher, by the same variables) has started.

    A rank that leaves with an error tells the others why, and their next operation ends in that error; rank 0, which may keep
    the store, leaves when the others have read it (15 seconds at most). A rank that is killed, frozen or cut off is named by
    the others within 30 seconds. Nobody leaves before all have done their work.
    """
    share = _met()
    heartbeat = Heartbeat(_store(), share.rank, share.world, patience=patience)
    heartbeat.beat()
    ranks = ProcessRanks(share, heartbeat)
    heartbeat.start()
    try:
        with _stopped_by_launcher(heartbeat):
            try:
                ranks.wait()
                yield ranks
                heartbeat.leave({})  # before anybody leaves, as rank 0 may take the store along
                ranks.wait()
            except Exception as error:
                _ignore_launcher()  # what it would stop is stopping
                _leave_with(error, heartbeat, share.rank)
                raise
    finally:
        # In this order: closing connections may wait for a rank that is frozen.
        if distributed.is_initialized():
            distributed.destroy_process_group()
        heartbeat.end()


def _met() -> Share:
    """Connects all ranks."""
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
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = TCPStore(host, port, is_master=False, timeout=_ANSWER, wait_for_workers=False)
    named: Store = PrefixStore(f"twinproof/{attempt}", store)
    return named


def _leave_with(error: Exception, heartbeat: Heartbeat, rank: int) -> None:
    """Tells the others why this rank leaves; where rank 0 will print it, this one raises an error that is not printed."""
    known = error if isinstance(error, TwinproofError) else TwinproofError(f"{type(error).__name__}: {error}")
    lost = known.lost if isinstance(known, RankError) else ()
    try:
        heartbeat.leave(known.as_dict())
        if rank == 0:
            heartbeat.wait_until_read(lost)
    except RuntimeError:
        return
    if rank and 0 not in lost and heartbeat.first_prints():
        raise stopped(rank, known.as_dict()).quietly() from error


@contextmanager
def _stopped_by_launcher(heartbeat: Heartbeat) -> Iterator[None]:
    """torchrun stops all ranks when one has failed, often before they notice: that must end in an error that says why."""
    if not _in_main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        _ignore_launcher()
        raise heartbeat.reason()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ignore_launcher() -> None:
    if _in_main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
