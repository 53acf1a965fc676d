"""A plan refuses what has no meaning, its divisor is a constant, and what is announced is what runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from private_path import CLASSES, Records, TrainingPath, WatchedExecution, flat, make_plan, new_ledger
from torch import Tensor, nn

from twinproof.errors import ConfigError, RunError
from twinproof.keys import Key
from twinproof.privacy import step_randomness as randomness_module
from twinproof.privacy.accounting import PoissonGaussianEvent
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import LEDGER_BLOCK, Draw, PrivateExecution
from twinproof.privacy.step_randomness import poisson_sample

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("sample_rate", [-0.1, 1.1, NAN, INF], "sample_rate cannot be used"),
        ("noise_multiplier", [-1.0, NAN, INF], "noise_multiplier cannot be used"),
        ("noise_multiplier", [1e6], "noise_multiplier cannot be used"),
        ("clip_norm", [0.0, -1.0, NAN, INF, 5e-324, 1e-31, 1e31], "clip_norm cannot be used"),
        ("divisor", [0.0, -1.0, NAN, INF], "divisor cannot be used"),
        ("steps", [-1, 1.5, NAN, INF], "steps cannot be used"),
        ("delta", [0.0, 1.0, -1e-5, 2.0, NAN], "delta cannot be used"),
    ],
)
def test_a_plan_without_meaning_is_refused(field: str, values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=message) as caught:
            make_plan(**{field: value})
        assert caught.value.got == str(value)
        assert caught.value.wanted


@pytest.mark.parametrize("clip", [1e-30, 1e-3, 0.7, 1.0, 1.5, 8.0, 1e30])
def test_the_grid_is_a_fine_power_of_two(clip: float) -> None:
    plan = make_plan(clip_norm=clip)
    assert math.frexp(plan.grid)[0] == 0.5
    assert 2.0**-31 <= plan.grid / clip <= 2.0**-30
    assert plan.clip_threshold(1_000_000) >= clip * (1 - 1e-6)
    assert plan.clip_threshold(1_000_000) + plan.grid * 1000 <= clip * (1 + 1e-15)


def test_a_step_outside_the_plan_is_refused(tmp_path: Path) -> None:
    execution = PrivateExecution(make_plan(steps=3), Key.from_seed(0), new_ledger(tmp_path), records=2, parameters=1)
    for step in (-1, 3, 10**6):
        with pytest.raises(ConfigError, match="step cannot be used"):
            execution.draw(step)


def divisor_path(folder: Path, execution: type[WatchedExecution] = WatchedExecution) -> TrainingPath:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Linear(4, CLASSES)
    plan = make_plan(noise_multiplier=0.0, clip_norm=0.1, divisor=8.0)
    return TrainingPath(model, plan, new_ledger(folder), (4,), execution=execution)


def released_over_sum(path: TrainingPath, count: int) -> float:
    """The ratio between what is released and the sum that was handed over, for ``count`` records, all drawn."""
    inputs = np.tile(np.array([[9, 80, 170, 240]], np.uint8), (count, 1))
    data: Records = (inputs, np.zeros(count, np.int64))
    source, execution = path.source(data)
    released = flat(source.gradient(0))
    assert isinstance(execution, WatchedExecution)
    assert execution.handed is not None
    return float(np.linalg.norm(released) / np.linalg.norm(flat(execution.handed)))


def divisors(path: TrainingPath) -> set[float]:
    return {round(released_over_sum(path, count), 6) for count in (1, 7, 8, 9, 20)}


class DividedByDrawn(WatchedExecution):
    """Planted: the drawn batch as divisor."""

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value * 8 / len(draw.indices) for name, value in super().release(draw, sums).items()}


class DividedByData(WatchedExecution):
    """Planted: the expected batch computed from the size of the data set."""

    def __init__(self, *parts: Any, records: int, **named: Any) -> None:
        super().__init__(*parts, records=records, **named)
        self._records = records

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        expected = self.plan.sample_rate * self._records
        return {name: value * 8 / expected for name, value in super().release(draw, sums).items()}


@pytest.mark.parametrize(("execution", "sound"), [(WatchedExecution, True), (DividedByDrawn, False), (DividedByData, False)])
def test_the_divisor_does_not_depend_on_the_records(tmp_path: Path, execution: type[WatchedExecution], sound: bool) -> None:
    assert (divisors(divisor_path(tmp_path, execution)) == {0.125}) == sound


def on_disk(path: Path) -> Ledger:
    """The ledger as another process would find it now."""
    return Ledger.load(path)


def counted_when_sampling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int, execution: type[PrivateExecution] = PrivateExecution
) -> list[int]:
    """For each step, how many the file on the disk counts at the moment when the sampler is called."""
    counted: list[int] = []
    sample = poisson_sample

    def watching(key: Key, step: int, **settings: Any) -> Any:
        counted.append(on_disk(folder / "ledger.jsonl").reserved_steps)
        return sample(key, step, **settings)

    monkeypatch.setattr(randomness_module, "poisson_sample", watching)
    plan = make_plan(sample_rate=0.1, steps=steps)
    running = execution(plan, Key.from_seed(0), new_ledger(folder), records=5, parameters=1)
    for step in range(steps):
        running.draw(step)
    return counted


@pytest.mark.parametrize("steps", [1, LEDGER_BLOCK, 2 * LEDGER_BLOCK + 50])
def test_a_step_is_on_the_disk_before_its_records_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    counted = counted_when_sampling(tmp_path, monkeypatch, steps)
    assert all(reserved > step for step, reserved in enumerate(counted))
    assert counted == [min(steps, (step // LEDGER_BLOCK + 1) * LEDGER_BLOCK) for step in range(steps)]
    stored = on_disk(tmp_path / "ledger.jsonl")
    assert stored.events() == [PoissonGaussianEvent(0.1, 1.0, steps)]
    blocks = [entry.body for entry in stored.entries if entry.kind == "poisson-gaussian"]
    assert [block["first_step"] for block in blocks] == list(range(0, steps, LEDGER_BLOCK))


class AnnouncesLate(PrivateExecution):
    """Planted: the ledger is written when the records are already drawn."""

    def draw(self, step: int) -> Draw:
        indices = self._randomness.sample(step, announced=self._reserved)
        self._announce(step)
        return Draw(step, indices, self)


def test_planted_late_announcement_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = counted_when_sampling(tmp_path, monkeypatch, 3, AnnouncesLate)
    assert not all(reserved > step for step, reserved in enumerate(counted))


def test_a_new_execution_does_not_announce_twice(tmp_path: Path) -> None:
    plan = make_plan(sample_rate=0.3, steps=150)
    drawn = []
    new_ledger(tmp_path)
    for _ in range(3):  # as after a kill: everything is read from the disk again
        execution = PrivateExecution(plan, Key.from_seed(0), on_disk(tmp_path / "ledger.jsonl"), records=50, parameters=1)
        drawn.append([execution.draw(step).indices.tolist() for step in (0, 99, 100, 149)])
    assert on_disk(tmp_path / "ledger.jsonl").events() == [plan.event]
    assert drawn[0] == drawn[1] == drawn[2]
    ahead = PrivateExecution(
        make_plan(sample_rate=0.1, steps=1000), Key.from_seed(0), new_ledger(tmp_path, "b"), records=5, parameters=1
    )
    ahead.draw(750)
    assert on_disk(tmp_path / "b").reserved_steps == 800, "all steps before it are announced"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_rate": 0.5}, "announced the steps of another plan"),
        ({"noise_multiplier": 0.5}, "announced the steps of another plan"),
        ({"steps": 50}, "announced more steps"),
    ],
)
def test_another_plans_ledger_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Steps announced at a low price must not be taken at a high one."""
    plan = make_plan(sample_rate=0.01, noise_multiplier=5.0, steps=100)
    ledger = new_ledger(tmp_path)
    PrivateExecution(plan, Key.from_seed(0), ledger, records=5, parameters=1).draw(0)
    with pytest.raises(ConfigError, match=message):
        PrivateExecution(replace(plan, **changes), Key.from_seed(0), ledger, records=5, parameters=1)


def test_nothing_is_drawn_after_the_weights_left(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.append("close", {"steps": 0, "model_sha256": "0" * 64, "epsilon": 0.0, "epsilon_rdp": 0.0})
    execution = PrivateExecution(make_plan(), Key.from_seed(0), ledger, records=5, parameters=1)
    with pytest.raises(RunError, match="cannot be added"):
        execution.draw(0)
