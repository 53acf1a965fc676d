"""``certify --bound interval`` and ``audit`` of its certificates: answers, and one clear error for each mistake."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from interval_runs import bounded as bounded
from interval_runs import root as root
from small_runs import tiny

from synthetic_run import bind, forge_lines
from twinproof.recipes.train import train

INTERVAL = ("--bound", "interval", "--device", "cpu", "--limit", "12")
CSV = "certificates/linf-interval/certificates.csv"


def test_the_answer_names_neither_draws_nor_a_failure_probability(root: Path, call: Any) -> None:
    answer = call("certify", root, *INTERVAL, "--at", "0.001", "--at", "0.2", "--json").json()
    assert (answer["name"], answer["norm"], answer["bound"]) == ("linf-interval", "linf", "interval")
    assert (answer["n"], answer["alpha"], answer["target_radius"]) == (None, None, None)
    radii = ["0", "0.001", "0.01", "0.025", "0.05", "0.1", "0.2", "0.3"]
    assert list(answer["certified_accuracy"]) == radii == list(answer["intervals"]["certified_accuracy"])
    assert answer["certified_accuracy"]["0"] == answer["smoothed_accuracy"] >= answer["certified_accuracy"]["0.001"] > 0
    assert (answer["abstained"], answer["arithmetic"], answer["step"]) == (0.0, "float32", 2.0**-20)
    shown = call("certify", root, *INTERVAL).out
    assert "with certainty" in shown
    assert "sums of products in any order" in shown


def test_it_is_the_default_of_its_recipe(tmp_path: Path, call: Any) -> None:
    train(tiny("digits", recipe="interval", model="relu-mlp", steps=2), tmp_path / "run")
    answer = call("certify", tmp_path / "run", "--device", "cpu", "--limit", "4", "--json").json()
    assert answer["name"] == "linf-interval"
    smoothed = call("certify", tmp_path / "run", "--bound", "tight", "--n", "50", "--device", "cpu", "--limit", "2", "--json")
    assert smoothed.json()["name"] == "l2"


def test_smoothing_gives_accuracy_at_any_radius_too(root: Path, call: Any) -> None:
    options = ("--n", "100", "--n0", "10", "--device", "cpu", "--limit", "4", "--at", "0.1", "--json")
    assert "0.1" in call("certify", root, *options).json()["certified_accuracy"]


@pytest.mark.parametrize(
    ("options", "got"),
    [
        (("--n", "100"), "--n"),
        (("--n0", "10"), "--n0"),
        (("--alpha", "0.01"), "--alpha"),
        (("--sigma", "0.5"), "--sigma"),
        (("--statistic", "scores"), "--statistic"),
        (("--confidence", "hoeffding"), "--confidence"),
        (("--runner-up", "union"), "--runner-up"),
        (("--target-radius", "0.1", "--shared-noise"), "--target-radius, --shared-noise"),
        (("--norm", "l2"), "l2 with interval"),
        (("--norm", "l1"), "l1 with interval"),
    ],
)
def test_combinations_without_a_meaning_are_refused(root: Path, call: Any, options: tuple[str, ...], got: str) -> None:
    ended = call("certify", root, *INTERVAL, *options, "--json")
    assert ended.code == 2
    assert got in ended.json()["error"]["got"]
    assert not (root / "certificates").exists()


def test_a_radius_below_zero_is_refused(root: Path, call: Any) -> None:
    assert call("certify", root, *INTERVAL, "--at", "-1", "--json").code == 2


def test_a_network_without_bounds_is_named(trained: Path, tmp_path: Path, call: Any) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    error = call("certify", run, *INTERVAL, "--json").json()["error"]
    assert (error["where"], error["got"]) == ("2", "Tanh")
    assert "ReLU" in error["wanted"]


def test_an_audit_attacks_the_network_itself(root: Path, call: Any) -> None:
    call("certify", root, *INTERVAL)
    ended = call("audit", root, "--steps", "20", "--restarts", "2", "--device", "cpu", "--json")
    answer = ended.json()
    assert (ended.code, answer["verdict"], answer["flips"], answer["flipped"]) == (0, "not refuted", 0, [])
    assert (answer["name"], answer["of"], answer["steps"], answer["refuted"]) == ("linf-interval", "linf-interval", 20, False)
    assert answer["attacked"] == sum(float(line.split(",")[3]) > 0 for line in (root / CSV).read_text().splitlines()[1:])
    assert "not refuted" in call("audit", root, "--steps", "2", "--name", "short", "--device", "cpu").out
    assert "audits linf-interval, short" in call("certify", root, *INTERVAL, "--overwrite").out


def lengthened(root: Path) -> None:
    def change(lines: list[str]) -> None:
        lines[1:] = [re.sub(r"0\.\d{6}", "0.500000", one) for one in lines[1:]]

    forge_lines(CSV, change)(root)
    bind(root)


def test_radii_that_are_too_long_are_refuted(root: Path, call: Any) -> None:
    """Planted: each radius is 0.5, twenty times too long; half of the answers fall."""
    call("certify", root, *INTERVAL)
    lengthened(root)
    ended = call("audit", root, "--steps", "20", "--device", "cpu", "--json")
    answer = ended.json()
    assert (ended.code, answer["verdict"]) == (1, "refuted")
    assert len(answer["flipped"]) == answer["flips"] > 5
    assert all(one["distance"] <= 0.5 and one["answer"] != one["prediction"] for one in answer["flipped"])


def test_an_attack_on_the_smoothed_classifier_names_the_audit_instead(root: Path, call: Any) -> None:
    call("certify", root, *INTERVAL)
    ended = call("attack", root, "--certificates", "linf-interval", "--device", "cpu", "--limit", "4", "--json")
    assert ended.code == 2
    assert "twinproof audit" in ended.json()["error"]["fix"]


ATTACK = ("--norm", "linf", "--size", "0.3", "--attack", "pgd", "--protocol", "paper")
QUICK = ("--n", "20", "--n0", "5", "--device", "cpu", "--limit", "12")


@pytest.mark.parametrize("planted", [False, True])
def test_an_attack_is_held_against_interval_bounds(root: Path, call: Any, planted: bool) -> None:
    """Its answers of the network itself; planted: radii of 0.5."""
    call("certify", root, *INTERVAL)
    if planted:
        lengthened(root)
    ended = call("attack", root, *ATTACK, *QUICK, "--json")
    flips = ended.json()["interval_flips"]
    assert (ended.code, len(flips) > 3) == ((1, True) if planted else (0, False))
    assert ("DEFECT" in ended.err) == planted


def test_noise_that_nobody_asked_for_is_not_attacked(tmp_path: Path, call: Any) -> None:
    """Refutes judging a network that answers by itself under sigma 0.25; once it is certified so, it can be attacked so."""
    run = train(tiny("digits", recipe="interval", model="relu-mlp", steps=2), tmp_path / "run").root
    asked = ("attack", run, *ATTACK, *QUICK, "--json")
    for before in ((), ("certify", run, *INTERVAL)):
        assert not before or call(*before).code == 0
        ended = call(*asked)
        assert (ended.code, "twinproof audit" in ended.json()["error"]["fix"]) == (2, True)
        assert not (run / "attacks").exists()
    call("certify", run, "--bound", "tight", "--n", "50", "--device", "cpu", "--limit", "4")
    assert call(*asked).json()["certificates"] == "l2"


@pytest.mark.parametrize("options", [("--votes", "100"), ("--draws", "4")])
def test_options_of_other_audits_are_refused(root: Path, call: Any, options: tuple[str, ...]) -> None:
    call("certify", root, *INTERVAL)
    ended = call("audit", root, *options, "--json")
    assert (ended.code, ended.json()["error"]["got"]) == (2, options[0])


def test_certificates_of_other_weights_are_not_attacked(root: Path, call: Any) -> None:
    call("certify", root, *INTERVAL)
    path = root / "certificates/linf-interval/certificates.json"
    record = json.loads(path.read_text())
    record["network"]["model_sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    assert "that this run recorded" in call("audit", root, "--json").json()["error"]["what"]
    bind(root)
    assert "other weights" in call("audit", root, "--json").json()["error"]["what"]
