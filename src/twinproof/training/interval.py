"""Training on the worst case over a ball of inputs: interval bound propagation (IBP) of one record.

Every layer takes a box, given by centre and radius, to one that holds all of its outputs on the box. In the end stand lower
bounds on the differences of scores, z_y - z_j, over all inputs within ``size`` of the record in linf; the worst case of the
record is the cross-entropy of a network that is at these bounds. It is a function of one record and the weights, so that
clipping bounds its gradient as any other's.

The released network is an ordinary one. In training it is looked at through a view of the same modules that hands out the
bounds beside the scores. Bounds here are in the arithmetic of training; certificates make their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.interval import Contrast, DifferenceMagnitude, Magnitude
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example.paths import OuterPath, PerExamplePath, RecordGradients

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)
# No weight is negative: what they make of centre and radius are the new ones.
_MEANS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Flatten)
# Increasing in every input: what they make of the lower ends is below what they make of any point.
_INCREASING = (nn.ReLU, nn.MaxPool1d, nn.MaxPool2d, Contrast)
# Before training begins, so that whoever tries the view sees every part of the loss at work.
_TRIAL_SIZE, _TRIAL_SHARE = 0.1, 0.5


class IntervalView(nn.Module):
    """Rows of inputs -> their scores, the lower bound of every z_y - z_j over the ball, and the share of the worst case.

    The ball around x holds what is within ``size`` of x in every coordinate and in [0, 1]. The last layer is merged with the
    differences, so that no label is needed: the loss picks its row. ``size`` and ``share`` lie on the device and are set in
    place, by ``set``.

    The modules are those of ``network`` under the same names, so that gradients belong to its parameters; it is not
    changed, and nothing is added to it. Rows do not meet.

    Guarantees
        A row's bounds are a function of that row and the weights; they hold but for float rounding. Proof, layer by layer:
        |W(x - c)| <= |W| r where |x - c| <= r, and an increasing function takes the ends of an interval to its ends.
    """

    interval_size: Tensor
    interval_share: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        layers = list(_flat(network))
        last = layers[-1] if layers else None
        if not isinstance(last, nn.Linear):
            raise _refusal(
                "the last layer", type(last).__name__ if layers else "no layer", "nn.Linear, whose outputs are scores"
            )
        for name, module in network.named_children():
            self.add_module(name, module)
        # Registered, so that whoever looks for uses of weights finds them; they have no parameter of their own.
        self.interval_magnitudes = nn.ModuleList(Magnitude(layer) for layer in layers[:-1] if isinstance(layer, _LINEAR))
        self.interval_differences = DifferenceMagnitude(last)
        magnitudes = iter(self.interval_magnitudes)
        self._layers = tuple((layer, next(magnitudes) if isinstance(layer, _LINEAR) else None) for layer in layers[:-1])
        self._last = (last,)
        device = next(network.parameters()).device
        self.register_buffer("interval_size", torch.tensor(_TRIAL_SIZE, device=device), persistent=False)
        self.register_buffer("interval_share", torch.tensor(_TRIAL_SHARE, device=device), persistent=False)
        self.training = network.training

    @property
    def columns(self) -> int:
        """Columns beside the scores."""
        return self._last[0].out_features ** 2 + 1

    def set(self, size: float, share: float) -> None:
        """Sets the ball's size and the share of the worst case, in place: a recording reads them there."""
        self.interval_size.fill_(size)
        self.interval_share.fill_(share)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, *shape) -> (rows, classes + classes^2 + 1)."""
        last = self._last[0]
        clean, centre, radius = self.before_last(rows)
        scores = last(centre)
        bounds = scores.unsqueeze(2) - scores.unsqueeze(1) - self.interval_differences(radius)
        share = self.interval_share.to(rows.dtype).expand(len(rows), 1)
        return torch.cat([last(clean), bounds.flatten(1), share], dim=1)

    def before_last(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the last layer is given: for the rows themselves, and centre and radius of their boxes."""
        size = self.interval_size.to(rows.dtype)
        low, high = (rows - size).clamp(0, 1), (rows + size).clamp(0, 1)
        centre, radius, clean = (low + high) / 2, (high - low) / 2, rows
        for layer, magnitude in self._layers:
            # Not the module itself, which may work in place.
            clean = functional.relu(clean) if isinstance(layer, nn.ReLU) else layer(clean)
            centre, radius = _behind(layer, magnitude, centre, radius)
        return clean, centre, radius


