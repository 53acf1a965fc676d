"""Random figures: images in range, a function of seed and generator alone, and classes that can be told apart."""

from __future__ import annotations

import builtins
import io
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from twinproof.data import figures as figures_module
from twinproof.data.figures import Figures, Outlines, Strokes

CPU = torch.device("cpu")
COUNT, SIDE, EACH = 20, 16, 12
LABELS = torch.arange(COUNT).repeat(EACH)


def _drawn(*, count: int = COUNT, side: int = SIDE, seed: int = 0, draw: int = 1, labels: Tensor = LABELS) -> Tensor:
    return Figures(count, side, seed=seed, device=CPU).draw(labels, torch.Generator().manual_seed(draw))


@pytest.mark.parametrize(("count", "side", "images"), [(1, 8, 1), (20, 16, 60), (50, 28, 7), (3, 33, 2), (4, 28, 0)])
def test_images_have_their_shape_and_lie_in_range(count: int, side: int, images: int) -> None:
    drawn = _drawn(count=count, side=side, labels=torch.arange(images) % count)
    assert drawn.shape == (images, 1, side, side)
    assert drawn.dtype == torch.float32
    assert bool(torch.isfinite(drawn).all())
    assert bool(((drawn >= 0) & (drawn <= 1)).all())


def test_every_image_shows_something_on_a_dark_ground() -> None:
    drawn = _drawn(count=200, labels=torch.arange(200)).flatten(1)
    assert float(drawn.amax(dim=1).min()) > 0.2, "no figure is empty"
    assert float(drawn.mean(dim=1).max()) < 0.8, "and none fills the canvas"


def test_images_are_a_function_of_seed_and_generator() -> None:
    images = _drawn()
    assert torch.equal(images, _drawn())
    assert not torch.equal(images, _drawn(draw=2)), "another generator draws other images"
    assert not torch.equal(images, _drawn(seed=1)), "another seed makes other figures"


def test_nothing_but_the_arguments_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is opened, and torch's own generator neither decides anything nor is moved."""
    wanted, state = _drawn(), torch.random.get_rng_state()

    def refused(*arguments: Any, **named: Any) -> NoReturn:
        raise AssertionError(f"opened {arguments}")

    with monkeypatch.context() as patch:
        for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
            patch.setattr(module, name, refused)
        found = _drawn()
        with pytest.raises(AssertionError, match="opened"):  # the trap works
            Path(__file__).read_bytes()
    assert torch.equal(found, wanted)
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        assert torch.equal(_drawn(), wanted)


def _nearest_mean_accuracy(seen: Tensor, new: Tensor) -> float:
    """How often a new image is nearest to the mean of its own figure's images."""
    seen, new = seen.flatten(1), new.flatten(1)
    means = torch.stack([seen[label == LABELS].mean(dim=0) for label in range(COUNT)])
    return float((torch.cdist(new, means).argmin(dim=1) == LABELS).float().mean())


def test_images_of_one_figure_are_alike() -> None:
    """New images of other figures are at chance, so that the check can fail."""
    for seed in (0, 1):
        assert _nearest_mean_accuracy(_drawn(seed=seed), _drawn(seed=seed, draw=2)) > 0.6
    assert _nearest_mean_accuracy(_drawn(seed=0), _drawn(seed=1, draw=2)) < 0.2


def test_no_two_images_of_a_figure_are_the_same() -> None:
    drawn = _drawn(labels=torch.full((30,), 3)).flatten(1)
    distances = torch.cdist(drawn, drawn) + 1e3 * torch.eye(30)
    assert float(distances.min()) > 0.1


def test_a_figure_does_not_depend_on_the_others_of_its_batch() -> None:
    """Looking figures up by number, in any order and any company: which figure it is decides its image, not its place."""
    names = torch.tensor([4, 7, 4, 0])
    figures = Figures(COUNT, SIDE, seed=0, device=CPU)
    with_four = figures.draw(names, torch.Generator().manual_seed(1))
    others = figures.draw(torch.tensor([4, 9, 4, 2]), torch.Generator().manual_seed(1))
    assert torch.equal(with_four[[0, 2]], others[[0, 2]])
    assert not torch.equal(with_four[[1, 3]], others[[1, 3]])


