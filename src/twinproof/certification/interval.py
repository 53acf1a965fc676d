"""Certificates in linf by interval bounds: deterministic, for the bare network as it runs in floats.

The theory of layers and of their rounding is in ``interval_layers``. An answer is decided where the output of its class stays
above all others. The last layer, where it is linear, is merged with this comparison: the outputs' difference is one sum with
the difference of two rows of weights, minus what rounding either output may err.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from twinproof.certification.interval_layers import (
    SMALLEST_NORMAL,
    Average,
    Box,
    Layer,
    Monotone,
    Ramp,
    Sums,
    Windows,
    ball,
    float32_share,
    float64_share,
    known,
    underflow,
)
from twinproof.errors import ModelError
from twinproof.layers.interval import Contrast

STEPS = 2**20
"""Radii are multiples of 1 / STEPS, from 0 to 1, the whole range of an input."""
UNDECIDED = -1
"""The number of steps where not even the stored input's own answer is decided."""

_MOST_TERMS = 2**22
# Numbers held at once, 8 bytes each: about a CPU's cache, and a few GiB of a GPU.
_MOST_NUMBERS = {"cpu": 2**20, "cuda": 2**29}


def _hidden_code(module: nn.Module) -> bool:
    """Whether a call of the module may do something else than its class."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(map(bool, hooks)) or "forward" in vars(module)


def _relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


def _pair(values: Any, axes: int, fill: int) -> tuple[int, int]:
    sizes = (values,) * axes if isinstance(values, int) else tuple(values)
    down, across = (fill,) * (2 - axes) + sizes
    return int(down), int(across)


def _float64(module: nn.Module, name: str) -> Tensor:
    value: Tensor | None = getattr(module, name)
    if value is None:
        weight = _float64(module, "weight")
        return weight.new_zeros(len(weight))
    if value.dtype != torch.float32:
        raise ValueError(f"{name} in {value.dtype}, not float32")
    exact = value.detach().to(torch.float64)
    if not bool(exact.isfinite().all()):
        raise ValueError(f"{name} is not finite")
    return exact


def _linear(module: nn.Linear) -> Layer:
    return _few_terms(Sums(_float64(module, "weight").T[None], _float64(module, "bias"), None))


def _convolution(module: nn.Conv1d | nn.Conv2d) -> Layer:
    if module.padding_mode != "zeros":
        raise ValueError(f"padding_mode {module.padding_mode}")
    weight = _float64(module, "weight")
    axes = weight.ndim - 2
    kernel, stride, dilation = (_pair(value, axes, 1) for value in (weight.shape[2:], module.stride, module.dilation))
    spans = [step * (taps - 1) for step, taps in zip(dilation, kernel, strict=True)]
    if module.padding == "same":
        top, left = (span // 2 for span in spans)
        padding = (top, spans[0] - top, left, spans[1] - left)
    else:
        down, across = (0, 0) if module.padding == "valid" else _pair(module.padding, axes, 0)
        padding = (down, down, across, across)
    windows = Windows(kernel, stride, dilation, padding, module.groups)
    by_group = weight.reshape(module.groups, weight.shape[0] // module.groups, -1).transpose(1, 2)
    return _few_terms(Sums(by_group, _float64(module, "bias"), windows, axes))


def _few_terms(layer: Sums) -> Layer:
    if layer.terms > _MOST_TERMS:
        raise ValueError(f"sums of {layer.terms} terms")
    return layer


def _average(module: nn.AvgPool1d | nn.AvgPool2d) -> Layer:
    divisor = getattr(module, "divisor_override", None)
    if divisor is not None:
        raise ValueError(f"divisor_override={divisor}")
    axes = 2 if isinstance(module, nn.AvgPool2d) else 1
    terms = math.prod(_pair(module.kernel_size, axes, 1))
    return Average(module, lambda _: terms)


def _adaptive_average(module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d) -> Layer:
    def terms(sizes: Sequence[int]) -> int:
        wanted = module.output_size
        made = wanted if isinstance(wanted, tuple) else (wanted,) * len(sizes)
        # A window begins and ends in whole places, which can make it one longer than a fair share.
        return math.prod(size if out is None else min(size, -(-size // out) + 1) for size, out in zip(sizes, made, strict=True))

    return Average(module, terms)


def _maximum(module: nn.Module) -> Layer:
    if module.return_indices:
        raise ValueError("return_indices=True")
    return Monotone(module)


_LAYERS: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.ReLU: lambda module: Monotone(_relu),
    nn.Flatten: Monotone,
    Contrast: lambda module: Ramp(lambda x: (x - 0.5) * module.slope + 0.5),
    nn.AvgPool1d: _average,
    nn.AvgPool2d: _average,
    nn.AdaptiveAvgPool1d: _adaptive_average,
    nn.AdaptiveAvgPool2d: _adaptive_average,
    nn.MaxPool1d: _maximum,
    nn.MaxPool2d: _maximum,
}


def _unbounded(where: str, got: object) -> ModelError:
    return ModelError(
        "interval bounds cannot pass this layer",
        where=where,
        got=got,
        wanted=", ".join(kind.__name__ for kind in _LAYERS),
        fix="replace the layer, or certify by randomized smoothing",
    )


def _in_order(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested ``Sequential``s, with their paths."""
    if type(module) is nn.Sequential and not _hidden_code(module):
        for name, child in module.named_children():
            yield from _in_order(child, f"{path}.{name}" if path else name)
    else:
        yield path or type(module).__name__, module


