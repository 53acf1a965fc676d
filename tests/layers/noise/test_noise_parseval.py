"""Parseval steps draw the singular values of a kernel, counted with its overlaps, towards one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.noise_constraint import parseval_steps
from twinproof.layers.noise_placement import FirstLayer

CASES: dict[str, tuple[FirstLayer, int, float]] = {
    "linear": (nn.Linear(6, 4), 1, 1.0),
    "wide linear": (nn.Linear(4, 6), 1, 1.0),
    "conv2d": (nn.Conv2d(2, 3, 3), 1, 3.0),
    "conv2d with stride": (nn.Conv2d(2, 3, 5, stride=2), 1, 3.0),
    "conv1d in groups": (nn.Conv1d(4, 6, 4, groups=2), 2, 2.0),
}


def _values(layer: FirstLayer, groups: int, overlap: float) -> Tensor:
    matrices = layer.weight.detach().double().reshape(groups, layer.weight.shape[0] // groups, -1) * overlap
    values: Tensor = torch.linalg.svdvals(matrices)
    return values


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_are_pixeldps_on_every_singular_value(name: str) -> None:
    layer, groups, overlap = CASES[name]
    torch.manual_seed(1)
    nn.init.normal_(layer.weight, std=0.5)
    wanted = _values(layer, groups, overlap)
    for _ in range(10):
        wanted = (1 + 3e-4) * wanted - 3e-4 * wanted**3
    parseval_steps(layer)
    found = _values(layer, groups, overlap)
    torch.testing.assert_close(found, wanted.sort(dim=1, descending=True).values, rtol=1e-4, atol=1e-5)


def test_many_steps_end_in_a_tight_frame() -> None:
    layer = nn.Conv2d(1, 4, 3)
    torch.manual_seed(2)
    for _ in range(800):
        parseval_steps(layer)
    torch.testing.assert_close(_values(layer, 1, 3.0), torch.ones(1, 4, dtype=torch.float64), rtol=2e-2, atol=0)


def test_huge_weights_do_not_diverge() -> None:
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.mul_(1e6)
    parseval_steps(layer)
    assert float(_values(layer, 1, 1.0).max()) < 50
