"""Figures of lines: each a few smooth strokes through random points, as a pen would draw them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_STROKES, _POINTS = 3, 4
_PIECES = 4  # straight pieces between two points of a stroke
_EXTENT = 0.75  # the furthest point of a figure, on a canvas from -1 to 1
_SOFTNESS = 0.035  # of the edge of a line
_TREMBLE, _PRESSURE = 0.05, 0.2  # how far a point moves, and how much a line's width changes, from image to image


@dataclass(frozen=True, eq=False)
class Strokes:
    """The strokes of all figures: points (figures, strokes, points, 2), widths and whether there is such a stroke."""

    points: Tensor
    widths: Tensor
    there: Tensor

    @classmethod
    def random(cls, figures: int, generator: torch.Generator) -> Strokes:
        """New ones: random walks, centred and scaled to the canvas."""
        starts = 0.25 * torch.randn(figures, _STROKES, 1, 2, generator=generator)
        walks = starts + torch.cumsum(0.35 * torch.randn(figures, _STROKES, _POINTS, 2, generator=generator), dim=2)
        centred = walks - walks.mean(dim=(1, 2), keepdim=True)
        there = torch.rand(figures, _STROKES, generator=generator) < 0.7
        there[:, 0] = True
        return cls(
            points=_EXTENT * centred / centred.abs().amax(dim=(1, 2, 3), keepdim=True),
            widths=0.05 + 0.09 * torch.rand(figures, _STROKES, generator=generator),
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
        dark = torch.sigmoid((width.unsqueeze(1) - distance) / _SOFTNESS) * self.there[figures].unsqueeze(1)
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
