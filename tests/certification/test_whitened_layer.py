"""The whitened layer: on the grid, near the real layer, and never further apart for two inputs than norm and slack allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.noise_site import TARGETS, WhitenedLayer, identity_norm, layer_norm, papers_norm
from twinproof.errors import ModelError
from twinproof.layers.noise import Law
from twinproof.privacy.paper_formulas import paper_single_feature_map

LEVELS = 255
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 5), (6,)),
    "strides": (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 6, 6)),
    "groups": (nn.Conv2d(2, 4, 3, groups=2, dilation=2, bias=False), (2, 7, 7)),
    "one axis": (nn.Conv1d(1, 3, 3, padding="same"), (1, 9)),
}


def _whitened(name: str, law: Law, sigma: float = 0.3) -> tuple[WhitenedLayer, NDArray[np.float64], Tensor]:
    """The layer, its scales, and some stored inputs."""
    torch.manual_seed(3)
    layer, shape = CASES[name]
    outputs = math.prod(layer(torch.zeros(1, *shape)).shape)
    scales = np.random.default_rng(5).uniform(0.4, 1.6, size=outputs).astype(np.float32).astype(np.float64)
    stored = torch.randint(0, LEVELS + 1, (40, *shape), generator=torch.Generator().manual_seed(1)).float()
    return WhitenedLayer(layer, shape, scales, law, sigma, LEVELS), scales, stored


def _exact(name: str, stored: Tensor, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """S^-1 W x by torch's own layer in float64, without its bias."""
    layer = CASES[name][0]
    with torch.no_grad():
        both = torch.cat((stored, torch.zeros_like(stored[:1]))).double() / LEVELS
        answers = layer.double()(both)
        layer.float()
    return np.asarray((answers[:-1] - answers[-1:]).flatten(1)) / scales


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", list(CASES))
def test_points_lie_on_the_grid_next_to_the_real_layer(name: str, law: Law) -> None:
    whitened, scales, stored = _whitened(name, law)
    points = np.asarray(whitened.points(stored), dtype=np.float64)
    grid = whitened.noise.grid
    assert points.shape == (40, whitened.dimension)
    assert (points / grid == np.rint(points / grid)).all()
    assert np.abs(points - _exact(name, stored, scales)).max() <= grid / 2 * (1 + 1e-6)
    assert np.abs(points).max() <= whitened.noise.largest
    edge = whitened.noise.table.reach * grid
    assert ((points.astype(np.float32) + np.float32(edge)).astype(np.float64) == points + edge).all(), "sums are exact"


def test_points_do_not_depend_on_the_batch_nor_on_the_bias() -> None:
    whitened, _, stored = _whitened("strides", Law.GAUSSIAN)
    whole = whitened.points(stored)
    assert torch.equal(whole[7:8], whitened.points(stored[7:8]))
    assert not whitened.points(torch.zeros_like(stored[:1])).any()
    assert len(whitened.points(stored[:0])) == 0


def _excess(whitened: WhitenedLayer, law: Law, slack: float, norm: float, stored: Tensor) -> int:
    """How many pairs of inputs lie further apart in the layer than ``norm`` times their l2 distance and ``slack`` allow."""
    points, inputs = np.asarray(whitened.points(stored), dtype=np.float64), np.asarray(stored.flatten(1)) / LEVELS
    order = 2 if law is Law.GAUSSIAN else 1
    apart = np.linalg.norm(points[:, None] - points[None, :], ord=order, axis=2)
    return int((apart > norm * np.linalg.norm(inputs[:, None] - inputs[None, :], axis=2) + slack).sum())


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", list(CASES))
def test_norm_and_slack_bound_every_pair(name: str, law: Law) -> None:
    whitened, scales, stored = _whitened(name, law)
    norm = layer_norm(*CASES[name], law, "l2", scales).value
    close = torch.cat((stored, (stored + 1).clamp(max=LEVELS)))
    assert _excess(whitened, law, whitened.slack, norm, close) == 0


def _staircase() -> tuple[WhitenedLayer, Tensor]:
    """64 equal outputs, so that all of them are rounded the same way: as far apart as two roundings can be."""
    layer = nn.Linear(1, 64, bias=False)
    nn.init.constant_(layer.weight, 1 / 8)
    stored = torch.arange(0, LEVELS + 1).float()[:, None]
    return WhitenedLayer(layer, (1,), np.ones(64), Law.GAUSSIAN, 50.0, LEVELS), stored


def test_slack_is_needed_and_nearly_reached() -> None:
    whitened, stored = _staircase()
    assert _excess(whitened, Law.GAUSSIAN, whitened.slack, 1.0, stored) == 0
    assert _excess(whitened, Law.GAUSSIAN, 0.9 * whitened.slack, 1.0, stored) > 0


@pytest.mark.parametrize(("law", "power"), [(Law.GAUSSIAN, 0.5), (Law.LAPLACE, 1.0)])
def test_slack_is_the_documented_number_of_steps(law: Law, power: float) -> None:
    whitened, _, _ = _whitened("strides", law)
    steps = whitened.slack / whitened.noise.grid
    assert whitened.dimension**power <= steps <= whitened.dimension**power * (1 + 1e-6), "float64 adds next to nothing"


def test_a_layer_without_weights_is_refused() -> None:
    layer = nn.Linear(2, 2)
    nn.init.zeros_(layer.weight)
    with pytest.raises(ModelError, match="ignores its input"):
        WhitenedLayer(layer, (2,), np.ones(2), Law.GAUSSIAN, 0.5, LEVELS)


IDENTITY = [
    (Law.GAUSSIAN, "l1", 1.0),
    (Law.GAUSSIAN, "l2", 1.0),
    (Law.GAUSSIAN, "linf", math.sqrt(7)),
    (Law.LAPLACE, "l1", 1.0),
    (Law.LAPLACE, "l2", math.sqrt(7)),
    (Law.LAPLACE, "linf", 7.0),
]


@pytest.mark.parametrize(("law", "norm", "value"), IDENTITY)
def test_norms_of_the_identity(law: Law, norm: str, value: float) -> None:
    found = identity_norm(law, norm, 7)
    assert value <= found.value <= value * (1 + 1e-15)
    # The same by the layer that multiplies by one.
    layer = nn.Conv1d(1, 1, 1, bias=False)
    nn.init.ones_(layer.weight)
    assert layer_norm(layer, (1, 7), law, norm, np.ones(7)).value == pytest.approx(value, rel=1e-6)


def test_targets_are_the_norms_that_hide_a_shift() -> None:
    assert {law: str(norm) for law, norm in TARGETS.items()} == {Law.GAUSSIAN: "l2", Law.LAPLACE: "l1"}


def test_the_papers_norms_are_named_and_used_where_they_have_one() -> None:
    layer, shape = CASES["strides"]
    ones = np.ones(36)
    claimed = papers_norm(layer, shape, Law.GAUSSIAN, "linf", ones)
    assert (claimed.value, claimed.method) == (paper_single_feature_map(layer, shape, ones), "paper: single feature map")
    assert papers_norm(layer, shape, Law.GAUSSIAN, "l2", ones).method == "paper: reshaped kernel"
    assert papers_norm(*CASES["linear"], Law.GAUSSIAN, "linf", np.ones(5)).method == "paper: largest row"
    for law, norm in ((Law.GAUSSIAN, "l1"), (Law.LAPLACE, "linf")):
        assert papers_norm(layer, shape, law, norm, ones) == layer_norm(layer, shape, law, norm, ones)
