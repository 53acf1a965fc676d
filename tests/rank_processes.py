"""Real ranks for tests: forked processes that join by gloo on this machine, do some work, and hand back what they found."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quiet_fork import fork
from twinproof.compute import heartbeat
from twinproof.compute.heartbeat import PATIENCE
from twinproof.compute.process_ranks import join
from twinproof.compute.ranks import Ranks
from twinproof.errors import TwinproofError

_BROKEN = 70
Work = Callable[[Ranks], Any]


@dataclass(frozen=True)
class Ended:
    """How a rank ended: with a value (anything JSON holds), with an error of ours, or killed by a signal."""

    value: Any = None
    error: dict[str, str] | None = None
    quiet: bool = False
    signal: int = 0


def run_ranks(world: int, work: Work, *, patience: float = PATIENCE) -> list[Ended]:
    """``work`` on each of ``world`` ranks. Bits are promised for one thread, which a forked child must use anyway."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder) / str(rank) for rank in range(world)]
            port = _free_port()
            children = [_child(rank, world, port, work, place, patience) for rank, place in enumerate(places)]
            return [_ended(child, place) for child, place in zip(children, places, strict=True)]
    finally:
        torch.set_num_threads(before)


@contextmanager
def quick_to_part() -> Iterator[None]:
    """Heartbeats, and waits for them, five times as fast, for tests that lose ranks on the way to something else."""
    before = {name: getattr(heartbeat, name) for name in ("_LISTEN", "_MISSING", "_LET_IT_PRINT", "INTERVAL")}
    vars(heartbeat).update({name: value / 5 for name, value in before.items()})
    try:
        yield
    finally:
        vars(heartbeat).update(before)


def _child(rank: int, world: int, port: int, work: Work, place: Path, patience: float) -> int:
    child = fork()
    if child:
        return child
    code = 0
    try:
        here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in here.items()})
        place.write_text(json.dumps(_outcome(work, patience)))
    except BaseException:  # noqa: BLE001 (a forked child must never return into the test runner)
        traceback.print_exc()
        code = _BROKEN
    os._exit(code)


def _outcome(work: Work, patience: float) -> dict[str, Any]:
    try:
        with join(patience=patience) as ranks:
            value = work(ranks)
        return {"value": value}
    except TwinproofError as error:
        return {"error": error.as_dict(), "quiet": getattr(error, "quiet", False)}


def _ended(child: int, place: Path) -> Ended:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    assert os.WEXITSTATUS(status) == 0, "a rank failed by itself"
    return Ended(**json.loads(place.read_text()))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def die() -> None:
    """As if the machine were switched off."""
    os.kill(os.getpid(), signal.SIGKILL)
