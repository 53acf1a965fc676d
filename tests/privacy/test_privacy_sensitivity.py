"""One record more or less moves the clipped sum by at most the clipping norm, whatever the records hold.

The sums are taken from the real training path: before rounding from what is handed to ``PrivateExecution.release``, after
rounding from what a plan without noise releases. Each planted bug must push the same measure above the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from private_path import CLASSES, Records, TrainingPath, WatchedExecution, flat, make_plan, new_ledger
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.plan import ClipRule, Draw, PrivateExecution, clip_weights, flat_clip_weights, psac_weights
from twinproof.training.passes import Augmentation, PassMode
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.paths import PerExamplePath, RecordGradients

PAIRS = 1000
TOLERANCE = 1 + 1e-6
CLIP = 0.7
# What a stored level stands for: ordinary numbers, and levels that no sane record holds.
WILD = {250: float("nan"), 251: float("inf"), 252: -float("inf"), 253: 1e30, 254: -1e30, 255: 1e-40}


@dataclass(frozen=True)
class WildCopies(Augmentation):
    """Three copies that are functions of the record alone, with values no level scaled to [0, 1] could take.

    Without noise of its own, so that the sums of two neighbours can be compared directly.
    """

    padding_value: float = 0.0

    @property
    def copies(self) -> int:
        return 3

    def __call__(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        table = torch.linspace(-4, 4, 256)
        table[0] = self.padding_value
        for level, value in WILD.items():
            table[level] = value
        values = table[(inputs * 255).round().long()]
        return torch.stack([values, -0.5 * values, values.flip(-1)], dim=1)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 2, CLASSES))


NETWORKS = {"dense": (dense, (4,)), "normalised": (normalised, (4,)), "convolutional": (convolutional, (1, 2, 3))}


def make_path(folder: Path, network: str = "dense", *, padding_value: float = 0.0) -> TrainingPath:
    build, shape = NETWORKS[network]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)  # gradients on both sides of the threshold
    plan = make_plan(noise_multiplier=0.0, clip_norm=CLIP, divisor=1.0)
    return TrainingPath(model, plan, new_ledger(folder), shape, WildCopies(padding_value))


def neighbours(seed: int, shape: tuple[int, ...], count: int = PAIRS) -> Iterator[tuple[Records, Records]]:
    """Data sets and the same with one record taken out: empty, all alike, aligned against one, wild, ordinary."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        records = int(generator.integers(1, 11))
        inputs = generator.integers(1, 250, (records, *shape)).astype(np.uint8)
        labels = generator.integers(0, CLASSES, records)
        odd = int(generator.integers(records))
        kind = generator.integers(4)
        if kind == 0:
            inputs[:], labels[:] = inputs[0], labels[0]
        elif kind == 1:
            inputs[:], labels[:] = inputs[0], labels[0]
            inputs[odd] = generator.integers(1, 250, shape)
            labels[odd] = (labels[odd] + 1) % CLASSES
        elif kind == 2:
            broken = generator.random(records) < 0.4
            wild = generator.random(inputs.shape) < 0.3
            wild &= broken.reshape(-1, *(1 for _ in shape))
            inputs[wild] = generator.integers(250, 256, int(wild.sum()))
        kept = np.arange(records) != odd
        yield (inputs, labels), (inputs[kept], labels[kept])


def rounded_and_plain_sum(path: TrainingPath, chosen: PerExamplePath, data: Records) -> list[NDArray[np.float64]]:
    source, execution = path.source(data, chosen)
    released = flat(source.gradient(0))
    assert isinstance(execution, WatchedExecution)
    assert execution.handed is not None
    return [flat(execution.handed), released]


def worst_move(path: TrainingPath, *, enough: float = np.inf, count: int = PAIRS, seed: int = 11) -> float:
    """The largest distance of two neighbours' sums over the clipping norm; infinite where one of them is not finite."""
    chosen = path.chosen()
    worst = 0.0
    for more, less in neighbours(seed, path.shape, count):
        sums = zip(rounded_and_plain_sum(path, chosen, more), rounded_and_plain_sum(path, chosen, less), strict=True)
        for first, second in sums:
            move = float(np.linalg.norm(first - second)) / CLIP
            worst = max(worst, move if np.isfinite(move) else np.inf)
        if worst > enough:
            break
    return worst


