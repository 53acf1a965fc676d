"""Where the shares of the noise come from: what depends on the training records is paid for, or is not called private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import number
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_ledger import FILE as LEDGER
from twinproof.auditing.verify_ledger import Ledger
from twinproof.auditing.verify_run_json import privacy_block

PURPOSE = "redistribution"
FROM_TRAINING, PUBLISHED = "training", "published"
PRINTED = ("adlm", "stobatch")
"""Recipes whose published variant takes steps that no plan can count."""


def is_published(run: dict[str, Any]) -> bool:
    """Whether the recipe was carried out by the formulas of its paper, which do not keep its promise."""
    config = run.get("config")
    return isinstance(config, dict) and config.get("variant") == PUBLISHED


def as_printed(run: dict[str, Any]) -> bool:
    """Whether the steps were those of a paper that no plan can count."""
    config = run.get("config")
    return is_published(run) and isinstance(config, dict) and config.get("recipe") in PRINTED


def takes_unpaid(run: dict[str, Any]) -> bool:
    """Whether shares were taken from the training records without a noise: that gives records away with certainty."""
    return is_published(run) and layer_of(run).get("redistribution") == FROM_TRAINING


def layer_of(run: dict[str, Any]) -> dict[str, Any]:
    """The settings of the network's noise layer; empty where it has none."""
    config = run.get("config")
    layer = config.get("noise_layer") if isinstance(config, dict) else None
    return layer if isinstance(layer, dict) else {}


def redistribution_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """Shares from the training records of a private run: one event of the ledger pays for them, with the noise of config.

    The published variant does not pay; that it is called refuted is checked with the guarantees. Public shares must not come
    from the data that the run was trained on.
    """
    layer = layer_of(run)
    yield from _public_problems(run, layer)
    if layer.get("redistribution") != FROM_TRAINING:
        return
    if privacy_block(run) is None or ledger is None or is_published(run):
        return
    noise, paid = number(layer.get("r_noise_multiplier")), ledger.paid_for(PURPOSE)
    if noise is None or noise not in paid:
        what = "the noise was redistributed by the training records, but no event of the ledger pays for it"
        wanted = f"gaussian with purpose {PURPOSE} and noise_multiplier {shown(noise)} (config.noise_layer)"
        yield Problem(LEDGER, what, shown(sorted(paid)), wanted)


def _public_problems(run: dict[str, Any], layer: dict[str, Any]) -> Iterator[Problem]:
    config = run.get("config")
    data = config.get("data") if isinstance(config, dict) else None
    source = data.get("source") if isinstance(data, dict) else None
    named = layer.get("public_data")
    if privacy_block(run) is not None and isinstance(named, str) and named == source:
        yield Problem(
            "run.json",
            "the noise was redistributed by the training data under the name of public ones",
            shown(named),
            "other data",
        )
