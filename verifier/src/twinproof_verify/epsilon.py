"""Epsilon once more, from nothing but the ledger, with two accountants that share no theory.

The accountants are those of ``dp-accounting``, called directly: privacy loss distributions (tight, numerical) and Renyi
divergences (looser, analytical). Both give upper bounds for neighbours of which one lacks a record, added, removed or replaced
by nothing: the events are the same. Laplace mechanisms are private at delta 0 as well: what they cost there, added to what all
others cost, is one more bound, and the least one counts.

No ledger takes long. Where the usual grid of losses would, a coarser one gives an upper bound that is a little larger; how much
larger is measured on a grid that is coarser still, and an epsilon that is printed smaller by no more than that is accepted.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from twinproof_verify.evidence import format_up, shown
from twinproof_verify.files import LEDGER
from twinproof_verify.findings import Problem
from twinproof_verify.ledger import Ledger
from twinproof_verify.models import number

# Steps of the grid that losses are rounded to: this one, or a coarser one where it would take longer than SECONDS.
DISCRETIZATION, SECONDS = 1e-4, 4.0
# What a coarser grid may cost, as a share of epsilon; a ledger that needs more would take too long.
LARGEST_ERROR = 1e-3
DECIMALS = 6
# Joining equal blocks or another FFT moves the PLD value by some 1e-9 of itself; that is no lie. Seven digits are compared.
NUMERICAL_SLACK = 1e-8
OVERSTATEMENT = 0.01

# Beyond these the accountant needs minutes and gigabytes, and the answer would be no promise worth its name. A ledger is a
# stranger's file: without them one line could stop the machine that checks it.
SMALLEST_NOISE = 0.1
LARGEST_NOISE = 1e9
MOST_STEPS = 10**7
MOST_MECHANISMS = 16
LARGEST_EPSILON = 500.0
# Steps that the library composes at once: it writes down a number with about as many digits.
_STEPS_AT_ONCE = 10**6
# On one core of 2020: seconds for a unit of losses at DISCRETIZATION, and for a unit of epsilon and mechanism.
_SECONDS_OF_LOSSES, _SECONDS_OF_SAMPLED_LOSSES, _SECONDS_OF_EPSILON = 0.016, 0.07, 0.0023
# How far losses of one mechanism spread, over 1 / noise: what lies beyond is less likely than e^-50.
_SPREAD = {False: 21.0, True: 2.0}


class Mechanism(NamedTuple):
    """Gaussian noise on a Poisson sample (rate 1: on all records), or Laplace noise on all records."""

    sample_rate: float
    noise_multiplier: float
    laplace: bool = False


@dataclass(frozen=True)
class Spent:
    """Epsilon at the ledger's delta by privacy loss distributions and by Renyi divergences; infinity where there is none.

    ``error`` is how much more the first can be than on the usual grid, where a coarser one had to do.
    """

    epsilon: float
    epsilon_rdp: float
    error: float = 0.0


def recompute(ledger: Ledger) -> Spent | Problem | None:
    """What the ledger's events cost; None if it spends nothing; a problem where no number can be had."""
    if not ledger.spendings:
        return None
    if not ledger.countable or ledger.delta is None:
        return Problem(LEDGER, "epsilon cannot be recomputed", "a ledger with lines that cannot be counted", "a whole ledger")
    mechanisms: Counter[Mechanism] = Counter()  # composition does not depend on the order
    for one in ledger.spendings:
        mechanisms[Mechanism(one.sample_rate, one.noise_multiplier, one.laplace)] += one.steps
    refusal = _too_much(mechanisms)
    if refusal is not None:
        return refusal
    try:
        with _quiet_accountants():
            spent = account(mechanisms, ledger.delta)
    except (ArithmeticError, ValueError, MemoryError) as error:
        return Problem(LEDGER, "epsilon cannot be recomputed", shown(f"{type(error).__name__}: {error}"), "events that compose")
    if spent.error > LARGEST_ERROR * spent.epsilon:
        got = (
            f"{len(mechanisms)} mechanisms, whose epsilon of about {format_up(spent.epsilon)} can be {spent.error:.2g} smaller"
        )
        return Problem(LEDGER, "the ledger would take too long to recompute", got, "fewer mechanisms, or more noise in them")
    return spent


def _too_much(mechanisms: Mapping[Mechanism, int]) -> Problem | None:
    what = "the ledger is beyond what can be recomputed"
    if len(mechanisms) > MOST_MECHANISMS:
        return Problem(LEDGER, what, f"{len(mechanisms)} different mechanisms", f"at most {MOST_MECHANISMS}")
    if sum(mechanisms.values()) > MOST_STEPS:
        return Problem(LEDGER, what, f"{sum(mechanisms.values())} steps", f"at most {MOST_STEPS}")
    for _, noise, _ in mechanisms:
        if not SMALLEST_NOISE <= noise <= LARGEST_NOISE:
            return Problem(LEDGER, what, f"noise multiplier {noise}", f"{SMALLEST_NOISE} to {LARGEST_NOISE:g}")
    return None


