"""StoBatch: Table 1 and Figures 1 to 9, and the lines of Secure-SGD among them, which run here by themselves."""

from __future__ import annotations

from dataclasses import replace

from twinproof.papers.experiment import Experiment, Paper, Published

_NOT_BUILT = "StoBatch is not built yet"
_TINY = "StoBatch is not built yet, and Tiny ImageNet has no reader here"
_APPENDIX = "appendix Q"
_ON_AVERAGE = "mean over the attacks"
_MNIST = (
    ("network", "convolutions 32 and 64 (5x5), 256 hidden units"),
    ("attack steps", "10"),
    ("inputs", "[-1, 1]: sizes are twice those of inputs in [0, 1]"),
)


def _number(method: str, measure: str, setting: str, value: float, note: str = _ON_AVERAGE) -> Published:
    return Published(f"{method} {measure} {setting}", f"{method}, {measure}, {setting}", value, _APPENDIX, "%", note)


def _pair(method: str, conventional: float, certified: float, figure: str) -> tuple[Published, Published]:
    note = f"mean over sizes 0.05 to 0.5 and 100 to 2,000 attack steps ({figure})"
    return (
        _number(method, "conventional", "strong attacks", conventional, note),
        _number(method, "certified", "strong attacks", certified, note),
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
    Experiment("stobatch-table1", Paper.STOBATCH, "Table 1", "notation", obstacle="a list of symbols: nothing is measured"),
    Experiment(
        "stobatch-fig1", Paper.STOBATCH, "Figure 1", "the mechanism in boxes", obstacle="a drawing: nothing is measured"
    ),
    Experiment(
        "stobatch-fig2",
        Paper.STOBATCH,
        "Figure 2",
        "MNIST: accuracy under four attacks of size 0.2 against epsilon",
        published=_FIGURE_2,
        settings=_MNIST,
        data=("mnist",),
        obstacle=f"{_NOT_BUILT}; its lines of Secure-SGD: `twinproof reproduce securesgd-mnist`",
    ),
    Experiment(
        "stobatch-fig3",
        Paper.STOBATCH,
        "Figure 3",
        "CIFAR-10: accuracy under four attacks of size 0.2 against epsilon",
        published=(
            _number("stobatch", "conventional", "epsilon 2", 42.02),
            _number("stobatch", "conventional", "epsilon 10", 46.76),
        ),
        data=("cifar10",),
        obstacle=_NOT_BUILT,
    ),
    Experiment(
        "stobatch-fig4",
        Paper.STOBATCH,
        "Figure 4",
        "MNIST: accuracy under four attacks against their size, epsilon 0.2",
        settings=_MNIST,
        data=("mnist",),
        obstacle=f"{_NOT_BUILT}; its lines of Secure-SGD: `twinproof reproduce securesgd-mnist`",
    ),
    Experiment(
        "stobatch-fig5",
        Paper.STOBATCH,
        "Figure 5",
        "CIFAR-10: accuracy under four attacks against their size, epsilon 2",
        data=("cifar10",),
        obstacle=_NOT_BUILT,
    ),
    Experiment(
        "stobatch-fig6",
        Paper.STOBATCH,
        "Figure 6",
        "MNIST: certified accuracy under four attacks against their size, epsilon 1",
        published=_FIGURE_6,
        settings=_MNIST,
        data=("mnist",),
        obstacle=f"{_NOT_BUILT}; its lines of Secure-SGD: `twinproof reproduce securesgd-mnist`",
    ),
    Experiment(
        "stobatch-fig7",
        Paper.STOBATCH,
        "Figure 7",
        "CIFAR-10: certified accuracy under four attacks against their size, epsilon 2",
        data=("cifar10",),
        obstacle=_NOT_BUILT,
    ),
    Experiment(
        "stobatch-fig8",
        Paper.STOBATCH,
        "Figure 8",
        "CIFAR-10: accuracy under attacks of up to 2,000 steps, epsilon 2",
        published=(*_pair("stobatch", 45.25, 42.59, "section 4"), *_pair("securesgd", 29.08, 19.58, "section 4")),
        data=("cifar10",),
        obstacle=_NOT_BUILT,
    ),
    Experiment(
        "stobatch-fig9",
        Paper.STOBATCH,
        "Figure 9",
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
)
