"""Paths that move a record's copies before its gradient is taken (SmoothAdv and others).

All noisy copies of a record move by one perturbation: the l2-bounded one that raises the loss of the smoothed classifier, the
negative logarithm of the mean probability of the right class over those copies. The original copy stays where it is.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from twinproof.compute.devices import repeatable_convolutions
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode
from twinproof.training.passes import layers_draw
from twinproof.training.per_example.paths import OuterPath, PerExamplePath, RecordGradients, naming_the_operation


class MovedCopies(OuterPath):
    """First moves copies of each record against the network, then lets ``inner`` take the gradients where they are.

    The movement belongs to the path, not to the making of copies: it needs the present weights, and memory that must be counted
    when passes are cut.
    """

    model: nn.Module

    @abstractmethod
    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The copies at which gradients are taken, from those that the augmentation made: (m, copies, *shape)."""

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        return self.inner.gradients(self.moved(inputs, labels), labels)


class Movement(Protocol):
    """The settings of a path around the one that takes the gradients; ``on`` makes it."""

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> OuterPath:
        """The path that moves copies against ``model``; without ``originals`` the record itself is not handed on."""


@dataclass(frozen=True)
class Ascent:
    """How far copies are moved, in l2 and input units, in how many steps, and how the distance grows at the beginning.

    In epoch e of the first ``warm_up_epochs`` (counted from 0) the radius is (e + 1) / ``warm_up_epochs`` of the full one. An
    epoch is ``steps_per_epoch`` training steps by the plan: declared numbers, nothing that a draw decides.
    """

    radius: float
    steps: int
    warm_up_epochs: int = 0
    steps_per_epoch: float = 1.0

    def __post_init__(self) -> None:
        fits = self.radius > 0 and math.isfinite(self.radius) and self.steps >= 1
        if not (fits and self.warm_up_epochs >= 0 and self.steps_per_epoch > 0):
            wanted = "a finite radius above 0, at least 1 step, no negative warm-up, an epoch of some steps"
            raise ConfigError("this ascent cannot be made", where="Ascent", got=self, wanted=wanted)

    def radius_at(self, step: int) -> float:
        """The radius of training step ``step``."""
        if self.warm_up_epochs == 0:
            return self.radius
        epoch = math.floor(step / self.steps_per_epoch)
        return self.radius * min(1.0, (epoch + 1) / self.warm_up_epochs)

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> AdversarialCopies:
        return AdversarialCopies(model, inner, self, originals=originals)


class AdversarialCopies(MovedCopies):
    """A path that first moves each record's noisy copies uphill, then lets ``inner`` take the gradients at them.

    The first copy it is given must be the record itself, in [0, 1]; without ``originals`` it is not handed on. Steps go along
    the gradient at length 2 radius / steps, from zero; after each one the moved record is brought back into [0, 1] and the
    movement into the ball. The network looks as in evaluation where its layers draw numbers.

    Guarantees
        A record's movement is a function of the network, its own copies and its own label: the ascent is mapped over records,
        each by itself. It draws nothing. It is at most ``radius`` long up to float rounding, and a step whose gradient is zero
        or not finite is not taken. No gradient of a parameter is formed. The host waits for nothing: the radius lies on the
        device.
    """

    def __init__(self, model: nn.Module, inner: PerExamplePath, ascent: Ascent, *, originals: bool = True) -> None:
        self.model = model
        self.inner = inner
        self.ascent = ascent
        self.originals = originals
        # Threads share the modules' mode; passes run in several threads only where no layer draws, and then it does not matter.
        self._draws = layers_draw(model)
        self._radius = torch.tensor(ascent.radius, device=next(model.parameters()).device)

    def begin(self, step: int, key: Key) -> None:
        """Sets the radius of a training step, in place: a recording reads it there."""
        self._radius.fill_(self.ascent.radius_at(step))

    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The copies at which gradients are taken: the record, where it is kept, and its noisy copies moved uphill."""
        if inputs.shape[0] == 0:
            return inputs if self.originals else inputs[:, 1:]
        looking = evaluation_mode(self.model) if self._draws else nullcontext()
        with looking, torch.no_grad(), repeatable_convolutions(inputs.device), naming_the_operation("a record's ascent"):
            movements: Tensor = vmap(self._movement, randomness="different")(inputs, labels)
        noisy = inputs[:, 1:] + movements.unsqueeze(1)
        return torch.cat([inputs[:, :1], noisy], dim=1) if self.originals else noisy

    def _movement(self, copies: Tensor, label: Tensor) -> Tensor:
        """The movement of one record, from its copies (copies, *shape): the ascent itself."""
        record, noisy = copies[0], copies[1:]
        radius = self._radius.to(copies.dtype)
        length = 2 * radius / self.ascent.steps
        movement = torch.zeros_like(record)
        for _ in range(self.ascent.steps):
            movement = movement + length * _unit(self._slope(movement, noisy, label))
            movement = (record + movement).clamp(0, 1) - record
            movement = movement * (radius / _length(movement).clamp_min(radius))
        return movement

    def _slope(self, movement: Tensor, noisy: Tensor, label: Tensor) -> Tensor:
        """The gradient, in the movement, of the loss of one record's smoothed prediction."""

        def loss(moved: Tensor) -> Tensor:
            return smoothed_loss(self.model(noisy + moved), label)

        slope: Tensor = grad(loss)(movement)
        return slope


def smoothed_loss(logits: Tensor, label: Tensor) -> Tensor:
    """-log of the mean probability of ``label`` () over the rows of ``logits`` (copies, classes)."""
    chosen = logits.log_softmax(dim=-1).gather(1, label.expand(logits.shape[0], 1))
    return math.log(logits.shape[0]) - chosen.squeeze(1).logsumexp(dim=0)


def _unit(slope: Tensor) -> Tensor:
    """``slope`` at length 1; zero where it is zero or not finite."""
    # Divided by its largest entry first: squares of the tiny gradients of a sure prediction would underflow.
    tiny = torch.finfo(slope.dtype).tiny
    scaled = slope / slope.abs().amax().clamp_min(tiny)
    unit = scaled / _length(scaled).clamp_min(tiny)
    return torch.where(torch.isfinite(slope).all(), unit, torch.zeros_like(unit))


def _length(values: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values)
    return length
