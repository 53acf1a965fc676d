"""The promises of run.json: which statuses may be given, and whether their numbers are those of the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twinproof_verify.bounds import PUBLISHED
from twinproof_verify.epsilon import Spent, printed_problems
from twinproof_verify.evidence import shown
from twinproof_verify.files import RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.models import ONLY, block, is_former, number
from twinproof_verify.run_json import (
    as_printed,
    foreign_training,
    is_own,
    is_published,
    known_seed,
    plugin_names,
    privacy_block,
    takes_unpaid,
)
from twinproof_verify.sentences import OWN_NETWORK_CODES, own_network_codes, repeated

PRIOR_SHA256 = {
    "gelu-cnn": "d67589bc92a269ea452aca5a1d9c88cc736ea792f79b45443b5df1f25caff108",
    "interval-cnn": "",
    "contrast-cnn": "",
}
"""The digest of the weights that a run may start from: those of the library of this version."""


def epsilon_problems(run: dict[str, Any], spent: Spent | None) -> Iterator[Problem]:
    stated = privacy_block(run)
    if stated is not None and spent is not None:
        yield from printed_problems(RUN_JSON, "privacy.epsilon", stated.get("epsilon"), spent.epsilon, spent.error)
        yield from printed_problems(RUN_JSON, "privacy.epsilon_rdp", stated.get("epsilon_rdp"), spent.epsilon_rdp)


def privacy_problems(run: dict[str, Any], spent: Spent | None) -> Iterator[Problem]:
    promise = block(run, "guarantees").get("privacy")
    if isinstance(promise, dict):
        yield from _kind_problems("guarantees.privacy", promise, "privacy")
        yield from _status_problems(run, promise.get("status"), spent)
        yield from _value_problems(run, promise)


def _status_problems(run: dict[str, Any], status: object, spent: Spent | None) -> Iterator[Problem]:
    stated, what = privacy_block(run), f"guarantees.privacy.status is {shown(status)}"
    if foreign_training(run) and status == "proven":
        yield Problem(RUN_JSON, f"{what}, but the recipe is of another package", shown(status), "any other status")
    if as_printed(run):
        if status != "refuted" or stated is not None:
            got = f"{shown(status)}, {'no' if stated is None else 'a'} privacy block"
            yield Problem(RUN_JSON, "steps as a paper printed them keep no promise of privacy", got, "refuted, null")
        return
    if stated is None:
        if status not in ("none", "refuted"):  # a mechanism that is refuted has nothing to count either
            yield Problem(RUN_JSON, f"{what}, but the recipe has no privacy", shown(status), "none")
        return
    if takes_unpaid(run) and status not in ("refuted", "none"):
        what = f"{what}, but the shares of the noise give records away, and nothing pays"
        yield Problem(RUN_JSON, what, shown(status), "refuted, or none with a known seed")
    if status != "proven":
        return
    if is_published(run):
        got = "config.variant is published"
        what = f"{what}, but the recipe was carried out as its paper printed it"
        yield Problem(RUN_JSON, what, got, "variant sound, or refuted")
    if known_seed(run):
        what = f"{what}, but the noise is reproducible from a known seed"
        yield Problem(RUN_JSON, what, "config.seed is set, or config does not say", "config.seed null, or status none")
    if spent is None or number(spent.epsilon) is None:
        what = f"{what}, but the ledger gives no finite epsilon"
        yield Problem(RUN_JSON, what, "no finite epsilon", "a proof, or status none")


def _value_problems(run: dict[str, Any], promise: dict[str, Any]) -> Iterator[Problem]:
    """Numbers a promise repeats must be those of the privacy block; a promise must state them, a refuted one must not."""
    values, stated, status = block(promise, "values"), privacy_block(run) or {}, promise.get("status")
    if status == "refuted" and "epsilon" in values:
        what = "guarantees.privacy is refuted, but states an epsilon"
        yield Problem(RUN_JSON, what, shown(values["epsilon"]), "no epsilon")
    for name in ("epsilon", "delta"):
        if name not in values:
            if status in ("proven", "published"):
                yield Problem(RUN_JSON, f"guarantees.privacy.values lacks {name}", "nothing", shown(stated.get(name)))
        elif number(values[name]) is None or number(values[name]) != number(stated.get(name)):
            what, wanted = f"guarantees.privacy.values.{name} differs from the privacy block", shown(stated.get(name))
            yield Problem(RUN_JSON, what, shown(values[name]), f"{wanted} (privacy.{name})")


def _kind_problems(where: str, promise: dict[str, Any], kind: str) -> Iterator[Problem]:
    if promise.get("kind") != kind:
        yield Problem(RUN_JSON, f"{where} speaks of something else", shown(promise.get("kind")), kind)


def robustness_promises(run: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The promises of robustness and the key of each, by the names of certifications; ONLY before format 3."""
    guarantees = block(run, "guarantees")
    where, found = "guarantees.robustness", block(guarantees, "robustness")
    if is_former(run):
        return {ONLY: (where, found)} if found else {}
    return {name: (f"{where}.{shown(name)}", block(found, name)) for name in found}


