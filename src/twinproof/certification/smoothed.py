"""The smoothed classifier and CERTIFY (Cohen, Rosenfeld and Kolter, ICML 2019), batched across inputs.

Guarantees
    For each input, with probability at least 1 - alpha over the noise: if CERTIFY does not abstain, the smoothed classifier
    (the class with the largest mean vote, or mean score, over the noise) answers ``prediction`` for every storable input
    whose distance in the method's norm is smaller than ``radius``. Proof: the class is chosen on n0 draws; the n estimation
    draws are fresh, so that the confidence bound holds for them; tau covers the sampler; the robustness bound gives a
    distance in the layer that gets the noise, and its operator norm one at the input (``radius.py``, ``noise_site.py``). For
    plain votes and Gaussian noise at the input this is sigma * Phi^-1(p), Cohen et al.'s theorem 1. Radii are rounded down.
    With a target radius the votes are looked at several times; the looks share alpha (``method.py``).
    The network of the claim is the one that is run: for speed it may be another form of the one given, equal up to rounding
    (``lowering.py``). A bound that is published and not proven promises nothing; it is there to be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.bounds import BestLaplace, RobustnessBound
from twinproof.certification.catalogue import best_bound, find_bound
from twinproof.certification.confidence import RunnerUp
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.certification.laplace_shifts import LARGEST_DIMENSION, EqualShifts, GaussianShift
from twinproof.certification.method import BEST, PLAIN, Method, NoiseRecord, Sampling
from twinproof.certification.noise_site import (
    AsSmoothed,
    InputSite,
    LayerSite,
    Movement,
    NoiseSite,
    NormBound,
    front_of,
    refuse_global_hooks,
    refuse_hidden_work,
)
from twinproof.certification.radius import Estimate, RadiusRule, StoppingRule, estimate, largest_radius, stopping_rule
from twinproof.certification.shared_noise import SharedNetwork, SharedNoiseCounter, shared_network
from twinproof.certification.two_noises import two_noises_site
from twinproof.certification.votes import (
    BaseClassifier,
    Counter,
    VoteCounter,
    base_classifier,
    number_of_classes,
    row_statistic,
    rows_per_forward,
    unused_copy,
)
from twinproof.compute.devices import one_thread_inside
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode
from twinproof.layers.noise_placement import split_at_noise, split_at_two_noises
from twinproof.privacy.linear_maps import Norm
from twinproof.runs.records import ABSTAIN, UNKNOWN, Certificate


def stored_levels(inputs: Tensor | NDArray[Any], levels: int, device: torch.device | None) -> Tensor:
    """``inputs`` as whole numbers of levels, float32, on ``device`` (without one, where they are).

    A certificate speaks of stored inputs: values between two levels, or outside [0, levels], are refused.
    """
    given = torch.as_tensor(inputs.astype(np.int32) if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint16 else inputs)
    if given.ndim == 0:
        raise DataError(
            "a single number is not a batch of inputs", where="certify", got="no dimension", wanted="(inputs, *shape)"
        )
    if given.is_floating_point():
        scaled = given.to(torch.float64) * levels
        stored = scaled.round()
        # Float32 keeps k / levels to 2^-24 relative; anything further off was never a stored level.
        if not bool(((scaled - stored).abs() <= 1e-2).all()):
            raise DataError(
                "inputs do not lie on the stored levels",
                where="certify",
                got="values between two levels (or NaN)",
                wanted=f"multiples of 1/{levels} in [0, 1], or integers 0..{levels}",
                fix="pass the inputs as they are stored, or name the right number of levels",
            )
    else:
        stored = given.to(torch.float64)
    if stored.numel() and not (float(stored.min()) >= 0 and float(stored.max()) <= levels):
        raise DataError(
            "inputs lie outside the stored range",
            where="certify",
            got=f"{float(stored.min()):g}..{float(stored.max()):g}",
            wanted=f"0..{levels} levels",
        )
    return stored.to(device=device or given.device, dtype=torch.float32)


def check_numbering(inputs: int, labels: Sequence[int] | None, first_index: int, rows: int | None) -> None:
    """Refuses labels that do not belong to the inputs, and numbers that count nothing."""
    if labels is not None and len(labels) != inputs:
        raise DataError(
            "labels and inputs differ in number",
            where="certify",
            got=f"{len(labels)} labels for {inputs} inputs",
            wanted="one label for each input, or none at all",
        )
    if any(label < 0 and label != UNKNOWN for label in labels or ()):
        raise DataError(
            "a label is not a class",
            where="certify",
            got=min(label for label in labels or () if label != UNKNOWN),
            wanted=f"0 or more, or {UNKNOWN} for a label that is not known",
            fix="-1 stands for an abstention, which would then count as correct",
        )
    if first_index < 0:
        raise ConfigError("inputs are numbered from 0", where="first_index", got=first_index, wanted="0 or more")
    if rows is not None and rows < 1:
        raise ConfigError("a forward pass needs rows", where="rows", got=rows, wanted="at least 1")


@dataclass(frozen=True)
class SmoothedClassifier:
    """A network made robust by averaging over noise, at its input or behind its first layer; ``smooth`` makes it.

    ``base`` is the network in the form in which it is run, where a caller has it already (``base_for``). ``smoothed`` holds
    what must not change in a network whose noise was taken out of it.
    """

    model: nn.Module
    site: NoiseSite
    method: Method = PLAIN
    base: BaseClassifier | None = None
    smoothed: AsSmoothed | None = None

    def __post_init__(self) -> None:
        if self.method.bound == BEST:
            object.__setattr__(self, "method", replace(self.method, bound=best_bound(self.noise.law)))
        find_bound(self.method.bound, self.noise.law, self.site.place)

    @property
    def noise(self) -> GridNoise:
        """The noise that is drawn; its ``sigma`` is in units of the layer that gets it."""
        return self.site.noise

    @property
    def levels(self) -> int:
        """Stored levels of the inputs."""
        return self.site.levels

    @property
    def norm(self) -> str:
        """The norm of the radii."""
        return self.method.norm

    @property
    def own_noise(self) -> bool:
        """Whether the noise is that of the network's own noise layer."""
        return self.site.own_noise

    @property
    def bound(self) -> RobustnessBound:
        """The robustness bound for the law of the noise."""
        return find_bound(self.method.bound, self.noise.law)

    def base_for(self, inputs: Tensor | NDArray[Any], sampling: Sampling, *, form: str | None = None) -> BaseClassifier:
        """The network as it is run on such inputs, for callers that certify in several calls in the same form."""
        self._refuse_changes()
        points = self.site.points(self._stored(inputs)[:1])
        return self._base(points, rows_per_forward(points[0].numel(), points.device), sampling, form)

    def operator_norm(self, shape: tuple[int, ...]) -> NormBound:
        """How far the layer that gets the noise moves for one unit of an input of ``shape``; the papers' claim for theirs."""
        return self.site.norm_bound(shape, self.norm, self.bound.charge)

    def radius_rule(self, shape: tuple[int, ...], classes: int) -> RadiusRule:
        """What turns the evidence of inputs of ``shape`` into radii."""
        return RadiusRule(
            bound=self.bound,
            classes=classes,
            sigma=self.noise.sigma,
            tau=self.noise.tau(self.site.dimension(shape)),
            method=self.method,
            operator_norm=self.operator_norm(shape).value,
            slack=self.site.slack,
            slackless_norm=self.site.slackless_norm(shape, self.norm, self.bound.charge),
            others=self._others(shape),
        )

    def _others(self, shape: tuple[int, ...]) -> tuple[tuple[RobustnessBound, Movement], ...]:
        """Ways to a radius beside the bound's own."""
        if not isinstance(self.bound, BestLaplace):
            return ()
        dimension, in_l2 = self.site.dimension(shape), (GaussianShift(), self.site.in_l2(shape, self.norm))
        equal = isinstance(self.site, InputSite) and self.norm == Norm.LINF and dimension <= LARGEST_DIMENSION
        return (in_l2, (EqualShifts(dimension), Movement(1.0, "identity"))) if equal else (in_l2,)

    def noise_record(self, shape: tuple[int, ...], classes: int) -> NoiseRecord:
        """What certificates of inputs of ``shape`` say about the noise."""
        noise, rule = self.noise, self.radius_rule(shape, classes)
        return NoiseRecord(
            law=str(noise.law),
            place=str(self.site.place),
            sigma=noise.sigma,
            grid=noise.grid,
            levels=self.levels,
            dimension=self.site.dimension(shape),
            tau=rule.tau,
            operator_norm=rule.operator_norm,
            operator_norm_method=self.operator_norm(shape).method,
            slack=rule.slack,
            slackless_norm=rule.slackless_norm,
            in_l2=rule.others[0][1] if rule.others else None,
        )

    def certify(
        self,
        inputs: Tensor | NDArray[Any],
        labels: Sequence[int] | None = None,
        *,
        sampling: Sampling | None = None,
        key: Key | None = None,
        first_index: int = 0,
        rows: int | None = None,
    ) -> list[Certificate]:
        """CERTIFY for each input.

        ``inputs`` are stored levels (integers 0..levels) or floats in [0, 1] that lie on those levels. ``labels`` only fill
        the records; without them they are unknown and nothing is counted correct. ``first_index`` numbers the inputs: with the
        same key the same number gets the same noise, in every batch. ``rows`` changes speed and memory only.
        """
        sampling = sampling or Sampling()
        sampling.refuse_other_methods(self.method)
        stored = self._stored(inputs)
        check_numbering(len(stored), labels, first_index, rows)
        if not len(stored):
            return []
        _refuse_autocast(stored.device)
        self._refuse_changes()
        shape = tuple(stored.shape[1:])
        # Settings that certify nothing for two classes certify nothing for more: refused before the network is run.
        largest_radius(sampling, self.radius_rule(shape, 2))
        points = self.site.points(stored)
        rows = rows or rows_per_forward(points[0].numel(), points.device)
        base = self.base
        if base is None or isinstance(base.network, SharedNetwork) != sampling.shared_noise:
            base = self._base(points, rows, sampling, None)
        rule = self.radius_rule(shape, base.classes)
        largest_radius(sampling, rule)
        indices = list(range(first_index, first_index + len(stored)))
        counter, stops = self._counter(base, key or Key.from_system(), rows), stopping_rule(sampling, rule)
        with evaluation_mode(self.model), evaluation_mode(self.site.network), torch.inference_mode():
            # The class is chosen on draws of its own, by the same statistic.
            top = counter.statistic.moments(counter.count("select", indices, points, sampling.n0))[0].argmax(dim=1)
            made = estimate(counter, stops, indices, points, top)
            base.finish()
        truth = [UNKNOWN] * len(indices) if labels is None else [int(label) for label in labels]
        return _certificates(indices, truth, top.cpu().numpy(), made, stops, rule)

    def _refuse_changes(self) -> None:
        refuse_global_hooks()
        if self.smoothed is not None:
            self.smoothed.refuse_changes()

    def _stored(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        parameter = next(self.model.parameters(), None)
        return stored_levels(inputs, self.levels, None if parameter is None else parameter.device)

    def _base(self, points: Tensor, rows: int, sampling: Sampling, form: str | None) -> BaseClassifier:
        network, example = self.site.network, points[:1] / self.noise.levels
        with evaluation_mode(self.model), evaluation_mode(network), torch.inference_mode():
            if not sampling.shared_noise:
                return base_classifier(network, example, rows, sigma=self.noise.sigma, form=form)
            if not isinstance(self.site, InputSite):
                raise ConfigError(
                    "shared noise is for equal noise at the input",
                    where="shared_noise",
                    got=f"noise at {self.site.place}",
                    wanted="a network without a noise layer, or with one at the input",
                    fix="certify without shared noise: behind the first layer it would save nothing",
                )
            classes = number_of_classes(unused_copy(network), example)
            shape, device = tuple(points.shape[1:]), points.device
            with one_thread_inside():
                made = shared_network(network, shape, self.noise, device, rows, form=form)
            return BaseClassifier(made, classes, made.arithmetic, made.form)

    def _counter(self, base: BaseClassifier, key: Key, rows: int) -> Counter:
        statistic = row_statistic(self.method.statistic)
        if isinstance(base.network, SharedNetwork):
            return SharedNoiseCounter(base.network, self.noise, key, rows, statistic)
        return VoteCounter(base.network, self.noise, base.classes, key, rows, statistic)


def smooth(
    model: nn.Module,
    sigma: float | None = None,
    *,
    levels: int = 255,
    method: Method | None = None,
    input_shape: tuple[int, ...] = (),
) -> SmoothedClassifier:
    """Smooths any network over inputs of ``levels`` stored levels (255 for 8-bit images).

    A network with a noise layer keeps it, with the deviation ``sigma`` if one is given; behind a convolution ``input_shape``
    is needed. Any other gets Gaussian noise of deviation ``sigma`` at its input. The layer before the noise is taken as it is
    now: after more training, smooth again. A network with Laplace noise at its input and behind its first layer
    (``add_two_noises``) keeps both.
    """
    method, two = method or PLAIN, split_at_two_noises(model)
    if two is not None:
        site: NoiseSite = two_noises_site(model, two, sigma, input_shape, levels)
        front = (two.input_noise, *front_of(two.inner, two.hidden))
        return SmoothedClassifier(model, site, method, smoothed=AsSmoothed(model, front))
    split = split_at_noise(model)
    if split is None:
        if sigma is None:
            raise ConfigError(
                "there is no noise to smooth with",
                where="sigma",
                got="nothing, and a network without a noise layer",
                wanted="the noise's deviation in input units, e.g. 0.5",
            )
        return SmoothedClassifier(model, InputSite(model, input_noise(sigma, levels), own_noise=False), method)
    refuse_hidden_work(model, split)
    deviation = float(split.noise.deviation) if sigma is None else sigma
    equal = not split.noise.spread.random and bool((split.noise.spread.least_scales() == 1).all())
    if split.before is None and equal:
        site = InputSite(split.after, input_noise(deviation, levels, split.noise.law), own_noise=True)
    else:
        site = LayerSite(split, input_shape, deviation, levels)
    return SmoothedClassifier(model, site, method, smoothed=AsSmoothed(model, front_of(model, split)))


def _refuse_autocast(device: torch.device) -> None:
    if torch.is_autocast_enabled(device.type):
        raise ModelError(
            "the network would run under autocast",
            where="certify",
            got="autocast is enabled",
            wanted="the precision that the network will be used in",
            fix="certify outside the autocast context",
        )


def _certificates(
    indices: list[int], labels: list[int], top: NDArray[np.int64], made: Estimate, stops: StoppingRule, rule: RadiusRule
) -> list[Certificate]:
    """Each input's certificate, at the look at which it stopped, with that look's share of alpha."""
    found: dict[int, Certificate] = {}
    # Votes against the complement of the rest need no more than their number.
    plain = rule.resolution == 1 and rule.runner_up is RunnerUp.COMPLEMENT
    for number, look in enumerate(stops.schedule.looks):
        evidence = made.evidence(top, number, look, rule)
        bound = rule.certified(evidence, look.alpha)
        more = () if plain else (evidence.squares, evidence.other, evidence.other_squares)
        for at, place in enumerate(np.flatnonzero(made.stopped == number).tolist()):
            chosen = int(top[place])
            found[place] = Certificate(
                indices[place],
                labels[place],
                chosen if bool(bound.certified[at]) else ABSTAIN,
                int(evidence.total[at]),
                chosen,
                float(bound.radii[at]),
                evidence.draws,
                *(int(numbers[at]) for numbers in more),
            )
    return [found[place] for place in range(len(indices))]
