"""What tuning records of a run with noise inside its network: accuracy under attacks, and certificates in linf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from twinproof.attacks.objective import OwnNoise
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import Attack, pgd
from twinproof.attacks.threat import Threat
from twinproof.certification.method import Method, Sampling
from twinproof.certification.run import smoothed_for_run
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.layers.noise import silenced
from twinproof.runs.records import Certificate
from twinproof.runs.run import Run

ATTACK_SIZE = 0.1
"""linf, input units: 0.2 in the papers' scale."""

UNDER_ATTACK, IN_EXPECTATION = "under attack", "under attack in expectation"
_ALPHA = 0.001
_JUDGES = Sampling(100, 100, _ALPHA)


@dataclass(frozen=True)
class Measure:
    """How many held-out records are looked at, with how many draws, by which attacks, and where certificates are read."""

    inputs: int
    sizes: tuple[float, ...]
    attacks: Mapping[str, Attack]
    draws: int = 1000
    expected_steps: int = 10


def measured(run: Run, dataset: Dataset, measure: Measure) -> dict[str, float]:
    """Shares of the first ``measure.inputs`` test records of ``dataset``, by the class that most draws of the noise vote for.

    ``under NAME`` is each attack on the network without its noise, as in the papers; ``under attack`` their mean; ``in
    expectation`` PGD on the mean over draws of the noise. ``certified SIZE`` is sound, and about the records themselves.
    """
    device, key = resolve_device("auto"), Key.from_seed(0)
    smoothed = smoothed_for_run(run, dataset, device, method=Method(norm="linf"))
    stored, labels = dataset.test.inputs[: measure.inputs], dataset.test.labels[: measure.inputs]

    def answers(inputs: NDArray[Any], sampling: Sampling) -> list[Certificate]:
        return smoothed.certify(inputs, labels.tolist(), sampling=sampling, key=key)

    clean = answers(stored, Sampling(100, measure.draws, _ALPHA))
    found = {"smoothed": fmean(one.top == one.label for one in clean)}
    each = {}
    for name, inputs in _attacked(run, stored, labels, dataset.levels, measure, device, key):
        each[name] = fmean(one.top == one.label for one in answers(inputs, _JUDGES))
    found[UNDER_ATTACK] = fmean(each[name] for name in measure.attacks)
    found |= {f"under {name}": each[name] for name in measure.attacks} | {IN_EXPECTATION: each[IN_EXPECTATION]}
    return found | {f"certified {size:g}": fmean(one.correct and one.radius >= size for one in clean) for size in measure.sizes}


def _attacked(
    run: Run,
    stored: NDArray[Any],
    labels: NDArray[Any],
    levels: int,
    measure: Measure,
    device: torch.device,
    key: Key,
) -> Iterator[tuple[str, NDArray[np.int32]]]:
    """Each attack's name, and where it moved the records, in stored units."""
    model = run.model().to(device).eval()
    inputs, classes = torch.from_numpy(stored).to(device, torch.float32) / levels, torch.from_numpy(labels).to(device)
    threat = Threat("linf", ATTACK_SIZE)

    def moved(attack: Attack, target: nn.Module | OwnNoise) -> NDArray[np.int32]:
        points = run_attack(attack, target, inputs, classes, threat=threat, key=key).inputs
        return (points * levels).round().to(torch.int32).cpu().numpy()

    for name, attack in measure.attacks.items():
        with silenced(model):
            yield name, moved(attack, model)
    yield IN_EXPECTATION, moved(pgd(measure.expected_steps), OwnNoise(model, draws=16))
