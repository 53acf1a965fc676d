"""Conventional accuracy, and confidence intervals of what is measured on a test set.

Both are valid for every sample size and every distribution of the test inputs, not only for large samples: near 0 % and 100 %,
where certified accuracies live, the usual normal approximation promises more than it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from scipy.special import betaincinv
from torch.nn.functional import cross_entropy

from twinproof import checks
from twinproof.compute.devices import own_generators
from twinproof.errors import DataError
from twinproof.guarantee import round_down, round_up
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise import NoiseLayer

# Far above the error of the incomplete beta function and of sums in double precision, far below the last digit shown.
_NUMERICAL_SLACK = 1e-9


@dataclass(frozen=True)
class Interval:
    """A measured ``value`` and the two-sided interval that holds the true one with at least ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    def as_dict(self) -> dict[str, float]:
        """The four numbers by name, as run.json and the reports hold them."""
        return asdict(self)


def binomial_interval(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """The two-sided Clopper-Pearson interval for a probability, from ``successes`` of ``total`` independent trials.

    Guarantees
        For every n and p: if ``successes`` is binomial(n, p), then P(low <= p <= high) >= ``confidence``. Each side errs with
        probability at most (1 - confidence) / 2 (Clopper and Pearson 1934: the ends solve P(X >= k) and P(X <= k) for that
        probability); ``low`` is rounded down and ``high`` up, which only widens. ``value`` is the plain share, unrounded.
    """
    checks.inside(0, 1, confidence=confidence)
    if total < 1:
        raise DataError("an interval needs observations", got=total, wanted="at least one", fix="evaluate at least one input")
    if not 0 <= successes <= total:
        raise DataError("the count of successes does not fit the total", got=f"{successes} of {total}", wanted=f"0..{total}")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, total - successes + 1, tail))
    high = 1.0 if successes == total else float(betaincinv(successes + 1, total - successes, 1 - tail))
    return _outward(successes / total, low, high, 1.0, confidence)


def mean_interval(values: Sequence[float], upper: float, confidence: float = 0.95) -> Interval:
    """An interval for the mean of independent numbers that are known to lie in [0, ``upper``].

    The ends are the tighter of two bounds: Hoeffding (1963), width growing with ``upper``, and the empirical Bernstein bound of
    Maurer and Pontil (2009, theorem 4), width growing with the sample's standard deviation. One number has only the first.

    Guarantees
        For every n and every distribution on [0, upper], P(low <= mean <= high) >= ``confidence``. Proof: with
        delta = 1 - confidence, each of the four one-sided bounds fails with probability at most delta / 4, so by the union
        bound all of them hold at once with probability 1 - delta, and then so does their intersection. ``low`` is rounded
        down and ``high`` up. ``value`` is the sample mean, unrounded.
    """
    checks.inside(0, 1, confidence=confidence)
    sample = _bounded_sample(values, upper)
    mean = min(math.fsum(sample.tolist()) / len(sample), upper)
    width = upper * min(_hoeffding(len(sample), confidence), _bernstein(sample / upper, confidence))
    return _outward(mean, mean - width, mean + width, upper, confidence)


def _hoeffding(count: int, confidence: float) -> float:
    """Width for numbers in [0, 1]; one side fails with probability at most a quarter of what may fail."""
    return math.sqrt(math.log(4 / (1 - confidence)) / (2 * count))


def _bernstein(sample: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float:
    """Width for numbers in [0, 1] from their sample variance; the theorem's 2 / delta with a quarter of what may fail."""
    count = len(sample)
    if count < 2:
        return math.inf
    log_term = math.log(8 / (1 - confidence))
    return math.sqrt(2 * float(sample.var(ddof=1)) * log_term / count) + 7 * log_term / (3 * (count - 1))


def _outward(value: float, low: float, high: float, upper: float, confidence: float) -> Interval:
    slack = _NUMERICAL_SLACK * upper
    return Interval(value, round_down(max(0.0, low - slack)), min(upper, round_up(high + slack)), confidence)


def _bounded_sample(values: Sequence[float], upper: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    checks.positive(upper=upper)
    sample = np.array(list(values), dtype=np.float64)
    if len(sample) == 0:
        raise DataError("an interval needs observations", got=0, wanted="at least one", fix="evaluate at least one input")
    outside = np.flatnonzero(~((sample >= 0) & (sample <= upper)))  # written so that NaN counts as outside
    if len(outside):
        raise DataError(
            "a value lies outside the range that the interval rests on",
            where=f"value {int(outside[0])}",
            got=float(sample[outside[0]]),
            wanted=f"0..{upper}",
        )
    return sample


# Draws of a noise layer behind one answer: their mean is settled to a per cent or two, at the cost of as many passes.
_DRAWS = 16


@dataclass(frozen=True)
class Accuracy:
    """``correct`` of ``total`` test inputs, the share with its Clopper-Pearson interval, and the mean cross-entropy loss."""

    interval: Interval
    correct: int
    total: int
    loss: float

    def as_dict(self) -> dict[str, float | int]:
        """The entry ``accuracy`` of run.json."""
        return {**self.interval.as_dict(), "correct": self.correct, "total": self.total}


def clean_accuracy(
    model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, batch_size: int = 4096, confidence: float = 0.95
) -> Accuracy:
    """Accuracy and loss of ``model`` on ``inputs`` (floats in [0, 1]); batches travel to the device of the model.

    A network with a noise layer answers by its mean probability over a few draws of that noise, as it was trained to; they come
    from a fixed seed, so that the result is the same each time. A certification asks it more often.

    The result is that of one batch of all inputs: the loss is summed in double precision, an answer with a NaN is wrong.
    """
    _check(inputs, labels, batch_size)
    parameter = next(model.parameters(), None)
    device = inputs.device if parameter is None else parameter.device
    correct, loss = 0, 0.0
    draws = _DRAWS if any(isinstance(layer, NoiseLayer) for layer in model.modules()) else 1
    with evaluation_mode(model), _fixed_seed(device), torch.inference_mode():
        for start in range(0, len(labels), batch_size):
            truth = labels[start : start + batch_size].to(device)
            scores = _scores(model, inputs[start : start + batch_size].to(device), draws)
            right = (scores.argmax(dim=1) == truth) & ~scores.isnan().any(dim=1)
            correct += int(right.sum())
            loss += float(cross_entropy(scores.double(), truth, reduction="sum"))
    total = len(labels)
    return Accuracy(binomial_interval(correct, total, confidence), correct, total, loss / total)


def _scores(model: torch.nn.Module, batch: torch.Tensor, draws: int) -> torch.Tensor:
    """The network's outputs, or the logarithm of its mean probability over several draws."""
    if draws == 1:
        answer: torch.Tensor = model(batch)
        return answer
    logarithms = torch.stack([model(batch).double().log_softmax(dim=1) for _ in range(draws)])
    return logarithms.logsumexp(dim=0) - math.log(draws)


@contextmanager
def _fixed_seed(device: torch.device) -> Iterator[None]:
    """Inside, torch draws from the same numbers each time; outside, nothing has been drawn."""
    with own_generators(device):
        torch.manual_seed(0)
        yield


def _check(inputs: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    checks.whole(1, batch_size=batch_size)
    if len(inputs) != len(labels):
        raise DataError(
            "the number of inputs and labels differ", got=f"{len(inputs)} inputs, {len(labels)} labels", wanted="one label each"
        )
    if len(labels) == 0:
        raise DataError("there is nothing to evaluate", got="no inputs", wanted="at least one")
