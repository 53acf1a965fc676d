"""The settings with which the methods of the papers are trained here: data, not code, and one place for all figures.

All methods of a figure share network, batch and epochs, as in the papers. What else a recipe decides (clipping, the calibration
of its noise, how r is found) is left to it, so that a figure shows the recipes as users get them. No seed is set: a run with
a known seed is not private.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twinproof.papers.cell import Cell
from twinproof.papers.effort import Effort, in_input_units
from twinproof.papers.under_attack import UnderAttack

QUICK_DATA = "digits"
FEW_SIZES = (0.1, 0.2)
"""In the papers' scale: those of Figures 4 and 5 of Phan et al., by caption and text."""
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
class Ground:
    """What all cells of a figure share: data, its delta, training effort, attack steps, and epsilon_r of HGM.

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


MNIST = Ground(
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
CIFAR10 = Ground("cifar10", delta=1e-5, epochs=20, steps=3, epsilon_r=8.0, attack_bound=0.004, input_bound=0.004)
# Without privacy the recipes' own learning rate and batch do.
MNIST_NOT_PRIVATE = replace(MNIST, epochs=20, learning_rate=None, batch_size=None)
CIFAR10_NOT_PRIVATE = replace(CIFAR10, attack_bound=0.008)
_QUICK = Ground(QUICK_DATA, delta=1e-4, epochs=4, steps=3, epsilon_r=4.0, attack_bound=0.02, input_bound=0.02)
# Little budget: fewer steps on larger batches, in which the noise is small beside more gradients.
_LITTLE, _LITTLE_TRAINING = 0.5, {"epochs": 20.0, "batch_size": 4096}


@dataclass(frozen=True)
class MethodOfPaper:
    """A line of a figure: its recipe, whether that is private, whether it has noise (and so certificates) of its own.

    ``swept`` ones are attacked at every size; figures show the others at ``FEW_SIZES`` only, which saves most of their time.
    ``noise`` is what it sets of the noise layer beside what all share.
    """

    name: str
    recipe: str
    private: bool
    noisy: bool
    swept: bool
    label: str
    noise: Mapping[str, Any] = field(default_factory=dict)


# The calibration of HGM with equal shares is that of the extended mechanism: at the input there is nothing to redistribute.
_AT_INPUT = {"place": "input", "redistribution": "uniform", "mechanism": "extended"}
METHODS: dict[str, MethodOfPaper] = {
    method.name: method
    for method in (
        # Its mechanism ends at epsilon_r 1, where the recipe stands; noise follows the layer's measured norm, as with
        # the layer held at a linf norm it learned nothing on digits in a few epochs.
        MethodOfPaper(
            "pixeldp",
            "pixeldp",
            private=False,
            noisy=True,
            swept=True,
            label="PixelDP",
            noise={"weights": "measure", "epsilon_r": 1.0},
        ),
        MethodOfPaper("hgm-pixeldp", "hgm-pixeldp", private=False, noisy=True, swept=True, label="HGM-PixelDP"),
        MethodOfPaper("securesgd", "securesgd", private=True, noisy=True, swept=True, label="Secure-SGD"),
        MethodOfPaper(
            "securesgd-input",
            "securesgd",
            private=True,
            noisy=True,
            swept=True,
            label="Secure-SGD, noise at the input",
            noise=_AT_INPUT,
        ),
        MethodOfPaper("securesgd-agm", "securesgd-agm", private=True, noisy=True, swept=False, label="Secure-SGD, AGM"),
        MethodOfPaper("dpsgd", "dpsgd", private=True, noisy=False, swept=False, label="DPSGD"),
    )
}


def ground_of(ground: Ground, effort: Effort) -> Ground:
    """``ground``, or the quick one in its place."""
    return _QUICK if effort.quick else ground


def cells_of(method: str, ground: Ground, effort: Effort, *, epsilon: float | None = None) -> list[Cell]:
    """The repetitions of one method at one privacy budget."""
    chosen = ground_of(ground, effort)
    known = METHODS[method]
    training: dict[str, Any] = {"data": {"source": chosen.data}, "recipe": known.recipe, "epochs": chosen.epochs}
    if chosen.batch_size is not None:
        training["batch_size"] = chosen.batch_size
    if known.private and chosen.learning_rate is not None and known.noisy:
        training["learning_rate"] = chosen.learning_rate
    if known.private:
        training |= {"epsilon": epsilon, "delta": chosen.delta}
    if epsilon is not None and epsilon < _LITTLE and not effort.quick:
        training |= _LITTLE_TRAINING
    if effort.epochs is not None:
        training["epochs"] = effort.epochs
    if known.noisy:
        bound = chosen.input_bound if known.noise.get("place") == "input" else chosen.attack_bound
        shared = {"norm": "linf", "attack_bound": bound, "epsilon_r": chosen.epsilon_r}
        training["noise_layer"] = {**shared, **known.noise}
    measurement = _measurement(known, chosen, effort)
    return [Cell(method, repetition, training, measurement) for repetition in range(effort.seeds)]


def _measurement(method: MethodOfPaper, ground: Ground, effort: Effort) -> UnderAttack:
    changes: dict[str, Any] = {"steps": ground.steps}
    if not method.swept:
        changes["sizes"] = tuple(in_input_units(size) for size in FEW_SIZES)
    if effort.quick:
        changes |= _QUICK_MEASUREMENT
    if effort.limit is not None:
        changes["limit"] = effort.limit
    return UnderAttack(certified=method.noisy, **changes)