def _layer_of(path: str, module: nn.Module) -> Layer:
    make = _LAYERS.get(type(module))
    if make is None or _hidden_code(module):
        raise _unbounded(path, type(module).__name__ if make is None else f"{type(module).__name__} with a hook of its own")
    try:
        return make(module)
    except ValueError as error:
        raise _unbounded(path, f"{type(module).__name__}: {error}") from error


@dataclass(frozen=True, eq=False)
class IntervalNetwork:
    """A network as layers with bounds; a linear ``last`` layer is merged with the comparison of classes.

    Guarantees
        For every input of a ball that ``radii`` found, cut to [0, 1] and rounded to float32, the network computed in float32
        or float64, by sums of products in any order (no Winograd or Fourier transforms, TF32, or bfloat16), gives the same
        answer. The size of the ball was itself checked, not concluded from others.
    """

    layers: tuple[Layer, ...]
    last: Sums | None
    classes: int
    numbers_per_input: int = field(repr=False)

    @classmethod
    def of(cls, network: nn.Module, shape: Sequence[int]) -> IntervalNetwork:
        """``network``, made of ``Sequential``, for inputs of ``shape``; an error names the first layer without bounds."""
        weight = next(network.parameters(), torch.zeros(0))
        zero = torch.zeros(1, *shape, dtype=torch.float64, device=weight.device)
        box, most, path = Box(zero, zero), 8 * zero.numel(), ""
        layers: list[Layer] = []
        for path, module in _in_order(network, ""):
            layers.append(_layer_of(path, module))
            try:
                most = max(most, layers[-1].numbers(box))
                box = layers[-1].bound(box)
            except (RuntimeError, ValueError, IndexError) as error:
                got = f"{type(module).__name__} on inputs of shape {tuple(box.low.shape[1:])}: {error}"
                raise _unbounded(path, got) from error
        if box.low.ndim != 2 or box.low.shape[1] < 2 or len(box.low) != 1:
            raise _unbounded(path, f"outputs of shape {tuple(box.low.shape[1:])} instead of two or more classes")
        classes, last = int(box.low.shape[1]), layers[-1] if layers else None
        if not isinstance(last, Sums):
            return cls(tuple(layers), None, classes, most)
        return cls(tuple(layers[:-1]), last, classes, most + 2 * classes * last.terms)

    def boxes(self, box: Box) -> Iterator[Box]:
        """``box``, and where the outputs of each layer lie."""
        yield box
        for layer in self.layers:
            box = layer.bound(box)
            yield box
        if self.last is not None:
            yield self.last.bound(box)

    def _before_last(self, box: Box) -> Box:
        for layer in self.layers:
            box = layer.bound(box)
        return box

    def answers(self, stored: Tensor, levels: int) -> Tensor:
        """The class with the largest output at the stored input itself, computed in float64."""
        inputs = stored.to(torch.float64) / levels
        box = self._before_last(Box(inputs, inputs))
        scores = box.centre if self.last is None else self.last.products(box.centre, self.last.weight) + self.last.bias
        return scores.argmax(1)

    def margins(self, box: Box, classes: Tensor, differences: Tensor | None = None) -> Tensor:
        """(rows, classes) bounds from below on how far the output of each row's class stays above the others; inf at itself.

        ``differences`` are the magnitudes of ``merged`` rows, where they are known.
        """
        box, own = self._before_last(box), classes[:, None]
        if self.last is None:
            found = box.low.gather(1, own) - box.high - 2 * SMALLEST_NORMAL
            return found.scatter(1, own, math.inf)
        middle = self.last.products(box.centre, self.last.weight) + self.last.bias
        magnitude = self.last.products(box.reach, self.last.magnitudes) + self.last.bias.abs()
        # Rows of weights are subtracted before their magnitudes are taken: what two classes share moves neither past the other.
        between = self.merged(classes) if differences is None else differences
        moved = (between @ box.radius[..., None]).squeeze(2)
        both = magnitude.gather(1, own) + magnitude
        share = float32_share(self.last.terms + 1) + float64_share(self.last.terms)
        error = known(both * share + 2 * underflow(self.last.terms, box.reach, self.last.longest), both)
        return (middle.gather(1, own) - middle - moved - error).scatter(1, own, math.inf)

    def merged(self, classes: Tensor) -> Tensor:
        """(rows, classes, terms): the magnitudes of the differences of the weights of each row's class and all others'."""
        if self.last is None:
            return torch.zeros(0)
        weight = self.last.weight[0].T
        return (weight[classes][:, None] - weight).abs()

    def radii(self, stored: Tensor, levels: int, classes: Tensor) -> Tensor:
        """The radius of each input in steps of 1 / ``STEPS``, or ``UNDECIDED``, for its answer among ``classes``.

        By bisection for many inputs at once; the steps are those of the last size that was found to hold.
        """
        together = max(1, _MOST_NUMBERS[stored.device.type] // self.numbers_per_input)
        first = range(0, len(stored), together)
        return torch.cat([self._bisected(stored[at : at + together], levels, classes[at : at + together]) for at in first])

    def _bisected(self, stored: Tensor, levels: int, classes: Tensor) -> Tensor:
        between = None if self.last is None else self.merged(classes)

        def holds(steps: Tensor) -> Tensor:
            return (self.margins(ball(stored, levels, steps.to(torch.float64) / STEPS), classes, between) > 0).all(1)

        low = torch.zeros(len(stored), dtype=torch.int64, device=stored.device)
        decided, high = holds(low), torch.full_like(low, STEPS + 1)
        for _ in range(STEPS.bit_length()):
            middle = (low + high) // 2
            held = holds(middle)
            low, high = torch.where(held, middle, low), torch.where(held, high, middle)
        return torch.where(decided, low, UNDECIDED)
