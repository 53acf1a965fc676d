"""Both promises are rebuilt from the settings: writer and verifier agree on every sentence, and no lie in words passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planted_lies import Lie
from synthetic_promise import in_format_2
from synthetic_run import forge_ledger, forge_lines, forge_run, forge_settings, write_run
from twinproof.auditing.audit import refuted_promise
from twinproof.auditing.certificate_verdict import Verdict
from twinproof.auditing.verify import verify_run
from twinproof.certification.catalogue import _BOUNDS, find_bound
from twinproof.certification.confidence import CONFIDENCE_NAMES, RunnerUp, find_confidence
from twinproof.certification.method import CertificateSettings, Method, Statistic
from twinproof.certification.promise import certified_promise
from twinproof.cli.main import run
from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.federated.agreement import ASSUMPTIONS as OF_FEDERATIONS
from twinproof.guarantee import Guarantee, guessing_words
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import BOTH_PLACES, RedistributionKind
from twinproof.privacy.accounting import Spending
from twinproof.privacy.linear_maps import Norm
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.finish import OWN_NETWORK_ASSUMPTIONS, not_yet_certified, privacy_guarantee
from twinproof.recipes.interval import IntervalConfig
from twinproof.recipes.recipe import variants_of
from twinproof.recipes.registry import RECIPES
from twinproof.runs.records import AUDITS, Look
from twinproof.runs.work import Place as Work
from twinproof_papers.published.stobatch import TrainersConfig
from twinproof_verify import sentences
from twinproof_verify.inspection import TRAINING
from twinproof_verify.run_json import CONFIG
from twinproof_verify.sentences import OWN_NETWORK_CODES, privacy_promise, privacy_words, robustness_promise
from work_settings import CERTIFICATES, changed

SPENDINGS = (Spending(0.0, 0.0, 1e-5), Spending(2.999213, 3.2, 1e-4), Spending(8.0, 9.0, 1e-5), Spending(50.25, 60.0, 1e-9))


def words(promise: Guarantee) -> dict[str, Any]:
    """As it stands in run.json, less the kind."""
    record: dict[str, Any] = json.loads(json.dumps(promise.as_dict()))
    record.pop("kind")
    return record


def trained_settings() -> Iterator[TrainConfig]:
    """Every recipe in every variant, with every way of sharing out the noise, with and without a seed."""
    for recipe, variant, seed in product(RECIPES.values(), ("sound", "published"), (None, 7)):
        if variant not in variants_of(recipe.name):
            continue
        config = parse_train_config({"recipe": recipe.name, "data": {"source": "digits"}, "variant": variant})
        config = config.model_copy(update={"seed": seed})
        yield config
        for kind, public in product(RedistributionKind, (None, "other")) if config.noise_layer is not None else ():
            layer = cast(Any, config.noise_layer).model_copy(update={"redistribution": kind, "public_data": public})
            yield config.model_copy(update={"noise_layer": layer})


def run_of(config: TrainConfig, source: str | None, spent: Spending | None, own: list[str] | None) -> dict[str, Any]:
    block = None if spent is None else {"epsilon": spent.epsilon, "epsilon_rdp": spent.epsilon_rdp, "delta": spent.delta}
    run = {"config": config.model_dump(mode="json"), "data": {"scaling": source and {"source": source}}, "privacy": block}
    return run if own is None else {**run, "own_network": {"assumptions": own}}


def test_writer_and_verifier_promise_the_same_privacy() -> None:
    codes: list[list[str] | None] = [None, [], *([code] for code in OWN_NETWORK_ASSUMPTIONS), sorted(OWN_NETWORK_ASSUMPTIONS)]
    seen = set()
    configs = list(trained_settings())
    for config, source in product(configs, (None, "declared", "test", "private")):
        dataset = cast(Dataset, SimpleNamespace(scaling=source and SimpleNamespace(source=source)))
        counted = RECIPES[config.recipe].counted(config.variant)
        for spent, own in product(SPENDINGS, codes) if counted else ((None, None),):
            wanted = words(privacy_guarantee(config, dataset, spent, own))
            assert privacy_promise(run_of(config, source, spent, own)) == wanted
            seen.add(wanted["status"])
    assert seen == {"proven", "published", "assumed", "refuted", "none"}
    assert len(configs) > 100


def test_the_tables_of_writer_and_verifier_have_the_same_codes_and_settings() -> None:
    assert OWN_NETWORK_CODES == OWN_NETWORK_ASSUMPTIONS
    assert sentences.FEDERATION == OF_FEDERATIONS
    written = parse_train_config({"recipe": "stobatch", "data": {"source": "digits"}, "variant": "published"})
    settings = written.model_copy(update={"trainers": TrainersConfig(count=2, per_step=1)}).model_dump(mode="json")
    settings |= {"interval": IntervalConfig().model_dump(mode="json")}
    later = {"data": {"test_fraction", "public_fraction"}}  # one of them, by the version that wrote the run
    for section, names in CONFIG.items():
        found = settings[section] if section else settings
        assert set(found) <= set(names.split())
        assert set(names.split()) - set(found) <= later.get(section, set())


def all_settings() -> Iterator[CertificateSettings]:
    places = (*map(str, Place), BOTH_PLACES)
    for bound, place, norm, statistic in product(
        (*_BOUNDS, *(find_bound("published", law) for law in Law)), places, Norm, Statistic
    ):
        fitting = [name for name in CONFIDENCE_NAMES if statistic is Statistic.VOTES or not find_confidence(name).votes_only]
        for confidence, runner_up in product(fitting, RunnerUp):
            method = Method(str(norm), bound.name, statistic, confidence, runner_up)
            made = changed(replace(CERTIFICATES, method=method), law=str(bound.law), place=place)
            yield replace(made, resolution=2**20 if statistic is Statistic.SCORES else 1)
            yield changed(made, shared_noise=True, operator_norm=3.25, alpha=0.05, sigma=1.0)
            yield changed(made, target_radius=0.5, looks=(Look(10, 1e-4), Look(1000, 9e-4)))


def test_writer_and_verifier_promise_the_same_robustness(tmp_path: Path) -> None:
    count = 0
    refuted, audit_place = Verdict(50, 40, 7, 1, 0.001, 0.05, "binomial", 1e-9, True, 0.5, 0.7, 3), Work(tmp_path, AUDITS, "l2")
    audits = (None, ("audits/l2.json", {"refuted": False, "flips": 7, "inputs": 50}))
    against = ("audits/l2.json", {"refuted": True, "flips": 7, "inputs": 50})
    for settings in all_settings():
        written = json.loads(json.dumps(settings.as_dict()))
        for audit in audits:
            assert robustness_promise({}, written, audit) == words(certified_promise(settings))
        assert robustness_promise({}, written, against) == words(refuted_promise(settings, refuted, audit_place))
        count += 1
    assert count == (len(_BOUNDS) + len(Law)) * 3 * 3 * 5 * 2 * 3
    assert robustness_promise({"config": {"sigma": 0.25}}, {}) == words(not_yet_certified(0.25))


def test_a_sentence_that_changes_in_one_place_alone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug of the two tests above: one word less on the verifier's side."""
    monkeypatch.setattr(sentences, "PRIVACY_ASSUMPTIONS", sentences.PRIVACY_ASSUMPTIONS[1:])
    monkeypatch.setattr(sentences, "GRID", sentences.GRID[:-1])
    with pytest.raises(AssertionError):
        test_writer_and_verifier_promise_the_same_privacy()
    with pytest.raises(AssertionError):
        test_writer_and_verifier_promise_the_same_robustness(tmp_path)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 3.0, 6.9, 6.91, 7.999, 8.0, 9.2, 9.3, 50.0, 99.99, 1e300])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_plain_words_are_computed_alike(epsilon: float, delta: float) -> None:
    assert sentences.meaning(epsilon, delta) == guessing_words(epsilon, delta)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    in_format_2(tmp_path / "run")
    return tmp_path / "run"


