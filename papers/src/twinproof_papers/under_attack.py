"""Measuring a model as the papers of Phan et al. do: linf attacks of several sizes, certificates of its own noise.

Their attacks are made on the network without its noise, which can be another function than the one that answers. Beside them
stands PGD that climbs the mean probability over the noise, from several starts, and keeps the strongest point.

The votes of a certified run are read again by other bounds (``Rereading``), so that all bounds speak of the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from twinproof.attacks.objective import Plain, without_noise
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import pgd
from twinproof.attacks.threat import Threat
from twinproof.certification.catalogue import find_bound, status_of
from twinproof.certification.confidence import Evidence
from twinproof.certification.method import CertificateSettings, Method, Sampling
from twinproof.certification.radius import Certified, RadiusRule
from twinproof.certification.run import CertifiedRun, certify, smoothed_for_run
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import CheckFailed
from twinproof.evaluation import under_attack
from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.attack_results import stored_inside
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Protocol, smoothed_objective
from twinproof.evaluation.under_attack import AttackedRun
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.fixed_draws import FixedDraws
from twinproof.layers.noise import Law
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.runs.run import Run
from twinproof_papers.cell import Numbers
from twinproof_papers.experiment import in_input_units

ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
"""The four attacks of the papers; ``pgd`` is their "MadryEtAl"."""
PAPER_SIZES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_LARGEST, _STEPS = 0.6, 120


@dataclass(frozen=True)
class UnderAttack:
    """linf attacks by the papers' protocol, and certificates of the model's own noise. Sizes in input units.

    ``n0``, ``n`` and ``alpha`` are those of the certificates; at an attacked input the class is chosen by the same n0 draws and
    certified by ``judging`` draws. ``certified`` is False for models that answer without noise, and so have no certificate of
    this kind: networks that have none, or whose noise was drawn once. ``adaptive_*`` belong to PGD in expectation over the
    noise.
    """

    limit: int = 1000
    sizes: tuple[float, ...] = tuple(in_input_units(size) for size in PAPER_SIZES)
    attacks: tuple[str, ...] = ATTACKS
    steps: int = 10
    n0: int = 100
    n: int = 10_000
    judging: int = 1000
    alpha: float = 0.001
    norm: str = "linf"
    certified: bool = True
    adaptive_sizes: tuple[float, ...] = (in_input_units(0.2),)
    adaptive_steps: int = 20
    adaptive_draws: int = 16
    adaptive_restarts: int = 2

    @property
    def line(self) -> tuple[float, ...]:
        """Where the certified line is read: in small steps, as sound radii are short, up to the papers' largest size."""
        return tuple(in_input_units(_LARGEST * step / _STEPS) for step in range(_STEPS + 1))

    @property
    def after(self) -> None:
        """It has a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {name: list(getattr(self, name)) for name in ("sizes", "attacks", "adaptive_sizes")}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        certified = None
        if self.certified:
            certified = certify(
                run,
                dataset,
                sampling=Sampling(self.n0, self.n, self.alpha),
                method=Method(norm=self.norm),
                limit=self.limit,
                device=device,
            )
        attacked = under_attack.attack(
            Run.open(run.root),
            dataset,
            plan=attack_plan(self),
            sampling=Sampling(self.n0, self.judging, self.alpha),
            limit=self.limit,
            device=device,
        )
        numbers = counted(self, attacked, run, dataset, certified)
        return {**numbers, "adaptive": adaptive_accuracy(run, dataset, self, device=device)}

    def words(self) -> str:
        return f"{self.limit} test images, {self.steps} attack steps, alpha {self.alpha:g} for each certificate"


def attack_plan(measurement: UnderAttack) -> AttackPlan:
    """The papers' attacks: crafted without noise, each step of size / steps, and the last point kept."""
    return AttackPlan(
        norm=measurement.norm,
        sizes=measurement.sizes,
        attacks=measurement.attacks,
        protocols=(Protocol.PAPER,),
        paper_steps=measurement.steps,
    )


