"""Sampler, clipper, noise and accounting event, built only together.

A ``Plan`` is the complete description of how gradients become private. A ``PrivateExecution`` carries it out for one run and
writes the ledger itself, so that what runs and what is counted cannot differ.

Why the noise is rounded to a grid (docs/decisions/0003-gradient-noise-on-a-grid.md). Floating-point addition of Gaussian noise
leaves low bits from which noise and sum can be told apart. Here the clipped sum is rounded to a multiple of a step h, and so
is the noise; their sum is exact. For a sum S on the grid, S + round(noise) = round(S + noise): the release is a function of
S + noise, the textbook mechanism, whose theorem therefore covers it, as far as the noise is exactly Gaussian before it is
rounded: float64 quantiles are not quite, and the guarantee card says so. Rounding S moves two neighbours apart by at most
h sqrt(P) more (P parameters), which the clipping threshold gives back beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.accounting import PoissonGaussianEvent, check_delta, check_event
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.step_randomness import step_randomness

# What rounding may add to weight * norm in the formulas below (a root, two sums, two quotients) is less than this share.
_ROOM = 2.0**-50


class ClipRule(StrEnum):
    """How a gradient's length becomes its factor. A closed set: each member's bound is proven and tested here."""

    FLAT = "flat"
    PSAC_PAPER = "psac-paper"
    PSAC_CODE = "psac-code"


def clip_weights(squared_norms: Tensor, threshold: float, rule: ClipRule, r: float) -> Tensor:
    """The factors by ``rule``, in float64; ``r`` (above 0) is the constant of the PSAC rules."""
    if rule is ClipRule.FLAT:
        return flat_clip_weights(squared_norms, threshold)
    return psac_weights(squared_norms, threshold, r, as_in_code=rule is ClipRule.PSAC_CODE)


def flat_clip_weights(squared_norms: Tensor, threshold: float) -> Tensor:
    """min(1, threshold / norm) for each record, in float64.

    Guarantees
        weight * norm <= threshold (1 + 2^-50) for every finite norm. A norm that is NaN or infinite gets the weight 0:
        a rule that looks at one record alone, so it changes nobody else's contribution. Its gradient must also be removed
        from the sum (0 * NaN is NaN); ``PerExampleGradient.weighted_sum`` does that for every weight of 0.
    """
    norms = squared_norms.to(torch.float64).sqrt()
    weights = torch.clamp(threshold / norms.clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))


def psac_weights(squared_norms: Tensor, threshold: float, r: float, *, as_in_code: bool = False) -> Tensor:
    """Per-sample adaptive clipping: threshold / (n + r / (n + r)) by the paper, threshold / (n + r / n + r) by its program.

    Every gradient is scaled, short ones too, up or down: long ones nearly to the threshold, and the program's formula lets
    those much shorter than the root of r vanish. A length of 0 gets the weight threshold (paper) or 0 (program).

    Guarantees
        weight * norm <= threshold for every finite norm, rounding included. Proof: for r > 0 what is added to n in the
        denominator is not negative, so that the exact weight times n is below the threshold (strictly where n > 0); four
        roundings of positive terms move it by less than a share of 2^-50, which is taken off beforehand. NaN and infinite norms
        get the weight 0, as in :func:`flat_clip_weights`.
    """
    norms = squared_norms.to(torch.float64).sqrt()
    added = r / norms + r if as_in_code else r / (norms + r)
    weights = threshold * (1 - _ROOM) / (norms + added)
    return torch.where(torch.isfinite(norms), weights, torch.zeros_like(weights))


# Grid step relative to the clipping norm: fine enough that rounding costs less than 1e-6 of it up to a million parameters,
# coarse enough that sums of millions of records stay exact in float64.
_GRID_BITS = 30
# Outside this range the square of a float64 norm, or the grid step, could vanish or overflow.
_CLIP_RANGE = (1e-30, 1e30)
# Noise of 14 deviations must stay below 2^53 grid steps, where float64 stops holding every integer.
_LARGEST_MULTIPLIER = 1e5
# How many steps one ledger line announces: a kill over-counts by at most this many, and lines stay few.
LEDGER_BLOCK = 100


@dataclass(frozen=True)
class Plan:
    """How gradients become private: every field changes the guarantee, nothing else does.

    ``divisor`` is a constant of the configuration. It is never the size of a drawn batch, nor computed from the data inside
    a step: both differ between neighbours and would double the sensitivity (guarantees of DP-SGD assume neither).
    ``clip_rule`` says how gradients are scaled to at most ``clip_norm``; ``clip_r`` is the constant r of its PSAC members.
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    divisor: float
    steps: int
    delta: float
    clip_rule: ClipRule = ClipRule.FLAT
    clip_r: float = 0.01

    def __post_init__(self) -> None:
        check_event(self.event)
        check_delta(self.delta)
        checks.between(0, _LARGEST_MULTIPLIER, noise_multiplier=self.noise_multiplier)
        # At r = 0 a gradient of zero would be divided by zero, and the bound would not be strict.
        checks.between(*_CLIP_RANGE, clip_norm=self.clip_norm, clip_r=self.clip_r)
        checks.positive(divisor=self.divisor)
        checks.one_of(tuple(ClipRule), clip_rule=self.clip_rule)

    @property
    def event(self) -> PoissonGaussianEvent:
        return PoissonGaussianEvent(self.sample_rate, self.noise_multiplier, self.steps)

    @property
    def grid(self) -> float:
        """Step of the grid on which sum and noise meet: a power of two."""
        return 2.0 ** (math.floor(math.log2(self.clip_norm)) - _GRID_BITS)

    def clip_threshold(self, parameters: int) -> float:
        """The norm to which records are clipped: the declared one less what rounding the sum may add."""
        return self.clip_norm - self.grid * math.sqrt(parameters)