@pytest.mark.parametrize(("network", "count"), [("dense", PAIRS), ("normalised", 100), ("convolutional", 100)])
def test_a_record_moves_the_sum_by_at_most_the_clipping_norm(tmp_path: Path, network: str, count: int) -> None:
    worst = worst_move(make_path(tmp_path, network), count=count)
    assert worst <= TOLERANCE
    assert worst > 0.999  # the pairs reach the bound, so that a larger move would be seen


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_rows_that_fill_a_pass_bring_nothing_in(tmp_path: Path, value: float) -> None:
    """A network that is not finite on the zeros that fill a pass must not spoil the records beside them."""
    path = make_path(tmp_path, padding_value=value)
    assert worst_move(path, count=50) <= TOLERANCE
    alone: Records = (np.full((1, 4), 120, np.uint8), np.zeros(1, np.int64))
    assert 0 < np.linalg.norm(rounded_and_plain_sum(path, path.chosen(), alone)[1]) <= CLIP


class DividedByDrawnBatch(WatchedExecution):
    """Planted: the mean over the batch that was drawn, put back on the scale of the sum by a constant."""

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        factor = 5 / max(1, len(draw.indices))
        return super().release(draw, {name: value * factor for name, value in sums.items()})


class ClippedAfterTheMean(WatchedExecution):
    """Planted: records are summed as they are, and the sum is clipped."""

    def clip_weights(self, squared_norms: Tensor) -> Tensor:
        return torch.isfinite(squared_norms).to(torch.float64)

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        factor = min(1.0, CLIP / max(1e-300, float(np.linalg.norm(flat(sums)))))
        return super().release(draw, {name: value * factor for name, value in sums.items()})


@dataclass(frozen=True)
class Changed(PerExamplePath):
    """A path whose gradients are changed before the execution sees them."""

    inner: PerExamplePath


def zeroed(values: Tensor, rows: Tensor) -> Tensor:
    return values.masked_fill(rows.view(-1, *(1 for _ in values.shape[1:])), 0)


class ClippedPerLayer(Changed):
    """Planted: each parameter is clipped to the whole norm, and the record passes with the longest of them."""

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        gradients = self.inner.gradients(inputs, labels)
        clipped: dict[str, PerExampleGradient] = {}
        for name, value in gradients.by_name.items():
            norms = value.squared_norms().sqrt()
            weights = torch.where(torch.isfinite(norms), (CLIP / norms).clamp(max=1), 0)
            values = zeroed(value.instantiate().double(), ~torch.isfinite(norms))
            clipped[name] = Instantiated(values * weights.view(-1, *(1 for _ in values.shape[1:])))
        return LongestLayerCounts(clipped, gradients.losses)


class LongestLayerCounts(RecordGradients):
    def squared_norms(self) -> Tensor:
        return torch.stack([value.squared_norms() for value in self.by_name.values()]).amax(0) * (1 - 1e-6)


class CopiesAsRecords(Changed):
    """Planted: every copy is clipped by itself and all are added, as if copies were further records."""

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        records, copies = inputs.shape[:2]
        single = self.inner.gradients(inputs.flatten(0, 1).unsqueeze(1), labels.repeat_interleave(copies))
        norms = single.squared_norms().sqrt()
        finite = torch.isfinite(norms)
        weights = torch.where(finite, (CLIP / norms).clamp(max=1), 0)
        summed: dict[str, PerExampleGradient] = {}
        for name, value in single.by_name.items():
            values = zeroed(value.instantiate().double(), ~finite)
            values = values * weights.view(-1, *(1 for _ in values.shape[1:]))
            summed[name] = Instantiated(values.reshape(records, copies, *values.shape[1:]).sum(1))
        return PassesForShort(summed, single.losses.view(records, copies).mean(1))


class PassesForShort(RecordGradients):
    def squared_norms(self) -> Tensor:
        return torch.zeros_like(self.losses, dtype=torch.float64)


