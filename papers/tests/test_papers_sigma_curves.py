"""The picture of noise against epsilon: its lines are the calibrations, and what is called broken is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinproof.privacy.mechanisms.gaussian import gaussian_delta
from twinproof_papers import sigma_curves
from twinproof_papers.drawing import write_picture
from twinproof_papers.reproduce import PICTURE, reproduce

IN_DOCS = Path(__file__).resolve().parents[2] / "docs" / "images" / "noise-calibration.svg"


def test_lines_cover_the_range_and_say_the_truth() -> None:
    classic, beyond, broken, paper, ours = sigma_curves.curves()
    assert max(classic.epsilons) <= 1 < max(beyond.epsilons) < 8.42 < broken.epsilons[1]
    for curve in (classic, beyond, paper, ours):
        assert all(
            gaussian_delta(epsilon, sigma) <= sigma_curves.DELTA
            for epsilon, sigma in zip(curve.epsilons, curve.sigmas, strict=True)
        )
    costs = [gaussian_delta(epsilon, sigma) for epsilon, sigma in zip(broken.epsilons, broken.sigmas, strict=True)]
    assert all(cost > sigma_curves.DELTA for cost in costs[1:])  # the first point joins it to the piece before
    assert paper.epsilons == ours.epsilons == sigma_curves.EPSILONS
    assert all(less < more for less, more in zip(ours.sigmas, paper.sigmas, strict=True))


def test_all_lines_are_drawn_twice(tmp_path: Path) -> None:
    drawn = sigma_curves.sigma_figure()
    assert [len(axes.lines) for axes in drawn.axes] == [5, 5]
    write_picture(sigma_curves.sigma_figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_makes_the_picture_of_the_docs(tmp_path: Path) -> None:
    made = reproduce("hgm-fig1", tmp_path)
    text = (made.folder / PICTURE).read_text()
    assert text == IN_DOCS.read_text(), "copy the new figure.svg to docs/images/noise-calibration.svg"
    line = made.results["panels"][0]["lines"][4]
    at_one = min(line["points"], key=lambda point: abs(point["x"] - 1))
    assert at_one["mean"] == pytest.approx(sigma_curves.analytic_sigma(at_one["x"]), rel=1e-12)
    assert made.results["command"] == "twinproof reproduce hgm-fig1"