@dataclass(frozen=True)
class Draw:
    """The records of one step (int64, on the device). A ``PrivateExecution`` accepts only the object its ``draw`` returned."""

    step: int
    indices: Tensor
    _origin: object


class PrivateExecution:
    """Carries out a plan over one data set with one key, and keeps the ledger.

    Guarantees
        - Each step draws every record independently with probability at most ``plan.sample_rate`` (at most 2^-64 less).
        - The sums of two data sets that differ in one record differ by at most ``plan.clip_norm`` in l2 norm, rounding
          included, provided that the weights came from ``clip_weights`` (tests: a thousand generated neighbours).
        - What ``release`` returns is that sum plus Gaussian noise of deviation noise_multiplier * clip_norm, rounded to the
          grid, divided by the constant.
        - A step is in the ledger before its records are drawn. One step's noise is used for one release only.
    """

    def __init__(
        self, plan: Plan, key: Key, ledger: Ledger, *, records: int, parameters: int, device: torch.device | None = None
    ) -> None:
        self.plan = plan
        self._randomness = step_randomness(
            key, device or torch.device("cpu"), records=records, sample_rate=plan.sample_rate, parameters=parameters
        )
        self._ledger = ledger
        self._parameters = parameters
        self._outstanding: dict[int, Draw] = {}
        self._released: set[int] = set()
        _check_same_plan(plan, ledger)
        self._reserved = ledger.reserved_steps

    def draw(self, step: int) -> Draw:
        """The records of ``step``: a Poisson sample, from the key alone."""
        checks.whole(0, self.plan.steps - 1, step=step)
        self._announce(step)
        self._outstanding[step] = Draw(step, self._randomness.sample(step, announced=self._reserved), self)
        return self._outstanding[step]

    def clip_weights(self, squared_norms: Tensor) -> Tensor:
        """The factor for each record's gradient before the sum; 0 where the gradient is not finite."""
        plan = self.plan
        return clip_weights(squared_norms, plan.clip_threshold(self._parameters), ClipRule(plan.clip_rule), plan.clip_r)

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The private gradient: clipped sums plus noise on the grid, over the constant divisor (float64)."""
        self._check_draw(draw)
        if (found := sum(value.numel() for value in sums.values())) != self._parameters:
            what, wanted = "the sums do not cover the parameters that the plan was made for", f"{self._parameters} parameters"
            raise ConfigError(what, where=f"step {draw.step}", got=found, wanted=wanted)
        self._released.add(draw.step)
        del self._outstanding[draw.step]
        return self._noisy(draw.step, sums)

    def _check_draw(self, draw: Draw) -> None:
        own = getattr(draw, "_origin", None) is self
        if own and draw.step in self._released:
            where = f"step {draw.step}"
            raise ConfigError("a step's noise would be used twice", where=where, got="a second release", wanted="one release")
        # Identity, not equality: a copy of a draw with other indices would carry a sample that nobody accounted for.
        if not own or self._outstanding.get(draw.step) is not draw:
            raise ConfigError(
                "these records were not drawn by the plan",
                where="sampler",
                got=type(draw).__name__,
                wanted="the Poisson draw that this plan's accounting counts",
                fix="let twinproof sample; a foreign sampler's privacy cannot be accounted for",
            )

    def _noisy(self, step: int, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        grid, deviation = self.plan.grid, self.plan.noise_multiplier * self.plan.clip_norm
        # All parameters as one vector: a handful of operations, however many layers there are.
        total = torch.cat([value.to(torch.float64).flatten() for value in sums.values()])
        noise = torch.round(self._randomness.normals(step) * (deviation / grid))
        released = torch.round(total / grid).add_(noise).mul_(grid / self.plan.divisor)
        parts = torch.split(released, [value.numel() for value in sums.values()])
        return {name: part.view(value.shape) for part, (name, value) in zip(parts, sums.items(), strict=True)}

    def _announce(self, step: int) -> None:
        while self._reserved <= step:
            block = min(LEDGER_BLOCK, self.plan.steps - self._reserved)
            body = {"sample_rate": self.plan.sample_rate, "noise_multiplier": self.plan.noise_multiplier}
            self._ledger.append("poisson-gaussian", {**body, "first_step": self._reserved, "steps": block})
            self._reserved += block


def _check_same_plan(plan: Plan, ledger: Ledger) -> None:
    """Refuses a ledger whose announced steps are not this plan's: they would pass for steps that cost something else."""
    fix = "start a new run for a new plan"
    for event in ledger.events():
        if isinstance(event, PoissonGaussianEvent) and replace(event, steps=plan.steps) != plan.event:
            what, where = "the ledger has announced the steps of another plan", "ledger"
            raise ConfigError(what, where=where, got=event, wanted=str(plan.event), fix=fix)
    if ledger.reserved_steps > plan.steps:
        what, wanted = "the ledger has announced more steps than the plan has", f"at most {plan.steps}"
        raise ConfigError(what, where="ledger", got=ledger.reserved_steps, wanted=wanted, fix=fix)
