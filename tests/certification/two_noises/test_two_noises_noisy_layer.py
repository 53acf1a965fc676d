"""The layer of noisy rows against one that is written down plainly, in whole numbers of steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.grid_noise import GridNoise, joint_noise
from twinproof.certification.two_noises import NoisyLayer
from twinproof.privacy.linear_maps import layer_map

SHAPE, HIDDEN = (1, 6, 6), 0.7


def _made() -> tuple[nn.Conv2d, GridNoise, NoisyLayer, Tensor]:
    torch.manual_seed(4)
    convolution = nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False)
    matrix = layer_map(convolution, SHAPE)
    noise = joint_noise(0.35, 255, matrix.outputs)
    layer = NoisyLayer(matrix, noise, HIDDEN, (3, 3, 3), torch.device("cpu"))
    whole = torch.randint(-5000, 5000, (7, matrix.inputs + matrix.outputs))
    return convolution, noise, layer, whole * noise.grid / noise.levels


def test_it_is_the_layer_rounded_to_steps_plus_its_noise() -> None:
    convolution, noise, layer, rows = _made()
    step = HIDDEN / noise.steps
    inputs = rows[:, :36].double().view(-1, *SHAPE)
    exact = nn.functional.conv2d(inputs, convolution.weight.double(), stride=2, padding=1).flatten(1).detach()
    drawn = torch.round(rows[:, 36:].double() * noise.levels / noise.grid)
    wanted = (torch.round(exact / step) + drawn) * step
    found = layer(rows.float()).flatten(1)
    # A product that falls between two whole numbers may be rounded either way by another order of sums.
    assert np.abs((found - wanted).numpy()).max() <= step * (1 + 1e-9)
    assert torch.isclose(found, wanted, rtol=0, atol=step / 1000).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_left_as_they_are(dtype: torch.dtype) -> None:
    _, _, layer, rows = _made()
    given = rows.to(dtype)
    kept = given.clone()
    layer(given)
    assert torch.equal(given, kept)
