"""The two classifiers that a run's attacks are made on: its network by itself, and the smoothed one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, Objective, OwnNoise, Plain, Smoothed
from twinproof.attacks.without_noise import without_noise
from twinproof.evaluation.own_noise import answers_at_random
from twinproof.layers.noise import NoiseLayer, split_at_noise, split_at_two_noises

if TYPE_CHECKING:
    from twinproof.certification.smoothed import SmoothedClassifier


@dataclass(frozen=True)
class AttackedClassifiers:
    """``bare`` is the network by itself, with a noise layer silenced; ``smoothed`` is what the certificates are about.

    ``random`` says whether the bare network still answers at random (by layers that draw and are no noise layer), so that it
    must be attacked in expectation.
    """

    bare: nn.Module
    smoothed: SmoothedClassifier
    random: bool

    @classmethod
    def of(cls, smoothed: SmoothedClassifier, example: Tensor) -> AttackedClassifiers:
        """Both, from the smoothed one; ``example`` is a batch of one input in [0, 1]."""
        bare = without_noise(smoothed.model)
        return cls(bare, smoothed, answers_at_random(bare, example))

    @property
    def blind(self) -> Objective:
        """The network as the papers attack it: through one look, and without its noise."""
        return Plain(self.bare)

    def network(self, draws: int) -> Objective:
        """The network as it answers."""
        return Expectation(self.bare, draws=draws) if self.random else self.blind

    def voting(self, draws: int) -> Objective:
        """The smoothed classifier, through ``draws`` noise draws for each gradient."""
        return smoothed_objective(self.smoothed, draws)


def smoothed_objective(smoothed: SmoothedClassifier, draws: int) -> Objective:
    """A smoothed classifier to attack in expectation over its noise, wherever that is added.

    Guarantees
        The noise of the gradients has the law and the deviation of the noise that is certified (in floats, off its grid).
    """
    if split_at_two_noises(smoothed.model) is not None:
        return OwnNoise(smoothed.model, draws=draws)  # certified with the scales that its layers have, and no others
    split = split_at_noise(smoothed.model) if smoothed.own_noise else None
    if split is None:
        return Smoothed(smoothed.model, smoothed.noise.sigma, draws=draws)
    if float(split.noise.deviation) == smoothed.noise.sigma:
        return OwnNoise(smoothed.model, draws=draws)
    # Certified at another deviation than the layer was trained with: a copy, as the classifier's own network must not change.
    network = copy.deepcopy(smoothed.model)
    for layer in network.modules():
        if isinstance(layer, NoiseLayer):
            layer.set_deviation(smoothed.noise.sigma)
    return OwnNoise(network, draws=draws)
