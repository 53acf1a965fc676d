"""Attacking a run: numbers made again by hand, resumed to the byte, the certified line under every curve, planted bugs seen."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import beta
from torch import Tensor, nn

import twinproof as tp
from interruption import StopAfter
from twinproof.attacks.objective import Expectation, Objective, Plain, Smoothed
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import Attack, Keep
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, UserError
from twinproof.evaluation import attack_results, under_attack
from twinproof.evaluation.attack_record import read_attacks
from twinproof.evaluation.protocols import AttackPlan
from twinproof.evaluation.under_attack import AttackedRun
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.layout import update_run_json
from twinproof.runs.records import format_certificates, read_certificates
from twinproof.runs.run import Run, load_run_data

KEY = Key.from_seed(5)
PLAN = AttackPlan(sizes=(0.25, 0.75), steps=8, draws=4)
SAMPLING = Sampling(n0=20, n=200, alpha=0.001)
LIMIT = 120
LASTING = ("attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors")
CERTIFICATES = "certificates/l2/certificates.csv"


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that knows the digits, with its certificates."""
    root = tmp_path_factory.mktemp("attacked") / "run"
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 200, "learning_rate": 0.5}
    run = train({**settings, "sigma": 0.25, "seed": 1, "performance": {"device": "cpu"}}, root)
    tp.certify(run, load_run_data(run), sampling=Sampling(20, 1000), limit=100, device="cpu", key=Key.from_seed(6))
    return root


@pytest.fixture(scope="module")
def dataset(certified: Path) -> Dataset:
    return load_run_data(Run.open(certified))


def _attack(root: Path, dataset: Dataset, **options: Any) -> AttackedRun:
    settings = {"plan": PLAN, "sampling": SAMPLING, "limit": LIMIT, "device": "cpu", "key": KEY, **options}
    return tp.attack(Run.open(root), dataset, **settings)


