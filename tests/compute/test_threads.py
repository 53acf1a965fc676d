"""Threads share out batches and change nothing: not the votes, not torch's settings, not a network with a memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from twinproof.compute.devices import each_batch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _threads_put_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Batches:
    """Adds up the starts it is given and remembers which thread took which, with how many threads inside."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[str, int, bool]] = {}

    def __call__(self, starts: Sequence[int]) -> Tensor:
        """The sum and the number of starts."""
        for start in starts:
            self.seen[start] = (threading.current_thread().name, torch.get_num_threads(), torch.is_inference_mode_enabled())
        return torch.tensor([sum(starts), len(starts)])


class Remembers(nn.Module):
    """A layer of somebody else's, which may keep something on itself between two lines."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def _hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *what: None)
    return model


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_batch_is_one_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    batches = Batches()
    with torch.inference_mode():
        total = each_batch(batches, range(0, 1000, 10), nn.Sequential(nn.Linear(2, 2), nn.Tanh()), CPU)
    assert total.tolist() == [sum(range(0, 1000, 10)), 100]
    assert sorted(batches.seen) == list(range(0, 1000, 10))
    assert {inside for _, inside, _ in batches.seen.values()} == {1}
    assert all(inference for _, _, inference in batches.seen.values())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("model", [Remembers(), nn.Sequential(nn.Tanh(), Remembers()), _hooked()])
def test_a_network_that_may_have_a_memory_is_run_by_one_thread(model: nn.Module) -> None:
    torch.set_num_threads(3)
    batches = Batches()
    assert each_batch(batches, range(10), model, CPU).tolist() == [45, 10]
    assert {name for name, _, _ in batches.seen.values()} == {threading.current_thread().name}
    assert {inside for _, inside, _ in batches.seen.values()} == {3}


class Racing(nn.Module):
    """Writes a number on itself and reads it back: right alone, wrong when two threads run it at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2, timeout=0.05)
        self.mine = 0

    def forward(self, x: Tensor) -> Tensor:
        self.mine = int(x)
        try:
            self.meeting.wait()
        except threading.BrokenBarrierError:
            self.meeting.reset()
        return torch.tensor([self.mine])


def test_planted_threads_for_a_network_with_a_memory_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    racing = Racing()

    def work(starts: Sequence[int]) -> Tensor:
        return torch.stack([racing(torch.tensor(start)) for start in starts]).sum(dim=0)

    assert each_batch(work, range(2), racing, CPU).tolist() == [1]
    monkeypatch.setattr("twinproof.compute.devices.is_stateless", lambda model: True)
    racing.meeting = threading.Barrier(2, timeout=60)  # a busy machine may be slow to start the second thread
    assert each_batch(work, range(2), racing, CPU).tolist() != [1]
