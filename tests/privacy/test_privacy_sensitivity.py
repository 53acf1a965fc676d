"""One record more or less moves the clipped sum by at most the clipping norm, whatever the records hold.

The sums are taken from the real training path: before rounding from what is handed to ``PrivateExecution.release``, after
rounding from what a plan without noise releases. Each planted bug must push the same measure above the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from private_path import CLASSES, Records, TrainingPath, WatchedExecution, flat, make_plan, new_ledger
from torch import Tensor, nn

from twinproof.privacy.plan import Draw
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


@pytest.mark.parametrize(("network", "count"), [("dense", PAIRS), ("normalised", 300), ("convolutional", 300)])
def test_a_record_moves_the_sum_by_at_most_the_clipping_norm(tmp_path: Path, network: str, count: int) -> None:
    worst = worst_move(make_path(tmp_path, network), count=count)
    assert worst <= TOLERANCE
    assert worst > 0.999  # the pairs reach the bound, so that a larger move would be seen


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_rows_that_fill_a_pass_bring_nothing_in(tmp_path: Path, value: float) -> None:
    """A network that is not finite on the zeros that fill a pass must not spoil the records beside them."""
    path = make_path(tmp_path, padding_value=value)
    assert worst_move(path, count=150) <= TOLERANCE
    alone: Records = (np.full((1, 4), 120, np.uint8), np.zeros(1, np.int64))
    assert 0 < np.linalg.norm(rounded_and_plain_sum(path, path.chosen(), alone)[1]) <= CLIP


def test_the_empty_data_set_has_the_sum_zero(tmp_path: Path) -> None:
    nobody: Records = (np.zeros((0, 4), np.uint8), np.zeros(0, np.int64))
    path = make_path(tmp_path)
    for total in rounded_and_plain_sum(path, path.chosen(), nobody):
        assert not total.any()


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_a_record_that_is_not_finite_counts_nothing(tmp_path: Path, scale: float) -> None:
    path = make_path(tmp_path)
    with torch.no_grad():
        for parameter in path.model.parameters():
            parameter.mul_(scale)
    chosen = path.chosen()
    inputs = np.array([[10, 20, 30, 40], [99, 250, 3, 4], [50, 60, 70, 80]], np.uint8)
    labels = np.array([0, 1, 2])
    kept = np.array([True, False, True])
    with_it = rounded_and_plain_sum(path, chosen, (inputs, labels))[1]
    without_it = rounded_and_plain_sum(path, chosen, (inputs[kept], labels[kept]))[1]
    assert np.allclose(with_it, without_it, atol=1e-6 * CLIP)


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