@pytest.fixture(scope="module")
def attacked(certified: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run after its attacks; not to be changed."""
    root = Path(shutil.copytree(certified, tmp_path_factory.mktemp("done") / "run"))
    _attack(root, dataset)
    return root


@pytest.fixture
def root(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def _content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _rows(root: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((root / "attacks/l2/attacks.csv").read_text().splitlines()))


def _inputs(root: Path) -> dict[str, np.ndarray[Any, Any]]:
    return dict(load_file(root / "attacks/l2/attacks.safetensors"))


def test_the_network_and_the_smoothed_classifier_said_what_is_written(attacked: Path, dataset: Dataset) -> None:
    """Both are asked again at the saved inputs, and the distances are measured again, without the code under test."""
    model = Run.open(attacked).model()
    rows, saved = _rows(attacked), _inputs(attacked)
    assert len(saved) == 2 * (2 + 4)
    assert len(rows) == LIMIT * (len(saved) + 1)
    for name, stored in saved.items():
        protocol, target, attack, size = name.split("/")
        mine = [row for row in rows if (row["protocol"], row["target"], row["attack"], row["size"]) == tuple(name.split("/"))]
        assert [int(row["index"]) for row in mine] == list(range(LIMIT))
        assert [int(row["label"]) for row in mine] == dataset.test.labels[:LIMIT].tolist()
        moves = stored.astype(np.int64) - dataset.test.inputs[:LIMIT].astype(np.int64)
        lengths = np.sqrt((moves.reshape(LIMIT, -1) ** 2).sum(axis=1)) / dataset.levels
        assert bool((lengths <= float(size)).all())
        np.testing.assert_allclose([float(row["length"]) for row in mine], lengths, atol=2e-6)
        with torch.no_grad():
            classes = model(torch.as_tensor(stored.astype(np.float32) / dataset.levels)).argmax(dim=1)
        assert [int(row["network"]) for row in mine] == classes.tolist()
        if attack == "pgd":
            key = Key(KEY.stream(f"judge {name}", length=32))
            again = smooth(model, 0.25, levels=dataset.levels).certify(stored[:7], sampling=SAMPLING, key=key)
            assert [(one.prediction, one.votes, one.radius) for one in again] == [
                (int(row["prediction"]), int(row["votes"]), float(row["radius"])) for row in mine[:7]
            ], (protocol, target)


def test_the_results_follow_from_the_lines(attacked: Path) -> None:
    """Accuracies, intervals and the certified line counted from the two CSV files with nothing but Python and scipy."""
    rows = _rows(attacked)
    results = json.loads((attacked / "attacks/l2/attacks.json").read_text())["results"]
    certificates = list(csv.DictReader((attacked / "certificates/l2/certificates.csv").read_text().splitlines()))

    def interval(count: int) -> tuple[float, float]:
        low, high = beta.ppf(0.025, count, LIMIT - count + 1), beta.ppf(0.975, count + 1, LIMIT - count)
        return (0.0 if count == 0 else float(low), 1.0 if count == LIMIT else float(high))

    for result in results["sizes"]:
        size = result["size"]
        by_attack: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            if row["protocol"] == "paper" and float(row["size"]) == size:
                by_attack.setdefault(row["attack"], []).append(row)
        for attack, mine in by_attack.items():
            conventional = sum(row["network_unrounded"] == row["label"] for row in mine)
            there = sum(row["prediction"] == row["label"] and float(row["radius"]) >= size for row in mine)
            scores = result["paper"]["attacks"][attack]
            assert scores["network"]["value"] == conventional / LIMIT
            assert scores["certified"]["value"] == there / LIMIT
            assert (scores["network"]["low"], scores["network"]["high"]) == pytest.approx(interval(conventional), abs=2e-6)
        within = [row for row in rows if row["protocol"] != "paper" and float(row["size"]) <= size]
        right = [all(row["prediction"] == row["label"] for row in within if int(row["index"]) == i) for i in range(LIMIT)]
        worst = result["adaptive"]["worst"]["smoothed"]
        assert worst["value"] == sum(right) / LIMIT
        assert (worst["low"], worst["high"]) == pytest.approx(interval(sum(right)), abs=2e-6)
        line = sum(row["correct"] == "1" and float(row["radius"]) >= size for row in certificates) / len(certificates)
        assert (result["certified"]["value"], result["certified"]["inputs"]) == (line, len(certificates))
        assert result["difference"]["smoothed"] == result["paper"]["lowest"]["smoothed"] - worst["value"]


def test_the_certified_line_lies_under_every_curve(attacked: Path) -> None:
    record = read_attacks(attacked / "attacks/l2/attacks.json", "l2")
    certificates = {one.index: one for one in read_certificates(attacked / CERTIFICATES)}
    assert record.results["certified_by"]["source"] == "certificates.csv"
    assert not record.results["crossing"]
    for result in record.results["sizes"]:
        mine = [line for line in record.lines if line.size == result["size"] and line.index in certificates]
        for entry in {line.entry for line in mine}:
            left = [not line.misled for line in mine if line.entry == entry]
            assert result["certified"]["value"] <= sum(left) / len(left), entry
        held = {one.index for one in certificates.values() if one.correct and one.radius >= result["size"]}
        assert not [line for line in mine if line.index in held and line.misled]
    assert record.results["sizes"][0]["certified"]["value"] > 0.3, "a line at zero would prove nothing"
    assert record.results["sizes"][-1]["adaptive"]["worst"]["smoothed"]["value"] < 0.75, "nor would attacks that do nothing"


def test_the_run_still_verifies_and_nothing_is_left_behind(attacked: Path) -> None:
    verification = tp.verify(attacked)
    assert verification.ok, verification.problems
    assert not (attacked / "private" / "work").exists()
    lines = (attacked / "attacks/l2/attacks.csv").read_bytes()
    (attacked / "attacks/l2/attacks.csv").write_bytes(lines.replace(b",3,", b",4,", 1))
    try:
        assert not tp.verify(attacked).ok, "the digests are bound"
    finally:
        (attacked / "attacks/l2/attacks.csv").write_bytes(lines)


def test_the_papers_fgsm_is_the_papers(root: Path, dataset: Dataset) -> None:
    """One signed step from the true label on the network without noise; 0.125 is two of the sixteen levels."""
    _attack(root, dataset, plan=AttackPlan("linf", (0.125,), ("fgsm",), ("paper",)), limit=30, name="l2")
    model = Run.open(root).model()
    stored = torch.as_tensor(dataset.test.inputs[:30].astype(np.float32))
    leaf = (stored / dataset.levels).requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(leaf), torch.as_tensor(dataset.test.labels[:30]), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, leaf)
    wanted = (stored + 2 * gradient.sign()).clamp(0, dataset.levels)
    assert np.array_equal(_inputs(root)["paper/network/fgsm/0.125"], wanted.numpy().astype(np.uint8))
    result = json.loads((root / "attacks/l2/attacks.json").read_text())["results"]["sizes"][0]
    assert result["reach"] == 1.0, "sqrt(64) * 0.125"
    assert "adaptive" not in result
    assert "difference" not in result


@pytest.mark.parametrize(("stage", "batches"), [("attacking", 1), ("attacking", 9), ("judging", 1), ("judging", 20)])
def test_interrupted_attacks_go_on_to_the_same_bytes(
    root: Path, dataset: Dataset, attacked: Path, stage: str, batches: int
) -> None:
    before = _content(root)
    with pytest.raises(KeyboardInterrupt):
        _attack(root, dataset, progress=StopAfter(batches, stage))
    outside = {name: content for name, content in _content(root).items() if not name.startswith("private/work/")}
    assert outside == before, "an unfinished attack changes nothing that could be released"
    assert tp.verify(root).ok
    made = _attack(root, dataset, key=None)
    assert made.settings.key == KEY.secret.hex(), "the key of the earlier work is taken over"
    for name in LASTING:
        assert (root / name).read_bytes() == (attacked / name).read_bytes()
    assert made.results == json.loads((attacked / "attacks/l2/attacks.json").read_text())["results"]
    assert tp.verify(root).ok


_KILLED = """
import os, signal, sys
from pathlib import Path
from twinproof.certification.smoothed import Sampling
from twinproof.evaluation.protocols import AttackPlan
from twinproof.progress import Silent
from twinproof.keys import Key
from twinproof.runs.run import Run
import twinproof as tp

class Kill(Silent):
    batches = 0
    def advance(self, units=1):
        self.batches += 1
        if self.batches == 35:
            os.kill(os.getpid(), signal.SIGKILL)

run = Run.open(Path(sys.argv[1]))
options = {"limit": 120, "device": "cpu", "key": Key.from_seed(5), "progress": Kill()}
plan = AttackPlan(sizes=(0.25, 0.75), steps=8, draws=4)
tp.attack(run, plan=plan, sampling=Sampling(20, 200, 0.001), **options)
"""


def test_killed_attacks_go_on_to_the_same_bytes(root: Path, dataset: Dataset, attacked: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(root)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list((root / "private/work/attacks/l2/judged").rglob("0*"))
    _attack(root, dataset)
    for name in LASTING:
        assert (root / name).read_bytes() == (attacked / name).read_bytes()


def test_a_second_call_attacks_nothing(attacked: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _content(attacked)
    monkeypatch.setattr(under_attack, "run_attack", None)
    again = _attack(attacked, dataset, key=None)
    assert len(again.lines) == LIMIT * 13
    assert _content(attacked) == before


def test_lost_lines_are_noticed_and_changed_ones_not_bound_again(attacked: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(attacked, tmp_path / "run"))
    path, whole = root / "attacks/l2/attacks.csv", (attacked / "attacks/l2/attacks.csv").read_text()
    path.write_text(whole.replace(",3,", ",4,", 1))
    _attack(root, dataset)
    assert not tp.verify(root).ok, "a second call must not renew the digest of lines that somebody changed"
    for content in (None, "".join(whole.splitlines(keepends=True)[:-1])):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(RunError, match="not the ones that attacks"):
            _attack(root, dataset)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"plan": replace(PLAN, draws=5)}, "draws 5"),
        ({"plan": replace(PLAN, sizes=(0.25,))}, "sizes"),
        ({"plan": replace(PLAN, aim="next")}, "aim next"),
        ({"sampling": Sampling(20, 201)}, "n 201"),
        ({"limit": 121}, "inputs 121"),
        ({"key": Key.from_seed(9)}, "key"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_lost(
    attacked: Path, dataset: Dataset, options: dict[str, Any], named: str
) -> None:
    before = _content(attacked)
    with pytest.raises(RunError, match="other settings") as refused:
        _attack(attacked, dataset, **options)
    assert named in refused.value.wanted
    assert "--overwrite" in refused.value.fix
    assert _content(attacked) == before


def test_overwriting_keeps_the_old_record_until_the_new_one_is_whole(attacked: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(attacked, tmp_path / "run"))
    old = (root / "attacks/l2/attacks.csv").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _attack(root, dataset, limit=5, overwrite=True, progress=StopAfter(2, "judging"))
    assert (root / "attacks/l2/attacks.csv").read_bytes() == old
    assert tp.verify(root).ok
    made = _attack(root, dataset, limit=5)
    assert len(made.lines) == 5 * 13
    assert tp.verify(root).ok


def _change_radii(root: Path, change: Callable[[float], float]) -> None:
    lines = [replace(one, radius=change(one.radius)) for one in read_certificates(root / CERTIFICATES)]
    (root / CERTIFICATES).write_bytes(format_certificates(lines))
    update_run_json(root, files=(CERTIFICATES,))


def test_a_planted_bug_that_doubles_radii_is_a_crossing(attacked: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(attacked, tmp_path / "run"))
    _change_radii(root, lambda radius: 2 * radius)
    made = _attack(root, dataset)
    assert made.results["crossing"]
    broken = [result for result in made.results["sizes"] if result["crossing"]]
    assert all(result["flips"] > 0 and result["flips_probability"] < 1e-6 for result in broken)
    assert any("misled inside their certified radius" in warning for warning in made.results["warnings"])
    assert json.loads((root / "attacks/l2/attacks.json").read_text())["results"]["crossing"] is True, "the record is renewed"
    _change_radii(root, lambda radius: radius / 2)
    assert not _attack(root, dataset).results["crossing"]


def test_a_planted_reach_without_its_factor_is_a_crossing(
    root: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An l2 radius taken for a linf one covers attacks that are sqrt(64) times longer: certified inputs are misled."""
    made = _attack(root, dataset, limit=100, plan=AttackPlan("linf", (0.1875,), ("pgd",), ("adaptive",), steps=8, draws=4))
    assert made.results["sizes"][0]["reach"] == 1.5, "sqrt(64) * 0.1875"
    assert not made.results["crossing"]
    monkeypatch.setattr(attack_results, "reach", lambda norm, size, certificate_norm, dimension: size)
    again = _attack(root, dataset, limit=100, plan=AttackPlan("linf", (0.1875,), ("pgd",), ("adaptive",), steps=8, draws=4))
    assert again.results["crossing"]


def test_a_planted_sign_error_is_seen_as_accuracy_above_the_papers(
    root: Path, dataset: Dataset, attacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WrongWay(Attack):
        """Steps down the loss."""

        def propose(self, points: Any, gradient: Any, gathered: Any, threat: Any) -> Any:
            return super().propose(points, -gradient, gathered, threat)

    def planted(attack: Attack, *args: Any, **options: Any) -> Any:
        adaptive = attack.keep is Keep.BEST
        return run_attack(WrongWay(**vars(attack)) if adaptive else attack, *args, **options)

    monkeypatch.setattr(under_attack, "run_attack", planted)
    made = _attack(root, dataset)
    assert all(result["weaker"] for result in made.results["sizes"])
    assert all(result["difference"]["smoothed"] < 0 for result in made.results["sizes"])
    assert any("weaker than the papers'" in warning for warning in made.results["warnings"])
    honest = read_attacks(attacked / "attacks/l2/attacks.json", "l2")
    assert not honest.results["sizes"][-1]["weaker"]
    assert honest.results["sizes"][-1]["difference"]["smoothed"] >= 0


def test_a_run_without_certificates_draws_its_own_line(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    data = load_run_data(Run.open(root))
    plan = AttackPlan(sizes=(0.1,), attacks=("fgsm",), protocols=("paper",))
    made = _attack(root, data, plan=plan, limit=20)
    assert made.results["certified_by"] == {"source": "attacks.csv", "inputs": 20, "alpha": 0.001}
    tp.certify(Run.open(root), data, sampling=Sampling(20, 300), limit=15, device="cpu")
    again = _attack(root, data, plan=plan, limit=20)
    assert again.results["certified_by"] == {"source": "certificates.csv", "inputs": 15, "alpha": 0.001}
    assert again.results["sizes"][0]["certified"]["inputs"] == 15
    assert tp.verify(root).ok


def test_few_inputs_are_honest_about_it(root: Path, dataset: Dataset) -> None:
    made = _attack(root, dataset, limit=2, plan=AttackPlan(sizes=(0.1,), attacks=("fgsm",)))
    worst = made.results["sizes"][0]["adaptive"]["worst"]["smoothed"]
    assert worst["high"] - worst["low"] > 0.8


def test_a_size_below_one_level_is_said_to_do_nothing(root: Path, dataset: Dataset) -> None:
    made = _attack(root, dataset, limit=4, plan=AttackPlan("linf", (0.05,), ("fgsm",)))
    assert any("no other input can be stored" in warning for warning in made.results["warnings"])
    assert all(line.length == 0 for line in made.lines)


def test_targeted_attacks_name_their_aim(root: Path, dataset: Dataset) -> None:
    made = _attack(root, dataset, limit=10, plan=AttackPlan(sizes=(1.0,), attacks=("pgd",), aim="class:3"))
    attacks = [line for line in made.lines if line.protocol != "clean"]
    assert all(line.aim == (3 if line.label != 3 else 4) for line in attacks)
    assert sum(line.network == line.aim for line in attacks) > len(attacks) / 3
    clean = sum(line.network == line.aim for line in made.lines if line.protocol == "clean")
    assert clean < 2


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"limit": 0}, ConfigError, "nothing to attack"),
        ({"sampling": Sampling(20, 3)}, ConfigError, "never certify"),
        ({"sampling": Sampling(20, 300, target_radius=0.1)}, ConfigError, "one by one"),
        ({"device": "cuda"}, ConfigError, "no GPU"),
        ({"plan": replace(PLAN, aim="class:10")}, ConfigError, "does not exist"),
    ],
)
def test_refusals_touch_nothing(
    root: Path, dataset: Dataset, options: dict[str, Any], error: type[UserError], words: str
) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    before = _content(root)
    with pytest.raises(error, match=words):
        _attack(root, dataset, **options)
    assert _content(root) == before


