"""Strokes and outlines where their geometry is known."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from twinproof.data import figures as outlines
from twinproof.data import figures as strokes
from twinproof.data.figures import Outlines, Strokes

NUMBER = torch.tensor([0])
STRAIGHT = torch.tensor([[-0.6, 0.0], [-0.2, 0.0], [0.2, 0.0], [0.6, 0.0]])
BENT = torch.tensor([[-0.6, 0.1], [-0.2, 0.7], [0.3, -0.4], [0.6, 0.5]])


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image shows its figure exactly."""
    for module, names in (
        (strokes, ("_TREMBLE", "_PRESSURE")),
        (outlines, ("_OUTLINE_SHIFT", "_STRETCH", "_BEND", "_FLICKER")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.0)


def test_a_curve_goes_through_its_points_and_ends_at_the_last() -> None:
    places = strokes._curve(BENT.view(1, 1, 4, 2))[0, 0]
    assert places.shape == (3 * strokes._PIECES + 1, 2)
    torch.testing.assert_close(places[:: strokes._PIECES], BENT)


def test_a_curve_through_points_on_a_line_is_that_line() -> None:
    places = strokes._curve(STRAIGHT.view(1, 1, 4, 2))[0, 0]
    torch.testing.assert_close(places[:, 1], torch.zeros(len(places)))
    torch.testing.assert_close(places[:, 0], torch.linspace(-0.6, 0.6, len(places)))


@pytest.mark.parametrize(
    ("pixel", "wanted"),
    [((0.1, 0.3), 0.3), ((0.0, 0.0), 0.0), ((1.0, 0.0), 0.4), ((-0.9, -0.4), 0.5)],
    ids=["beside", "on it", "behind the end", "off the corner"],
)
def test_the_distance_is_to_the_nearest_place_of_the_stroke(pixel: tuple[float, float], wanted: float) -> None:
    distance = strokes._distance(torch.tensor([[pixel]]), strokes._curve(STRAIGHT.view(1, 1, 4, 2)))
    torch.testing.assert_close(distance, torch.tensor([[[wanted]]]), atol=1e-6, rtol=0)


def test_strokes_whose_points_coincide_are_points() -> None:
    distance = strokes._distance(torch.tensor([[(0.3, 0.4)]]), strokes._curve(torch.zeros(1, 1, 4, 2)))
    torch.testing.assert_close(distance, torch.tensor([[[0.5]]]))


@pytest.mark.usefixtures("_still")
def test_ink_lies_on_the_strokes_that_are_there() -> None:
    points = torch.stack([STRAIGHT, STRAIGHT + torch.tensor([0.0, 0.5])]).unsqueeze(0)
    pixels = torch.tensor([[(0.0, 0.0), (0.0, 0.1), (0.0, 0.25), (0.0, 0.5)]])
    both = Strokes(points, torch.full((1, 2), 0.1), torch.tensor([[True, True]])).ink(pixels, NUMBER, _generator())[0]
    assert both.tolist() == pytest.approx([1, 0.5, 0, 1], abs=0.06), "full on the line, half at its edge, none between"
    first = Strokes(points, torch.full((1, 2), 0.1), torch.tensor([[True, False]])).ink(pixels, NUMBER, _generator())[0]
    assert first.tolist() == pytest.approx([1, 0.5, 0, 0], abs=0.06)


def test_random_strokes_fit_the_canvas_and_every_figure_has_one() -> None:
    found = Strokes.random(300, _generator())
    torch.testing.assert_close(found.points.abs().amax(dim=(1, 2, 3)), torch.full((300,), strokes._EXTENT))
    assert bool(found.there.any(dim=1).all())
    assert 0 < float(found.widths.min()) < float(found.widths.max()) < 0.2


def _circle() -> Outlines:
    """One surface: a circle of radius 0.5 around the middle, of brightness 0.8, without waves or stripes."""
    drawn = Outlines.random(1, _generator())
    made = replace(
        drawn,
        places=torch.zeros_like(drawn.places),
        sizes=torch.full_like(drawn.sizes, 0.5),
        waves=torch.zeros_like(drawn.waves),
        lights=torch.full_like(drawn.lights, 0.8),
        stripe_depths=torch.zeros_like(drawn.stripe_depths),
        there=torch.zeros_like(drawn.there),
    )
    made.there[:, 0] = True
    return made


def _fill(made: Outlines, pixels: list[tuple[float, float]]) -> list[float]:
    values: Tensor = made.fill(torch.tensor([pixels]), NUMBER, _generator())[0]
    return [float(value) for value in values]


@pytest.mark.usefixtures("_still")
def test_a_surface_is_bright_inside_its_outline_and_nowhere_else() -> None:
    pixels = [(0.0, 0.0), (0.3, 0.0), (0.0, -0.5), (0.7, 0.0), (0.6, 0.6)]
    assert _fill(_circle(), pixels) == pytest.approx([0.8, 0.8, 0.4, 0, 0], abs=0.01)
    stretched = replace(_circle(), sizes=torch.tensor([[[1.0, 0.25], [1.0, 0.25]]]), turns=torch.zeros(1, 2))
    assert _fill(stretched, [(0.7, 0.0), (0.0, 0.7)]) == pytest.approx([0.8, 0], abs=0.02), "sizes are those of x and y"
    turned = replace(stretched, turns=torch.full((1, 2), math.pi / 2))
    assert _fill(turned, [(0.7, 0.0), (0.0, 0.7)]) == pytest.approx([0, 0.8], abs=0.02)


@pytest.mark.usefixtures("_still")
def test_waves_move_the_outline_and_stripes_darken_the_surface() -> None:
    wavy = _circle()
    wavy.waves[:, :, 1, 0] = 0.5  # the cosine of twice the angle
    turned = replace(wavy, turns=torch.zeros(1, 2))
    assert _fill(turned, [(0.65, 0.0), (0.0, 0.35)]) == pytest.approx([0.8, 0.0], abs=0.08), "longer in x, shorter in y"
    striped = replace(_circle(), stripes=torch.tensor([[[10.0, 0.0]] * 2]), stripe_depths=torch.full((1, 2), 0.5))
    assert _fill(striped, [(0.0, 0.0), (math.pi / 10, 0.0)]) == pytest.approx([0.4, 0.8], abs=0.01)


def test_random_outlines_have_a_surface_and_move_to_a_device_whole() -> None:
    found = Outlines.random(300, _generator())
    assert bool(found.there.any(dim=1).all())
    assert float(found.sizes.min()) > 0
    moved = found.to(torch.device("cpu"))
    assert all(torch.equal(getattr(moved, field.name), getattr(found, field.name)) for field in fields(found))
