"""The record of an audit of certificates by interval bounds: written, resumed, read by report and verifier; planted lies."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interval_runs import digits_of, make_run

import twinproof as tp
from interruption import StopAfter
from synthetic_run import bind, forge_lines, forge_run
from twinproof.auditing import interval_audit, interval_verdict
from twinproof.auditing.certificate_verdict import audits_of
from twinproof.auditing.interval_audit import audit_intervals
from twinproof.auditing.interval_verdict import IntervalAudit, IntervalBudget, interval_audits_of
from twinproof.certification.interval_run import certify_intervals
from twinproof.certification.method import Sampling
from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.reporting.run import report_run
from twinproof.runs.run import Run
from twinproof_verify import Originals, Verification, verify

NAME = "linf-interval"
AUDIT = f"audits/{NAME}.json"
CSV = f"certificates/{NAME}/certificates.csv"
LIMIT = 40
QUICK = IntervalBudget(steps=20, restarts=1)
Apply = Callable[[Path], Any]


def audited(root: Path, **options: Any) -> IntervalAudit:
    settings = {"budget": QUICK, "device": "cpu", "key": Key.from_seed(3), **options}
    found: IntervalAudit = audit_intervals(Run.open(root), digits_of(root), **settings)
    return found


def lengthened(root: Path) -> None:
    """Planted: radii of 0.5, twenty times too long."""

    def change(lines: list[str]) -> None:
        lines[1:] = [re.sub(r"0\.\d{6}", "0.500000", one) for one in lines[1:]]

    forge_lines(CSV, change)(root)
    bind(root)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_run(tmp_path_factory.mktemp("certified") / "run")
    certify_intervals(Run.open(root), digits_of(root), limit=LIMIT, device="cpu")
    return root


@pytest.fixture(scope="module")
def refuted(certified: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(certified, tmp_path_factory.mktemp("refuted") / "run"))
    lengthened(root)
    audited(root)
    return root


@pytest.fixture
def root(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


@pytest.fixture
def broken(refuted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(refuted, tmp_path / "broken"))


def with_test_set(root: Path) -> Verification:
    test = digits_of(root).test
    return verify(root, Originals(test.inputs, test.labels))


def promise(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "run.json").read_text())["guarantees"]["robustness"][NAME]
    return found


def test_an_honest_audit_is_bound_and_verifies(root: Path) -> None:
    found = audited(root)
    assert (found.flips, found.verdict.verdict, found.verdict.refuted) == ((), "not refuted", False)
    assert found.settings.attackable == found.verdict.attacked > LIMIT / 2
    assert AUDIT in json.loads((root / "run.json").read_text())["files"]
    assert (interval_audits_of(root), audits_of(root)) == ({NAME: found}, {})
    assert promise(root)["status"] == "proven"
    for checked in (verify(root), with_test_set(root), tp.verify(root)):
        assert checked.problems == ()
        assert {f"audit ({NAME})", f"audit is of these certificates ({NAME})"} <= {one.name for one in checked.checks}


def test_audit_in_python_attacks_what_is_there(root: Path) -> None:
    found = tp.audit(Run.open(root), digits_of(root), limit=3, device="cpu", key=Key.from_seed(3))
    assert isinstance(found, IntervalAudit)
    assert found.settings.budget == IntervalBudget(100, 3)
    assert tp.audit(Run.open(root), digits_of(root), limit=3, device="cpu", key=Key.from_seed(3)) == found


def test_one_flip_refutes_the_promise_everywhere(broken: Path) -> None:
    (found,) = interval_audits_of(broken).values()
    assert found.verdict.refuted
    assert found.verdict.flips == len(found.flips) > 3
    stated = promise(broken)
    assert stated["status"] == "refuted"
    assert f"attacks changed {len(found.flips)} certified answers of {LIMIT} inputs" in stated["reason"]
    assert AUDIT in stated["reason"]
    assert verify(broken).problems == ()
    said = {one.what for one in with_test_set(broken).problems}
    assert said
    assert all("above what interval bounds" in one for one in said), "the flips are true, the radii are not"


def test_flips_are_points_of_float32_inside_the_radius(broken: Path) -> None:
    run, data = Run.open(broken), digits_of(broken)
    network = run.model().double()
    for one in interval_audits_of(broken)[NAME].flips:
        assert one.point is not None
        point = np.array(one.point)
        assert np.array_equal(point, point.astype(np.float32))
        assert 0 <= point.min() <= point.max() <= 1
        away = np.abs(point - data.test.inputs[one.index].reshape(-1) / data.levels).max()
        assert away == one.distance <= one.radius == 0.5
        shaped = torch.from_numpy(point.reshape(1, *data.shape))
        assert int(network(shaped).argmax()) == one.answer != one.prediction


def test_of_many_flips_only_some_keep_their_point(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_verdict, "_KEPT", 130)
    kept = [one.point is not None for one in audited(broken, name="few").flips]
    assert (kept[:2], any(kept[2:])) == ([True, True], False)
    assert verify(broken).problems == ()


def test_interrupted_work_ends_with_the_same_flips(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_audit, "_ROWS", {"cpu": 8})
    whole = audited(broken, name="whole")
    with pytest.raises(KeyboardInterrupt):
        audited(broken, name="cut", progress=StopAfter(2))
    assert list(interval_audits_of(broken)) == [NAME, "whole"], "nothing is written before all of it is there"
    assert audited(broken, name="cut").flips == whole.flips


def test_evidence_is_not_overwritten_and_other_settings_need_a_word(root: Path, broken: Path) -> None:
    audited(root)
    with pytest.raises(RunError, match="other settings"):
        audited(root, budget=IntervalBudget(steps=5, restarts=1))
    audited(root, budget=IntervalBudget(steps=5, restarts=1), overwrite=True)
    with pytest.raises(RunError, match="is kept"):
        audited(broken, overwrite=True)
    with pytest.raises(ConfigError):
        audited(root, limit=0)


def test_the_two_kinds_keep_apart(root: Path) -> None:
    run, data = Run.open(root), digits_of(root)
    tp.certify(run, data, sampling=Sampling(10, 100, 0.01), limit=2, device="cpu")
    few = tp.AttackBudget(steps=1, draws=1, restarts=1, directions=1, rounds=1, screen=20, votes=100)
    tp.audit(run, data, budget=few, device="cpu")
    with pytest.raises(ConfigError, match="not ones of interval bounds"):
        tp.audit(run, data, budget=QUICK, device="cpu")
    tp.audit(run, data, budget=QUICK, certificates=NAME, device="cpu")
    assert (list(audits_of(root)), list(interval_audits_of(root))) == (["l2"], [NAME])
    with pytest.raises(RunError, match="another kind"):
        audited(root, name="l2")
    assert verify(root).problems == ()


def forged(change: Callable[[dict[str, Any]], Any]) -> Apply:
    def apply(root: Path) -> None:
        path = root / AUDIT
        record = json.loads(path.read_text())
        change(record["intervals"])
        path.write_text(json.dumps(record))
        bind(root)

    return apply


def first(section: dict[str, Any]) -> dict[str, Any]:
    flip: dict[str, Any] = section["flips"][0]
    return flip


def keep_nothing(section: dict[str, Any]) -> None:
    section["flips"] = []
    section["verdict"].update(flips=0, refuted=False, verdict="not refuted")


LIES: dict[str, tuple[Apply, str]] = {
    "the verdict talked away": (forged(lambda one: one["verdict"].update(refuted=False)), "verdict.refuted"),
    "fewer flips": (forged(lambda one: one["flips"].pop()), "verdict.flips"),
    "no flips, and a promise that is refuted": (forged(keep_nothing), "differ"),
    "a flip of another radius": (forged(lambda one: first(one).update(radius=0.6)), "not about a certificate"),
    "a flip of another answer": (
        forged(lambda one: first(one).update(prediction=first(one)["answer"])),
        "not about a certificate",
    ),
    "a flip to the same class": (forged(lambda one: first(one).update(answer=first(one)["prediction"])), "no other class"),
    "a class that is none": (forged(lambda one: first(one).update(answer=77)), "no other class"),
    "a flip outside": (forged(lambda one: first(one).update(distance=0.51)), "outside of the radius"),
    "no point": (forged(lambda one: first(one).update(point=None)), "no flip keeps its point"),
    "a point of other data": (forged(lambda one: first(one)["point"].pop()), "is no input"),
    "a point that is none": (forged(lambda one: first(one)["point"].__setitem__(0, 1.5)), "point"),
    "a flip twice": (forged(lambda one: one["flips"].insert(0, first(one))), "each once"),
    "more certificates than there are": (forged(lambda one: one.update(attackable=99)), "attackable"),
    "more inputs than were certified": (forged(lambda one: one.update(inputs=99)), "inputs is more"),
    "another norm": (forged(lambda one: one.update(norm="l2")), "norm"),
    "other certificates": (forged(lambda one: one.update(certificates_sha256="0" * 64)), "stale"),
    "other weights": (forged(lambda one: one["network"].update(model_sha256="0" * 64)), "stale"),
    "no certification": (forged(lambda one: one.update(of="l2")), "no certification by interval bounds"),
    "another arithmetic": (forged(lambda one: one["network"].update(arithmetic="tf32")), "float32"),
    "a chance": (forged(lambda one: one["verdict"].update(probability=0.1)), "verdict"),
    "a promise that stands": (
        forge_run(lambda run: run["guarantees"]["robustness"][NAME].update(status="proven", reason="")),
        "differ",
    ),
    "another reason": (forge_run(lambda run: run["guarantees"]["robustness"][NAME].update(reason="chance")), "reason"),
}


@pytest.mark.parametrize("lie", LIES)
def test_planted_lies_are_found(lie: str, broken: Path) -> None:
    apply, words = LIES[lie]
    apply(broken)
    bind(broken)
    found = verify(broken).problems
    assert any(words in one.what for one in found), [one.what for one in found]


def test_a_point_is_measured_and_its_answer_proven(broken: Path) -> None:
    """Planted: a flip at the input itself, where the network gives the certified answer; and one that lies elsewhere."""

    def at_home(section: dict[str, Any]) -> None:
        data, flip = digits_of(broken), first(section)
        flip.update(point=(data.test.inputs[flip["index"]].reshape(-1) / data.levels).tolist(), distance=0.0)

    moved = Path(shutil.copytree(broken, broken.parent / "moved"))
    forged(at_home)(broken)
    assert any("gives the certified answer" in one.what for one in verify(broken).problems)
    forged(lambda section: first(section).update(distance=0.25))(moved)
    assert verify(moved).problems == (), "a run alone does not hold the input"
    assert any("distance is not that of the point" in one.what for one in with_test_set(moved).problems)


def test_an_audit_of_earlier_certificates_is_stale(root: Path) -> None:
    audited(root)
    certify_intervals(Run.open(root), digits_of(root), limit=5, device="cpu", overwrite=True)
    assert any("stale" in one.what for one in verify(root).problems)


def test_broken_audits_are_problems_not_errors(broken: Path) -> None:
    for content in (b'{"intervals": 3}', b'{"intervals": {"flips": [{"point": [1e999]}], "of": 3}}', b'{"intervals": {}}'):
        (broken / AUDIT).write_bytes(content)
        bind(broken)
        assert verify(broken).problems
        with pytest.raises(RunError):
            interval_audits_of(broken)


def test_the_report_shows_what_was_found(root: Path, broken: Path) -> None:
    audited(root)
    report_run(root)
    page, record = (root / "report.html").read_text(), json.loads((root / "report.json").read_text())
    assert "Not refuted: no attack changed an answer inside its radius." in page
    (one,) = record["audits"]
    assert (one["certification"], one["verdict"]["verdict"], one["flipped"]) == (NAME, "not refuted", [])
    report_run(broken)
    page, record = (broken / "report.html").read_text(), json.loads((broken / "report.json").read_text())
    assert "DEFECT" in page
    assert "contradicted by a point inside their radius" in page
    assert record["audits"][0]["verdict"]["refuted"]
    assert all(one["ratio"] <= 1 for one in record["audits"][0]["flipped"])
