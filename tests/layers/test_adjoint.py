"""The adjoint of a layer: the inner products that define it, and weights that belong to the layer alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.noise_constraint import Adjoint
from twinproof.layers.noise_placement import FirstLayer

LAYERS: list[tuple[FirstLayer, tuple[int, ...]]] = [
    (nn.Linear(7, 4), (7,)),
    (nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    (nn.Conv2d(1, 4, 5, stride=2, padding=2), (1, 8, 8)),
    (nn.Conv2d(4, 6, 3, stride=3, padding=2, groups=2), (4, 7, 8)),
    (nn.Conv2d(2, 3, 2, padding="same", dilation=2), (2, 5, 6)),
    (nn.Conv3d(1, 2, 2, stride=2), (1, 4, 5, 4)),
]


def _linear(layer: FirstLayer, inputs: Tensor) -> Tensor:
    return layer(inputs) - layer(torch.zeros_like(inputs))  # type: ignore[no-any-return]  # calls of modules are Any


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda part: str(part).split("(")[0])
def test_inner_products_are_those_of_the_layer(layer: FirstLayer, shape: tuple[int, ...]) -> None:
    exact = layer.double()
    inputs = torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs = _linear(exact, inputs).detach()
    code = torch.rand(outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    back = Adjoint(exact)(code, inputs)
    assert back.shape == inputs.shape
    assert float((outputs * code).sum()) == pytest.approx(float((inputs * back).sum().detach()), rel=1e-12)


def test_other_padding_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be transposed"):
        Adjoint(nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"))


def test_weights_belong_to_the_layer_alone() -> None:
    layer = nn.Linear(3, 2)
    adjoint = Adjoint(layer)
    assert not list(adjoint.parameters())
    assert not adjoint.state_dict()
    assert not list(adjoint.children())
    assert adjoint.layer is layer
