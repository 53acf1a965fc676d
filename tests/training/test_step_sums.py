"""The clipped sum of a step, however its passes are run; and giving memory back."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_problems import CPU, KEY, LEVELS, PLAN, distance, hand_step, network, problem, training_split

from twinproof.privacy.plan import flat_clip_weights
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import Batching, DeviceRecords, GaussianCopies, PassMode, free_device_memory, power_of_two_below
from twinproof.training.per_example.fast import FastPath
from twinproof.training.sources import ClippedPass, ClippedSums, DeviceStepSums, HostStepSums, StepSums, in_order

DRAWN = torch.tensor([0, 3, 4, 8, 11, 12, 20, 21, 22, 30, 39])


@pytest.fixture(autouse=True)
def _one_thread_inside_operators() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parts(rows: int = 3, device: torch.device = CPU) -> tuple[ClippedPass, Batching, dict[str, Tensor]]:
    model = network().to(device)
    records = DeviceRecords(training_split(), LEVELS, device, torch.float64)
    batching = Batching(records, GaussianCopies(2, 0.25), rows, KEY)
    work = ClippedPass(FastPath(model, mean_cross_entropy), lambda squares: flat_clip_weights(squares, PLAN.clip_norm))
    return work, batching, {name: value.detach() for name, value in model.named_parameters()}


def same(one: ClippedSums, other: ClippedSums) -> bool:
    equal = all(torch.equal(one.by_name[name], other.by_name[name]) for name in one.by_name)
    return equal and torch.equal(one.counts, other.counts)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    alone, together = HostStepSums(*parts()), HostStepSums(*parts(), workers=workers)
    for step in range(5):
        assert same(together.of(DRAWN, step), alone.of(DRAWN, step))


def test_workers_do_not_change_the_threads_of_the_caller() -> None:
    torch.set_num_threads(2)
    HostStepSums(*parts(), workers=2).of(DRAWN, 0)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("rows", [1, 3, 4, 11, 20])
def test_tensors_that_stay_in_place_give_the_same_bits(rows: int) -> None:
    """Draws of all sizes one after the other, so that each finds the rows of another one in the buffer."""
    anew, in_place = HostStepSums(*parts(rows)), DeviceStepSums(*parts(rows))
    for step, drawn in enumerate((DRAWN, DRAWN[:2], DRAWN[:0], DRAWN[3:], DRAWN[:1])):
        assert same(in_place.of(drawn, step), anew.of(drawn, step))


class ForgetsWhoIsPresent(DeviceStepSums):
    """Planted: rows left over from the draw before are taken for drawn ones."""

    def of(self, indices: Tensor, step: int) -> ClippedSums:
        found = super().of(indices, step)
        self._drawn.fill_(len(self._rows))
        return found

    def _added(self) -> None:
        self._drawn.fill_(len(self._rows))
        super()._added()


def test_planted_rows_left_over_are_caught() -> None:
    anew, planted = HostStepSums(*parts()), ForgetsWhoIsPresent(*parts())
    assert same(planted.of(DRAWN[:9], 0), anew.of(DRAWN[:9], 0)), "full passes only: nothing to see yet"
    assert not same(planted.of(DRAWN[:2], 1), anew.of(DRAWN[:2], 1))


@pytest.mark.parametrize("mode", [PassMode(workers=3), PassMode(capture=True)])
def test_a_step_is_dp_sgd_by_the_book_in_every_mode(tmp_path: Path, mode: PassMode) -> None:
    given = problem(tmp_path, rows=4, mode=mode)
    for step in (0, 1, 5):
        assert distance(given.source.gradient(step), hand_step(given, step)) < 1e-6


def test_results_come_in_order_and_few_wait() -> None:
    started: list[int] = []
    lock, most = threading.Lock(), 0

    def slow_first(item: int) -> int:
        time.sleep(0.02 if item % 3 == 0 else 0.0)
        return item

    def items() -> Iterator[int]:
        for item in range(12):
            with lock:
                started.append(item)
            yield item

    with ThreadPoolExecutor(3) as pool:
        found = []
        for result in in_order(pool, slow_first, items(), ahead=3):
            found.append(result)
            most = max(most, len(started) - len(found))
    assert found == list(range(12))
    assert most <= 3


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    class Refuses(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            raise RuntimeError("no forward today")

    work, batching, shapes = parts()
    model = Refuses()
    model.register_parameter("weight", nn.Parameter(torch.zeros(1)))
    broken = ClippedPass(FastPath(nn.Sequential(nn.Linear(5, 3).double(), model), mean_cross_entropy), work.clip_weights)
    with pytest.raises(Exception, match=r"a layer without a fast rule|no forward today"):
        HostStepSums(broken, batching, shapes, workers=2).of(DRAWN, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recording_gives_the_same_bits() -> None:
    device = torch.device("cuda")
    plain: StepSums = HostStepSums(*parts(4, device))
    recorded = DeviceStepSums(*parts(4, device))
    drawn = DRAWN.to(device)
    for step in range(8):
        assert same(recorded.of(drawn[: 1 + step], step), plain.of(drawn[: 1 + step], step))
    assert recorded._add.is_recorded


class Knot:
    """An object that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("started", "calls"), [(False, 0), (True, 1)])
def test_only_a_device_that_is_in_use_is_asked(monkeypatch: pytest.MonkeyPatch, started: bool, calls: int) -> None:
    """Asking one that is not would start it, and take memory where there was none."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    free_device_memory()
    assert len(asked) == calls


def test_what_is_finished_goes_and_what_is_in_use_stays() -> None:
    kept, knot = torch.arange(5), Knot()
    gone = weakref.ref(knot)
    gc.disable()
    try:
        del knot
        assert gone() is not None, "nobody has collected yet"
        free_device_memory()
    finally:
        gc.enable()
    assert gone() is None
    assert kept.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("value", "wanted"), [(0.2, 1), (1.0, 1), (3.9, 2), (4.0, 4), (1000.0, 512)])
def test_powers_of_two(value: float, wanted: int) -> None:
    assert power_of_two_below(value) == wanted
