"""Kernels are used only where one has run; whatever is missing, the plain form goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification import fast_layers as fused_pool
from twinproof.certification.fast_layers import ActivationPool
from twinproof.compute import cipher as stream_cipher
from twinproof.compute.cipher import cipher_words
from twinproof.compute.devices import kernels_run
from twinproof.training.per_example import gradients as device_sums


def test_not_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "twinproof.compute.cipher_kernel", None)  # importing it fails
    kernels_run.cache_clear()
    assert not kernels_run(torch.device("cuda", 0))
    kernels_run.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_they_run_on_a_gpu_with_triton() -> None:
    pytest.importorskip("triton")
    assert kernels_run(torch.device("cuda", torch.cuda.current_device()))


class Launches:
    """Stands for modules of kernels: remembers on which GPU each was launched."""

    def __init__(self) -> None:
        self.current: list[torch.device] = []
        self.seen: list[torch.device] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.current.append(device)
        yield
        self.current.pop()

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        def launch(first: Tensor, *more: object, **named: object) -> Tensor:
            self.seen.append(self.current[-1] if self.current else torch.device("cuda", 0))
            return first

        return launch


MAPS, ROWS = torch.zeros(1, 2, 4, 4), torch.zeros(3, 8, dtype=torch.int32)
POOL = ActivationPool(nn.Tanh(), nn.MaxPool2d(2))
LAUNCHES: dict[str, Callable[[], object]] = {
    "pool": lambda: POOL(MAPS),
    "pool of sums": lambda: POOL.of_sums(MAPS.double(), MAPS.double()),
    "squares": lambda: device_sums.row_squares(ROWS),
    "weighted rows": lambda: device_sums.weighted_rows(ROWS, ROWS),
    "cipher": lambda: cipher_words(ROWS, 3),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_kernels_are_launched_on_the_gpu_of_their_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without its device would run on the current GPU: here the tensors lie on a device that is not that one."""
    kernels = Launches()
    monkeypatch.setattr(torch.cuda, "device", kernels.device)
    for module in ("certification.layer_kernels", "training.per_example.sum_kernels", "compute.cipher_kernel"):
        monkeypatch.setitem(sys.modules, f"twinproof.{module}", kernels)
        parent, _, last = f"twinproof.{module}".rpartition(".")
        monkeypatch.setattr(sys.modules[parent], last, kernels, raising=False)
    for user in (fused_pool, stream_cipher):
        monkeypatch.setattr(user, "kernels_run", lambda device: True)
    LAUNCHES[name]()
    assert kernels.seen == [torch.device("cpu")]
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())  # the planted bug: the device is not set
    LAUNCHES[name]()
    assert kernels.seen[-1] != torch.device("cpu")
