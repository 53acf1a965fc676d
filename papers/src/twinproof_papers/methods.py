"""The settings with which the methods of the papers are trained here: data, not code, and one place for all figures.

All methods of a figure share batch and epochs, as in the papers, and the network, but for StoBatch, which has its own. What
else a recipe decides (clipping, the calibration of its noise, how r is found) is left to it, so that a figure shows the recipes
as users get them. No seed is set: a run with a known seed is not private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twinproof.errors import CheckFailed
from twinproof.guarantee import Status
from twinproof.recipes.recipe import PUBLISHED, SOUND
from twinproof.recipes.registry import find_recipe
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.experiment import Options
from twinproof_papers.under_attack import UnderAttack

QUICK_DATA = "digits"
FEW_SIZES = (0.1, 0.2)
"""In the papers' scale: those of Figures 4 and 5 of Phan et al. 2019, by caption and text."""
_QUICK_MEASUREMENT = {
    "limit": 40,
    "sizes": (0.05, 0.1),
    "n0": 20,
    "n": 200,
    "judging": 100,
    "adaptive_steps": 3,
    "adaptive_draws": 4,
    "adaptive_restarts": 1,
}


@dataclass(frozen=True)
class Setup:
    """What all cells of a figure share: data, its delta, training options, attack steps, and epsilon_r of HGM.

    ``attack_bound`` is what the noise after the first layer is built for (linf, input units), and ``input_bound`` the same for
    noise at the input. Both are far below the papers' attack sizes, since a linf change of size s may be s sqrt(pixels) long
    in l2. ``learning_rate`` None leaves it to the recipe. For MNIST's Secure-SGD both bounds and the learning rate were chosen
    on held-out training records (benchmarks/tune_securesgd.py), which varied neither epochs, batch nor epsilon_r; AGM takes
    the same, DPSGD keeps the learning rate of its recipe, and nothing was searched for it. All else is by estimate.
    """

    data: str
    delta: float
    epochs: float
    steps: int
    epsilon_r: float
    attack_bound: float
    input_bound: float
    learning_rate: float | None = None
    batch_size: int | None = None


MNIST = Setup(
    "mnist",
    delta=1e-5,
    epochs=40,
    steps=10,
    epsilon_r=4.0,
    attack_bound=0.01,
    input_bound=0.014,
    learning_rate=4.0,
    batch_size=2048,
)
CIFAR10 = Setup("cifar10", delta=1e-5, epochs=20, steps=3, epsilon_r=8.0, attack_bound=0.004, input_bound=0.004)
# Without privacy the recipes' own learning rate and batch do.
MNIST_NOT_PRIVATE = replace(MNIST, epochs=20, learning_rate=None, batch_size=None)
CIFAR10_NOT_PRIVATE = replace(CIFAR10, attack_bound=0.008)
_QUICK = Setup(QUICK_DATA, delta=1e-4, epochs=4, steps=3, epsilon_r=4.0, attack_bound=0.02, input_bound=0.02)
# Little budget: fewer steps on larger batches, in which the noise is small beside more gradients.
_LITTLE, _LITTLE_TRAINING = 0.5, {"epochs": 20.0, "batch_size": 4096}


@dataclass(frozen=True)
class MethodOfPaper:
    """A line of a figure: its recipe, whether that is private, whether it answers with fresh noise (and so has certificates).

    ``noise`` is what it sets of the noise layer beside what all share. ``own`` ones set nothing there: all that their recipe
    decides stands, and what a figure's methods share is only for what it leaves open. ``published`` is the recipe's variant as
    its paper printed it, whose privacy is refuted: it promises nothing, and its label has to say so. ``settings`` are those of
    the paper, ``quick`` those of a first look.
    """

    name: str
    recipe: str
    label: str
    private: bool = True
    noisy: bool = True
    noise: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    published: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "paper" if self.published else "plain"

    @property
    def decided(self) -> frozenset[str]:
        if not self.own:
            return frozenset()
        recipe = find_recipe(self.recipe)
        variant = recipe.variant(PUBLISHED if self.published else SOUND)
        return frozenset({*recipe.defaults, *variant.defaults, *self.settings})


