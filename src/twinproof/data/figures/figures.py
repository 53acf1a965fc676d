"""Random figures as classes of images, for networks that should know what images are before they meet a private one.

Learning from images of random processes carries networks through private training (Tang et al., NeurIPS 2023) and costs no
privacy: a program draws them. Each class is a figure of strokes or of surfaces; an image of it is moved, turned, bent and lit
in its own way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twinproof.data.figures.outlines import Outlines
from twinproof.data.figures.strokes import Strokes

_TURN, _SCALE, _SHEAR, _SHIFT = 0.15, 0.12, 0.12, 0.07  # standard deviations from image to image, on a canvas from -1 to 1


class Figures:
    """``count`` random figures on a canvas of ``side`` x ``side`` pixels with values in [0, 1].

    Guarantees
        Nothing is read but the arguments: figures are a function of ``count`` and ``seed``, images of those and the generator.
    """

    def __init__(self, count: int, side: int, *, seed: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._strokes = Strokes.random(count, generator).to(device)
        self._outlines = Outlines.random(count, generator).to(device)
        self._drawn = (torch.rand(count, generator=generator) < 0.5).to(device)  # the others are filled
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