def counted(
    measurement: UnderAttack, attacked: AttackedRun, run: Run, dataset: Dataset, certified: CertifiedRun | None
) -> Numbers:
    """Shares of test images, from the lines: accuracy under each attack, and what each bound certifies."""
    by_entry: dict[str, list[AttackLine]] = {}
    for line in attacked.lines:
        by_entry.setdefault(line.entry, []).append(line)
    clean = by_entry[CLEAN.name]
    entries = {
        attack: [by_entry[f"{Protocol.PAPER}/network/{attack}/{size:.12g}"] for size in measurement.sizes]
        for attack in measurement.attacks
    }
    numbers: Numbers = {
        "clean": conventional(clean, measurement),
        "conventional": {attack: [conventional(lines, measurement) for lines in each] for attack, each in entries.items()},
        "crossing": bool(attacked.results["crossing"]),
    }
    if certified is None:
        return numbers
    reading = Rereading.of(run, dataset, certified.settings)
    reading.check(*_votes(certified.certificates), certified.settings.sampling.n, certified.settings.sampling.alpha)
    reading.check(*_votes(clean), attacked.settings.sampling.n, attacked.settings.sampling.alpha)
    bounds, asked, judged = reading.bounds, certified.settings.sampling, attacked.settings.sampling
    claimed = {"paper_norm": reading.rules[PUBLISHED].operator_norm} if PUBLISHED in bounds else {}
    at_images = {bound: _held(reading, bound, certified.certificates, asked) for bound in bounds}
    return {
        **numbers,
        "sigma": certified.settings.noise.sigma,
        "operator_norm": certified.settings.noise.operator_norm,
        **claimed,
        "bound_status": {bound: str(reading.status(bound)) for bound in bounds},
        # The papers' measure: right and robust to the size of the attack, at the attacked input.
        "certified_there": {
            bound: {
                attack: [
                    _share(*_held(reading, bound, lines, judged), size)
                    for size, lines in zip(measurement.sizes, each, strict=True)
                ]
                for attack, each in entries.items()
            }
            for bound in bounds
        },
        # At the test images themselves; no attack can get below a sound one.
        "certified": {bound: [_share(*held, size) for size in measurement.line] for bound, held in at_images.items()},
        "mean_radius": {bound: float(np.mean(np.where(right, radii, 0.0))) for bound, (right, radii) in at_images.items()},
    }


def conventional(lines: Sequence[AttackLine], measurement: UnderAttack) -> float:
    """The papers' accuracy: whether the label that the model gives is right, robust or not.

    A network with noise of its own gives the class that most of n0 draws vote for, and never abstains; one without answers by
    itself, at the input as it was crafted.
    """
    given = [line.top if measurement.certified else line.network_unrounded for line in lines]
    return float(np.mean([answer == line.label for answer, line in zip(given, lines, strict=True)]))