# Attacks on every record in every step: a first look takes fewer of them, and fewer copies.
_FIRST_LOOK = {"copies": 1, "regulariser": {"attack_steps": 2}}
# The calibration of HGM with equal shares is that of the extended mechanism: at the input there is nothing to redistribute.
_AT_INPUT = {"place": "input", "redistribution": "uniform", "mechanism": "extended"}
_REFUTED = "as published (no privacy)"
METHODS: dict[str, MethodOfPaper] = {
    method.name: method
    for method in (
        # Its mechanism ends at epsilon_r 1, where the recipe stands; noise follows the layer's measured norm, as with
        # the layer held at a linf norm it learned nothing on digits in a few epochs.
        MethodOfPaper("pixeldp", "pixeldp", "PixelDP", private=False, noise={"weights": "measure", "epsilon_r": 1.0}),
        MethodOfPaper("hgm-pixeldp", "hgm-pixeldp", "HGM-PixelDP", private=False),
        MethodOfPaper("securesgd", "securesgd", "Secure-SGD"),
        MethodOfPaper("securesgd-input", "securesgd", "Secure-SGD, noise at the input", noise=_AT_INPUT),
        MethodOfPaper("securesgd-agm", "securesgd-agm", "Secure-SGD, AGM"),
        MethodOfPaper("dpsgd", "dpsgd", "DPSGD", noisy=False),
        MethodOfPaper("adlm", "adlm", "AdLM", own=True),
        # It answers without fresh noise: what its paper adds is drawn once, and stays with the weights.
        MethodOfPaper("adlm-published", "adlm", f"AdLM, {_REFUTED}", noisy=False, own=True, published=True),
        MethodOfPaper("stobatch", "stobatch", "StoBatch", own=True, quick=_FIRST_LOOK),
        MethodOfPaper(
            "stobatch-published", "stobatch", f"StoBatch, {_REFUTED}", own=True, published=True, settings={"batch_size": 2499}
        ),
    )
}


def cells_of(method: str, setup: Setup, options: Options, *, epsilon: float | None = None) -> list[Cell]:
    """The repetitions of one method at one privacy budget; of a published variant, at what its paper would claim."""
    chosen, known = _QUICK if options.quick else setup, METHODS[method]
    training = _training(known, chosen, options, epsilon)
    measurement = _measurement(known, chosen, options)
    return [Cell(method, repetition, training, measurement) for repetition in range(options.seeds)]


def _training(known: MethodOfPaper, setup: Setup, options: Options, epsilon: float | None) -> dict[str, Any]:
    training: dict[str, Any] = {"data": {"source": setup.data}, "recipe": known.recipe}
    if known.published:
        training["variant"] = PUBLISHED
    if known.private:
        training |= {"epsilon": epsilon, "delta": setup.delta}
    training |= _shared(known, setup, options, epsilon)
    if known.noisy and not known.own:
        bound = setup.input_bound if known.noise.get("place") == "input" else setup.attack_bound
        shared = {"norm": "linf", "attack_bound": bound, "epsilon_r": setup.epsilon_r}
        training["noise_layer"] = {**shared, **known.noise}
    training |= known.quick if options.quick else known.settings
    if options.epochs is not None:
        training["epochs"] = options.epochs
    return training


def _shared(known: MethodOfPaper, setup: Setup, options: Options, epsilon: float | None) -> dict[str, Any]:
    """What the methods of a figure share, but for what this one's recipe decides; a first look is short for all of them."""
    shared: dict[str, Any] = {"epochs": setup.epochs}
    if setup.batch_size is not None:
        shared["batch_size"] = setup.batch_size
    if known.private and setup.learning_rate is not None and known.noisy:
        shared["learning_rate"] = setup.learning_rate
    if options.quick:
        return shared
    if epsilon is not None and epsilon < _LITTLE:
        shared |= _LITTLE_TRAINING
    return {name: value for name, value in shared.items() if name not in known.decided}


def _measurement(method: MethodOfPaper, setup: Setup, options: Options) -> UnderAttack:
    changes: dict[str, Any] = {"steps": setup.steps}
    if options.quick:
        changes |= _QUICK_MEASUREMENT
    if options.limit is not None:
        changes["limit"] = options.limit
    return UnderAttack(certified=method.noisy, **changes)


def promised(method: MethodOfPaper) -> Status:
    if method.published:
        return Status.REFUTED
    return Status.PROVEN if method.private else Status.NONE


def check_promises(done: Sequence[Measured]) -> None:
    """Refuses cells whose runs have another privacy status than their label says.

    A line or row that is not labelled "no privacy" and belongs to a private method comes from runs whose epsilon is proven
    and printed; one that is labelled so from runs that promise none and print none.
    """
    for one in done:
        status, epsilon = str(one.numbers["privacy_status"]), one.numbers["epsilon"]
        wanted = promised(METHODS[one.cell.method])
        if status != wanted or (epsilon is not None) != (wanted is Status.PROVEN):
            raise CheckFailed(
                "a model does not promise what its label says",
                where=one.cell.name,
                got=f"status {status}, epsilon {epsilon}",
                wanted=f"status {wanted}, {'an epsilon' if wanted is Status.PROVEN else 'no epsilon'}",
            )


def check_bounds(done: Sequence[Measured], labelled: Mapping[str, Mapping[str, Status]]) -> None:
    """Refuses cells in which a bound has another status than its label says: ``labelled`` is method -> bound -> status."""
    for one in done:
        for bound, wanted in labelled[one.cell.method].items():
            status = one.numbers["bound_status"].get(bound)
            if status != wanted:
                raise CheckFailed(
                    "a bound is not worth what its label says",
                    where=f"{one.cell.name}, bound {bound}",
                    got=status or "no such bound",
                    wanted=str(wanted),
                )