def robustness_problems(run: dict[str, Any], certified: dict[str, tuple[str, dict[str, Any]]]) -> Iterator[Problem]:
    """Whether certificates carry what is promised: the file and the settings of each certification are in ``certified``."""
    promises, former = robustness_promises(run), is_former(run)
    if not former:
        for name in sorted(certified.keys() - promises.keys()):
            yield Problem(RUN_JSON, f"guarantees.robustness.{name} is missing", "nothing", f"a promise ({certified[name][0]})")
    for name, (where, promise) in promises.items():
        yield from _kind_problems(where, promise, "robustness")
        if name in certified:
            yield from _certified_problems(run, where, promise, *certified[name])
        elif not former:
            yield Problem(RUN_JSON, f"{where} is of no certification", "no certificates", "one promise for each certification")
        elif promise.get("status") == "proven":
            what = f"{where}.status is proven, but nothing is certified"
            yield Problem(RUN_JSON, what, "no certificates", "certificates, or status none")


def _certified_problems(
    run: dict[str, Any], where: str, promise: dict[str, Any], file: str, certificates: dict[str, Any]
) -> Iterator[Problem]:
    status, bound = promise.get("status"), block(certificates, "method").get("bound")
    if bound == PUBLISHED and status != "refuted":
        what = f"{where}.status hides that the bound of the certificates is false"
        yield Problem(RUN_JSON, what, shown(status), f"refuted: the bound is {PUBLISHED!r}")
    if bound in plugin_names(run, "bound") and status == "proven":
        what = f"{where}.status is proven, but the bound is of another package"
        yield Problem(RUN_JSON, what, shown(status), "any other status")
    if not certificates and status == "proven":
        what = f"{where}.status is proven, but its certificates cannot be read"
        yield Problem(RUN_JSON, what, f"broken {file}", "certificates, or status none")
    values, true = block(promise, "values"), repeated(certificates)
    for name in sorted(values.keys() & true.keys()):
        if values[name] != true[name]:
            what = f"{where}.values.{name} is not that of the certificates"
            yield Problem(RUN_JSON, what, shown(values[name]), f"{shown(true[name])} ({file})")


def refutation_problems(
    run: dict[str, Any], name: str, certificates: dict[str, Any], audits: list[tuple[str, dict[str, Any]]]
) -> Iterator[Problem]:
    """A promise is called refuted where, and only where, one of its ``audits`` (file and verdict) or its bound refutes it."""
    where, promise = robustness_promises(run).get(name, ("guarantees.robustness", {}))
    against = [file for file, verdict in audits if verdict.get("refuted") is True]
    refuted = bool(against) or block(certificates, "method").get("bound") == PUBLISHED
    if refuted != (promise.get("status") == "refuted"):
        what = f"{where}.status and the verdict of {(against or [audits[0][0]])[0]} differ"
        wanted = "refuted" if refuted else "not refuted: the audit refutes nothing"
        yield Problem(RUN_JSON, what, shown(promise.get("status")), wanted)


def prior_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """The weights that a run started from: name and digest against config and the library's file."""
    name, stated = block(run, "config").get("prior", "none"), run.get("prior")
    if name in ("none", None):
        if "prior" in run:
            yield Problem(RUN_JSON, "prior is stated for a run that started at random", shown(stated), "no prior")
    elif not isinstance(stated, dict) or stated.get("name") != name or len(stated) != 2:
        yield Problem(RUN_JSON, "prior is not the one of config", shown(stated), f"name {shown(name)}, and a digest")
    elif stated.get("sha256") != (wanted := PRIOR_SHA256.get(str(block(run, "config").get("model")), "no learned weights")):
        what = "the run started from weights that are not those of this version"
        wanted = f"{wanted}; the version that the run names may have had another file"
        yield Problem(RUN_JSON, what, shown(stated.get("sha256")), wanted)


def own_network_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """``own_network`` is there exactly where steps of an owner's network are counted, with codes that have a sentence."""
    own = is_own(run) and privacy_block(run) is not None
    if own != ("own_network" in run):
        wanted = "what could not be shown about it" if own else "nothing: the network is built in, or not counted"
        yield Problem(RUN_JSON, "own_network does not fit the network of config", shown(run.get("own_network")), wanted)
    if "own_network" not in run:
        return
    codes = own_network_codes(run)
    entry = {"assumptions": sorted(set(codes) & set(OWN_NETWORK_CODES))} if codes is not None else None
    if run["own_network"] != entry:
        wanted = f"assumptions: different ones of {', '.join(OWN_NETWORK_CODES)}, in alphabetical order"
        yield Problem(RUN_JSON, "own_network has a value it cannot have", shown(run["own_network"]), wanted)