def _votes(lines: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.array([line.votes for line in lines]), np.array([line.radius for line in lines])


def _held(
    reading: Rereading, bound: str, lines: Sequence[Any], asked: Sampling
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """For each line, whether the answer is there and right, and the radius that ``bound`` gives it."""
    read = reading.read(bound, _votes(lines)[0], asked.n, asked.alpha)
    return np.array([line.top == line.label for line in lines]) & read.certified, read.radii


def _share(right: NDArray[np.bool_], radii: NDArray[np.float64], size: float) -> float:
    return float(np.mean(right & (radii >= size)))


TIGHT, HGM, PIXELDP, COMPOSITION, PUBLISHED = "tight", "hgm", "pixeldp", "composition", "published"
_GAUSSIAN = (TIGHT, HGM, PIXELDP, PUBLISHED)
_LAPLACE = (TIGHT, PIXELDP)
_BOTH_PLACES = (TIGHT, COMPOSITION)
_OF_THEIR_OWN_NORM = (COMPOSITION, PUBLISHED)
_AGREEMENT = 2e-6  # two units of the last digit of a recorded radius


def bounds_for(place: str, law: str, *, fixed_draws: bool) -> tuple[str, ...]:
    """The bounds by which votes are read, for noise of ``law`` at ``place``.

    ``published`` is what a paper claims for such noise: Eq. 10 as printed for Gaussian noise, and Appendix N of StoBatch where
    the network has ``fixed_draws``, beside which it draws less than it states. With noise at two places that is all drawn anew
    the claim is ``composition``, which holds; for one Laplace noise no paper here claims anything.
    """
    if place == BOTH_PLACES:
        return (*_BOTH_PLACES, PUBLISHED) if fixed_draws else _BOTH_PLACES
    return _GAUSSIAN if law == Law.GAUSSIAN else _LAPLACE


@dataclass(frozen=True)
class Rereading:
    """Reads radii off votes: one rule for each bound, all for the noise that was drawn."""

    recorded: str
    rules: Mapping[str, RadiusRule]
    # The rule of the recorded radii, where their bound is none of those that are read.
    own: RadiusRule | None = None

    @classmethod
    def of(cls, run: Run, dataset: Dataset, settings: CertificateSettings) -> Rereading:
        """For the certificates of a run. Their own norm serves every bound that is charged no other one."""
        method = Method(norm=settings.method.norm, bound=settings.method.bound)
        smoothed = smoothed_for_run(run, dataset, torch.device("cpu"), sigma=settings.noise.sigma, method=method)
        bounds = bounds_for(settings.noise.place, settings.noise.law, fixed_draws=has_fixed_draws(smoothed.model))
        shape, classes = tuple(dataset.shape), settings.network.classes
        others = {
            bound: replace(smoothed, method=replace(method, bound=bound)).radius_rule(shape, classes)
            for bound in bounds
            if bound in _OF_THEIR_OWN_NORM
        }
        rules = {bound: others.get(bound) or recorded_rule(settings, bound) for bound in bounds}
        return cls(method.bound, rules, None if method.bound in rules else smoothed.radius_rule(shape, classes))

    @property
    def bounds(self) -> tuple[str, ...]:
        return tuple(self.rules)

    def status(self, bound: str) -> Status:
        return status_of(self.rules[bound].bound)

    def read(self, bound: str, votes: NDArray[np.int64], draws: int, alpha: float) -> Certified:
        """For each input, whether the votes allow an answer (the same for every bound), and the radius."""
        return self.rules[bound].certified(Evidence.of_votes(draws, votes.astype(np.int64)), alpha)

    def check(self, votes: NDArray[np.int64], recorded: NDArray[np.float64], draws: int, alpha: float) -> None:
        """Refuses to go on where reading the votes again does not give the radii that the run recorded."""
        rule = self.own or self.rules[self.recorded]
        again = rule.certified(Evidence.of_votes(draws, votes.astype(np.int64)), alpha).radii
        worst = float(np.abs(again - recorded).max(initial=0.0))
        if worst > _AGREEMENT:
            raise CheckFailed(
                "reading the votes again gives other radii than the run recorded",
                where=f"bound {self.recorded}",
                got=f"a difference of {worst:g}",
                wanted=f"at most {_AGREEMENT:g}",
            )


def has_fixed_draws(network: nn.Module) -> bool:
    """Whether the network adds noise that was drawn once, which no certificate may count."""
    return any(isinstance(module, FixedDraws) for module in network.modules())


def recorded_rule(settings: CertificateSettings, bound: str) -> RadiusRule:
    """What ``bound`` makes of votes under the noise, the norm and the confidence that the certificates record."""
    return RadiusRule(
        bound=find_bound(bound, Law(settings.noise.law)),
        classes=settings.network.classes,
        sigma=settings.noise.sigma,
        tau=settings.noise.tau,
        method=settings.method,
        operator_norm=settings.noise.operator_norm,
        slack=settings.noise.slack,
        slackless_norm=settings.noise.slackless_norm,
    )


# At the attacked inputs only the class is asked for, by n0 draws; a certificate there is not.
_NO_CERTIFICATE = 100


def adaptive_accuracy(run: Run, dataset: Dataset, measurement: UnderAttack, *, device: str = "auto") -> dict[str, float]:
    """The share of right answers at each of ``measurement.adaptive_sizes``, by size as text.

    A model that answers without noise is attacked as it answers. Right is, as everywhere in the papers' accuracy, what most of
    n0 draws vote for, or what the network without noise answers.
    """
    target, key = resolve_device(device), Key.from_system()
    smoothed = smoothed_for_run(run, dataset, target, method=Method(norm=measurement.norm))
    stored = torch.from_numpy(dataset.test.inputs[: measurement.limit].astype("int64")).to(target)
    labels = torch.from_numpy(dataset.test.labels[: measurement.limit]).to(target)
    inputs = stored.to(torch.float32) / dataset.levels
    objective = (
        smoothed_objective(smoothed, measurement.adaptive_draws)
        if measurement.certified
        else Plain(without_noise(run.model(target)))
    )
    attack = pgd(measurement.adaptive_steps, restarts=measurement.adaptive_restarts)
    shares = {}
    for size in measurement.adaptive_sizes:
        found = run_attack(attack, objective, inputs, labels, threat=Threat(measurement.norm, size), key=key)
        if measurement.certified:
            reached = stored_inside(found.inputs, stored, dataset.levels, measurement.norm, size)
            sampling = Sampling(measurement.n0, _NO_CERTIFICATE, measurement.alpha)
            given = torch.tensor([one.top for one in smoothed.certify(reached, sampling=sampling)], device=target)
        else:
            given = predicted_labels(objective, found.inputs, key=key)
        shares[f"{size:.12g}"] = float((given == labels).double().mean())
    return shares