def test_a_pixel_is_found_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row from the top, (x, y) at its middle; without movement a figure is seen as it is."""
    for name in ("_TURN", "_SCALE", "_SHEAR", "_SHIFT"):
        monkeypatch.setattr(figures_module, name, 0.0)
    seen = Figures(1, 4, seed=0, device=CPU)._seen_from(2, torch.Generator().manual_seed(0))
    assert seen.shape == (2, 16, 2)
    expected = torch.tensor([[-0.75, -0.75], [-0.25, -0.75], [0.75, -0.75], [-0.75, -0.25], [0.75, 0.75]])
    torch.testing.assert_close(seen[1][[0, 1, 3, 4, 15]], expected)


NUMBER = torch.tensor([0])
STRAIGHT = torch.tensor([[-0.6, 0.0], [-0.2, 0.0], [0.2, 0.0], [0.6, 0.0]])
BENT = torch.tensor([[-0.6, 0.1], [-0.2, 0.7], [0.3, -0.4], [0.6, 0.5]])


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image shows its figure exactly."""
    for name in ("_TREMBLE", "_PRESSURE", "_OUTLINE_SHIFT", "_STRETCH", "_BEND", "_FLICKER"):
        monkeypatch.setattr(figures_module, name, 0.0)


def test_a_curve_goes_through_its_points_and_ends_at_the_last() -> None:
    places = figures_module._curve(BENT.view(1, 1, 4, 2))[0, 0]
    assert places.shape == (3 * figures_module._PIECES + 1, 2)
    torch.testing.assert_close(places[:: figures_module._PIECES], BENT)
    places = figures_module._curve(STRAIGHT.view(1, 1, 4, 2))[0, 0]
    line = torch.linspace(-0.6, 0.6, len(places))
    torch.testing.assert_close(places, torch.stack([line, torch.zeros(len(places))], dim=1))


@pytest.mark.parametrize(
    ("pixel", "wanted"),
    [((0.1, 0.3), 0.3), ((0.0, 0.0), 0.0), ((1.0, 0.0), 0.4), ((-0.9, -0.4), 0.5)],
    ids=["beside", "on it", "behind the end", "off the corner"],
)
def test_the_distance_is_to_the_nearest_place_of_the_stroke(pixel: tuple[float, float], wanted: float) -> None:
    distance = figures_module._distance(torch.tensor([[pixel]]), figures_module._curve(STRAIGHT.view(1, 1, 4, 2)))
    torch.testing.assert_close(distance, torch.tensor([[[wanted]]]), atol=1e-6, rtol=0)


def test_strokes_whose_points_coincide_are_points() -> None:
    distance = figures_module._distance(torch.tensor([[(0.3, 0.4)]]), figures_module._curve(torch.zeros(1, 1, 4, 2)))
    torch.testing.assert_close(distance, torch.tensor([[[0.5]]]))


@pytest.mark.usefixtures("_still")
def test_ink_lies_on_the_strokes_that_are_there() -> None:
    points = torch.stack([STRAIGHT, STRAIGHT + torch.tensor([0.0, 0.5])]).unsqueeze(0)
    pixels = torch.tensor([[(0.0, 0.0), (0.0, 0.1), (0.0, 0.25), (0.0, 0.5)]])
    both = Strokes(points, torch.full((1, 2), 0.1), torch.tensor([[True, True]])).ink(pixels, NUMBER, _generator())[0]
    assert both.tolist() == pytest.approx([1, 0.5, 0, 1], abs=0.06), "full on the line, half at its edge, none between"
    first = Strokes(points, torch.full((1, 2), 0.1), torch.tensor([[True, False]])).ink(pixels, NUMBER, _generator())[0]
    assert first.tolist() == pytest.approx([1, 0.5, 0, 0], abs=0.06)


def test_random_figures_fit_the_canvas_and_have_a_stroke_and_a_surface() -> None:
    found = Strokes.random(300, _generator())
    torch.testing.assert_close(found.points.abs().amax(dim=(1, 2, 3)), torch.full((300,), figures_module._EXTENT))
    assert bool(found.there.any(dim=1).all())
    assert 0 < float(found.widths.min()) < float(found.widths.max()) < 0.2
    outlines = Outlines.random(300, _generator())
    assert bool(outlines.there.any(dim=1).all())
    assert float(outlines.sizes.min()) > 0


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
