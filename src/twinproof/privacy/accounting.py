"""What a sequence of privacy-spending events costs, and the least noise for a target.

Neighbours have the same public number N of records and differ in one, which one of them replaces by a null record. A null
record adds zero to every sum, and rate, divisor and noise depend on N alone, so the accountants' add-or-remove-one covers it
(Kairouz et al. 2021, Definition 1.1; dp-accounting's ``REPLACE_SPECIAL``).

All accounting is dp-accounting's. The reported epsilon is its privacy-loss-distribution (PLD) bound, which is pessimistic at
every grid step; the Renyi (RDP) bound is computed beside it as a cross-check by other mathematics and other code.

A run reports epsilon many times for one rate and one noise multiplier: the cost of a single step, which is most of the work,
is cached, and the composition over steps is done each time.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.guarantee import format_up, round_up

PLD_GRID = 1e-4
# Of one mechanism; more of them would take the accountants minutes. Ninety epochs of ImageNet in batches of 256 are half of it.
MOST_STEPS = 1_000_000
# Above this epsilon nobody is protected; a coarser (still pessimistic) grid keeps the computation from taking minutes.
_FINE_GRID_UP_TO = 50.0
# Above this one steps of the grid would overflow: the Renyi bound is the answer.
_COUNTED_UP_TO = 1e8
# Composition by FFT errs by up to 1e-13 in probability (seen at rate 1, where the exact answer is known); delta pays for it.
_FFT_ERROR = 5e-13
_LARGEST_NOISE = 1e100  # its square must be a float64
# Below it 1 / multiplier, and sums of some of them, leave float64. A multiplier of 0 hides nothing.
_SMALLEST_LAPLACE = 1e-300
# Mechanisms whose single step is kept: those of a run and of the comparison beside it, a megabyte or so each.
_KEPT = 8


@dataclass(frozen=True)
class GaussianEvent:
    """One Gaussian mechanism on all records; ``noise_multiplier`` is the noise's deviation over the l2 sensitivity."""

    noise_multiplier: float
    sample_rate: ClassVar[float] = 1.0  # all records are a Poisson sample with rate 1
    steps: ClassVar[int] = 1


@dataclass(frozen=True)
class PoissonGaussianEvent:
    """``steps`` Gaussian mechanisms, each on a Poisson sample that takes every record with probability ``sample_rate``."""

    sample_rate: float
    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class LaplaceEvent:
    """One Laplace mechanism on all records; ``noise_multiplier`` is the noise's scale over the l1 sensitivity.

    It is (1 / ``noise_multiplier``, 0)-private: the only event here that keeps a promise with delta 0.
    """

    noise_multiplier: float
    sample_rate: ClassVar[float] = 1.0
    steps: ClassVar[int] = 1


Event = GaussianEvent | PoissonGaussianEvent | LaplaceEvent


@dataclass(frozen=True)
class Spending:
    """Epsilon at ``delta`` by two accountants, both rounded up."""

    epsilon: float
    epsilon_rdp: float
    delta: float


def check_event(event: Event) -> None:
    """Refuses an event whose cost has no meaning, naming the value."""
    where = type(event).__name__
    checks.between(0, _LARGEST_NOISE, noise_multiplier=event.noise_multiplier, where=where)
    if isinstance(event, LaplaceEvent) and event.noise_multiplier > 0:
        checks.between(_SMALLEST_LAPLACE, _LARGEST_NOISE, noise_multiplier=event.noise_multiplier, where=where)
    if isinstance(event, PoissonGaussianEvent):
        checks.between(0, 1, sample_rate=event.sample_rate, where=where)
        check_steps(event.steps, where)


def check_steps(steps: float, where: str) -> None:
    """Refuses a number of steps that could not be accounted for in reasonable time, or is not whole."""
    checks.whole(0, MOST_STEPS, steps=steps, where=where, fix="take fewer epochs, or larger batches")


def check_delta(delta: float) -> None:
    checks.inside(0, 1, delta=delta, fix="use for example 1e-5: far below one over the number of records")


def _spent(events: Sequence[Event]) -> list[Event]:
    """The events that cost something; refuses those without meaning."""
    for event in events:
        check_event(event)
    return [event for event in events if event.steps > 0 and event.sample_rate > 0]


def _without_laplace(events: Sequence[Event]) -> tuple[float, list[Event]]:
    """What the Laplace mechanisms cost at delta 0, the exact sum of 1 / multiplier rounded up; and the other events."""
    exact = sum((1 / Fraction(event.noise_multiplier) for event in events if isinstance(event, LaplaceEvent)), Fraction(0))
    nearest = float(exact)
    loss = nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)
    return loss, [event for event in events if not isinstance(event, LaplaceEvent)]


