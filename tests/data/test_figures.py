"""Random figures: images in range, a function of seed and generator alone, and classes that can be told apart."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from twinproof.data import figures as figures_module
from twinproof.data.figures import Figures

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


@pytest.mark.parametrize("seed", [0, 1])
def test_images_of_one_figure_are_alike(seed: int) -> None:
    assert _nearest_mean_accuracy(_drawn(seed=seed), _drawn(seed=seed, draw=2)) > 0.6


def test_planted_figures_that_forget_their_seed_are_at_chance() -> None:
    """The check above can fail: new images of other figures are no nearer to the mean of the same number."""
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
