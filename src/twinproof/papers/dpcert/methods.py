"""The methods of DP-CERT's Table 2 and the authors' settings for them: data, one place for all tables and figures.

What the authors set (optimiser, learning rate, batch, epochs, clipping norm, number of copies) is theirs. The noise is not:
it is what (3, 1e-5) costs by our accounting, which is less than the authors', whose epsilon comes from an older conversion. The
house recipe and what the regularisers weigh are left to the recipes. One row is not private and trained as well as we can: the
upper end, at which what privacy costs is measured. No seed is set: a run with a known seed is not private.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twinproof.papers.cell import Cell
from twinproof.papers.effort import Effort
from twinproof.papers.example_metrics import ExampleMeasurement
from twinproof.papers.methods import QUICK_DATA
from twinproof.papers.smoothing import Smoothing

EPSILON = 3.0
SIGMAS = (0.25, 0.5, 1.0)
COPIES = 2
HOUSE, UPPER_END = "twinproof", "gaussian"
TABLE_2 = "dpcert-table2"
"""The experiment that has the cells of several figures."""
_QUICK_MEASUREMENT = {"limit": 40, "n0": 20, "n": 200}


@dataclass(frozen=True)
class Ground:
    """A data set and the authors' settings on it; ``plain_*`` are those of training without privacy.

    ``batch_size`` None leaves it to the recipe.
    """

    data: str
    learning_rate: float
    batch_size: int | None
    plain_learning_rate: float = 0.01
    plain_batch_size: int | None = 512
    epochs: float = 40.0
    delta: float = 1e-5
    clip_norm: float = 0.1
    momentum: float = 0.9


MNIST = Ground("mnist", learning_rate=0.5, batch_size=512)
FASHION_MNIST = Ground("fashion-mnist", learning_rate=4.0, batch_size=2048)
GROUNDS = (MNIST, FASHION_MNIST)
_QUICK = Ground(QUICK_DATA, 2.0, None, plain_learning_rate=0.05, plain_batch_size=None, epochs=4.0, delta=1e-4)


@dataclass(frozen=True)
class MethodOfTable:
    """A row of Table 2 or a line of a figure.

    ``augmented`` ones are trained with the noise that they are certified under, one model for each sigma; the others are
    trained once and certified under all. ``training`` is what it sets beside what all share, and ``at_sigma`` what it sets for
    one sigma only. With ``own_settings`` the recipe decides everything else but the budget and sigma.
    """

    name: str
    recipe: str
    label: str
    private: bool = True
    augmented: bool = True
    own_settings: bool = False
    training: Mapping[str, Any] = field(default_factory=dict, hash=False)
    at_sigma: Mapping[float, Mapping[str, Any]] = field(default_factory=dict, hash=False)


PUBLISHED_METHODS = (
    MethodOfTable("regular", "regular", "Regular (not private)", private=False, augmented=False),
    MethodOfTable("dpsgd", "dpsgd", "DPSGD", augmented=False),
    MethodOfTable("psac", "psac", "PSAC", augmented=False),
    MethodOfTable("dp-gaussian", "dpcert-gaussian", "DP-Gaussian"),
    MethodOfTable("dp-smoothadv", "dpcert-smoothadv", "DP-SmoothAdv"),
    MethodOfTable("dp-stability", "dpcert-stability", "DP-Stability"),
    MethodOfTable("dp-macer", "dpcert-macer", "DP-MACER"),
)
"""The seven of Table 2, in its order."""
# The house recipe's network, with its learned weights to start from: what is missing to this row is what privacy costs.
_NETWORK = {"model": "gelu-cnn", "width": 2, "prior": "figures"}
_WELL_TRAINED = {**_NETWORK, "batch_size": 512, "epochs": 60, "averaging": 0.999}
# Said here although it is the recipe's own: a cell is known by its settings, and the recipe may choose another network later.
_HOUSE = {**_NETWORK, "copies": 8}
# Found on held-out training records (results/tune-house.json): under little noise agreement of four copies is worth more than
# four more copies, under much of it less. The recipe leaves it off: it needs many records (docs/recipes.md).
_HOUSE_AT = {0.25: {"copies": 4, "regulariser": {"weight": 5.0, "eta": 0.5}}}
OUR_METHODS = (
    MethodOfTable(HOUSE, "twinproof", "twinproof (house recipe)", own_settings=True, training=_HOUSE, at_sigma=_HOUSE_AT),
    MethodOfTable(UPPER_END, "gaussian", "Gaussian (not private)", private=False, own_settings=True, training=_WELL_TRAINED),
)
"""Rows that the paper does not have."""
# One noisy copy in the place of the original: the line that the paper marks 0.
_REPLACED = {"copies": 1, "originals": False}
_PSAC = {"clip_rule": "psac-paper"}
_CONSISTENT = {"regulariser": {"weight": 0.5, "eta": 0.5}}
ABLATIONS = (
    MethodOfTable("dp-gaussian-consistency", "dpcert-consistency", "DP-Gaussian + consistency"),
    MethodOfTable("dp-gaussian-psac", "dpcert-gaussian", "DP-Gaussian + PSAC", training=_PSAC),
    MethodOfTable("dp-smoothadv-consistency", "dpcert-smoothadv", "DP-SmoothAdv + consistency", training=_CONSISTENT),
    MethodOfTable("dp-smoothadv-psac", "dpcert-smoothadv", "DP-SmoothAdv + PSAC", training=_PSAC),
    MethodOfTable("dp-gaussian-replaced", "dpcert-gaussian", "K = 0 (one noisy copy, no original)", training=_REPLACED),
)
"""What Figures 4, 8 and 9 add."""
METHODS: dict[str, MethodOfTable] = {method.name: method for method in (*PUBLISHED_METHODS, *OUR_METHODS, *ABLATIONS)}


def grounds_of(grounds: tuple[Ground, ...], effort: Effort) -> tuple[Ground, ...]:
    """``grounds``, or the quick one in place of all of them."""
    return (_QUICK,) if effort.quick else grounds


def cells_of(
    method: str,
    ground: Ground,
    effort: Effort,
    *,
    sigma: float | None = None,
    changes: Mapping[str, Any] | None = None,
    metrics: bool = False,
) -> list[Cell]:
    """The repetitions of one method on one data set; only a method that is trained with noise looks at ``sigma``.

    ``changes`` replace settings of the training, for an experiment that varies them. With ``metrics`` the cells are those that
    go on with the same models and measure each test image.
    """
    known = METHODS[method]
    chosen = sigma or SIGMAS[0]
    training = {**_training(known, ground, effort), **known.at_sigma.get(chosen, {}), **(changes or {})}
    if known.augmented:
        training["sigma"] = chosen
    sigmas = (training["sigma"],) if known.augmented else SIGMAS
    smoothing = Smoothing(sigmas, **_measurement(effort))
    measurement = ExampleMeasurement(smoothing) if metrics else smoothing
    return [Cell(method, repetition, training, measurement) for repetition in range(effort.seeds)]


def models_of(method: str, ground: Ground, effort: Effort) -> list[Cell]:
    """All cells of a method on one data set: at every sigma that it is trained for."""
    sigmas = SIGMAS if METHODS[method].augmented else SIGMAS[:1]
    return [cell for sigma in sigmas for cell in cells_of(method, ground, effort, sigma=sigma)]


def long_first(cells: Iterable[Cell]) -> list[Cell]:
    """Those that are certified three times, then those that train long: with several processes none is left for the end."""
    return sorted(cells, key=_rank)


def _rank(cell: Cell) -> tuple[int, int]:
    known = METHODS[cell.method]
    slow = known.own_settings or known.recipe == "dpcert-smoothadv"
    return (0 if not known.augmented else 1 if slow else 2), -int(cell.training.get("copies", 0))


def _training(method: MethodOfTable, ground: Ground, effort: Effort) -> dict[str, Any]:
    settings: dict[str, Any] = {"data": {"source": ground.data}, "recipe": method.recipe}
    if method.private:
        settings |= {"epsilon": EPSILON, "delta": ground.delta}
    if not method.own_settings:
        settings |= _authors(method, ground)
    settings |= method.training
    if effort.epochs is not None or effort.quick:
        settings["epochs"] = effort.epochs or ground.epochs
    return settings


def _authors(method: MethodOfTable, ground: Ground) -> dict[str, Any]:
    settings: dict[str, Any] = {"epochs": ground.epochs, "momentum": ground.momentum}
    settings["learning_rate"] = ground.learning_rate if method.private else ground.plain_learning_rate
    batch = ground.batch_size if method.private else ground.plain_batch_size
    settings |= {"batch_size": batch} if batch is not None else {}
    settings |= {"clip_norm": ground.clip_norm} if method.private else {}
    settings |= {"copies": COPIES} if method.augmented else {}
    return settings


def _measurement(effort: Effort) -> dict[str, Any]:
    changes: dict[str, Any] = dict(_QUICK_MEASUREMENT) if effort.quick else {}
    return changes | ({"limit": effort.limit} if effort.limit is not None else {})