def told(kind: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return forge_run(lambda run: change(run["guarantees"][kind]))


def word(kind: str, name: str, part: str, change: Callable[[dict[str, Any]], Any]) -> Lie:
    """A lie in one part of a promise."""
    return Lie(f"{kind} {name}", told(kind, change), "run.json", f"{kind}.{part} does not follow")


def without(at: int) -> Callable[[dict[str, Any]], Any]:
    return lambda promise: promise["assumptions"].pop(at)


def key(where: str, change: Callable[[dict[str, Any]], Any], what: str = "unknown key", file: str = "run.json") -> Lie:
    """A key that is not part of the format, or a section that lacks something."""
    forge = forge_run if file == "run.json" else forge_settings
    return Lie(f"key of {where}", forge(change), file, what)


def with_note(lines: list[str]) -> None:
    lines[0] = lines[0].replace("{", '{"note": 1, ', 1)


SMALL = "(0.01, 1e-12)-differential privacy, for one training record replaced by nothing."
LIES = [
    word("privacy", "with a smaller epsilon", "promise", lambda p: p.update(promise=SMALL)),
    word("privacy", "without what it means", "promise", lambda p: p.update(promise=p["promise"][:80])),
    word("privacy", "without assumptions", "assumptions", lambda p: p.update(assumptions=[])),
    *(word("privacy", f"without {at}", "assumptions", without(at)) for at in range(12)),
    word("privacy", "with one more", "assumptions", lambda p: p["assumptions"].append("x")),
    word("privacy", "in another order", "assumptions", lambda p: p["assumptions"].reverse()),
    word("privacy", "without values", "values", lambda p: p.update(values={})),
    word("privacy", "with invented values", "values", lambda p: p["values"].update(pure=True)),
    word("privacy", "by another theorem", "theorem", lambda p: p.update(theorem="Fermat 1637")),
    word("privacy", "by no theorem", "theorem", lambda p: p.update(theorem="")),
    word("privacy", "for another reason", "reason", lambda p: p.update(reason="because")),
    word("privacy", "lifted to proven", "status", lambda p: p.update(status="proven")),
    word("privacy", "lowered to none", "status", lambda p: p.update(status="none")),
    word("robustness", "in another norm", "promise", lambda p: p.update(promise=p["promise"].replace("l2", "linf"))),
    word("robustness", "with fewer failures", "promise", lambda p: p.update(promise=p["promise"].replace("0.001", "1e-09"))),
    word("robustness", "without assumptions", "assumptions", lambda p: p.update(assumptions=[])),
    *(word("robustness", f"without {at}", "assumptions", without(at)) for at in range(5)),
    word("robustness", "by another theorem", "theorem", lambda p: p.update(theorem="Fermat 1637")),
    word("robustness", "for a reason", "reason", lambda p: p.update(reason="sure")),
    word("robustness", "without values", "values", lambda p: p.update(values={})),
    word("robustness", "with true for one", "values", lambda p: p["values"].update(n=True)),
    word("robustness", "said to be refuted", "status", lambda p: p.update(status="refuted")),
    Lie("key of a promise", told("privacy", lambda p: p.update(bonus="green")), "run.json", "unknown key"),
    key("the promises", lambda r: r["guarantees"].update(fairness={})),
    key("run.json", lambda r: r.update(blessing="x")),
    key("data", lambda r: r["data"].update(secret="x"), "data.there is an unknown key"),
    key("scaling", lambda r: r["data"]["scaling"].update(x=1), "data.scaling.there is an unknown key"),
    key("privacy", lambda r: r["privacy"].update(x=1), "privacy.there is an unknown key"),
    key("accuracy", lambda r: r["accuracy"].update(x=1), "accuracy.there is an unknown key"),
    key("a digest", lambda r: r["files"]["ledger.jsonl"].update(x=1), "no usable digest"),
    key("config", lambda r: r["config"].update(x=1), "config has a setting that does not exist"),
    key("config.data", lambda r: r["config"]["data"].update(x=1), "config.data has a setting that does not exist"),
    key("certificates", lambda s: s.update(x=1), file="certificates.json"),
    Lie("key of progress", forge_lines("metrics.jsonl", with_note), "metrics.jsonl", "unknown key"),
    Lie("key of an event", forge_ledger(lambda story: story[1][1].update(note=1)), "ledger.jsonl", "unknown key"),
    key("own network, gone", lambda r: r.pop("own_network"), "own_network does not fit"),
    key("own network, emptied", lambda r: r["own_network"].clear(), "own_network has a value"),
    key("own network, proven", lambda r: r["own_network"].update(assumptions=[]), "privacy.status does not follow"),
    key("own network, unknown", lambda r: r["own_network"].update(assumptions=["fine"]), "own_network has a value"),
    key("own network, twice", lambda r: r["own_network"].update(assumptions=["kept-state"] * 2), "own_network has a value"),
    key("own network, more", lambda r: r["own_network"].update(note="x"), "own_network has a value"),
    key("own network, built in", lambda r: r["config"].update(model="mlp"), "own_network does not fit"),
    key(
        "federation", lambda r: r.update(federation={"parties": [{"name": "a", "records": 600}]}), "agreement_sha256 is missing"
    ),
    key("a party", lambda r: r.update(federation=federated(r, x=1)), "parties[0].there is an unknown key"),
    key("parties of others", lambda r: r.update(federation=federated(r, records=599)), "parties' records are not those"),
    key("an agreement", lambda r: r.update(federation=federated(r)), "agreement_sha256 is not the digest"),
]


def federated(run: dict[str, Any], **party: Any) -> dict[str, Any]:
    return {"agreement_sha256": "ab" * 32, "parties": [{"name": "a", "records": run["data"]["records"], **party}]}


def test_the_honest_run_passes(root: Path) -> None:
    verification = verify_run(root)
    assert verification.problems == ()
    assert "what was tried on the owner's network while it was trained" in verification.not_checked


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name.replace(" ", "-"))
def test_a_lie_in_words_is_caught(root: Path, lie: Lie) -> None:
    lie.apply(root)
    problems = verify_run(root).problems
    assert [problem for problem in problems if problem.file == lie.file and lie.what in problem.what], problems