def _one_step(event: Event) -> Event:
    return replace(event, steps=1) if isinstance(event, PoissonGaussianEvent) else event


def _dp_accounting() -> Any:
    """The accountants' library, which takes two seconds to import; most commands account for nothing."""
    import dp_accounting

    return dp_accounting


@functools.lru_cache(maxsize=_KEPT)
def _one_step_rdp(step: Event) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Renyi orders, and the divergence of one step at each; shared by all callers, and therefore read-only."""
    library = _dp_accounting()
    # The library warns when it leaves out an order whose series did not converge; leaving one out is always sound.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(
        library.LaplaceDpEvent(step.noise_multiplier)
        if isinstance(step, LaplaceEvent)
        else library.PoissonSampledDpEvent(step.sample_rate, library.GaussianDpEvent(step.noise_multiplier))
    )
    orders, divergences = accountant.orders, accountant.rdp
    orders.setflags(write=False)
    divergences.setflags(write=False)
    return orders, divergences


@functools.lru_cache(maxsize=_KEPT)
def _one_step_pld(step: Event, grid: float) -> Any:
    """The pessimistic privacy loss distribution of one step; composing it makes new ones and leaves it as it is."""
    library = _dp_accounting()
    distributions = library.pld.privacy_loss_distribution
    if isinstance(step, LaplaceEvent):
        return distributions.from_laplace_mechanism(step.noise_multiplier, value_discretization_interval=grid)
    return distributions.from_gaussian_mechanism(
        standard_deviation=step.noise_multiplier,
        value_discretization_interval=grid,
        sampling_prob=step.sample_rate,
        neighboring_relation=library.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def epsilon_rdp(events: Sequence[Event], delta: float) -> float:
    """Epsilon by Renyi differential privacy; never below the truth. Divergences of independent steps add up."""
    check_delta(delta)
    spent = _spent(events)
    if any(event.noise_multiplier == 0 for event in spent):
        return math.inf  # some event releases its sum exactly
    return _with_laplace_apart(spent, lambda composed: _composed_rdp(composed, delta))


def epsilon_pld(events: Sequence[Event], delta: float) -> float:
    """Epsilon by privacy loss distributions, pessimistic discretisation; never below the truth.

    Guarantees
        Any mechanism made of these events on data sets of one public size that differ in one record, replaced by nothing, is
        (epsilon, delta)-differentially private. Proof: the pair is that of add-or-remove-one (above); dp-accounting's PLDs are
        built pessimistically and composed exactly on the grid (Koskela et al. 2020; Doroshenko et al. 2022), and rounding in
        their composition is taken off delta, which covers it for delta >= 2e-12. A Laplace mechanism on several outputs is
        counted as one output that moves by all their movements together, which is never better (``laplace_delta``); and as the
        grid rounds losses up, the epsilon is never taken above that of the Laplace mechanisms at delta 0, the sum of 1 /
        multiplier, plus what the others cost at ``delta`` (basic composition). Tests: reference values, the exact Gaussian at
        rate 1, the exact Laplace profile, RDP above PLD, monotone in every argument.
    """
    rough = epsilon_rdp(events, delta)
    if rough > _COUNTED_UP_TO:
        return rough
    grid = PLD_GRID if rough <= _FINE_GRID_UP_TO else PLD_GRID * rough / _FINE_GRID_UP_TO
    return _with_laplace_apart(_spent(events), lambda composed: _composed_pld(composed, delta, grid))


def _with_laplace_apart(spent: Sequence[Event], cost: Callable[[Sequence[Event]], float]) -> float:
    """``cost`` of all events, or of the others plus the Laplace mechanisms at delta 0: the smaller of two bounds."""
    loss, others = _without_laplace(spent)
    composed = cost(spent)
    if loss == 0:
        return composed
    apart = cost(others)
    return min(composed, loss if apart == 0 else math.nextafter(loss + apart, math.inf))


def _composed_rdp(spent: Sequence[Event], delta: float) -> float:
    if not spent:
        return 0.0
    orders, divergences = _one_step_rdp(_one_step(spent[0]))
    total = np.zeros_like(divergences)
    for event in spent:
        total += event.steps * _one_step_rdp(_one_step(event))[1]
    return max(0.0, float(_dp_accounting().rdp.compute_epsilon(orders, total, delta)[0]))


def _composed_pld(spent: Sequence[Event], delta: float, grid: float) -> float:
    total = _dp_accounting().pld.privacy_loss_distribution.identity(value_discretization_interval=grid)
    for event in spent:
        losses = _one_step_pld(_one_step(event), grid)
        total = total.compose(losses.self_compose(event.steps) if isinstance(event, PoissonGaussianEvent) else losses)
    return max(0.0, float(total.get_epsilon_for_delta(delta - min(_FFT_ERROR, delta / 4))))


def spending(events: Sequence[Event], delta: float) -> Spending:
    """What ``events`` cost, by both accountants, rounded up as every file and person sees it."""
    return Spending(round_up(epsilon_pld(events, delta)), round_up(epsilon_rdp(events, delta)), delta)


MULTIPLIER_DIGITS = 6
_SMALLEST, _LARGEST = 0.1, 1e5
# Relative width of the final bracket. Epsilon falls about as fast as the multiplier grows, so this keeps it within 0.1 %.
_WIDTH = 5e-4
_KEPT_CALIBRATIONS = 64  # answers that a process remembers


def _bisect(cost: Callable[[float], float], target: float, low: float, high: float, width: float) -> tuple[float, float]:
    """Shrinks (low, high), cost(low) > target >= cost(high), until high/low <= 1 + width; the safe side is ``high``."""
    while high / low > 1 + width:
        middle = math.sqrt(low * high)
        if cost(middle) <= target:
            high = middle
        else:
            low = middle
    return low, high


def _narrow(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The safe end of a bracket as ``_bisect`` would shrink it to ``_WIDTH``, in about half as many evaluations.

    Between close multipliers epsilon is nearly a power of them, so the answer is interpolated and the bracket closed from
    both sides around it; every third step halves in any case.
    """
    side, count = 1, 0
    while high / low > 1 + _WIDTH:
        count += 1
        at_low, at_high = cost(low), cost(high)
        middle = math.sqrt(low * high)
        if count % 3 and 0 < at_high < at_low < math.inf:
            share = math.log(at_low / target) / math.log(at_low / at_high)
            guess = low * (high / low) ** share * (1 + side * _WIDTH / 3)
            middle = guess if low < guess < high else middle
        if cost(middle) <= target:
            high, side = middle, -1
        else:
            low, side = middle, 1
    return high


