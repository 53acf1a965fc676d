"""Small random networks, interval bounds in exact fractions, and networks run in float32 with sums in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification import interval
from twinproof.certification.interval import STEPS, IntervalNetwork
from twinproof.certification.interval_layers import Box, Sums

LEVELS = 255
Floats = NDArray[np.float32]
Ends = tuple[list[Fraction], list[Fraction]]


def dense(rng: np.random.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    sizes = [int(size) for size in rng.integers(2, 6, size=rng.integers(2, 5))]
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out, bias=bool(rng.integers(4))), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], int(rng.integers(2, 4)))), (sizes[0],)


def image(rng: np.random.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    groups = int(rng.integers(1, 3))
    stride, padding, dilation = (int(rng.integers(low, 3)) for low in (1, 0, 1))
    kernel = (2, 2) if dilation == 2 else (int(rng.integers(1, 4)), 2)
    convolution = nn.Conv2d(groups, 2 * groups, kernel, stride, padding, dilation, groups)
    pool = [nn.Identity(), nn.AvgPool2d(2, 1), nn.MaxPool2d(2, 1), nn.AdaptiveAvgPool2d(2)][int(rng.integers(4))]
    layers = [convolution, nn.ReLU(), *([] if isinstance(pool, nn.Identity) else [pool]), nn.Flatten()]
    return closed(layers, (groups, 5, 5), rng), (groups, 5, 5)


def signal(rng: np.random.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    layers: list[nn.Module] = [nn.Conv1d(2, 3, 3, stride=int(rng.integers(1, 3)), padding="valid"), nn.ReLU()]
    pool: list[nn.Module] = [nn.MaxPool1d(2, 1), nn.AvgPool1d(2, padding=1), nn.AdaptiveAvgPool1d(1)]
    return closed([*layers, pool[int(rng.integers(3))], nn.Flatten()], (2, 7), rng), (2, 7)


def closed(layers: Sequence[nn.Module], shape: tuple[int, ...], rng: np.random.Generator) -> nn.Sequential:
    flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    head: list[nn.Module] = [nn.Linear(flat, 4), nn.ReLU()] if rng.integers(2) else []
    return nn.Sequential(*layers, *head, nn.Linear(4 if head else flat, 3))


def random_network(seed: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Dense, over images or over signals, with weights of many magnitudes."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kinds: list[Callable[[np.random.Generator], tuple[nn.Sequential, tuple[int, ...]]]] = [dense, dense, image, signal]
    network, shape = kinds[seed % 4](rng)
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(float(2.0 ** rng.integers(-3, 5)))
    return network, shape


def stored_inputs(seed: int, shape: tuple[int, ...], count: int) -> Tensor:
    """Levels, many of them at the ends of the range."""
    rng = np.random.default_rng([seed, 1])
    inputs = rng.integers(0, LEVELS + 1, size=(count, *shape))
    ends = rng.integers(0, 4, size=inputs.shape)
    return torch.as_tensor(np.where(ends == 0, 0, np.where(ends == 1, LEVELS, inputs)))


@dataclass(frozen=True, eq=False)
class Step:
    """One layer as numbers: ``matrix`` and ``bias``, or for each output what the maximum is taken of; neither is ReLU."""

    matrix: NDArray[np.float64] | None = None
    bias: NDArray[np.float64] | None = None
    most: list[NDArray[np.int64]] | None = None
    mean_of: int = 0


def steps_of(network: nn.Sequential, shape: tuple[int, ...]) -> list[Step]:
    """The layers of ``network``, read off from what it answers to unit vectors: each entry is one weight, and exact."""
    steps = []
    for module in network:
        size = int(np.prod(shape))
        units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        exact = module.double() if list(module.parameters()) else module
        with torch.no_grad():
            zero = exact(torch.zeros(1, *shape, dtype=torch.float64))
            if isinstance(module, nn.MaxPool1d | nn.MaxPool2d):
                seen = exact(units).flatten(1).T.numpy() > 0  # a window's maximum is 1 where it sees the one
                steps.append(Step(most=[np.flatnonzero(row) for row in seen]))
            elif isinstance(module, nn.ReLU):
                steps.append(Step())
            elif not isinstance(module, nn.Flatten):
                matrix = (exact(units) - zero).flatten(1).T.numpy()
                bias = zero.flatten().numpy()
                if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                    # A weight plus a bias was rounded: read the weights without it.
                    kept, module.bias = module.bias, None
                    matrix = exact(units).flatten(1).T.numpy()
                    module.bias = kept
                averaged = isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d)
                steps.append(Step(matrix, bias, mean_of=int((matrix != 0).sum(1).max()) if averaged else 0))
        if list(module.parameters()):
            module.float()
        shape = tuple(zero.shape[1:])
    return steps


def _fraction(value: float, step: Step) -> Fraction:
    return Fraction(float(value)).limit_denominator(1000) if step.mean_of else Fraction(float(value))


def exact_rows(step: Step) -> list[tuple[list[tuple[int, Fraction]], Fraction]]:
    """Each output's weights that are not zero, and its bias."""
    assert step.matrix is not None
    assert step.bias is not None
    rows = [[(int(at), _fraction(row[at], step)) for at in np.flatnonzero(row)] for row in step.matrix]
    return list(zip(rows, map(Fraction, step.bias.tolist()), strict=True))


