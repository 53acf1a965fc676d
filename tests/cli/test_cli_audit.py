"""``twinproof audit`` as a user meets it: words, JSON, exit codes."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from twinproof.auditing.certificate_search import AttackBudget
from twinproof.cli.audit import audit
from twinproof.cli.main import run
from twinproof.keys import Key
from twinproof.runs.layout import update_run_json
from twinproof.runs.records import read_certificates

QUICK = ["--steps", "5", "--draws", "8", "--restarts", "1", "--votes", "500", "--seed", "7", "--device", "cpu"]


@pytest.fixture(scope="module", autouse=True)
def same_draws() -> Iterator[None]:
    """A command draws anew at each call, and few certificates may or may not hold a flip: here all calls draw the same."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Key, "from_system", lambda: Key.from_seed(3))
        yield


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit") / "run"
    settings = ["--set", "model=mlp", "--set", "steps=300", "--seed", "1", "--device", "cpu"]
    train = ["train", "--data", "digits", "--recipe", "regular", *settings]
    for arguments in ([*train, "--out", str(root)], ["certify", str(root), "--n", "500", "--limit", "16", "--device", "cpu"]):
        with pytest.raises(SystemExit) as ended:
            run([*arguments, "--json"])
        assert ended.value.code == 0
    return root


@pytest.fixture
def root(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def _multiply_radii(root: Path, factor: float, name: str = "l2") -> None:
    path = root / "certificates" / name / "certificates.csv"
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    column = header.index("radius")
    for line in lines:
        line[column] = f"{float(line[column]) * factor:.6f}"
    path.write_text("".join(",".join(line) + "\n" for line in (header, *lines)))
    update_run_json(root, files=(path.relative_to(root).as_posix(),))


@pytest.mark.parametrize("name", ["steps", "draws", "restarts", "votes"])
def test_the_command_has_the_librarys_defaults(name: str) -> None:
    assert inspect.signature(audit).parameters[name].default == getattr(AttackBudget(), name)


def test_true_certificates_end_with_zero(call: Any, root: Path) -> None:
    answer = call("audit", root, *QUICK, "--json")
    assert answer.code == 0, answer.err
    value = answer.json()
    assert (value["verdict"], value["refuted"], value["flips"], value["flipped"]) == ("not refuted", False, 0, [])
    assert (value["inputs"], value["norm"], value["alpha"], value["bound"]) == (16, "l2", 0.001, "binomial")
    radii = [one.radius for one in read_certificates(root / "certificates/l2/certificates.csv")]
    assert value["nothing_inside"] == sum(0 < radius <= 1 / 16 for radius in radii)
    assert {"attacked", "undecided", "expected", "probability", "closest", "median", "beyond_reach"} <= set(value)
    shown = call("audit", root, *QUICK)
    assert shown.code == 0
    for words in ("answer changed", "0 inside their radius", "none was seen", "closest change", "not refuted"):
        assert words in shown.out
    assert call("verify", root).code == 0


def test_planted_radii_end_with_one(call: Any, root: Path) -> None:
    _multiply_radii(root, 3)
    answer = call("audit", root, *QUICK, "--json")
    assert answer.code == 1
    value = answer.json()
    assert (value["verdict"], value["refuted"]) == ("refuted", True)
    assert len(value["flipped"]) == value["flips"] >= 2
    assert value["already_refuted"] is False
    assert all(one["flip"]["ratio"] < 1 for one in value["flipped"])
    shown = call("audit", root, *QUICK)
    assert shown.code == 1
    assert "refuted (chance below 0.001)" in shown.out
    assert "or more by chance: probability" in shown.out
    assert json.loads((root / "run.json").read_text())["guarantees"]["robustness"]["l2"]["status"] == "refuted"


def test_a_bound_that_is_known_to_be_false_is_refuted_as_expected(call: Any, root: Path) -> None:
    named = ("--certificates", "l2-published")
    assert call("certify", root, "--n", "500", "--limit", "16", "--device", "cpu", "--bound", "published").code == 0
    _multiply_radii(root, 8, "l2-published")
    answer = call("audit", root, *named, *QUICK, "--json")
    assert answer.code == 0, "nobody was promised these radii"
    value = answer.json()
    assert (value["verdict"], value["refuted"], value["already_refuted"]) == ("refuted", True, True)
    shown = call("audit", root, *named, *QUICK)
    assert shown.code == 0
    assert "known to be false: changes within their radii are expected" in shown.out
    robustness = json.loads((root / "run.json").read_text())["guarantees"]["robustness"]["l2-published"]
    assert robustness["status"] == "refuted"
    assert "as expected, attacks changed" in robustness["reason"]


def test_nothing_to_attack_is_said(call: Any, root: Path) -> None:
    path = root / "certificates/l2/certificates.csv"
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    for line in lines:
        line[header.index("prediction")], line[header.index("radius")] = "-1", "0.000000"
    path.write_text("".join(",".join(line) + "\n" for line in (header, *lines)))
    update_run_json(root, files=(path.relative_to(root).as_posix(),))
    shown = call("audit", root, *QUICK)
    assert shown.code == 0
    assert "0 certificates of 16 inputs" in shown.out
    assert "nothing to attack" in shown.out
    assert call("audit", root, *QUICK, "--json").json()["verdict"] == "nothing to attack"
