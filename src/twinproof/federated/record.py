"""What a federated run says about itself in ``run.json``: who took part, and what its promise takes for granted besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.federated.agreement import Agreement
from twinproof.runs.layout import read_run_json
from twinproof.runs.record import update_run_json

SECTION = "federation"
_ASSUMPTIONS = (
    "The coordinator is trusted: it sees the clipped sum of every party in every round, adds the noise and keeps the key; "
    "there is no secure aggregation.",
    "Every party follows the plan for its own records: what a party reveals about them by itself, nobody else's noise covers.",
    "Each party has a secret key of its own; the names of the parties and the declared numbers of their records are public.",
    "A record is held by one party; one that two parties hold counts as two records of one person.",
    "Whether a party answers in time does not depend on any one record.",
)


def describe(agreement: Agreement) -> dict[str, Any]:
    """The section ``federation``: public names and declared sizes, and the digest of the agreement."""
    return {"agreement_sha256": agreement.sha256, "parties": [party.as_dict() for party in agreement.parties]}


def refuse_other_agreement(root: Path, agreement: Agreement) -> None:
    """Refuses to go on with a run that has other settings or parties, or that was not federated at all."""
    stored = read_run_json(root).get(SECTION)
    if stored != describe(agreement):
        raise RunError(
            "this is not the agreement that the run was started with",
            where=str(root),
            got=f"agreement {agreement.sha256[:12]}",
            wanted="no federated run" if stored is None else f"agreement {stored.get('agreement_sha256', '')[:12]}",
            fix="resume with the same settings and parties, or start a new run",
        )


def write_assumptions(root: Path) -> None:
    """Adds to the promise of a complete run what it takes for granted because of the parties; repeated, it changes nothing."""
    guarantees = read_run_json(root)["guarantees"]
    privacy = guarantees["privacy"]
    added = [text for text in _ASSUMPTIONS if privacy["assumptions"] and text not in privacy["assumptions"]]
    if added:
        privacy = {**privacy, "assumptions": [*privacy["assumptions"], *added]}
        update_run_json(root, guarantees={**guarantees, "privacy": privacy})
