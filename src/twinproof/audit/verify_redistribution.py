"""Where the shares of the noise come from: what depends on the training records is paid for, or is not called private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof.audit.evidence import shown
from twinproof.audit.fields import number
from twinproof.audit.verification import Problem
from twinproof.audit.verify_ledger import FILE as LEDGER
from twinproof.audit.verify_ledger import Ledger
from twinproof.audit.verify_run_json import privacy_block

PURPOSE = "redistribution"
FROM_TRAINING, PUBLISHED = "training", "published"


def is_published(run: dict[str, Any]) -> bool:
    """Whether the recipe was carried out by the formulas of its paper, which do not keep its promise."""
    config = run.get("config")
    return isinstance(config, dict) and config.get("variant") == PUBLISHED


def redistribution_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """Shares from the training records of a private run: one event of the ledger pays for them, with the noise of config.

    The published variant does not pay; that it is not called proven is checked with the guarantees.
    """
    config = run.get("config")
    layer = config.get("noise_layer") if isinstance(config, dict) else None
    if not isinstance(layer, dict) or layer.get("redistribution") != FROM_TRAINING:
        return
    if privacy_block(run) is None or ledger is None or is_published(run):
        return
    noise, paid = number(layer.get("r_noise_multiplier")), ledger.paid_for(PURPOSE)
    if noise is None or noise not in paid:
        what = "the noise was redistributed by the training records, but no event of the ledger pays for it"
        wanted = f"gaussian with purpose {PURPOSE} and noise_multiplier {shown(noise)} (config.noise_layer)"
        yield Problem(LEDGER, what, shown(sorted(paid)), wanted)
