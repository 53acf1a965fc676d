"""All parties on one machine under Flower's simulation, each as a node of its own: what a federation does before it is one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.simulation import run_simulation

from twinproof.data.record import Dataset, Split
from twinproof.federated.agreement import Agreement
from twinproof.federated.flower import DEFAULT_TIMEOUT, client_app, server_app
from twinproof.federated.party import Party, repeatable_key
from twinproof.federated.public_part import public_part
from twinproof.progress import Progress
from twinproof.runs.run import Run

# One process for all nodes: they take turns, as they would on one machine anyway, and torch is loaded once.
_ONE_PROCESS: dict[str, dict[str, Any]] = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1}}


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
    """:func:`federate` over Flower: ``shares`` holds the records of each party, node number k gets the k-th."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = server_app(agreement, public, out, timeout=timeout, resume=resume, progress=progress)
    run_simulation(
        server_app=server,
        client_app=simulated_client_app(agreement, shares, public_part(public)),
        num_supernodes=len(shares),
        backend_config=_ONE_PROCESS,
    )
    return Run.open(Path(out))


def simulated_client_app(agreement: Agreement, shares: Mapping[str, Split], public: Dataset) -> ClientApp:
    """A ClientApp whose node tells by its partition number which party it is."""
    names = list(shares)

    def make_party(context: Context) -> Party:
        name, seed = names[int(context.node_config["partition-id"])], agreement.config.seed
        # A copy: what the simulation hands to its processes cannot be written to, and torch does not like that.
        records = Split(shares[name].inputs.copy(), shares[name].labels.copy())
        return Party(name, records, agreement, public, key=None if seed is None else repeatable_key(seed, name))

    return client_app(make_party)
