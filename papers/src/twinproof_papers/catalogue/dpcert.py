"""The tables and figures of DP-CERT (Wu et al. 2023), with the numbers that are printed in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from twinproof_papers.experiment import Experiment, Paper, Published, numbered

_CIFAR10 = "its network is a vision transformer with weights from a public data set, which are not here"
_SETTINGS = (("n0", "100"), ("n", "10,000"), ("alpha", "0.001"), ("epsilon, delta", "3, 1e-5"))
_BOTH = ("mnist", "fashion-mnist")
_DATA = ("mnist", "fashion-mnist", "cifar10")
TABLE_2_MEASURES = (("accuracy", "%"), ("average certified radius", "radius"), ("certified at 0.25", "%"))
"""What Table 2 gives of each method, with units."""
# Method, sigma, and for each data set the three measures, as Table 2 prints them.
_TABLE_2: tuple[tuple[str, float, tuple[float, ...]], ...] = (
    ("regular", 0.25, (99.14, 0.581, 83.6, 89.28, 0.359, 55.5, 94.79, 0.055, 9.5)),
    ("dpsgd", 0.25, (98.13, 0.606, 88.3, 85.87, 0.343, 53.2, 89.74, 0.023, 3.3)),
    ("psac", 0.25, (98.25, 0.608, 88.5, 86.34, 0.32, 49.0, 89.81, 0.02, 2.8)),
    ("dp-gaussian", 0.25, (98.13, 0.735, 95.7, 84.76, 0.545, 75.8, 87.61, 0.246, 41.8)),
    ("dp-smoothadv", 0.25, (98.08, 0.742, 96.0, 83.97, 0.554, 75.9, 87.89, 0.275, 44.3)),
    ("dp-stability", 0.25, (97.86, 0.738, 95.9, 84.19, 0.551, 75.7, 88.53, 0.246, 41.6)),
    ("dp-macer", 0.25, (98.13, 0.736, 95.6, 84.79, 0.545, 75.8, 87.52, 0.246, 41.7)),
    ("regular", 0.5, (99.14, 0.308, 31.8, 89.28, 0.331, 34.9, 94.79, 0.092, 9.7)),
    ("dpsgd", 0.5, (98.13, 0.344, 50.0, 85.87, 0.309, 29.8, 89.74, 0.057, 9.8)),
    ("psac", 0.5, (98.25, 0.383, 55.9, 86.34, 0.298, 27.5, 89.81, 0.056, 9.8)),
    ("dp-gaussian", 0.5, (97.74, 1.246, 94.7, 82.42, 0.879, 73.0, 87.48, 0.288, 35.5)),
    ("dp-smoothadv", 0.5, (97.66, 1.258, 94.8, 82.65, 0.894, 73.0, 87.54, 0.263, 31.9)),
    ("dp-stability", 0.5, (97.62, 1.248, 94.6, 82.25, 0.876, 72.7, 88.56, 0.282, 35.4)),
    ("dp-macer", 0.5, (97.75, 1.246, 94.7, 82.5, 0.88, 73.1, 87.36, 0.287, 35.2)),
    ("regular", 1.0, (99.14, 0.257, 10.7, 89.28, 0.342, 21.2, 94.79, 0.079, 9.7)),
    ("dpsgd", 1.0, (98.13, 0.26, 10.4, 85.87, 0.338, 13.5, 89.74, 0.029, 5.9)),
    ("psac", 1.0, (98.25, 0.213, 20.0, 86.34, 0.328, 11.5, 89.81, 0.023, 4.2)),
    ("dp-gaussian", 1.0, (96.33, 1.262, 85.6, 80.96, 1.101, 65.4, 88.55, 0.299, 25.4)),
    ("dp-smoothadv", 1.0, (96.54, 1.249, 85.0, 80.93, 1.096, 64.7, 87.37, 0.237, 21.0)),
    ("dp-stability", 1.0, (96.48, 1.262, 84.9, 80.66, 1.084, 65.1, 89.09, 0.294, 25.0)),
    ("dp-macer", 1.0, (96.31, 1.262, 85.5, 80.83, 1.102, 65.3, 88.4, 0.255, 22.3)),
)
# Data set, learning rate or clipping norm, clean accuracy of DP-Gaussian at sigma 0.25.
_TABLE_3: tuple[tuple[str, float, float], ...] = (
    ("mnist", 0.25, 97.71),
    ("mnist", 0.5, 98.13),
    ("mnist", 1.0, 97.78),
    ("fashion-mnist", 2.0, 83.47),
    ("fashion-mnist", 4.0, 84.76),
    ("fashion-mnist", 8.0, 83.96),
    ("cifar10", 0.0005, 84.11),
    ("cifar10", 0.001, 87.61),
    ("cifar10", 0.002, 85.53),
)
_TABLE_4: tuple[tuple[float, tuple[float, float, float]], ...] = (
    (0.01, (94.89, 75.60, 83.79)),
    (0.05, (97.75, 83.42, 83.99)),
    (0.1, (98.13, 84.76, 87.61)),
    (0.2, (97.72, 84.00, 84.19)),
    (0.5, (96.47, 81.46, 84.24)),
)


def table_2_key(data: str, method: str, sigma: float, measure: str) -> str:
    return f"{data} {method} sigma {sigma:g} {measure}"


def table_2_values() -> dict[str, float]:
    return {number.key: number.value for number in _table_2()}


def _table_2() -> Iterator[Published]:
    names = [(data, *measure) for data in _DATA for measure in TABLE_2_MEASURES]
    for method, sigma, values in _TABLE_2:
        for (data, measure, unit), value in zip(names, values, strict=True):
            yield Published(
                table_2_key(data, method, sigma, measure),
                f"{data}, {method}, sigma {sigma:g}, {measure}",
                value,
                "Table 2",
                unit,
            )


def _accuracy(data: str, setting: str, value: float, where: str) -> Published:
    return Published(f"{data} {setting}", f"{data}, dp-gaussian, sigma 0.25, {setting}: accuracy", value, where)


def _figure(number: int, shows: str, *data: str, obstacle: str = "") -> Experiment:
    return numbered(Paper.DPCERT, "dpcert", "Figure", number, shows, data=data, obstacle=obstacle)


_table = partial(numbered, Paper.DPCERT, "dpcert", "Table")


DPCERT = (
    _table(1, "which regulariser makes which instance of DP-CERT", obstacle="a list of methods: nothing is measured"),
    _table(
        2,
        "accuracy, average certified radius and certified accuracy at 0.25 of seven methods on three data sets",
        published=tuple(_table_2()),
        settings=_SETTINGS,
        data=_BOTH,
    ),
    _table(
        3,
        "clean accuracy of DP-Gaussian against the learning rate",
        published=tuple(_accuracy(data, f"learning rate {rate:g}", value, "Table 3") for data, rate, value in _TABLE_3),
        settings=_SETTINGS,
        data=_BOTH,
    ),
    _table(
        4,
        "clean accuracy of DP-Gaussian against the clipping norm",
        published=tuple(
            _accuracy(data, f"clipping norm {norm:g}", value, "Table 4")
            for norm, values in _TABLE_4
            for data, value in zip(_DATA, values, strict=True)
        ),
        settings=_SETTINGS,
        data=_BOTH,
    ),
    _figure(1, "the framework in boxes", obstacle="a drawing: nothing is measured"),
    _figure(
        2,
        "CIFAR-10: certified accuracy against radius",
        "cifar10",
        obstacle=f"{_CIFAR10}; the same on MNIST and Fashion-MNIST: `twinproof reproduce dpcert-fig7`",
    ),
    _figure(
        3,
        "CIFAR-10: certified accuracy relative to TransDenoiser",
        "cifar10",
        obstacle=f"{_CIFAR10}, and its baselines are copied from another paper",
    ),
    _figure(4, "Fashion-MNIST, sigma 0.5: ablation of consistency, PSAC and the number of copies", "fashion-mnist"),
    _figure(5, "MNIST, sigma 0.5: three metrics for each test image", "mnist"),
    _figure(6, "MNIST, sigma 0.5: the three metrics against certified radius", "mnist"),
    _figure(7, "MNIST and Fashion-MNIST: certified accuracy against radius", *_BOTH),
    _figure(8, "MNIST and Fashion-MNIST: with consistency regularisation and PSAC", *_BOTH),
    _figure(9, "MNIST and Fashion-MNIST: 0 to 8 copies", *_BOTH),
    _figure(10, "MNIST, sigma 0.25: three metrics for each test image", "mnist"),
    _figure(11, "MNIST, sigma 1: three metrics for each test image", "mnist"),
    _figure(12, "Fashion-MNIST, sigma 0.25: three metrics for each test image", "fashion-mnist"),
    _figure(13, "Fashion-MNIST, sigma 0.5: three metrics for each test image", "fashion-mnist"),
    _figure(14, "Fashion-MNIST, sigma 1: three metrics for each test image", "fashion-mnist"),
    _figure(15, "MNIST, sigma 0.5: distribution of certified radii", "mnist"),
    _figure(16, "MNIST and Fashion-MNIST: accuracy under linf FGSM", *_BOTH),
    _figure(17, "MNIST, sigma 0.5: local Lipschitz constants above and below a radius", "mnist"),
    _figure(18, "MNIST: distribution of input gradient norms", "mnist"),
    _figure(19, "MNIST: distribution of input Hessian norms", "mnist"),
)