def _dot(row: list[tuple[int, Fraction]], low: list[Fraction], high: list[Fraction]) -> Fraction:
    return sum((weight * (low[at] if weight > 0 else high[at]) for at, weight in row), Fraction(0))


def exact_boxes(steps: Sequence[Step], stored: Sequence[int], size: Fraction) -> list[Ends]:
    """Interval bounds in fractions: of the input, and of each step's outputs."""
    low = [max(Fraction(0), Fraction(k, LEVELS) - size) for k in stored]
    high = [min(Fraction(1), Fraction(k, LEVELS) + size) for k in stored]
    found = [(low, high)]
    for step in steps:
        if step.matrix is not None:
            rows = exact_rows(step)
            low, high = (
                [_dot(row, low, high) + bias for row, bias in rows],
                [_dot(row, high, low) + bias for row, bias in rows],
            )
        elif step.most is not None:
            low, high = ([max(end[at] for at in seen) for seen in step.most] for end in (low, high))
        else:
            low, high = ([max(Fraction(0), one) for one in end] for end in (low, high))
        found.append((low, high))
    return found


def exact_margins(steps: Sequence[Step], stored: Sequence[int], size: Fraction, answer: int) -> dict[int, Fraction]:
    """By how much the answer's output stays above each other one, with the last layer merged; in fractions."""
    low, high = exact_boxes(steps[:-1], stored, size)[-1]
    rows = exact_rows(steps[-1])
    own, margins = dict(rows[answer][0]), {}
    for other, (weights, bias) in enumerate(rows):
        if other != answer:
            theirs = dict(weights)
            merged = [(at, own.get(at, Fraction(0)) - theirs.get(at, Fraction(0))) for at in own.keys() | theirs.keys()]
            margins[other] = _dot(merged, low, high) + rows[answer][1] - bias
    return margins


def exact_failures(network: nn.Sequential, bounds: IntervalNetwork, stored: Tensor, steps: Sequence[int]) -> int:
    """How many ends and margins at these sizes are not outside of the exact ones, or are nan."""
    exact, answers = steps_of(network, tuple(stored.shape[1:])), bounds.answers(stored, LEVELS)
    wrong = 0
    for row, (size, answer) in enumerate(zip(steps, answers.tolist(), strict=True)):
        mine, numbers = stored[row : row + 1], stored[row].flatten().tolist()
        box = boxes_at(mine, size)
        ends = [(one.low[0].flatten().tolist(), one.high[0].flatten().tolist()) for one in flat_boxes(network, bounds, box)]
        for (low, high), (least, most) in zip(ends, exact_boxes(exact, numbers, Fraction(size, STEPS)), strict=True):
            wrong += sum(not Fraction(end) <= true for end, true in zip(low, least, strict=True))
            wrong += sum(not Fraction(end) >= true for end, true in zip(high, most, strict=True))
        margins = bounds.margins(box, answers[row : row + 1])[0].tolist()
        true = exact_margins(exact, numbers, Fraction(size, STEPS), answer)
        wrong += sum(not Fraction(margins[other]) <= value for other, value in true.items())
    return wrong


def boxes_at(stored: Tensor, steps: int) -> Box:
    """The ball that ``bounds`` would take; looked up when it is called, so that bugs can be planted."""
    found: Box = vars(interval)["ball"](stored, LEVELS, torch.full((len(stored),), steps / STEPS, dtype=torch.float64))
    return found


def flat_boxes(network: nn.Sequential, bounds: IntervalNetwork, box: Box) -> list[Box]:
    """The boxes of the input and of all layers but ``Flatten``, which changes nothing."""
    boxes = list(bounds.boxes(box))
    return [boxes[0], *(one for one, module in zip(boxes[1:], network, strict=True) if not isinstance(module, nn.Flatten))]