def _behind(layer: nn.Module, magnitude: nn.Module | None, centre: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """The box behind a layer."""
    if magnitude is not None:
        return layer(centre), magnitude(radius)
    if isinstance(layer, _MEANS):
        return layer(centre), layer(radius)
    low, high = centre - radius, centre + radius
    low, high = (functional.relu(end) if isinstance(layer, nn.ReLU) else layer(end) for end in (low, high))
    return (low + high) / 2, (high - low) / 2


def _flat(network: nn.Module, path: str = "") -> Iterator[nn.Module]:
    """The layers in the order in which a sequential network calls them; any other network is refused."""
    if type(network) is not nn.Sequential:
        raise _refusal("the network", type(network).__name__, "nn.Sequential")
    for name, layer in zip(network._modules, network, strict=True):  # ``named_children`` leaves out what stands there twice
        if type(layer) is nn.Sequential:
            yield from _flat(layer, f"{path}{name}.")
        elif type(layer) in (*_LINEAR, *_MEANS, *_INCREASING):
            yield layer
        else:
            raise _refusal(f"layer {path}{name}", type(layer).__name__, "")


def _refusal(where: str, got: str, wanted: str) -> ModelError:
    known = ", ".join(kind.__name__ for kind in (*_LINEAR, *_INCREASING, *_MEANS))
    return ModelError(
        "this network has no interval bounds",
        where=where,
        got=got,
        wanted=wanted or f"one of {known}, or nn.Sequential of them",
        fix="use model=interval-cnn or model=relu-mlp",
    )


def interval_loss(outputs: Tensor, label: Tensor) -> Tensor:
    """(1 - share) cross-entropy of the scores + share cross-entropy of the worst case, mean over copies. A ``RecordLoss``.

    ``outputs`` (copies, classes + classes^2 + 1) as ``IntervalView`` hands them out. In the worst case the label's score is 0
    and that of class j the negative lower bound of z_label - z_j.
    """
    classes = (math.isqrt(4 * outputs.shape[1] - 3) - 1) // 2
    scores, bounds = outputs[:, :classes], outputs[:, classes:-1].reshape(-1, classes, classes)
    row = label.view(1, 1, 1).expand(len(outputs), 1, classes)
    worst = -bounds.gather(1, row).squeeze(1)
    share = outputs[:, -1].mean()
    return (1 - share) * mean_cross_entropy(scores, label) + share * mean_cross_entropy(worst, label)


@dataclass(frozen=True)
class Growth:
    """How size and share of the worst case grow over ``steps`` training steps.

    Both are 0 until ``start`` (a fraction of the steps), grow linearly, and are whole from ``ramp`` on.
    """

    size: float
    share: float
    steps: int
    ramp: float = 0.5
    start: float = 0.0

    def __post_init__(self) -> None:
        fits = 0 < self.size <= 1 and 0 <= self.share <= 1 and self.steps >= 1
        if not (fits and 0 <= self.start <= self.ramp <= 1):
            wanted = "a size in (0, 1], a share in [0, 1], and 0 <= start <= ramp <= 1"
            raise ConfigError("this growth cannot be made", where="interval", got=self, wanted=wanted)

    def at(self, step: int) -> float:
        """How much of size and share training step ``step`` (counted from 0) has: in [0, 1]."""
        done = step / self.steps
        if done >= self.ramp:
            return 1.0
        return 0.0 if done <= self.start else (done - self.start) / (self.ramp - self.start)

    def on(self, model: nn.Module, inner: PerExamplePath, *, originals: bool) -> GrowingIntervals:
        """See :class:`Movement`; ``inner`` takes the gradients of an ``IntervalView`` of ``model``."""
        view = getattr(inner, "model", None)
        if not isinstance(view, IntervalView):
            raise TypeError(f"intervals grow in an IntervalView, not in {type(view).__name__}")
        return GrowingIntervals(view, inner, self)


class GrowingIntervals(OuterPath):
    """A path that sets the size of the balls and the share of the worst case before each step.

    Guarantees
        Both are functions of the settings and the step's number, which are public. The host waits for nothing.
    """

    def __init__(self, view: IntervalView, inner: PerExamplePath, growth: Growth) -> None:
        self.view = view
        self.inner = inner
        self.growth = growth

    def begin(self, step: int, key: Key) -> None:
        """Sets them in place: a recording reads them there."""
        grown = self.growth.at(step)
        self.view.set(self.growth.size * grown, self.growth.share * grown)
        self.inner.begin(step, key)

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        return self.inner.gradients(inputs, labels)
