"""Figures of surfaces: each a few shapes with wavy outlines, of their own brightness and some of them striped."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

_SHAPES, _WAVES = 2, 4
_SOFTNESS = 0.08
_SHIFT, _STRETCH, _BEND, _FLICKER = 0.03, 0.08, 0.03, 0.15  # how much a shape changes from image to image


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

        away = pixels.unsqueeze(2) - changed(self.places[figures], _SHIFT).unsqueeze(1)
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
