"""All parties on one machine under Flower's simulation.

The simulation runs the coordinator in a thread and ends the nodes when its main thread is interrupted. Flower's own wait would
then wait for nodes that are gone, for the whole timeout, and keep the process from ending.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from twinproof.data.record import Dataset, Split
from twinproof.errors import RunError
from twinproof.federated.agreement import Agreement, public_part
from twinproof.federated.flower import client_app, server_app
from twinproof.federated.messages import DEFAULT_TIMEOUT
from twinproof.federated.party import Party, repeatable_key
from twinproof.progress import Progress
from twinproof.runs.run import Run

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


# One process for all nodes: they take turns, as they would on one machine anyway, and torch is loaded once.
_ONE_PROCESS: dict[str, dict[str, Any]] = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1}}
# Ray hides GPUs from a process that has reserved none; the parties compute where their settings say, as they do without Flower.
_SHOW_DEVICES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


def simulate(
    agreement: Agreement,
    shares: Mapping[str, Split],
    public: Dataset,
    out: Path | str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    resume: bool = False,
    progress: Progress | None = None,
) -> Run:
    """:func:`federate` over Flower: ``shares`` holds the records of each party, node number k gets the k-th.

    Interrupted, it ends at once: the coordinator, which Flower runs in a thread, waits for no party any more.
    """
    # What goes wrong comes back as an answer or an exception; Flower would log it too, and every interruption with a traceback.
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    os.environ.setdefault(_SHOW_DEVICES, "0")
    stopped = Event()
    server = server_app(agreement, public, out, timeout=timeout, resume=resume, progress=progress)
    try:
        run_simulation(
            server_app=_interruptible(server, stopped),
            client_app=simulated_client_app(agreement, shares, public_part(public)),
            num_supernodes=len(shares),
            backend_config=_ONE_PROCESS,
        )
    finally:
        stopped.set()
    return Run.open(Path(out))


def _interruptible(server: ServerApp, stopped: Event) -> ServerApp:
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        server(InterruptibleNodes(grid, stopped), context)

    app.main()(main)
    return app


def simulated_client_app(agreement: Agreement, shares: Mapping[str, Split], public: Dataset) -> ClientApp:
    """A ClientApp whose node knows by its partition number which party it is."""
    return client_app(_SimulatedParties(agreement, shares, public, uuid4().hex))


@dataclass(frozen=True, eq=False)
class _SimulatedParties:
    """Finds the party of a node, in the process that the simulation has for all of them.

    The simulation sends a copy of this with every message, so that nothing made here would last until the next one: parties
    are kept by the module, which lasts as long as the process. Each keeps its key and remembers what it has answered.
    """

    agreement: Agreement
    shares: Mapping[str, Split]
    public: Dataset
    simulation: str

    def __call__(self, context: Context) -> Party:
        name = list(self.shares)[int(context.node_config["partition-id"])]
        if (self.simulation, name) not in _MADE:
            _MADE[self.simulation, name] = self._make(name)
        return _MADE[self.simulation, name]

    def _make(self, name: str) -> Party:
        seed, share = self.agreement.config.seed, self.shares[name]
        # A copy: what the simulation hands to its processes cannot be written to, and torch does not like that.
        records = Split(share.inputs.copy(), share.labels.copy())
        return Party(name, records, self.agreement, self.public, key=None if seed is None else repeatable_key(seed, name))


_MADE: dict[tuple[str, str], Party] = {}
