"""Two threads take gradients of one model at the same time: each gets the bits that it would get alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from per_example_oracle import CLASSES, mean_loss, records
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.training.per_example import FastPath, RecordGradients
from twinproof.training.per_example import fast as recorder

SHAPE = (2, 8, 8)
WAIT = 20.0


class Meeting(nn.Module):
    """Lets go on only when both threads have arrived, so that their forward passes surely overlap; alone it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier: threading.Barrier | None = None

    def forward(self, rows: Tensor) -> Tensor:
        if self.barrier is not None:
            self.barrier.wait(WAIT)
        return rows


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Meeting(),
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        Meeting(),
        nn.Flatten(),
        nn.Linear(256, 32),
        Meeting(),
        nn.Tanh(),
        nn.Linear(32, CLASSES),
    )


def meet(model: nn.Module, barrier: threading.Barrier | None) -> None:
    for layer in model.modules():
        if isinstance(layer, Meeting):
            layer.barrier = barrier


def batches() -> list[tuple[Tensor, Tensor]]:
    """Of different size: a recorder that took the other thread's rows for its own would see the wrong number."""
    return [records(SHAPE, number, 2, torch.float32, seed=number) for number in (6, 5)]


def same_bits(first: RecordGradients, second: RecordGradients) -> bool:
    weights = torch.linspace(0.1, 1.0, first.losses.shape[0], dtype=torch.float64)
    return torch.equal(first.squared_norms(), second.squared_norms()) and all(
        torch.equal(gradient.weighted_sum(weights), second.by_name[name].weighted_sum(weights))
        for name, gradient in first.by_name.items()
    )


def both_at_once(model: nn.Module) -> list[RecordGradients]:
    path, barrier = FastPath(model, mean_loss), threading.Barrier(2)

    def gradients(batch: tuple[Tensor, Tensor]) -> RecordGradients:
        try:
            return path.gradients(*batch)
        except ModelError:
            barrier.abort()  # the other thread would wait for nobody
            raise

    meet(model, barrier)
    try:
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(gradients, batch) for batch in batches()]
    finally:
        meet(model, None)
    failures = [call.exception() for call in calls]
    for failure in failures:
        if isinstance(failure, ModelError):
            raise failure
    return [call.result() for call in calls]


def one_after_the_other(model: nn.Module) -> list[RecordGradients]:
    return [FastPath(model, mean_loss).gradients(*batch) for batch in batches()]


def test_concurrent_calls_give_the_bits_of_serial_ones() -> None:
    model = network()
    wanted = one_after_the_other(model)
    for _ in range(5):
        found = both_at_once(model)
        assert all(same_bits(*pair) for pair in zip(found, wanted, strict=True))
    assert not any(layer._forward_hooks for layer in model.modules())


def test_planted_recorder_of_all_threads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong on purpose: one list of recorders for the process, so that each sees the other thread's forward pass too."""
    monkeypatch.setattr(recorder, "_RECORDERS", SimpleNamespace(active=[]))
    with pytest.raises(ModelError, match="first axis does not count"):
        both_at_once(network())


class Overtaken(nn.Module):
    """The slow thread is held between two layers until the other thread's whole call has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, CLASSES)
        self.inside, self.ended = threading.Event(), threading.Event()
        self.slow: int | None = None

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(rows))
        if threading.get_ident() == self.slow:
            self.inside.set()
            self.ended.wait(WAIT)
        logits: Tensor = self.second(hidden)
        return logits


def overtaken() -> tuple[RecordGradients, RecordGradients]:
    """The slow thread's gradients and those that it should have."""
    torch.manual_seed(0)
    model = Overtaken()
    path = FastPath(model, mean_loss)
    inputs, labels = records((4,), 6, 2, torch.float32)
    wanted = path.gradients(inputs, labels)

    def slow() -> RecordGradients:
        model.slow = threading.get_ident()
        return path.gradients(inputs, labels)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slow)
        assert model.inside.wait(WAIT)
        path.gradients(inputs, labels)
        model.ended.set()
        return waiting.result(), wanted


def test_a_call_that_ends_takes_no_hook_from_one_that_goes_on() -> None:
    assert same_bits(*overtaken())


def test_planted_removal_by_the_first_to_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_at_once(layer: nn.Module) -> None:
        hook = recorder._HOOKS.pop(layer, None)
        if hook is not None:
            hook.handle.remove()

    monkeypatch.setattr(recorder, "_drop_hook", remove_at_once)
    assert not same_bits(*overtaken())


def test_a_forward_of_another_thread_is_not_recorded() -> None:
    model = network()
    rows = torch.zeros(3, *SHAPE)
    layers: dict[str, nn.Module] = {"1": model[1]}
    with recorder.recording(layers, 3) as own, ThreadPoolExecutor(1) as pool:
        pool.submit(model, rows).result()
        assert not own.passages
        model(rows)
        assert [passage.path for passage in own.passages] == ["1"]