@contextmanager
def _quiet_accountants() -> Iterator[None]:
    """Keeps the library's note on orders it leaves out (which is sound: any order gives a bound) from the user's terminal."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def account(mechanisms: Mapping[Mechanism, int], delta: float) -> Spent:
    composed = _composed(mechanisms, delta)
    pure = {one.noise_multiplier: times for one, times in mechanisms.items() if one.laplace}
    if not pure:
        return composed
    others = _composed({one: steps for one, steps in mechanisms.items() if not one.laplace}, delta)
    alone = math.fsum(times / noise for noise, times in pure.items())
    renyi = min(composed.epsilon_rdp, others.epsilon_rdp + alone)
    epsilon = min(composed.epsilon, others.epsilon + alone) if math.isfinite(composed.epsilon) else math.inf
    return Spent(epsilon, renyi, max(composed.error, others.error))


def _event(mechanism: Mechanism, steps: int) -> Any:
    import dp_accounting  # heavy, and only needed here

    if mechanism.laplace:
        return dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(mechanism.noise_multiplier), steps)
    gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    # A mechanism on all records is not a sample of rate 1 to every accountant: say it as it is.
    whole = mechanism.sample_rate == 1.0
    event = gaussian if whole else dp_accounting.PoissonSampledDpEvent(mechanism.sample_rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(event, steps)


def _composed(mechanisms: Mapping[Mechanism, int], delta: float) -> Spent:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if not mechanisms:
        return Spent(0.0, 0.0)
    renyi = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for mechanism, steps in mechanisms.items():
        renyi.compose(_event(mechanism, steps))
    epsilon_rdp = float(renyi.get_epsilon(delta))
    if not epsilon_rdp <= LARGEST_EPSILON:
        # Renyi bounds are never far below: the tight value is beyond use too, and would take gigabytes to find.
        return Spent(math.inf, epsilon_rdp)
    coarser = max(1.0, predicted_seconds(mechanisms, epsilon_rdp) / SECONDS)
    epsilon = _by_losses(mechanisms, delta, DISCRETIZATION * coarser)
    # Errors grow with the square of the step: twice the step shows three times what this one errs, or more.
    error = abs(_by_losses(mechanisms, delta, 2 * DISCRETIZATION * coarser) - epsilon) if coarser > 1 else 0.0
    return Spent(epsilon, epsilon_rdp, error)


def predicted_seconds(mechanisms: Mapping[Mechanism, int], epsilon_rdp: float) -> float:
    """About how long the losses take at ``DISCRETIZATION``; fitted to measurements of ``benchmarks/verify_limits.py``."""
    losses = math.fsum(
        (_SECONDS_OF_LOSSES if one.sample_rate == 1.0 else _SECONDS_OF_SAMPLED_LOSSES)
        * (_SPREAD[one.laplace] / one.noise_multiplier)
        for one in mechanisms
    )
    return losses + _SECONDS_OF_EPSILON * epsilon_rdp * len(mechanisms)


def _by_losses(mechanisms: Mapping[Mechanism, int], delta: float, step: float) -> float:
    """Epsilon by privacy loss distributions, losses rounded up to multiples of ``step``."""
    from dp_accounting.pld import privacy_loss_distribution

    total = privacy_loss_distribution.identity(value_discretization_interval=step)
    for mechanism, times in mechanisms.items():
        total = total.compose(_repeated(_losses(mechanism, step), times))
    return float(total.get_epsilon_for_delta(delta))


def _losses(mechanism: Mechanism, step: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    rate, noise, laplace = mechanism
    if laplace:
        return privacy_loss_distribution.from_laplace_mechanism(noise, value_discretization_interval=step)
    return privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=step)


def _repeated(losses: Any, times: int) -> Any:
    whole, rest = divmod(times, _STEPS_AT_ONCE)
    if not whole:
        return losses.self_compose(times)
    many = _repeated(losses.self_compose(_STEPS_AT_ONCE), whole)
    return many if not rest else many.compose(losses.self_compose(rest))


def printed_problems(file: str, name: str, printed: object, truth: float, error: float = 0.0) -> Iterator[Problem]:
    """Whether a printed epsilon is one a reader may rely on: not below ``truth``, not far above, and rounded to 6 places.

    ``error`` is by how much ``truth`` may be too large.
    """
    value = number(printed)
    slack = NUMERICAL_SLACK * max(1.0, truth) + error
    wanted = f"{format_up(truth)} (recomputed, rounded up)"
    if value is None:
        yield Problem(file, f"{name} is not a number", shown(printed), wanted)
    elif not value >= truth - slack:
        yield Problem(file, f"{name} is smaller than what the ledger spends", repr(value), wanted)
    elif value > truth * (1 + OVERSTATEMENT) + 10**-DECIMALS:
        yield Problem(file, f"{name} is more than 1 % above what the ledger spends", repr(value), wanted)
    elif round(value, DECIMALS) != value:
        yield Problem(file, f"{name} is not rounded to {DECIMALS} places", repr(value), wanted)


def close_problems(ledger: Ledger, spent: Spent | None) -> Iterator[Problem]:
    closing = ledger.closing
    for name in ("epsilon", "epsilon_rdp") if closing is not None else ():
        printed = getattr(closing, name)
        if spent is not None:
            error = spent.error if name == "epsilon" else 0.0
            yield from printed_problems(LEDGER, f"close: {name}", printed, getattr(spent, name), error)
        elif printed is not None and not ledger.spendings:
            yield Problem(LEDGER, f"close: {name} without any spending", shown(printed), "null")
