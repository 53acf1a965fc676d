"""Random figures as classes of images: public data from a program, to learn weights to start from.

Learning from images of random processes carries networks through private training (Tang et al., NeurIPS 2023) and costs no
privacy: a program draws them. Each class is a figure of strokes or of surfaces; an image of it is moved, turned, bent and lit
in its own way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

_SHAPES, _WAVES = 2, 4
_SOFTNESS = 0.08
_OUTLINE_SHIFT, _STRETCH, _BEND, _FLICKER = 0.03, 0.08, 0.03, 0.15  # how much a shape changes from image to image


@dataclass(frozen=True, eq=False)
class Outlines:
    """The shapes of all figures; each field begins with the axes (figures, shapes).

    An outline is a circle of radius 1 plus ``waves`` (cosines and sines of 1 to 4 times the angle), stretched by ``sizes``,
    turned by ``turns`` and moved to ``places``.
    """

    places: Tensor
    sizes: Tensor
    turns: Tensor
    waves: Tensor
    lights: Tensor
    stripes: Tensor
    stripe_depths: Tensor
    there: Tensor

    @classmethod
    def random(cls, figures: int, generator: torch.Generator) -> Outlines:
        """New ones."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(figures, _SHAPES, *shape, generator=generator)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(figures, _SHAPES, *shape, generator=generator)

        there = uniform() < 0.75
        there[:, 0] = True
        return cls(
            places=0.28 * normal(2),
            sizes=0.25 + 0.45 * uniform(2),
            turns=math.pi * uniform(),
            waves=0.18 * normal(_WAVES, 2) / torch.arange(1, _WAVES + 1).view(-1, 1).sqrt(),
            lights=0.3 + 0.7 * uniform(),
            stripes=5 * normal(2),
            stripe_depths=0.5 * uniform() * (uniform() < 0.5),
            there=there,
        )

    def to(self, device: torch.device) -> Outlines:
        """The same on another device."""
        return Outlines(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def fill(self, pixels: Tensor, figures: Tensor, generator: torch.Generator) -> Tensor:
        """How bright each of ``pixels`` (images, pixels, 2) is, in [0, about 1]; every image has its own changes."""

        def changed(values: Tensor, size: float) -> Tensor:
            return values + size * torch.randn(values.shape, generator=generator, device=values.device)

        away = pixels.unsqueeze(2) - changed(self.places[figures], _OUTLINE_SHIFT).unsqueeze(1)
        sizes = changed(self.sizes[figures].log(), _STRETCH).exp()
        turned = _turned(away, self.turns[figures].unsqueeze(1)) / sizes.unsqueeze(1)
        waves = changed(self.waves[figures], _BEND).unsqueeze(1)
        inside = torch.sigmoid((_outline(turned, waves) - turned.square().sum(dim=-1).clamp_min(1e-9).sqrt()) / _SOFTNESS)
        phase = (away * self.stripes[figures].unsqueeze(1)).sum(dim=-1)
        stripes = 1 - self.stripe_depths[figures].unsqueeze(1) * (0.5 + 0.5 * torch.cos(phase))
        lights = changed(self.lights[figures].log(), _FLICKER).exp()
        return (inside * stripes * (lights * self.there[figures]).unsqueeze(1)).amax(dim=-1)


def _turned(points: Tensor, angle: Tensor) -> Tensor:
    x, y, cosine, sine = points[..., 0], points[..., 1], angle.cos(), angle.sin()
    return torch.stack([x * cosine + y * sine, y * cosine - x * sine], dim=-1)


def _outline(points: Tensor, waves: Tensor) -> Tensor:
    """The radius of the outline in the direction of each point."""
    angle = torch.atan2(points[..., 1], points[..., 0]).unsqueeze(-1)
    turns = torch.arange(1, waves.shape[-2] + 1, device=points.device) * angle
    return 1 + (waves[..., 0] * turns.cos() + waves[..., 1] * turns.sin()).sum(dim=-1)


_STROKES, _POINTS = 3, 4
_PIECES = 4  # straight pieces between two points of a stroke
_EXTENT = 0.75  # the furthest point of a figure, on a canvas from -1 to 1
_STROKE_SOFTNESS = 0.035  # of the edge of a line
_TREMBLE, _PRESSURE = 0.05, 0.2  # how far a point moves, and how much a line's width changes, from image to image


@dataclass(frozen=True, eq=False)
class Strokes:
    """The strokes of all figures: points (figures, strokes, points, 2), widths and whether there is such a stroke."""

    points: Tensor
    widths: Tensor
    there: Tensor

    @classmethod
    def random(cls, figures: int, generator: torch.Generator, bold: float = 1.0) -> Strokes:
        """New ones: random walks, centred and scaled to the canvas, ``bold`` times as wide as usual."""
        starts = 0.25 * torch.randn(figures, _STROKES, 1, 2, generator=generator)
        walks = starts + torch.cumsum(0.35 * torch.randn(figures, _STROKES, _POINTS, 2, generator=generator), dim=2)
        centred = walks - walks.mean(dim=(1, 2), keepdim=True)
        there = torch.rand(figures, _STROKES, generator=generator) < 0.7
        there[:, 0] = True
        return cls(
            points=_EXTENT * centred / centred.abs().amax(dim=(1, 2, 3), keepdim=True),
            widths=bold * (0.05 + 0.09 * torch.rand(figures, _STROKES, generator=generator)),
            there=there,
        )

    def to(self, device: torch.device) -> Strokes:
        """The same on another device."""
        return Strokes(self.points.to(device), self.widths.to(device), self.there.to(device))

    def ink(self, pixels: Tensor, figures: Tensor, generator: torch.Generator) -> Tensor:
        """How dark each of ``pixels`` (images, pixels, 2) is, in [0, 1]; every image has its own tremble."""
        points = self.points[figures]
        trembling = points + _TREMBLE * _normal(points.shape, generator, points.device)
        width = self.widths[figures] * torch.exp(_PRESSURE * _normal((len(figures), 1), generator, points.device))
        distance = _distance(pixels, _curve(trembling))
        dark = torch.sigmoid((width.unsqueeze(1) - distance) / _STROKE_SOFTNESS) * self.there[figures].unsqueeze(1)
        return dark.amax(dim=-1)


def _normal(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=generator, device=device)


def _curve(points: Tensor) -> Tensor:
    """(images, strokes, points, 2) -> (images, strokes, places, 2): a Catmull-Rom spline through the points."""
    first, last = 2 * points[:, :, :1] - points[:, :, 1:2], 2 * points[:, :, -1:] - points[:, :, -2:-1]
    padded = torch.cat([first, points, last], dim=2).unsqueeze(3)
    a, b, c, d = padded[:, :, :-3], padded[:, :, 1:-2], padded[:, :, 2:-1], padded[:, :, 3:]
    t = (torch.arange(_PIECES, device=points.device) / _PIECES).view(-1, 1)
    spline = 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
    return torch.cat([spline.flatten(2, 3), points[:, :, -1:]], dim=2)


def _distance(pixels: Tensor, curve: Tensor) -> Tensor:
    """(images, pixels, strokes): from each pixel to the nearest straight piece of each stroke."""
    begin, piece = curve[:, None, :, :-1], (curve[:, :, 1:] - curve[:, :, :-1]).unsqueeze(1)
    away = pixels[:, :, None, None] - begin
    along = ((away * piece).sum(dim=-1) / (piece * piece).sum(dim=-1).clamp_min(1e-6)).clamp(0, 1)
    return (away - along.unsqueeze(-1) * piece).square().sum(dim=-1).amin(dim=-1).sqrt()


_TURN, _SCALE, _SHEAR, _SHIFT = 0.15, 0.12, 0.12, 0.07  # standard deviations from image to image, on a canvas from -1 to 1


class Figures:
    """``count`` random figures on a canvas of ``side`` x ``side`` pixels with values in [0, 1].

    ``drawn`` is the share of figures of strokes, which are ``bold`` times as wide as usual; the others are surfaces.

    Guarantees
        Nothing is read but the arguments: figures are a function of them, images of those and the generator.
    """

    def __init__(
        self, count: int, side: int, *, seed: int, device: torch.device, drawn: float = 0.5, bold: float = 1.0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._strokes = Strokes.random(count, generator, bold).to(device)
        self._outlines = Outlines.random(count, generator).to(device)
        self._drawn = (torch.rand(count, generator=generator) < drawn).to(device)
        self._side = side
        places = (torch.arange(side, device=device) + 0.5) * 2 / side - 1
        self._pixels = torch.cartesian_prod(places, places).flip(-1)  # row by row, as (x, y)

    def draw(self, figures: Tensor, generator: torch.Generator) -> Tensor:
        """One image of each of ``figures`` (their numbers, on the device): (images, 1, side, side)."""
        device = figures.device
        pixels = self._seen_from(len(figures), generator)
        ink = self._strokes.ink(pixels, figures, generator)
        fill = self._outlines.fill(pixels, figures, generator)
        # On a surface, strokes are folds: darker in one image, brighter in another.
        folds = torch.where(torch.rand(len(figures), 1, generator=generator, device=device) < 0.5, -0.3, 0.3)
        values = torch.where(self._drawn[figures].unsqueeze(1), ink, fill * (1 + folds * ink))
        exposure = 0.7 + 0.3 * torch.rand(len(figures), 1, generator=generator, device=device)
        return (values * exposure).clamp(0, 1).view(-1, 1, self._side, self._side)

    def _seen_from(self, images: int, generator: torch.Generator) -> Tensor:
        """(images, pixels, 2): where each pixel lies on the figure, turned, stretched, sheared and moved."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(images, *shape, generator=generator, device=self._pixels.device)

        turn, shear = _TURN * normal(), _SHEAR * normal()
        cosine, sine = turn.cos(), turn.sin()
        matrix = torch.stack([cosine, shear * cosine - sine, sine, shear * sine + cosine], dim=-1).view(images, 2, 2)
        return (self._pixels - _SHIFT * normal(1, 2)) @ matrix / torch.exp(_SCALE * normal(1, 2))