def calibrate_noise_multiplier(
    epsilon: float, delta: float, *, sample_rate: float, steps: int, already: Sequence[Event] = ()
) -> float:
    """The smallest multiplier (to 0.05 %) at which ``already`` and the DP-SGD steps together stay within ``epsilon``.

    ``epsilon_pld([*already, steps at the returned multiplier], delta) <= epsilon``: the value returned was itself accounted, or
    lies above one that was, and epsilon never grows with noise.
    """
    return _calibrated(epsilon, delta, sample_rate, steps, tuple(already))


# A table trains many models under one budget; each calibration takes seconds.
@functools.lru_cache(maxsize=_KEPT_CALIBRATIONS)
def _calibrated(epsilon: float, delta: float, sample_rate: float, steps: int, already: tuple[Event, ...]) -> float:
    checks.positive(epsilon=epsilon)

    def rdp_cost(multiplier: float) -> float:
        return epsilon_rdp([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    @functools.cache
    def pld_cost(multiplier: float) -> float:
        return epsilon_pld([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    if rdp_cost(_SMALLEST) <= epsilon:
        return _SMALLEST
    if rdp_cost(_LARGEST) <= epsilon:
        low, high = _bracket(rdp_cost, pld_cost, epsilon)
    else:
        # The Renyi bound cannot show a very small epsilon, nor one just above what is already spent; the other may.
        low, high = _SMALLEST, _LARGEST
        if (least := pld_cost(high)) > epsilon:
            raise ConfigError(
                "the target epsilon cannot be reached",
                where="epsilon",
                got=epsilon,
                wanted=f"at least {format_up(least, 4)}" + (", most of which is already spent" if already else ""),
                fix="allow a larger epsilon, or take fewer steps",
            )
    return round_up(_narrow(pld_cost, epsilon, low, high), MULTIPLIER_DIGITS)


def _bracket(rough: Callable[[float], float], cost: Callable[[float], float], target: float) -> tuple[float, float]:
    """(low, high) close around the answer, cost(high) <= target: the quick bound, which is close from above, finds it."""
    _, high = _bisect(rough, target, _SMALLEST, _LARGEST, 1e-3)
    high = high if cost(high) <= target else _bisect(cost, target, high, _LARGEST, 1e-2)[1]
    low = high / 1.1
    while low > _SMALLEST and cost(low) <= target:
        low, high = low / 1.1, low
    return max(low, _SMALLEST), high
