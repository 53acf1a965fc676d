"""The tables and figures of HGM (Phan et al. 2019) and PixelDP, with the numbers that are printed in them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from twinproof_papers.experiment import Experiment, Paper, Published, numbered

_MNIST = (
    ("network", "convolutions 32 and 64 (5x5), 256 hidden units"),
    ("batch", "128"),
    ("learning rate", "1.5"),
    ("psi", "2"),
    ("attack steps", "10"),
    ("beta", "1"),
    ("inputs", "[-1, 1]: sizes are twice those of inputs in [0, 1]"),
)
_CIFAR10 = (
    ("network", "convolutions 128 (3x3), 128 and 256 (5x5), 256 hidden units"),
    ("batch", "128"),
    ("learning rate", "1.5"),
    ("psi", "10"),
    ("attack steps", "3"),
    ("beta", "1"),
    ("inputs", "[-1, 1]: sizes are twice those of inputs in [0, 1]"),
)
_TEXT = "section 5"
_figure = partial(numbered, Paper.HGM, "hgm", "Figure")


def _gain(first: str, second: str, value: float, p: str, over: str) -> Published:
    what = f"{first} over {second}, {over}"
    return Published(f"{first} over {second}", what, value, _TEXT, "points", f"the paper's p < {p}, two-tailed")


HGM = (
    _figure(
        1,
        "noise of the classic, analytic and heterogeneous Gaussian mechanisms against epsilon",
        settings=(("sensitivity", "1"), ("delta", "1e-5"), ("r", "equal shares")),
    ),
    _figure(
        2,
        "CIFAR-10: certified accuracy under four attacks against their size, PixelDP and HGM-PixelDP (not private)",
        published=(_gain("hgm-pixeldp", "pixeldp", 8.63, "8.14e-7", "certified accuracy, epsilon_r 8"),),
        settings=(*_CIFAR10, ("epsilon_r", "8")),
        data=("cifar10",),
    ),
    _figure(
        3,
        "MNIST: certified accuracy under four attacks against their size, PixelDP and HGM-PixelDP (not private)",
        published=(_gain("hgm-pixeldp", "pixeldp", 4.17, "5.89e-3", "certified accuracy, sizes up to 0.3, epsilon_r 4"),),
        settings=(*_MNIST, ("epsilon_r", "4")),
        data=("mnist",),
    ),
    _figure(
        4,
        "CIFAR-10: accuracy under four attacks against epsilon, Secure-SGD, Secure-SGD with AGM, DPSGD, AdLM",
        published=(
            _gain("securesgd", "securesgd-agm", 2.7, "1.22e-6", "conventional accuracy"),
            _gain("securesgd", "dpsgd", 3.8, "2.16e-6", "conventional accuracy"),
            _gain("securesgd", "adlm", 17.75, "2.05e-10", "conventional accuracy"),
            replace(
                _gain("securesgd", "adlm-published", 17.75, "2.05e-10", ""),
                what="securesgd over adlm as published (no privacy), conventional accuracy",
            ),
            Published("securesgd rise", "securesgd from epsilon 2 to 10, conventional accuracy", 18.17, _TEXT, "points"),
        ),
        settings=(*_CIFAR10, ("epsilon_r", "8"), ("attack size", "0.2"), ("epsilon", "2 to 10")),
        data=("cifar10",),
    ),
    _figure(
        5,
        "MNIST: accuracy under four attacks against epsilon, Secure-SGD, Secure-SGD with AGM, DPSGD; here AdLM too",
        published=(
            _gain("securesgd", "securesgd-agm", 2.9, "8.79e-7", "conventional accuracy"),
            _gain("securesgd", "dpsgd", 10.74, "8.54e-14", "conventional accuracy"),
            Published("securesgd rise", "securesgd from epsilon 0.2 to 2, conventional accuracy", 29.67, _TEXT, "points"),
        ),
        settings=(*_MNIST, ("epsilon_r", "4"), ("attack size", "0.1"), ("epsilon", "0.2 to 2")),
        data=("mnist",),
    ),
    _figure(6, "the triangle of the proof of Theorem 2", obstacle="a drawing: nothing is measured"),
)


PIXELDP = (
    Experiment(
        "pixeldp-readme",
        Paper.PIXELDP,
        "readme",
        "noise of a layer for attacks of l2 size L: sqrt(2 ln(1.25 / delta)) L / epsilon; no table and no figure",
        settings=(("norm", "l2"), ("epsilon", "at most 1"), ("attack bound L", "0.1")),
        obstacle="prints no numbers to compare with; its formula: `twinproof sigma --mechanism classic`, recipe `pixeldp`",
    ),
)
