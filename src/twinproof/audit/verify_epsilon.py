"""Epsilon once more, from nothing but the ledger, with two accountants that share no theory.

The accountants are those of the ``dp-accounting`` library, called directly: privacy loss distributions (tight, numerical) and
Renyi divergences (looser, analytical). Both give upper bounds for neighbours of which one lacks a record, added,
removed or replaced by nothing: the events are the same (docs/formats/run.md). Laplace mechanisms are private
at delta 0 as well: what they cost there, added to what all others cost, is one more bound, and the least one counts.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from twinproof.audit.evidence import shown
from twinproof.audit.fields import number
from twinproof.audit.verification import Problem
from twinproof.audit.verify_ledger import FILE, Ledger, Spending
from twinproof.rounding import format_up

DISCRETIZATION = 1e-4
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


class Mechanism(NamedTuple):
    """Gaussian noise on a Poisson sample (rate 1: on all records), or Laplace noise on all records."""

    sample_rate: float
    noise_multiplier: float
    laplace: bool = False


@dataclass(frozen=True)
class Spent:
    """Epsilon at the ledger's delta by privacy loss distributions and by Renyi divergences; infinity where there is none."""

    epsilon: float
    epsilon_rdp: float


def recompute(ledger: Ledger) -> Spent | Problem | None:
    """What the ledger's events cost; None if it spends nothing; a problem where no number can be had."""
    if not ledger.spendings:
        return None
    if not ledger.countable or ledger.delta is None:
        return Problem(FILE, "epsilon cannot be recomputed", "a ledger with lines that cannot be counted", "a whole ledger")
    mechanisms = _joined(ledger.spendings)
    refusal = _too_much(mechanisms)
    if refusal is not None:
        return refusal
    try:
        with _quiet_accountants():
            return account(mechanisms, ledger.delta)
    except (ArithmeticError, ValueError, MemoryError) as error:
        return Problem(FILE, "epsilon cannot be recomputed", shown(f"{type(error).__name__}: {error}"), "events that compose")


def _joined(spendings: tuple[Spending, ...]) -> dict[Mechanism, int]:
    """How often each mechanism was used; composition does not depend on the order."""
    counts: Counter[Mechanism] = Counter()
    for spending in spendings:
        counts[Mechanism(spending.sample_rate, spending.noise_multiplier, spending.laplace)] += spending.steps
    return dict(counts)


def _too_much(mechanisms: dict[Mechanism, int]) -> Problem | None:
    what = "the ledger is beyond what can be recomputed"
    if len(mechanisms) > MOST_MECHANISMS:
        return Problem(FILE, what, f"{len(mechanisms)} different mechanisms", f"at most {MOST_MECHANISMS}")
    if sum(mechanisms.values()) > MOST_STEPS:
        return Problem(FILE, what, f"{sum(mechanisms.values())} steps", f"at most {MOST_STEPS}")
    for _, noise, _ in mechanisms:
        if not SMALLEST_NOISE <= noise <= LARGEST_NOISE:
            return Problem(FILE, what, f"noise multiplier {noise}", f"{SMALLEST_NOISE} to {LARGEST_NOISE:g}")
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
    """Epsilon at ``delta`` for mechanisms -> how often."""
    composed = _composed([_event(one, steps) for one, steps in mechanisms.items()], delta)
    pure = {one.noise_multiplier: times for one, times in mechanisms.items() if one.laplace}
    if not pure:
        return composed
    others = _composed([_event(one, steps) for one, steps in mechanisms.items() if not one.laplace], delta)
    alone = math.fsum(times / noise for noise, times in pure.items())
    renyi = min(composed.epsilon_rdp, others.epsilon_rdp + alone)
    return Spent(min(composed.epsilon, others.epsilon + alone) if math.isfinite(composed.epsilon) else math.inf, renyi)


def _event(mechanism: Mechanism, steps: int) -> Any:
    """In the words of the library."""
    import dp_accounting  # heavy, and only needed here

    if mechanism.laplace:
        return dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(mechanism.noise_multiplier), steps)
    gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    # A mechanism on all records is not a sample of rate 1 to every accountant: say it as it is.
    whole = mechanism.sample_rate == 1.0
    event = gaussian if whole else dp_accounting.PoissonSampledDpEvent(mechanism.sample_rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(event, steps)


def _composed(events: list[Any], delta: float) -> Spent:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    if not events:
        return Spent(0.0, 0.0)
    neighbours = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    renyi = RdpAccountant(neighboring_relation=neighbours)
    for event in events:
        renyi.compose(event)
    epsilon_rdp = float(renyi.get_epsilon(delta))
    if not epsilon_rdp <= LARGEST_EPSILON:
        # Renyi bounds are never far below: the tight value is beyond use too, and would take gigabytes to find.
        return Spent(math.inf, epsilon_rdp)
    loss = PLDAccountant(neighbours, value_discretization_interval=DISCRETIZATION)
    for event in events:
        loss.compose(event)
    return Spent(float(loss.get_epsilon(delta)), epsilon_rdp)


def printed_problems(file: str, name: str, printed: object, truth: float) -> Iterator[Problem]:
    """Whether a printed epsilon is one a reader may rely on: not below ``truth``, not far above, and rounded to 6 places."""
    value = number(printed)
    slack = NUMERICAL_SLACK * max(1.0, truth)
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
    """The epsilons of the closing line against the recomputed ones."""
    for name in ("epsilon", "epsilon_rdp"):
        if name not in ledger.closing:
            continue
        printed = ledger.closing[name]
        if spent is not None:
            yield from printed_problems(FILE, f"close: {name}", printed, getattr(spent, name))
        elif printed is not None and not ledger.spendings:
            yield Problem(FILE, f"close: {name} without any spending", shown(printed), "null")