@pytest.mark.parametrize("mode", [PassMode(workers=3), PassMode(capture=True)])
def test_every_way_of_running_passes_keeps_the_bound(tmp_path: Path, mode: PassMode) -> None:
    """On several cores at once, and in the tensors of a recording, which hold what the draw before left in them."""
    assert worst_move(replace(make_path(tmp_path), mode=mode), count=60) <= TOLERANCE


@pytest.mark.parametrize("execution", [DividedByDrawnBatch, ClippedAfterTheMean])
def test_planted_wrong_sums_are_caught(tmp_path: Path, execution: type[WatchedExecution]) -> None:
    assert worst_move(replace(make_path(tmp_path), execution=execution), enough=TOLERANCE) > 1.01


@pytest.mark.parametrize("wrap", [ClippedPerLayer, CopiesAsRecords])
def test_planted_wrong_clipping_is_caught(tmp_path: Path, wrap: type[Changed]) -> None:
    assert worst_move(replace(make_path(tmp_path), wrap=wrap), enough=TOLERANCE) > 1.01


def test_planted_forgotten_broken_record_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def multiplied(total: Any, *values: Tensor, weights: Tensor) -> Any:
        return total(*values)

    monkeypatch.setattr("twinproof.training.per_example.gradients._finite", multiplied)
    assert worst_move(make_path(tmp_path), enough=TOLERANCE) == np.inf


