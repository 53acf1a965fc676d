"""On a GPU: a recorded pass draws fresh noise at every replay, the same after the same seed; a recorded constraint holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinproof.compute.devices import Captured
from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place
from twinproof.layers.noise_constraint import Constraint, WeightRule
from twinproof.layers.noise_placement import add_noise, split_at_noise
from twinproof.privacy.operator_norm import operator_norm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3))
    network = add_noise(
        plain, (1, 10, 10), Place.FIRST_LAYER, lambda shape: NoiseLayer(shape, Law.GAUSSIAN, 0.5, LearnedSpread(shape))
    )
    return network.to("cuda")


@pytest.mark.parametrize("law", list(Law))
def test_a_recording_draws_anew_and_repeats_after_a_seed(law: Law) -> None:
    layer = NoiseLayer((50,), law, 2.0, LearnedSpread((50,))).to("cuda")
    inputs, out = torch.zeros(200, 50, device="cuda"), torch.empty(200, 50, device="cuda")

    def write() -> None:
        out.copy_(layer(inputs))

    work = Captured(write, torch.device("cuda"))
    seen = []
    with torch.no_grad():
        for seed in (1, 2, 3, 4, 5, 4):
            torch.cuda.manual_seed(seed)
            work()
            seen.append(out.clone())
    assert work.is_recorded
    assert not torch.equal(seen[3], seen[4]), "a replay that repeats its noise would be one draw for all steps"
    assert torch.equal(seen[3], seen[5])
    assert len(torch.unique(seen[4][:, 0])) > 190, "rows share no noise"
    layer.set_deviation(0.0)
    work()
    assert bool((out == 0).all()), "the recording reads the deviation as it is now"


def test_a_recorded_constraint_goes_on_holding_the_norm() -> None:
    network, constraint = _network(), Constraint(WeightRule.PARSEVAL, "linf", Law.GAUSSIAN, 0.1, (1, 10, 10))
    hold = Captured(lambda: constraint.apply(network), torch.device("cuda"))
    split = split_at_noise(network)
    assert split is not None
    assert isinstance(split.before, nn.Conv2d)
    for _ in range(6):
        with torch.no_grad():
            split.before.weight.mul_(7.0)
        hold()
    assert hold.is_recorded
    layer = nn.Conv2d(1, 4, 4, stride=2, padding=1)
    layer.load_state_dict(split.before.state_dict())
    norm = operator_norm(layer, (1, 10, 10), source="linf", target="l2", scale=split.noise.spread.least_scales()).value
    assert 0.95 < norm / 10 < 1.06
    assert float(split.noise.deviation) == pytest.approx(1.0)
