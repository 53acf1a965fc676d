"""``twinproof attack``: the table, the JSON answer, and what verify and certify say about attacks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from twinproof.runs.layout import update_run_json

QUICK = ["--limit", "20", "--n", "100", "--steps", "3", "--draws", "2", "--seed", "4", "--device", "cpu"]


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_answer_for_machines(call: Any, root: Path) -> None:
    arguments = ("attack", root, "--size", "0.5", "--size", "0.25", "--attack", "fgsm", *QUICK, "--json")
    done = call(*arguments)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert list(answer["accuracy"]) == list(answer["certified_accuracy"]) == ["0.25", "0.5"]
    for one in answer["results"]["sizes"]:
        name = format(one["size"], "g")
        shares = [one["paper"]["lowest"]["smoothed"], one["adaptive"]["worst"]["smoothed"]["value"]]
        assert answer["accuracy"][name] == min(shares)
        assert answer["certified_accuracy"][name] == one["certified"]["value"]
        assert one["difference"]["smoothed"] == shares[0] - shares[1]
    assert (answer["norm"], answer["attacks"], answer["inputs"], answer["n"]) == ("l2", ["fgsm"], 20, 100)
    assert (answer["crossing"], answer["already_refuted"]) == (False, False)
    assert (answer["certificate_norm"], answer["bound"], answer["law"], answer["place"]) == ("l2", "tight", "gaussian", "input")
    again = json.loads(call(*arguments).out)
    assert again == answer, "the same command answers from the record"
    assert call("verify", root).code == 0
    assert call("report", root).code == 0


def test_attacks_are_in_the_norm_of_the_certificates_unless_told_otherwise(call: Any, root: Path) -> None:
    certify = ("certify", root, "--n", "200", "--limit", "20", "--device", "cpu", "--norm", "linf")
    assert call(*certify).code == 0
    attack = ("attack", root, "--size", "0.05", "--attack", "fgsm", *QUICK, "--json")
    for options, wanted in (((), ("linf", "linf", "linf")), (("--norm", "l1"), ("l1", "l1", "linf"))):
        answer = call(*attack, *options).json()
        assert (answer["name"], answer["norm"], answer["certificate_norm"]) == wanted
    assert call(*certify[:-2], "--norm", "l2").code == 0
    answer = call(*attack, "--certificates", "linf", "--name", "mine").json()
    assert (answer["name"], answer["norm"], answer["certificates"]) == ("mine", "linf", "linf")
    assert call(*attack, "--norm", "l1", "--name", "other").code == 2, "two certifications, none of them in l1"


def test_both_protocols_stand_side_by_side(call: Any, root: Path) -> None:
    out = call("attack", root, "--size", "0.5", *QUICK).out
    for words in ("adaptive: smoothed", "papers': network", "certified there", "without attack"):
        assert words in out
    assert "At l2 size 0.5 the strongest attacks leave" in out
    assert "the papers' attacks alone would have left" in out
    one = call("attack", root, "--size", "0.5", "--protocol", "paper", "--overwrite", *QUICK).out
    assert "adaptive: smoothed" not in one
    assert "would have left" not in one


def test_all_attacks_and_a_target(call: Any, root: Path) -> None:
    options = ["--attack", "all", "--norm", "linf", "--size", "0.2", "--targeted", "--target-rule", "next"]
    answer = json.loads(call("attack", root, *options, *QUICK, "--json").out)
    assert answer["attacks"] == ["fgsm", "ifgsm", "mim", "pgd"]
    assert answer["results"]["sizes"][0]["reach"] == 1.6, "0.2 * sqrt(64): an l2 radius must reach as far"
    assert len(answer["results"]["sizes"][0]["adaptive"]["attacks"]) == 8


def test_warnings_are_one_line_each_on_stderr(call: Any, root: Path) -> None:
    done = call("attack", root, "--norm", "linf", "--size", "0.01", "--attack", "fgsm", *QUICK, "--json")
    assert json.loads(done.out)["results"]["warnings"]
    assert "warning: at linf size 0.01, no other input can be stored" in done.err


def test_radii_of_a_bound_that_is_known_to_be_false_are_called_claims(call: Any, root: Path) -> None:
    """Crossed by an attack, they end with 0: nobody was promised anything."""
    certify = ("certify", root, "--n", "200", "--limit", "20", "--device", "cpu", "--bound", "published")
    assert call(*certify).code == 0
    path = root / "certificates/l2-published/certificates.csv"
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    for line in lines:
        line[header.index("prediction")], line[header.index("radius")] = line[header.index("label")], "9.000000"
    path.write_text("".join(",".join(line) + "\n" for line in (header, *lines)))
    update_run_json(root, files=("certificates/l2-published/certificates.csv",))
    shown = call("attack", root, "--size", "1.5", "--attack", "pgd", "--certificates", "l2-published", *QUICK)
    assert shown.code == 0, shown.err
    for words in ("l2, published bound (claimed, refuted)", "claimed, refuted  ", "and that claim is refuted"):
        assert words in shown.out
    assert "are certified" not in shown.out
    assert "as expected, the published bound is broken" in shown.err
    again = ("attack", root, "--size", "1.5", "--attack", "pgd", "--certificates", "l2-published", *QUICK, "--json")
    answer = json.loads(call(*again).out)
    assert (answer["crossing"], answer["already_refuted"], answer["bound"]) == (True, True, "published")


def test_a_run_without_its_model_is_refused(call: Any, root: Path) -> None:
    (root / "model.safetensors").unlink()
    answer = call("attack", root, *QUICK)
    assert answer.code == 2
    assert "weights of this run are missing" in answer.err


def test_verify_can_measure_against_the_records(call: Any, root: Path) -> None:
    assert call("attack", root, "--size", "0.5", "--attack", "fgsm", *QUICK).code == 0
    assert call("verify", root, "--with-data").code == 0
    wrong = call("verify", root, "--data", "breast-cancer")
    assert wrong.code == 2
    assert "not the data of the run" in wrong.err


def test_verify_draws_votes_again_and_loads_known_data_by_itself(call: Any, root: Path) -> None:
    assert call("attack", root, "--size", "0.5", "--attack", "fgsm", *QUICK).code == 0
    checks = {check["name"] for check in call("verify", root, "--json").json()["checks"]}
    assert {"accuracy again", "network under attack (l2)"} <= checks
    again = call("verify", root, "--redraw", "3")
    assert again.code == 0
    assert "0 votes differ" in again.out
    assert call("verify", root, "--redraw", "0").code == 2


def test_certifying_anew_says_what_to_renew(call: Any, root: Path) -> None:
    assert call("attack", root, "--size", "0.5", "--attack", "fgsm", *QUICK).code == 0
    answer = call("certify", root, "--n", "200", "--limit", "20", "--overwrite", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "attacks l2 were compared with the previous certificates" in answer.out
