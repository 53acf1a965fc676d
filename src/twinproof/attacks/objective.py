"""What is attacked: the network itself, a random network in expectation, or the smoothed classifier.

All are one thing, the cross-entropy of a mean over draws, with one draw for the network itself. A weak attack on a
random network is the field's commonest mistake: its gradient must be that of what the user will run, noise included
(expectation over transformation; Athalye, Carlini and Wagner, ICML 2018; for smoothing Salman et al., NeurIPS 2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor, nn

from twinproof import checks
from twinproof.errors import ModelError
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise import NoiseLayer
from twinproof.layers.noise_placement import split_at_noise, split_at_two_noises


class Mean(StrEnum):
    """Of what the mean over draws is taken."""

    LOSS = "loss"  # mean over draws of -log p
    PROBABILITY = "probability"  # -log of the mean over draws of p


@dataclass(frozen=True)
class Draws:
    """How an objective looks at a point: how many draws, what is done with them, and whether all steps share them."""

    count: int
    mean: Mean
    votes: bool = False
    sigma: float = 0.0
    shared: bool = False


class Objective(ABC):
    """What an attacker raises (or lowers, with a target): one loss for each example.

    An example's loss and gradient depend on its own row, label and draws alone. The network runs in eval mode, and its
    parameters get no gradients.
    """

    model: nn.Module

    @property
    @abstractmethod
    def looking(self) -> Draws:
        """The draws of one gradient."""

    @property
    def judging(self) -> Draws:
        """The draws with which finished candidates are compared; the same numbers for all candidates of an example."""
        return self.looking

    @property
    def sampled(self) -> bool:
        """Whether what a step sees is an estimate: points may then be compared by judging only, over the same draws."""
        return False

    @property
    def rows(self) -> int | None:
        """Most rows of one forward pass over several draws; None leaves the choice to the device."""
        return None


@dataclass(frozen=True)
class Plain(Objective):
    """The network as it is, with one look at each point: for networks that give the same answer twice.

    A random one is looked at through one draw (the papers' way, where it has noise at all); ``Expectation`` is for those.
    """

    model: nn.Module

    @property
    def looking(self) -> Draws:
        return Draws(1, Mean.LOSS)


class SampledObjective(Objective):
    """An objective whose every look is an estimate, over randomness of the network or noise at its input.

    Each gradient has ``draws`` fresh draws. Candidates are compared over ``judged_on`` others, the same for all of them, that
    no gradient has seen: a point that is good on the draws it was made from is not yet good.
    """

    draws: int
    judged_on: int
    most_rows: int | None

    def __post_init__(self) -> None:
        checks.whole(1, draws=self.draws, judged_on=self.judged_on, most_rows=1 if self.most_rows is None else self.most_rows)

    @property
    def judging(self) -> Draws:
        """More of them, never those of a step."""
        return replace(self.looking, count=self.judged_on, shared=False)

    @property
    def sampled(self) -> bool:
        return True

    @property
    def rows(self) -> int | None:
        return self.most_rows


@dataclass(frozen=True)
class Expectation(SampledObjective):
    """A network with random layers, in expectation over them.

    Its layers must draw for each row by itself and from torch's global generator, as torch's own do.
    """

    model: nn.Module
    draws: int = 16
    mean: Mean = Mean.LOSS
    judged_on: int = 64
    most_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of(tuple(Mean), mean=self.mean)

    @property
    def looking(self) -> Draws:
        return Draws(self.draws, Mean(self.mean))


@dataclass(frozen=True)
class Smoothed(SampledObjective):
    """The smoothed classifier: -log of the mean probability over N(0, sigma^2) noise on the input (SmoothAdv).

    With ``shared`` an example meets the same draws at every step (they are kept: draws x batch x input numbers of memory).
    Predictions are votes.
    """

    model: nn.Module
    sigma: float
    draws: int = 32
    shared: bool = False
    judged_on: int = 64
    most_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(sigma=self.sigma)

    @property
    def looking(self) -> Draws:
        return Draws(self.draws, Mean.PROBABILITY, votes=True, sigma=self.sigma, shared=self.shared)


@dataclass(frozen=True)
class OwnNoise(SampledObjective):
    """The smoothed classifier of a network with a noise layer: -log of the mean probability over that layer's own noise.

    ``Smoothed`` for networks that bring their noise along, wherever in them it is added and whatever its law. Every row of a
    forward pass draws its own, from torch's global generator. Predictions are votes.
    """

    model: nn.Module
    draws: int = 32
    judged_on: int = 64
    most_rows: int | None = None

    @property
    def looking(self) -> Draws:
        """The draws of one gradient; the layer adds the noise, so that the input gets none."""
        return Draws(self.draws, Mean.PROBABILITY, votes=True)


def as_objective(target: nn.Module | Objective) -> Objective:
    """A bare network is attacked as it is."""
    return target if isinstance(target, Objective) else Plain(target)


def scores_of(model: nn.Module, batch: Tensor) -> Tensor:
    """(rows, classes); any other shape is a ModelError."""
    scores = model(batch)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[0] != len(batch) or scores.shape[1] < 2:
        got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ModelError(
            "the network does not give one score per class",
            where=type(model).__name__,
            got=f"{got} for {len(batch)} rows",
            wanted="(rows, classes) with at least 2 classes",
        )
    return scores


def without_noise(network: nn.Module) -> nn.Module:
    """``network`` as the papers attack it: the same modules without the noise layers, or itself where it has none.

    The modules are shared, under their own names; the network itself is not changed. A new Sequential, and not a silent layer,
    so that a GPU can record its passes.
    """
    if split_at_two_noises(network) is None and split_at_noise(network) is None:
        return network
    # Not named_children(), which leaves out a module that is used twice; split_at_noise has made sure of the Sequential.
    kept = OrderedDict((name, module) for name, module in network._modules.items() if not isinstance(module, NoiseLayer))
    made = nn.Sequential(kept)  # type: ignore[arg-type]
    made.training = network.training  # not train(), which would overrule the modules' own modes
    return made


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for parameters inside; afterwards every module and parameter is as it was.

    No backward pass inside computes or stores the gradient of a parameter.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluation_mode(model):
        try:
            for parameter in learning:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)
