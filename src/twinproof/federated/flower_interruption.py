"""A coordinator under Flower's simulation that can be interrupted while it waits for parties.

The simulation runs the coordinator in a thread of its own and ends the nodes when its main thread is interrupted. Flower's own
way to wait would then wait for nodes that are gone, for the whole timeout, and keep the process from ending.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from threading import Event

from flwr.app import Message
from flwr.serverapp import Grid

from twinproof.errors import RunError

_LOOK_AGAIN = 0.02


class InterruptibleNodes:
    """Flower's nodes, asked as by ``Grid.send_and_receive``, until ``stopped`` is set: then whoever waits gets a RunError."""

    def __init__(self, grid: Grid, stopped: Event) -> None:
        self._grid = grid
        self._stopped = stopped

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        self._refuse_stopped()
        return list(self._grid.get_node_ids())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Sequence[Message]:
        """The answers that arrive in time, at most one for each message."""
        end = None if timeout is None else time.monotonic() + timeout
        waiting = set(self._grid.push_messages(messages))
        arrived: list[Message] = []
        while waiting and (end is None or time.monotonic() < end):
            self._refuse_stopped()
            found = list(self._grid.pull_messages(waiting))
            arrived += found
            waiting -= {message.metadata.reply_to_message_id for message in found}
            if waiting and not found:
                self._stopped.wait(_LOOK_AGAIN)
        return arrived

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise RunError("the simulation was interrupted", fix="continue the run with --resume")
