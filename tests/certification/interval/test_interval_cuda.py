"""Interval bounds on a GPU: the radii of a CPU to a step, confirmed by the verifier, ten thousand in less than a second."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from interval_oracles import LEVELS, stored_inputs
from interval_verifiers import begun_for_bounds, flat, verifiers
from torch import nn

from twinproof.certification.interval import STEPS, IntervalNetwork

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
IMAGE = (1, 28, 28)


def _network() -> nn.Sequential:
    convolutions = [nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()]
    return begun_for_bounds(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10)), 0)


def test_radii_are_those_of_a_cpu() -> None:
    network, stored = _network(), stored_inputs(0, IMAGE, 50)
    here = IntervalNetwork.of(network, IMAGE)
    answers = here.answers(stored, LEVELS)
    steps = here.radii(stored, LEVELS, answers)
    confirmed = verifiers(network, IMAGE)
    there = IntervalNetwork.of(network.cuda(), IMAGE)
    found = there.radii(stored.cuda(), LEVELS, answers.cuda()).cpu()
    assert (found - steps).abs().max() <= 1
    assert torch.equal(there.answers(stored.cuda(), LEVELS).cpu(), answers)
    held = (found > 0).numpy()
    assert confirmed.holds(flat(stored)[held], answers.numpy()[held], np.asarray(found.numpy() / STEPS)[held]).all()


def test_ten_thousand_inputs_take_less_than_a_second() -> None:
    bounds, stored = IntervalNetwork.of(_network().cuda(), IMAGE), stored_inputs(0, IMAGE, 10_000).cuda()
    answers = bounds.answers(stored, LEVELS)
    bounds.radii(stored[:100], LEVELS, answers[:100])
    torch.cuda.synchronize()
    began = time.monotonic()
    bounds.radii(stored, LEVELS, answers).cpu()
    assert time.monotonic() - began < 1
