"""The picture of noise against epsilon: its lines are the calibrations, and what is called broken is broken."""

from __future__ import annotations

from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `figure_sigma` importable)
import pytest

import figure_sigma
from twinproof.privacy.mechanisms.gaussian import gaussian_delta


def test_lines_cover_the_range_and_say_the_truth() -> None:
    classic, beyond, broken, paper, ours = figure_sigma.curves()
    assert max(classic.epsilons) <= 1 < max(beyond.epsilons) < 8.42 < broken.epsilons[1]
    for curve in (classic, beyond, paper, ours):
        assert all(
            gaussian_delta(epsilon, sigma) <= figure_sigma.DELTA
            for epsilon, sigma in zip(curve.epsilons, curve.sigmas, strict=True)
        )
    costs = [gaussian_delta(epsilon, sigma) for epsilon, sigma in zip(broken.epsilons, broken.sigmas, strict=True)]
    assert all(cost > figure_sigma.DELTA for cost in costs[1:])  # the first point joins it to the piece before
    assert paper.epsilons == ours.epsilons == tuple(figure_sigma.EPSILONS)
    assert all(less < more for less, more in zip(ours.sigmas, paper.sigmas, strict=True))


def test_all_lines_are_drawn_twice_and_repeatably(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = figure_sigma.figure()
    assert [len(axes.lines) for axes in drawn.axes] == [5, 5]
    for name in ("first.svg", "second.svg"):
        assert figure_sigma.main(["--out", str(tmp_path / "images" / name)]) == 0
    assert capsys.readouterr().out.count(".svg") == 2
    first, second = ((tmp_path / "images" / name).read_bytes() for name in ("first.svg", "second.svg"))
    assert first == second
