"""The promises of run.json: only the four words, and ``proven`` only where the evidence carries it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import Field, field_problems, is_object, is_text, is_texts, number
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_epsilon import Spent, printed_problems
from twinproof.auditing.verify_reach import PUBLISHED
from twinproof.auditing.verify_redistribution import as_printed, is_published, takes_unpaid
from twinproof.auditing.verify_run_json import FILE, known_seed, privacy_block
from twinproof.guarantee import Kind, Status

_STATUSES = tuple(str(status) for status in Status)
# Settings of the certificates that the promise of robustness repeats.
REPEATED = (
    "norm",
    "sigma",
    "alpha",
    "n",
    "largest_radius",
    "target_radius",
    "law",
    "place",
    "bound",
    "statistic",
    "confidence",
    "runner_up",
    "operator_norm",
)
GUARANTEE = (
    Field("kind", is_text, "privacy or robustness"),
    Field("status", lambda value: isinstance(value, str) and value in _STATUSES, ", ".join(_STATUSES)),
    Field("promise", lambda value: isinstance(value, str), "a text"),
    Field("theorem", lambda value: isinstance(value, str), "a text"),
    Field("assumptions", is_texts, "a list of texts"),
    Field("reason", lambda value: isinstance(value, str), "a text"),
    Field("values", is_object, "numbers by name"),
)


def epsilon_problems(run: dict[str, Any], spent: Spent | None) -> Iterator[Problem]:
    """Both epsilons of the privacy block against the recomputed ones."""
    block = privacy_block(run)
    if block is None or spent is None:
        return
    yield from printed_problems(FILE, "privacy.epsilon", block.get("epsilon"), spent.epsilon, spent.error)
    yield from printed_problems(FILE, "privacy.epsilon_rdp", block.get("epsilon_rdp"), spent.epsilon_rdp)


def guarantee_problems(run: dict[str, Any], spent: Spent | None) -> Iterator[Problem]:
    """Form of both guarantees, then whether the one on privacy may be given."""
    guarantees = run.get("guarantees")
    if not isinstance(guarantees, dict):
        return
    kinds = tuple(str(kind) for kind in Kind)
    yield from field_problems(
        FILE, guarantees, tuple(Field(kind, is_object, "a guarantee") for kind in kinds), where="guarantees.", closed=True
    )
    for kind in kinds:
        record = guarantees.get(kind)
        if not isinstance(record, dict):
            continue
        yield from field_problems(FILE, record, GUARANTEE, where=f"guarantees.{kind}.", closed=True)
        if record.get("kind") != kind:
            yield Problem(FILE, f"guarantees.{kind} speaks of something else", shown(record.get("kind")), kind)
    privacy = guarantees.get("privacy")
    if isinstance(privacy, dict):
        yield from _status_problems(run, privacy, spent)
        yield from _value_problems(run, privacy)


def robustness_problems(run: dict[str, Any], certificates: dict[str, Any]) -> Iterator[Problem]:
    """Whether the certificates (their settings; empty where there are none) carry what is promised about robustness."""
    guarantees = run.get("guarantees")
    promise = guarantees.get("robustness") if isinstance(guarantees, dict) else None
    if not isinstance(promise, dict):
        return
    if not certificates:
        if promise.get("status") == Status.PROVEN:
            what = "guarantees.robustness.status is proven, but nothing is certified"
            yield Problem(FILE, what, "no certificates", "certificates, or status none")
        return
    refuted = certificates.get("bound") == PUBLISHED
    if refuted and promise.get("status") != Status.REFUTED:
        what = "guarantees.robustness.status hides that the bound of the certificates is false"
        yield Problem(FILE, what, shown(promise.get("status")), f"{Status.REFUTED}: the bound is {PUBLISHED!r}")
    values = promise.get("values")
    for name in REPEATED:
        if isinstance(values, dict) and name in values and values[name] != certificates.get(name):
            what = f"guarantees.robustness.values.{name} is not that of the certificates"
            yield Problem(FILE, what, shown(values[name]), f"{shown(certificates.get(name))} (certificates.json)")


def _status_problems(run: dict[str, Any], guarantee: dict[str, Any], spent: Spent | None) -> Iterator[Problem]:
    status = guarantee.get("status")
    what = f"guarantees.privacy.status is {shown(status)}"
    if as_printed(run):
        if status != Status.REFUTED or privacy_block(run) is not None:
            got = f"{shown(status)}, {'no' if privacy_block(run) is None else 'a'} privacy block"
            yield Problem(FILE, "steps as a paper printed them keep no promise of privacy", got, f"{Status.REFUTED}, null")
        return
    if privacy_block(run) is None:
        if status not in (Status.NONE, Status.REFUTED):  # a mechanism that is refuted has nothing to count either
            yield Problem(FILE, f"{what}, but the recipe has no privacy", shown(status), str(Status.NONE))
        return
    if takes_unpaid(run) and status not in (Status.REFUTED, Status.NONE):
        wanted = f"{Status.REFUTED}, or {Status.NONE} with a known seed"
        yield Problem(FILE, f"{what}, but the shares of the noise give records away, and nothing pays", shown(status), wanted)
    if status != Status.PROVEN:
        return
    if is_published(run):
        got = "config.variant is published"
        yield Problem(FILE, f"{what}, but the recipe was carried out as its paper printed it", got, "variant sound, or refuted")
    if known_seed(run):
        got = "config.seed is set, or config does not say"
        yield Problem(FILE, f"{what}, but the noise is reproducible from a known seed", got, "config.seed null, or status none")
    if spent is None or number(spent.epsilon) is None:
        yield Problem(FILE, f"{what}, but the ledger gives no finite epsilon", "no finite epsilon", "a proof, or status none")


def _value_problems(run: dict[str, Any], guarantee: dict[str, Any]) -> Iterator[Problem]:
    """Numbers a promise repeats must be those of the privacy block; a promise must state them."""
    values, block = guarantee.get("values"), privacy_block(run) or {}
    if not isinstance(values, dict):
        return
    stated = guarantee.get("status") in (Status.PROVEN, Status.PUBLISHED)
    for name in ("epsilon", "delta"):
        if name not in values:
            if stated:
                yield Problem(FILE, f"guarantees.privacy.values lacks {name}", "nothing", shown(block.get(name)))
        elif number(values[name]) is None or number(values[name]) != number(block.get(name)):
            wanted = f"{shown(block.get(name))} (privacy.{name})"
            yield Problem(FILE, f"guarantees.privacy.values.{name} differs from the privacy block", shown(values[name]), wanted)
