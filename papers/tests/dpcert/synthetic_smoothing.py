"""Finished cells of DP-CERT with numbers that are known in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from synthetic_cells import MADE
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.example_metrics.measure import group_by_radius, log_histogram, spearman, split_at_radius
from twinproof_papers.smoothing import Smoothing, radii_of, sigma_name

Values = np.ndarray[Any, np.dtype[np.float64]]
# (cell, measure, sigma, radius or size) -> a share, or a radius for "acr"; measures are clean, acr, certified and fgsm.
Value = Callable[[Cell, str, float, float], float]


def smoothing_of(cell: Cell) -> Smoothing:
    """How a cell of DP-CERT is certified, or was before its images were measured."""
    measurement = cell.measurement.after or cell.measurement
    assert isinstance(measurement, Smoothing)
    return measurement


def certified(cells: Sequence[Cell], value: Value) -> list[Measured]:
    """Each cell with ``value(cell, measure, sigma, place)`` in every place."""
    return [Measured(cell, _metrics(cell) if cell.base else _numbers(cell, value), MADE) for cell in cells]


def _numbers(cell: Cell, value: Value) -> dict[str, Any]:
    plan = smoothing_of(cell)
    return {
        "clean": value(cell, "clean", 0.0, 0.0),
        "smoothed": {
            sigma_name(sigma): {
                "acr": value(cell, "acr", sigma, 0.0),
                "certified": [value(cell, "certified", sigma, radius) for radius in radii_of(sigma)],
            }
            for sigma in plan.sigmas
        },
        "fgsm": [value(cell, "fgsm", 0.0, size) for size in plan.fgsm_sizes],
    }


BASE = {"regular": 0.95, "dpsgd": 0.5, "psac": 0.55, "dp-gaussian": 0.7, "dp-smoothadv": 0.75, "dp-stability": 0.65}


def falling(cell: Cell, measure: str, sigma: float, place: float) -> float:
    """Falls with the radius, rises a little with each repetition, and differs by method, data and sigma."""
    data = {"mnist": 0.02, "fashion-mnist": 0.0}.get(str(cell.training["data"]["source"]), 0.0)
    start = BASE.get(cell.method, 0.6) + data + 0.01 * cell.repetition
    if measure == "acr":
        return start * (1 + sigma)
    return max(0.0, start - 0.1 * sigma - 0.3 * place)


IMAGES = 64
EXPONENTS = {"gradient_norm": -2.0, "hessian_norm": 0.0, "lipschitz_logits": 1.0}
ORDER = sorted(BASE)


def metric_values_of(cell: Cell, metric: str) -> Values:
    """Two decades, shifted by method and repetition; image i has the i-th smallest value."""
    shift = EXPONENTS[metric] + (ORDER.index(cell.method) if cell.method in BASE else 6) + 0.01 * cell.repetition
    return np.asarray(10 ** (shift + np.linspace(0, 2, IMAGES, endpoint=False) + 0.005), dtype=np.float64)


def radii_of_images(sigma: float) -> Values:
    """From four sigmas down to 0: the flatter, the farther."""
    return np.linspace(4 * sigma, 0, IMAGES)


ALL_METRICS = (*EXPONENTS, *(f"another {number}" for number in range(6)))


def measured_in_full(cells: Sequence[Cell]) -> list[Measured]:
    """Each cell with nine metrics of 10,000 images over four decades: about as much as a real one holds."""
    return [Measured(cell, _in_full(smoothing_of(cell).sigmas), MADE) for cell in cells]


@lru_cache
def _in_full(sigmas: tuple[float, ...]) -> dict[str, Any]:
    generator = np.random.default_rng(5)
    found: dict[str, Any] = {"clean": 0.5, "examples": 10_000, "not_converged": 3, "metrics": {}, "radius": {}}
    for metric in ALL_METRICS:
        values = 10 ** generator.normal(0, 0.6, 10_000)
        described = {"mean": values.mean(), "median": np.median(values), "smallest": values.min(), "largest": values.max()}
        found["metrics"][metric] = {key: float(value) for key, value in described.items()}
        found["metrics"][metric]["histogram"] = asdict(log_histogram(values))
        for sigma in sigmas:
            radii = generator.uniform(0, 3.2 * sigma, 10_000)
            found["radius"].setdefault(sigma_name(sigma), {})[metric] = _relation(values, radii)
    return found


def _relation(values: Values, radii: Values) -> dict[str, Any]:
    return {
        "spearman": spearman(values, radii),
        "groups": [asdict(group) for group in group_by_radius(values, radii)],
        "splits": [asdict(split_at_radius(values, radii, at)) for at in (0.5, 1.0, 1.5)],
    }


def _metrics(cell: Cell) -> dict[str, Any]:
    numbers: dict[str, Any] = {"clean": 0.5, "examples": IMAGES, "not_converged": cell.repetition, "metrics": {}, "radius": {}}
    for sigma in smoothing_of(cell).sigmas:
        numbers["radius"][sigma_name(sigma)] = {}
        for metric in EXPONENTS:
            values, radii = metric_values_of(cell, metric), radii_of_images(sigma)
            numbers["metrics"][metric] = {"median": float(np.median(values)), "histogram": asdict(log_histogram(values))}
            numbers["radius"][sigma_name(sigma)][metric] = _relation(values, radii)
    return numbers
