"""Which weights a run started from, by digest: the settings only say their name, and a later version may ship others."""

from __future__ import annotations

from typing import Any

from twinproof.errors import RunError
from twinproof.layers.models.prior import Prior, prior_sha256
from twinproof.recipes.config import ResolvedConfig

SECTION = "prior"


def describe_prior(config: ResolvedConfig) -> dict[str, Any]:
    """The section ``prior`` of run.json: name and SHA-256 of the file in the package; nothing for a random start."""
    if config.prior is Prior.NONE:
        return {}
    return {SECTION: {"name": str(config.prior), "sha256": prior_sha256()}}


def refuse_other_prior(config: ResolvedConfig, record: dict[str, Any]) -> None:
    """Refuses to go on with a run that started from other weights than are in this package; older runs do not say."""
    stored, shipped = record.get(SECTION), describe_prior(config).get(SECTION)
    if stored is not None and stored != shipped:
        raise RunError(
            "the run started from other weights than this version has",
            where=f"run.json, {SECTION}",
            got=str(shipped),
            wanted=str(stored),
            fix="resume with the version of twinproof that the run was started with, or start a new run",
        )