def test_format_1_says_that_words_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    told("privacy", lambda promise: promise.update(theorem="another"))(tmp_path / "run")
    verification = verify_run(tmp_path / "run")
    assert verification.problems == ()
    assert any("format 1" in words for words in verification.not_checked)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("certified", [True, False])
def test_nothing_is_promised_where_nothing_was_done(tmp_path: Path, private: bool, certified: bool) -> None:
    root = tmp_path / "run"
    write_run(root, private=private, certified=certified)
    in_format_2(root)
    assert verify_run(root).problems == ()
    promised = [kind for kind, made in (("privacy", private), ("robustness", certified)) if not made]
    for kind in promised:
        told(kind, lambda promise: promise.update(promise="All is well."))(root)
        assert any(f"{kind}.promise" in problem.what for problem in verify_run(root).problems)


def test_the_sentence_of_a_seed_cannot_be_dropped() -> None:
    config = parse_train_config({"recipe": "dpsgd", "data": {"source": "digits"}, "seed": 3})
    run = run_of(config, None, SPENDINGS[1], None)
    stated = {"kind": "privacy", **cast(dict[str, Any], privacy_promise(run))}
    assert stated["reason"] == "noise is reproducible from a known seed"
    stated |= {"reason": "", "status": "proven"}
    found = {problem.what for problem in privacy_words({**run, "guarantees": {"privacy": stated}})}
    assert {what.split()[0] for what in found} == {"guarantees.privacy.reason", "guarantees.privacy.status"}