def test_missing_or_changed_weights_are_refused(root: Path, dataset: Dataset) -> None:
    model = root / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(RunError, match="not the ones this run made"):
        _attack(root, dataset)
    model.unlink()
    with pytest.raises(RunError, match="weights of this run are missing"):
        _attack(root, dataset)
    assert not (root / "private" / "work").exists()


class NoisyAtInference(nn.Module):
    """A network with noise of its own once it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        scores: Tensor = self.layer(flat if self.training else flat + 0.1 * torch.randn_like(flat))
        return scores


def test_a_network_with_noise_of_its_own_is_attacked_in_expectation(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[tuple[str, Objective]] = []

    def watched(attack: Attack, target: Objective, *args: Any, **options: Any) -> Any:
        attacked.append(("paper" if attack.keep is Keep.LAST else "adaptive", target))
        return run_attack(attack, target, *args, **options)

    monkeypatch.setattr(under_attack, "run_attack", watched)
    settings = {"recipe": "regular", "steps": 30, "learning_rate": 0.5, "seed": 1, "performance": {"device": "cpu"}}
    run = train(settings, tmp_path / "run", dataset=dataset, network=NoisyAtInference())
    plan = AttackPlan(sizes=(0.5,), attacks=("fgsm",), draws=3)
    made = tp.attack(run, dataset, plan=plan, sampling=SAMPLING, limit=20, device="cpu", key=KEY)
    assert made.settings.random_network
    assert [(protocol, type(target), getattr(target, "draws", None)) for protocol, target in attacked] == [
        ("paper", Plain, None),
        ("adaptive", Expectation, 3),
        ("adaptive", Smoothed, 3),
    ]
