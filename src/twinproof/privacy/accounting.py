"""What a sequence of privacy-spending events costs: epsilon at a given delta, under add-or-remove-one neighbours.

All accounting is dp-accounting's. The reported epsilon is its privacy-loss-distribution (PLD) bound, which is pessimistic at
every grid step; the Renyi (RDP) bound is computed beside it as a cross-check by other mathematics and other code.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twinproof.errors import ConfigError
from twinproof.rounding import round_up

PLD_GRID = 1e-4
# Above this epsilon nobody is protected; a coarser (still pessimistic) grid keeps the computation from taking minutes.
_FINE_GRID_UP_TO = 50.0
# Composition by FFT errs by up to 1e-13 in probability (seen at rate 1, where the exact answer is known); delta pays for it.
_FFT_ERROR = 5e-13


@dataclass(frozen=True)
class GaussianEvent:
    """One Gaussian mechanism on all records; ``noise_multiplier`` is the noise's deviation over the l2 sensitivity."""

    noise_multiplier: float


@dataclass(frozen=True)
class PoissonGaussianEvent:
    """``steps`` Gaussian mechanisms, each on a Poisson sample that takes every record with probability ``sample_rate``."""

    sample_rate: float
    noise_multiplier: float
    steps: int


Event = GaussianEvent | PoissonGaussianEvent


@dataclass(frozen=True)
class Spending:
    """Epsilon at ``delta`` by two accountants, both rounded up."""

    epsilon: float
    epsilon_rdp: float
    delta: float


def check_event(event: Event) -> None:
    """Refuses an event whose cost has no meaning, naming the value."""
    where = type(event).__name__
    if not (event.noise_multiplier >= 0 and math.isfinite(event.noise_multiplier)):
        raise ConfigError(
            "the noise multiplier cannot be used", where=where, got=event.noise_multiplier, wanted="a finite number >= 0"
        )
    if isinstance(event, PoissonGaussianEvent):
        if not 0 <= event.sample_rate <= 1:
            raise ConfigError("the sample rate is no probability", where=where, got=event.sample_rate, wanted="0 <= rate <= 1")
        if not (event.steps >= 0 and float(event.steps).is_integer()):
            raise ConfigError("the number of steps cannot be used", where=where, got=event.steps, wanted="a whole number >= 0")


def check_delta(delta: float) -> None:
    """Refuses a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ConfigError(
            "delta cannot be used",
            where="delta",
            got=delta,
            wanted="0 < delta < 1, far below one over the number of records",
            fix="use for example 1e-5",
        )


def _dp_event(events: Sequence[Event]) -> Any:
    import dp_accounting

    parts = []
    for event in events:
        check_event(event)
        gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event, GaussianEvent):
            parts.append(gaussian)
        elif event.steps and event.sample_rate > 0:
            sampled = dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian)
            parts.append(dp_accounting.SelfComposedDpEvent(sampled, event.steps))
    return dp_accounting.ComposedDpEvent(parts) if parts else dp_accounting.NoOpDpEvent()


def _without_noise(events: Sequence[Event]) -> bool:
    """Whether some event releases its sum exactly, so that no epsilon holds."""
    return any(
        event.noise_multiplier == 0 and (isinstance(event, GaussianEvent) or (event.steps > 0 and event.sample_rate > 0))
        for event in events
    )


def epsilon_rdp(events: Sequence[Event], delta: float) -> float:
    """Epsilon by Renyi differential privacy; never below the truth."""
    check_delta(delta)
    event = _dp_event(events)
    if _without_noise(events):
        return math.inf
    import dp_accounting
    from dp_accounting import rdp

    # The library warns when it leaves out an order whose series did not converge; leaving one out is always sound.
    logging.getLogger("absl").setLevel(logging.ERROR)
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event)
    return max(0.0, float(accountant.get_epsilon(delta)))


def epsilon_pld(events: Sequence[Event], delta: float) -> float:
    """Epsilon by privacy loss distributions, pessimistic discretisation; never below the truth.

    Guarantees
        Any mechanism made of these events on data sets that differ by one added or removed record is (epsilon, delta)
        differentially private. Proof: dp-accounting's PLDs are built pessimistically and composed exactly on the grid
        (Koskela et al. 2020; Doroshenko et al. 2022), and rounding in their composition is taken off delta, which covers it
        for delta >= 2e-12. Tests: reference values, the exact Gaussian at rate 1, RDP above PLD, monotone in every argument.
    """
    rough = epsilon_rdp(events, delta)
    if math.isinf(rough):
        return math.inf
    import dp_accounting
    from dp_accounting.pld import pld_privacy_accountant

    grid = PLD_GRID if rough <= _FINE_GRID_UP_TO else PLD_GRID * rough / _FINE_GRID_UP_TO
    accountant = pld_privacy_accountant.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=grid
    )
    accountant.compose(_dp_event(events))
    return max(0.0, float(accountant.get_epsilon(delta - min(_FFT_ERROR, delta / 4))))


def spending(events: Sequence[Event], delta: float) -> Spending:
    """What ``events`` cost, by both accountants, rounded up as every file and person sees it."""
    return Spending(round_up(epsilon_pld(events, delta)), round_up(epsilon_rdp(events, delta)), delta)
