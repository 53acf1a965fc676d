"""What the ranks of one run tell each other before they train: rank 0 decides, the others follow, all compare."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.data.fingerprint import fingerprint
from twinproof.data.record import Dataset
from twinproof.privacy.ledger import Ledger
from twinproof.randomness import KEY_BYTES, Key
from twinproof.recipes.passes_of_run import PassesOfRun
from twinproof.runs import private_files
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.training.distributed.ranks import ALONE, Ranks
from twinproof.training.distributed.shared_ledger import SharedLedger


@dataclass(frozen=True)
class Told:
    """What rank 0 tells the others about an unfinished run: ``run.json``, where the data lie, the key, and its passes."""

    record: dict[str, Any]
    source: dict[str, Any] | None
    key: Key
    passes: PassesOfRun | None = None


def tell(ranks: Ranks, root: Path, key: Key, passes: PassesOfRun | None = None) -> None:
    """Rank 0 tells the others what they are to train, the key included (docs/decisions/0013)."""
    if ranks is not ALONE:
        source = private_files.load_source(RunLayout(root).private)
        told: dict[str, Any] = {"record": read_run_json(root), "source": source, "key": key.secret.hex()}
        told["passes"] = None if passes is None else passes.as_dict()
        ranks.from_first(json.dumps(told).encode())


def tell_complete(ranks: Ranks) -> None:
    """Rank 0 tells the others that there is nothing to do."""
    ranks.from_first(b"")


def told(ranks: Ranks) -> Told | None:
    """What rank 0 told; None where the run is complete."""
    message = ranks.from_first(None)
    if not message:
        return None
    record = json.loads(message)
    passes = PassesOfRun.from_dict(record["passes"])
    return Told(record["record"], record["source"], Key(bytes.fromhex(record["key"])), passes)


def agree_on_data(ranks: Ranks, dataset: Dataset, key: Key) -> None:
    """Stops all ranks unless each has loaded the same records in the same order.

    Guarantees
        The digests that travel are keyed with the run's key: they tell nobody else anything about the records.
    """
    if ranks is ALONE:
        return
    secret = key.stream("records of the ranks", length=KEY_BYTES)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        ranks.agree(f"the {name} records", fingerprint(split, secret))


def shared_ledger(ranks: Ranks, ledger: Ledger, path: Path) -> Ledger:
    """The ledger that all ranks keep together; its entries are those of ``ledger``, now and later."""
    return ledger if ranks is ALONE else SharedLedger(path, ledger.entries, ranks)
