"""The tables and figures of StoBatch (Phan et al. 2020), with the numbers that are printed in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from twinproof_papers.experiment import Experiment, Paper, Published, numbered

_CIFAR = "the settings of StoBatch's figures on CIFAR-10 are not prepared here; MNIST: stobatch-fig2, -fig4, -fig6"
_figure, _table = (partial(numbered, Paper.STOBATCH, "stobatch", item) for item in ("Figure", "Table"))
_TINY = "Tiny ImageNet has no reader here"
_APPENDIX = "appendix Q"
_ON_AVERAGE = "mean over the attacks"
_WITH_VARIANTS = ("stobatch", "adlm")
_MNIST = (
    ("network", "convolutions 32 and 64 (5x5), 256 hidden units"),
    ("attack steps", "10"),
    ("inputs", "[-1, 1]: sizes are twice those of inputs in [0, 1]"),
)
_STOBATCH = (
    *_MNIST,
    ("batch", "2,499, fixed and disjoint"),
    ("epochs", "200"),
    ("optimiser", "Adam, learning rate 1e-4"),
    ("xi", "1"),
    ("psi", "2"),
    ("draws at inference", "2,000"),
)


def _number(method: str, measure: str, setting: str, value: float, note: str = _ON_AVERAGE) -> Published:
    return Published(f"{method} {measure} {setting}", f"{method}, {measure}, {setting}", value, _APPENDIX, "%", note)


def _pair(method: str, conventional: float, certified: float, figure: str) -> tuple[Published, Published]:
    note = f"mean over sizes 0.05 to 0.5 and 100 to 2,000 attack steps ({figure})"
    return (
        _number(method, "conventional", "strong attacks", conventional, note),
        _number(method, "certified", "strong attacks", certified, note),
    )


def _gain(other: str, value: float, p: str) -> Published:
    what = f"stobatch over {other}, conventional"
    return Published(f"stobatch over {other}", what, value, _APPENDIX, "points", f"the paper's p < {p}, two-tailed")


def _drop(method: str, value: float) -> Published:
    return Published(
        f"{method} drop", f"{method}, from size 0.05 to 0.6, conventional", value, _APPENDIX, "points", _ON_AVERAGE
    )


_FIGURE_2 = (
    _number("stobatch", "conventional", "epsilon 0.2", 82.7),
    _number("stobatch", "conventional", "epsilon 2", 89.59),
    _number("securesgd", "conventional", "epsilon 0.2", 41.64),
    _number("securesgd", "conventional", "epsilon 2", 78.64),
    _number("securesgd-agm", "conventional", "epsilon 0.2", 11.2),
    _number("securesgd-agm", "conventional", "epsilon 2", 44.1),
)
_FIGURE_6 = (
    _number("stobatch", "certified", "size 0.05", 84.29),
    _number("stobatch", "certified", "size 0.6", 72.41),
    _number("pixeldp", "certified", "size 0.05", 94.19),
    _number("pixeldp", "certified", "size 0.6", 9.08, "mean over I-FGSM, MIM and PGD"),
    _number("securesgd", "certified", "size 0.05", 86.74),
    _number("securesgd", "certified", "size 0.6", 7.99),
    _number("securesgd-agm", "certified", "size 0.05", 87.23),
    _number("securesgd-agm", "certified", "size 0.6", 5.26),
)
_FIGURE_6_FGSM = _number("pixeldp", "certified", "size 0.6 FGSM", 77.47, "under FGSM")
_GAINS_2 = (
    _gain("securesgd", 22.36, "1.32e-4"),
    _gain("securesgd-agm", 46.84, "1.83e-6"),
    _gain("adlm", 56.21, "2.05e-10"),
    _gain("dpsgd", 77.26, "5.20e-14"),
)
_GAINS_4 = (
    _gain("securesgd", 44.91, "7.43e-31"),
    _gain("securesgd-agm", 61.13, "2.56e-22"),
    _gain("adlm", 52.21, "2.81e-23"),
    _gain("dpsgd", 62.20, "2.57e-22"),
)
_DROPS_4 = (
    _drop("stobatch", 19.87),
    _drop("adlm", 27.76),
    _drop("dpsgd", 29.79),
    _drop("securesgd-agm", 34.14),
    _drop("securesgd", 17.07),
)
PRINTED_TABLE: Mapping[str, float] = {
    one.key.removeprefix("stobatch "): one.value for one in (*_FIGURE_2, *_FIGURE_6) if one.key.startswith("stobatch ")
}
"""What is printed of StoBatch on MNIST, by measure and setting."""


def _both(numbers: tuple[Published, ...]) -> tuple[Published, ...]:
    """Each number, and those of StoBatch and AdLM once more for the variants as published; the like against the like."""
    again = [_as_published(one) for one in numbers if set(one.key.split()) & set(_WITH_VARIANTS)]
    return (*numbers, *again)


def _as_published(one: Published) -> Published:
    words = [f"{word}-published" if word in _WITH_VARIANTS else word for word in one.key.split()]
    what = one.what
    for method in _WITH_VARIANTS:
        what = re.sub(rf"\b{method}\b", f"{method} as published (no privacy)", what)
    return replace(one, key=" ".join(words), what=what)


def _of_securesgd(numbers: tuple[Published, ...]) -> tuple[Published, ...]:
    """The printed numbers of Secure-SGD, twice: ours has its noise where the paper has it, or at the input."""
    printed = tuple(one for one in numbers if one.key.startswith("securesgd "))
    return (*printed, *(_at_input(one) for one in printed))


def _at_input(one: Published) -> Published:
    measure, setting = one.what.removeprefix("securesgd, ").split(", ")
    return replace(
        one, key=f"securesgd-input {measure} {setting}", what=f"securesgd with noise at the input, {measure}, {setting}"
    )


STOBATCH = (
    _table(1, "notation", obstacle="a list of symbols: nothing is measured"),
    _figure(1, "the mechanism in boxes", obstacle="a drawing: nothing is measured"),
    _figure(
        2,
        "MNIST: accuracy under four attacks of size 0.2 against epsilon",
        published=(*_both(_FIGURE_2), *_both(_GAINS_2)),
        settings=(*_STOBATCH, ("attack size", "0.2"), ("epsilon", "0.2 to 2")),
        data=("mnist",),
    ),
    _figure(
        3,
        "CIFAR-10: accuracy under four attacks of size 0.2 against epsilon",
        published=(
            _number("stobatch", "conventional", "epsilon 2", 42.02),
            _number("stobatch", "conventional", "epsilon 10", 46.76),
        ),
        data=("cifar10",),
        obstacle=_CIFAR,
    ),
    _figure(
        4,
        "MNIST: accuracy under four attacks against their size, epsilon 0.2",
        published=(*_both(_GAINS_4), *_both(_DROPS_4)),
        settings=(*_STOBATCH, ("epsilon", "0.2"), ("attack size", "0.05 to 0.6")),
        data=("mnist",),
    ),
    _figure(5, "CIFAR-10: accuracy under four attacks against their size, epsilon 2", data=("cifar10",), obstacle=_CIFAR),
    _figure(
        6,
        "MNIST: certified accuracy under four attacks against their size, epsilon 1",
        published=(*_both(_FIGURE_6), _FIGURE_6_FGSM),
        settings=(*_STOBATCH, ("epsilon", "1"), ("attack size", "0.05 to 0.6"), ("epsilon_r of PixelDP", "0.1")),
        data=("mnist",),
    ),
    _figure(
        7, "CIFAR-10: certified accuracy under four attacks against their size, epsilon 2", data=("cifar10",), obstacle=_CIFAR
    ),
    _figure(
        8,
        "CIFAR-10: accuracy under attacks of up to 2,000 steps, epsilon 2",
        published=(*_pair("stobatch", 45.25, 42.59, "section 4"), *_pair("securesgd", 29.08, 19.58, "section 4")),
        data=("cifar10",),
        obstacle=_CIFAR,
    ),
    _figure(
        9,
        "Tiny ImageNet: accuracy under attacks of up to 2,000 steps, epsilon 5",
        published=(*_pair("stobatch", 29.78, 28.31, "section 4"), *_pair("securesgd", 8.99, 8.72, "section 4")),
        obstacle=_TINY,
    ),
    Experiment(
        "securesgd-mnist",
        Paper.STOBATCH,
        "lines of Secure-SGD in Figures 2, 4 and 6",
        "MNIST: Secure-SGD at epsilon 0.2, 0.5, 1 and 2: accuracy under four attacks, certificates published and sound",
        published=(*_of_securesgd(_FIGURE_2), *_of_securesgd(_FIGURE_6)),
        settings=(*_MNIST, ("attack size of Figure 2", "0.2"), ("epsilon of Figure 6", "1")),
        data=("mnist",),
    ),
    Experiment(
        "stobatch-mnist",
        Paper.STOBATCH,
        "what is printed of StoBatch in Figures 2 and 6",
        "MNIST: StoBatch as published and sound: accuracy at epsilon 0.2 and 2, certificates published and sound at epsilon 1",
        published=_both(tuple(one for one in (*_FIGURE_2, *_FIGURE_6) if one.key.startswith("stobatch "))),
        settings=(*_STOBATCH, ("attack size of Figure 2", "0.2"), ("epsilon of Figure 6", "1")),
        data=("mnist",),
    ),
    Experiment(
        "linf-mnist",
        Paper.STOBATCH,
        "the claims of Figure 6, beside certificates that hold",
        "MNIST and Fashion-MNIST: certified in linf at sizes 0.05, 0.2 and 0.6 by private interval bounds (recipe interval)",
        published=tuple(one for one in _FIGURE_6 if one.key.split()[0] in ("stobatch", "securesgd")),
        settings=(("epsilon of Figure 6", "1"), ("inputs", "[-1, 1]: sizes are twice those of inputs in [0, 1]")),
        data=("mnist", "fashion-mnist"),
    ),
)
