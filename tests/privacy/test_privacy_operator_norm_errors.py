"""What has no known operator norm is refused, with one clear error each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError, UserError
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.paper_formulas import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map


class Doubled(nn.Linear):
    """A linear layer by type, and another function."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2 * super().forward(input)


def hooked() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def replaced() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.__dict__["forward"] = lambda x: 2 * x
    return layer


def weight(value: float) -> nn.Module:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight[1, 2] = value
    return layer


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.ReLU(), (3,), "operator norm of this layer is not known"),
        (nn.ConvTranspose2d(1, 1, 2), (1, 4, 4), "operator norm of this layer is not known"),
        (nn.Sequential(nn.Linear(3, 2)), (3,), "operator norm of this layer is not known"),
        (Doubled(3, 2), (3,), "operator norm of this layer is not known"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,), "operator norm of this layer is not known"),
        (hooked(), (3,), "does more than its type says"),
        (replaced(), (3,), "does more than its type says"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"), (1, 4, 4), "padding is not known"),
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), (1, 4), "padding is not known"),
        (weight(float("nan")), (3,), "NaN or infinity"),
        (weight(float("inf")), (3,), "NaN or infinity"),
        (nn.Linear(3, 2, dtype=torch.complex64), (3,), "complex64"),
        (nn.Linear(3, 2), (4,), r"wanted: \(3\)"),
        (nn.Linear(3, 2), (1, 3), r"got: \(1, 3\)"),
        (nn.Conv2d(2, 1, 3), (1, 8, 8), r"wanted: \(2, any, any\)"),
        (nn.Conv2d(2, 1, 3), (2, 8), "does not fit the layer"),
        (nn.Conv2d(2, 1, 3), (2, 8, 0), "does not fit the layer"),
        (nn.Conv2d(2, 1, 3), (2, 8, 2), "kernel is larger than the input"),
    ],
)
def test_layers_and_shapes_that_are_refused(layer: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        operator_norm(layer, shape)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ([1.0], "1 numbers"),
        (np.ones(7), "one for each output"),
        ([1.0, 0.0], "cannot be divided by"),
        ([1.0, -2.0], "smallest -2"),
        ([1.0, float("nan")], "cannot be divided by"),
        ([1.0, 1e-70], "from 1e-60 to"),
        ([1.0, float("inf")], "cannot be divided by"),
    ],
)
def test_scales_that_are_refused(scale: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        operator_norm(nn.Linear(3, 2), (3,), "linf", "l2", scale)
    with pytest.raises(ConfigError, match=message):
        paper_row_norm(nn.Linear(3, 2), (3,), scale)


@pytest.mark.parametrize(("source", "target", "message"), [("l0", "l2", "this source"), ("l2", "linf", "this target")])
def test_norms_that_are_refused(source: str, target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        operator_norm(nn.Linear(3, 2), (3,), source, target)


def test_the_papers_bounds_of_convolutions_refuse_linear_layers() -> None:
    with pytest.raises(UserError, match="for convolutions"):
        paper_single_feature_map(nn.Linear(3, 2), (3,))
    with pytest.raises(UserError, match="for convolutions"):
        paper_reshaped_kernel(nn.Linear(3, 2))


def test_half_precision_and_frozen_weights_are_read_exactly() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 4).to(torch.bfloat16).requires_grad_(False)
    wide = nn.Linear(5, 4).double()
    with torch.no_grad():
        wide.weight.copy_(layer.weight)
    assert operator_norm(layer, (5,), "linf") == operator_norm(wide, (5,), "linf")