def test_planted_noise_of_rounding_beyond_the_threshold_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a coarse grid the room that ``clip_threshold`` leaves is needed; without it the bound breaks."""
    monkeypatch.setattr("twinproof.privacy.plan._GRID_BITS", 8)
    path = make_path(tmp_path)
    assert worst_move(path, count=300) <= TOLERANCE
    monkeypatch.setattr("twinproof.privacy.plan.Plan.clip_threshold", lambda plan, parameters: plan.clip_norm)
    assert worst_move(path, count=300, enough=TOLERANCE) > TOLERANCE


RULES = (ClipRule.PSAC_PAPER, ClipRule.PSAC_CODE)
norms = st.floats(min_value=0, max_value=1e150, allow_subnormal=True)
thresholds = st.floats(min_value=1e-30, max_value=1e30)
constants = st.floats(min_value=1e-30, max_value=1e30)
SLACK = 1 + Fraction(2) ** -50


def weight_of(squared: float, threshold: float, r: float, rule: ClipRule) -> float:
    return float(clip_weights(torch.tensor([squared], dtype=torch.float64), threshold, rule, r)[0])


def is_bounded(squared: float, threshold: float, weight: float, rule: ClipRule) -> bool:
    """weight * norm <= threshold, in exact arithmetic on squares: for PSAC not one bit above, for flat clipping 2^-50."""
    slack = SLACK if rule is ClipRule.FLAT else 1
    return Fraction(weight) ** 2 * Fraction(squared) <= (Fraction(threshold) * slack) ** 2


@pytest.mark.parametrize("rule", tuple(ClipRule))
@settings(max_examples=500, deadline=None, derandomize=True)
@given(norm=norms, threshold=thresholds, r=constants)
def test_the_scaled_norm_is_never_above_the_threshold(rule: ClipRule, norm: float, threshold: float, r: float) -> None:
    weight = weight_of(norm * norm, threshold, r, rule)
    assert weight >= 0
    assert is_bounded(norm * norm, threshold, weight, rule)
    if rule is not ClipRule.FLAT:
        return
    if norm <= threshold * (1 - 1e-12):
        assert weight == 1, "nothing is shortened without need"
    elif math.isfinite(norm * norm) and norm * norm > 1e-290:
        assert weight * norm >= threshold * (1 - 1e-12) or weight == 1


@pytest.mark.parametrize("rule", tuple(ClipRule))
@pytest.mark.parametrize("squared", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_a_norm_that_is_no_number_counts_nothing(rule: ClipRule, squared: float) -> None:
    mixed = torch.tensor([0.1, squared, 4.0, 1e20], dtype=torch.float64)
    weights = clip_weights(mixed, 1.0, rule, 0.01)
    assert weights[1] == 0
    assert torch.equal(weights[[0, 2, 3]], clip_weights(mixed[[0, 2, 3]], 1.0, rule, 0.01)), "no other weight changes"
    assert clip_weights(mixed[:0], 1.0, rule, 0.01).shape == (0,)


def test_planted_weights_in_float32_and_without_room_are_caught() -> None:
    """Their rounding may go either way; the same check sees it on ordinary norms."""

    def all_bounded(squares: Tensor, weights: Tensor, rule: ClipRule) -> bool:
        pairs = zip(squares.tolist(), weights.tolist(), strict=True)
        return all(is_bounded(square, 1.0, weight, rule) for square, weight in pairs)

    squares = torch.linspace(1.1, 50.0, 200, dtype=torch.float64)
    right = flat_clip_weights(squares, 1.0)
    assert all_bounded(squares, right, ClipRule.FLAT)
    assert not all_bounded(squares, right.to(torch.float32).to(torch.float64), ClipRule.FLAT)
    squares = torch.linspace(1e9, 9e9, 400, dtype=torch.float64)
    lengths = squares.sqrt()
    assert all_bounded(squares, psac_weights(squares, 1.0, 1e-12), ClipRule.PSAC_PAPER)
    assert not all_bounded(squares, 1 / (lengths + 1e-12 / (lengths + 1e-12)), ClipRule.PSAC_PAPER)


# Scaled norm over the threshold: the paper's formula as in our table of guarantees; the program's by hand.
NUMBERS = [
    (1.0, 0.01, 0.990196, 0.980392),
    (1.0, 0.1, 0.916667, 0.833333),
    (1.0, 1.0, 0.666667, 0.333333),
    (0.01, 0.01, 0.019608, 0.009804),
    (0.01, 0.1, 0.010880, 0.000989),
    (0.01, 1.0, 0.009999, 0.000099),
]


@pytest.mark.parametrize(("norm", "r", "paper", "code"), NUMBERS)
@pytest.mark.parametrize("threshold", [0.1, 1.0, 30.0])
def test_both_formulas_give_their_numbers(norm: float, r: float, paper: float, code: float, threshold: float) -> None:
    found = [weight_of(norm * norm, threshold, r, rule) * norm / threshold for rule in RULES]
    assert found == pytest.approx([paper, code], abs=5e-7)


@pytest.mark.parametrize("rule", RULES)
def test_a_record_scaled_by_its_own_length_moves_the_sum_by_no_more(tmp_path: Path, rule: ClipRule) -> None:
    """On the real training path, with records that hold NaN, infinities and huge numbers among ordinary ones."""
    path = make_path(tmp_path)
    worst = worst_move(replace(path, plan=replace(path.plan, clip_rule=rule)), count=60)
    assert 0.9 < worst <= TOLERANCE


class BracketClosedTooEarly(WatchedExecution):
    """Planted: the paper's formula read as threshold / n + r / (n + r), which does not shrink with the threshold."""

    def clip_weights(self, squared_norms: Tensor) -> Tensor:
        norms = squared_norms.sqrt()
        weights = self.plan.clip_norm / norms + 0.01 / (norms + 0.01)
        return torch.where(torch.isfinite(norms) & (norms > 0), weights, torch.zeros_like(weights))


def test_planted_wrong_bracket_is_caught(tmp_path: Path) -> None:
    path = replace(make_path(tmp_path), execution=BracketClosedTooEarly)
    assert worst_move(path, count=60, enough=TOLERANCE) > 1.001


def test_the_execution_uses_the_rule_of_its_plan(tmp_path: Path) -> None:
    squares = torch.tensor([0.0, 1e-4, 0.25, 100.0], dtype=torch.float64)
    for rule in ClipRule:
        plan = make_plan(clip_rule=rule, clip_r=0.2, clip_norm=0.5)
        execution = PrivateExecution(plan, Key.from_seed(0), new_ledger(tmp_path, rule), records=2, parameters=9)
        assert torch.equal(execution.clip_weights(squares), clip_weights(squares, plan.clip_threshold(9), rule, 0.2))


def test_a_constant_or_rule_without_meaning_is_refused() -> None:
    for r in (0.0, -0.01, float("nan"), float("inf"), 1e-31):
        with pytest.raises(ConfigError, match="clip_r cannot be used"):
            make_plan(clip_r=r)
    with pytest.raises(ConfigError, match="clip_rule cannot be used"):
        make_plan(clip_rule="automatic")
