"""What turns attacks on MNIST into numbers: ratios, rows, answers of random classifiers, and the status of the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401  (first: it makes `attack_mnist` importable)
import pytest
import torch
from torch import Tensor, nn

import attack_mnist
from attack_mnist import Answers, NoiseLayer, Victim
from twinproof.attacks.objective import Expectation, Objective
from twinproof.certification.smoothed import smooth
from twinproof.evaluation.accuracy import mean_interval

CPU = torch.device("cpu")


class Threshold(nn.Module):
    """Class 1 where the first coordinate is above ``at``, else class 0."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def forward(self, inputs: Tensor) -> Tensor:
        first = inputs.flatten(1)[:, 0] - self.at
        return torch.stack((-first, first), dim=1)


def results(*, crossing: bool = False) -> dict[str, Any]:
    """Two sizes as ``attack_run`` writes them, less what the rows do not read."""

    def at(size: float, certified: float, lowest: tuple[float, float], worst: tuple[float, float]) -> dict[str, Any]:
        names = ("network", "smoothed")
        return {
            "size": size,
            "certified": {"value": certified},
            "paper": {"lowest": dict(zip(names, lowest, strict=True))},
            "adaptive": {
                "worst": {**{n: {"value": v} for n, v in zip(names, worst, strict=True)}, "abstained": {"value": 0.05}}
            },
            "flips": 3 if crossing else 0,
        }

    sizes = [at(0.5, 0.6, (0.9, 0.8), (0.7, 0.75)), at(1.0, 0.5, (0.6, 0.45), (0.3, 0.55))]
    return {"sizes": sizes, "crossing": crossing}


def test_a_drop_is_taken_over_pairs() -> None:
    """The same two means with the same spread: only pairs tell that every input lost as much."""
    before, after = (1.0, 0.5, 0.75), (0.75, 0.25, 0.5)
    assert attack_mnist.drop(before, after) == {"value": 0.25, "standard_error": 0.0}
    shuffled = attack_mnist.drop(before, (0.25, 0.5, 0.75))
    assert shuffled == {"value": 0.25, "standard_error": pytest.approx(0.25)}
    assert attack_mnist.drop((1.0,), (0.5,)) == {"value": 0.5, "standard_error": None}


@pytest.mark.parametrize("distance", [-0.2, 0.0, 0.4])
def test_a_random_network_is_right_as_often_as_its_noise_allows(distance: float) -> None:
    """A threshold behind noise of 0.5 has the chance Phi(distance / 0.5); six deviations of 40,000 answers around it."""
    noisy = nn.Sequential(NoiseLayer(0.5), Threshold(0.5))
    inputs, labels = torch.full((400, 1, 1, 1), 0.5 + distance), torch.ones(400, dtype=torch.int64)
    made = attack_mnist.noisy_answers(noisy, inputs, labels, 100)
    chance = 0.5 * (1 + math.erf(distance / 0.5 / math.sqrt(2)))
    assert made.accuracy.value == pytest.approx(chance, abs=6 * 0.5 / math.sqrt(40_000))
    assert made.abstained is None
    assert made == attack_mnist.noisy_answers(noisy, inputs, labels, 100)


def test_an_abstention_is_no_correct_answer() -> None:
    """Far on the right side, far on the wrong one, and on the edge, where votes are even."""
    stored = torch.tensor([255, 0, 128], dtype=torch.int32).view(3, 1, 1, 1)
    made = attack_mnist.smoothed_answers(smooth(Threshold(128 / 255), 0.1), stored, torch.tensor([1, 1, 1]))
    assert made.chances == (1.0, 0.0, 0.0)
    assert made.accuracy.value == pytest.approx(1 / 3)
    assert made.abstained == pytest.approx(1 / 3)


def test_each_number_of_draws_is_a_row() -> None:
    """The bare network is attacked without noise, the others with the draws that the row names, and drops are beside it."""
    asked: list[int] = []

    def objective(count: int) -> Objective:
        asked.append(count)
        return Expectation(nn.Sequential(NoiseLayer(0.1), Threshold(0.0)), draws=count, judged_on=1)

    def answer(stored: Tensor, labels: Tensor) -> Answers:
        chances = tuple((stored.flatten(1)[:, 0] / 255).tolist())
        return Answers(chances, mean_interval(chances, 1.0))

    stored, labels = torch.full((3, 1, 2, 2), 255, dtype=torch.int32), torch.ones(3, dtype=torch.int64)
    rows = attack_mnist.draws_rows(Victim("made up", Threshold(0.0), objective, answer), stored, labels, 255)
    assert [row["draws"] for row in rows] == [None, 0, 1, 8, 32]
    assert asked == [1, 8, 32]
    assert rows[0]["accuracy"]["value"] == 1.0
    assert rows[1]["accuracy"]["value"] < 0.5  # the coordinate that matters was pushed down
    assert [row["drop"] is None for row in rows] == [True, True, False, False, False]
    assert rows[4]["drop"]["value"] == pytest.approx(rows[1]["accuracy"]["value"] - rows[4]["accuracy"]["value"], abs=1e-5)


def test_long_attacks_are_timed_and_counted() -> None:
    """One input can be pushed over the threshold, one cannot, and one was wrong from the start."""
    inputs = torch.tensor([0.55, 0.9, 0.2]).view(3, 1, 1, 1)
    effort = replace(attack_mnist.QUICK, long_steps=8)
    row = attack_mnist.long_row(Threshold(0.5), inputs, torch.ones(3, dtype=torch.int64), attack_mnist.LONG_THREATS[0], effort)
    shares = [row["accuracy"][name]["value"] for name in ("clean", "short", "long")]
    assert shares == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert row["seconds_per_step"] > 0
    assert set(row["ratio_to"]) == {"gradient"}


def test_parts_are_written_with_what_they_were_made_on(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken certificate or attack is the status 1; the copied run is left alone."""
    monkeypatch.setattr(attack_mnist, "resolve_device", lambda name: CPU)
    monkeypatch.setitem(attack_mnist.PARTS, "curves", lambda subject, effort: ({"results": results(crossing=True)}, "a table"))
    out, before = tmp_path / "out.json", sorted(path.name for path in trained.iterdir())
    words = ["--quick", "--run", str(trained), "--out", str(out), "--part"]
    assert attack_mnist.main([*words, "curves"]) == 1
    assert "a table" in capsys.readouterr().out
    assert attack_mnist.main([*words, "long"]) == 0
    written = json.loads(out.read_text())
    assert written["recipe"] == "regular"
    assert [row["norm"] for row in written["long"]["rows"]] == ["linf", "l2", "l1"]
    assert {"device", "date", "versions", "command", "effort", "accuracy"} <= set(written)
    assert "curves" not in written
    assert sorted(path.name for path in trained.iterdir()) == before


@pytest.mark.parametrize(
    ("run", "out", "message"),
    [("missing", "out.json", "not a run directory"), (".", "missing/out.json", "the result cannot be written")],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str, out: str, message: str
) -> None:
    assert attack_mnist.main(["--out", str(tmp_path / out), "--run", str(tmp_path / run)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