Order = Callable[[Floats], Floats]


def shuffled(seed: int) -> Order:
    rng = np.random.default_rng(seed)

    def order(terms: Floats) -> Floats:
        return np.asarray(rng.permuted(terms, axis=-1))

    return order


def backwards(terms: Floats) -> Floats:
    return terms[..., ::-1]


def largest_first(terms: Floats) -> Floats:
    return np.asarray(np.take_along_axis(terms, np.argsort(-np.abs(terms), axis=-1), axis=-1))


def positive_first(terms: Floats) -> Floats:
    return np.asarray(np.sort(terms, axis=-1)[..., ::-1])


ORDERS: tuple[Order, ...] = (backwards, largest_first, positive_first, lambda terms: np.sort(terms, axis=-1))


def in_float32(steps: Sequence[Step], inputs: Floats, order: Order, *, fused: bool = False) -> list[Floats]:
    """What each step answers to (points, inputs) where every operation is rounded to float32, sums taken in this order."""
    found, x = [inputs], inputs
    for step in steps:
        if step.matrix is not None:
            assert step.bias is not None
            x = _sums(step, x, order, fused=fused)
        elif step.most is not None:
            x = np.stack([x[:, seen].max(axis=1) for seen in step.most], axis=1)
        else:
            x = np.maximum(x, np.float32(0))
        found.append(x)
    return found


def _sums(step: Step, x: Floats, order: Order, *, fused: bool) -> Floats:
    weights, bias = np.asarray(step.matrix), np.asarray(step.bias, dtype=np.float32)
    if step.mean_of:
        terms = (weights != 0) * x[:, None, :]
        counts = np.float32(np.rint(1 / weights.max(axis=1)))
        return np.asarray(np.cumsum(order(terms), axis=-1, dtype=np.float32)[..., -1] / counts, dtype=np.float32)
    if fused:
        total: Any = np.broadcast_to(bias, (len(x), len(weights))).astype(np.float32)
        for at in range(x.shape[1]):
            total = (total.astype(np.float64) + weights[:, at] * x[:, at : at + 1].astype(np.float64)).astype(np.float32)
        return np.asarray(total)
    terms = weights.astype(np.float32) * x[:, None, :]
    terms = np.concatenate([terms, np.broadcast_to(bias[:, None], (len(x), len(bias), 1))], axis=2, dtype=np.float32)
    return np.asarray(np.cumsum(order(terms), axis=-1, dtype=np.float32)[..., -1])


def points_of_ball(stored: Tensor, steps: int, rng: np.random.Generator, count: int) -> Floats:
    """(count, inputs) points in the ball of one input: itself, corners, and some inside, cut to [0, 1], in float32."""
    centre, size = stored.flatten().double().numpy() / LEVELS, steps / STEPS
    signs = rng.choice([-1.0, 1.0], size=(count, centre.size))
    signs[: count // 3] *= rng.random((count // 3, centre.size))
    signs[0] = 0
    return np.clip(centre + signs * size, 0, 1).astype(np.float32)


def escapes(network: nn.Sequential, bounds: IntervalNetwork, stored: Tensor, steps: Sequence[int], seed: int) -> int:
    """How many float32 numbers of layers leave their intervals, and how many answers differ where the size is certified."""
    exact, answers, wrong = steps_of(network, tuple(stored.shape[1:])), bounds.answers(stored, LEVELS), 0
    rng = np.random.default_rng([seed, 2])
    for row, size in enumerate(steps):
        points = points_of_ball(stored[row], max(size, 0), rng, 12)
        boxes = flat_boxes(network, bounds, boxes_at(stored[row : row + 1], max(size, 0)))
        for number, order in enumerate((shuffled(seed), *ORDERS, ORDERS[0])):
            values = in_float32(exact, points, order, fused=number == len(ORDERS) + 1)
            for value, box in zip(values, boxes, strict=True):
                low, high = box.low[0].flatten().numpy(), box.high[0].flatten().numpy()
                wrong += int((~((low <= value) & (value <= high))).sum())
            if size >= 0:
                wrong += int((values[-1].argmax(1) != int(answers[row])).sum())
    return wrong


def without_bias(bounds: IntervalNetwork) -> IntervalNetwork:
    """Planted: biases are forgotten."""

    def bare(layer: Any) -> Any:
        return replace(layer, bias=torch.zeros_like(layer.bias)) if isinstance(layer, Sums) else layer

    return replace(bounds, layers=tuple(map(bare, bounds.layers)), last=bare(bounds.last))