def test_an_unfinished_run_gets_one_message(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge_run(lambda run: run.update(state="training"))(root)
    (root / "model.safetensors").unlink()
    with pytest.raises(RunError, match="not finished") as refused:
        verify_run(root)
    assert refused.value.fix == f"twinproof train --out {root} --resume"
    with pytest.raises(SystemExit) as ended:
        run(["verify", str(root)])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("not finished") == 1
    assert "--resume" in told.err


@pytest.mark.parametrize("name", ["run.json.part", "certificates.csv.part", "report.html.part", "model.safetensors.part"])
def test_a_file_that_a_kill_left_behind_is_named_and_does_no_harm(root: Path, name: str) -> None:
    (root / name).write_text("half")
    verification = verify_run(root)
    assert verification.problems == ()
    assert any(name in left for left in verification.not_checked)


@pytest.mark.parametrize("name", ["diary.part", "run.json.part.part", ".part", "private.part"])
def test_other_files_are_not_excused_by_their_ending(root: Path, name: str) -> None:
    (root / name).write_text("half")
    assert any("not part of a run" in problem.what for problem in verify_run(root).problems)


def test_what_is_never_checked_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = verify_run(root).not_checked
    assert any("report.html" in one for one in left)
    assert TRAINING in left
    with pytest.raises(SystemExit) as ended:
        run(["verify", str(root)])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[-2].startswith("not checked: ")
