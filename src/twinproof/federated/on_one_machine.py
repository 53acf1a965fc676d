"""One data set, dealt out to parties on this machine: the example, and the verb ``twinproof federate``."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinproof.data.record import Dataset
from twinproof.errors import MissingExtra
from twinproof.federated.agreement import DeclaredParty, agree
from twinproof.federated.local import LocalParties
from twinproof.federated.party import Party, repeatable_key
from twinproof.federated.public_part import public_part
from twinproof.federated.shares import unequal_shares
from twinproof.federated.train import federate
from twinproof.progress import Progress
from twinproof.recipes.config import TrainConfig
from twinproof.recipes.overlap import check_test_part
from twinproof.runs.run import Run


def federate_shares(
    settings: Mapping[str, Any] | TrainConfig,
    dataset: Dataset,
    out: Path | str,
    *,
    parties: int = 4,
    flower: bool = False,
    timeout: float | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Deals the training records out to ``parties`` of different sizes and trains with them, in this process or over Flower.

    ``timeout`` is how many seconds a party has for a round; None for as long as it takes (over Flower: ten minutes).
    """
    check_test_part(dataset)
    shares, public = unequal_shares(dataset.train, parties), public_part(dataset)
    agreement = agree(settings, [DeclaredParty(name, len(share)) for name, share in shares.items()], public)
    if flower:
        _need_flower()
        from twinproof.federated.flower import DEFAULT_TIMEOUT
        from twinproof.federated.flower_simulation import simulate

        patience = DEFAULT_TIMEOUT if timeout is None else timeout
        return simulate(agreement, shares, public, out, timeout=patience, resume=resume, progress=progress)
    seed = agreement.config.seed
    members = {
        name: Party(name, share, agreement, public, key=None if seed is None else repeatable_key(seed, name))
        for name, share in shares.items()
    }
    return federate(agreement, LocalParties(members, timeout=timeout), public, out, resume=resume, progress=progress)


def _need_flower() -> None:
    for package in ("flwr", "ray"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra("federated", package, "training over Flower")
