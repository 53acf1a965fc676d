"""The scattering transform (Bruna and Mallat 2013) of two scales, eight directions and orders 0 to 2, in torch.

A wavelet here is a wave under a Gaussian, less as much of the Gaussian as makes its sum zero: scale 2^j pixels, a direction,
and a Gaussian that is twice as long across the direction of the wave as along it. Frequencies and widths are those that the
scattering transform is usually built with (Bruna and Mallat 2013).

Wavelets, modulus, wavelets, modulus, and a low-pass filter after each: features that hardly move when the image is shifted
or bent a little, and nothing in them is trained. In private training what is not trained needs no noise; before a small
network they carried Fashion-MNIST from 86.0 % to 89.7 % at epsilon 3 (Tramer and Boneh 2021).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Reals = NDArray[np.float64]
Waves = NDArray[np.complex128]

DIRECTIONS = 8
_WIDTH = 0.8  # deviation of the Gaussian at scale 1, along the wave, in pixels
_FREQUENCY = 3 * math.pi / 4  # at scale 1, in radians a pixel
_ELONGATION = 2  # deviation across the wave, over that along it
_CUT = 2.5  # kernels end where the Gaussian has come down to 4 %: this many deviations
# Large enough that kernels do not meet their own images on a torus of this size.
_GRID = 64


@cache
def wavelets(scale: int) -> Waves:
    """The kernels (directions, size, size) of scale 2^``scale``; each adds up to zero."""
    width = _WIDTH * 2**scale
    radius = math.ceil(_CUT * _ELONGATION * width)
    down, across = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float64)
    kernels = []
    for direction in range(DIRECTIONS):
        angle = math.pi * direction / DIRECTIONS
        along = across * math.cos(angle) + down * math.sin(angle)
        aside = down * math.cos(angle) - across * math.sin(angle)
        bell = np.exp(-(along**2 + (aside / _ELONGATION) ** 2) / (2 * width**2))
        wave = bell * np.exp(1j * _FREQUENCY / 2**scale * along)
        kernels.append((wave - bell * (wave.sum() / bell.sum())) / bell.sum())
    return np.stack(kernels)


@cache
def bell(scale: int, step: int = 1) -> Reals:
    """The low-pass filter of scale 2^``scale`` in one dimension, at every ``step``-th pixel; its sum is 1."""
    width = _WIDTH * 2 ** (scale - 1)
    most = math.ceil(_CUT * width) // step
    values = np.exp(-((step * np.arange(-most, most + 1)) ** 2) / (2 * width**2))
    return np.asarray(values / values.sum(), dtype=np.float64)


@cache
def noise_answers() -> Reals:
    """How far white noise of deviation 1 moves the features, in the order of the maps; from the kernels alone.

    The deviation of the smoothed input; then means of moduli: of the fine wavelets, of the coarse ones, and of the coarse ones
    over the moduli of each fine one.

    A wavelet turns white noise into (nearly circular) complex Gaussian noise z, whose modulus has mean sqrt(pi)/2 times its
    deviation, the kernel's norm. Moduli of two places whose correlation is r have the covariance mean^2 (|r|^2/4 + |r|^4/64 +
    |r|^6/256 + ...); a coarse wavelet sees that noise, and its answer is again nearly Gaussian.
    """
    fine, coarse = wavelets(0), wavelets(1)
    powers = np.abs(_spectra(fine)) ** 2
    correlations = np.abs(np.fft.ifft2(powers)) ** 2
    squared = correlations / correlations[:, :1, :1]
    means = _mean_modulus(fine)
    covariances = means[:, None, None] ** 2 * (squared / 4 + squared**2 / 64 + squared**3 / 256)
    spectra = np.fft.fft2(covariances).real
    variances = np.einsum("ahw,bhw->ab", spectra, np.abs(_spectra(coarse)) ** 2) / _GRID**2
    second = math.sqrt(math.pi) / 2 * np.sqrt(variances)
    return np.concatenate([[(bell(2) ** 2).sum()], means, _mean_modulus(coarse), second.ravel()])


def _mean_modulus(kernels: Waves) -> Reals:
    norms = np.sqrt((np.abs(kernels) ** 2).sum(axis=(1, 2)))
    return np.asarray(math.sqrt(math.pi) / 2 * norms, dtype=np.float64)


def _spectra(kernels: Waves) -> Waves:
    return np.asarray(np.fft.fft2(kernels, s=(_GRID, _GRID)), dtype=np.complex128)


SCALES = 2
STRIDE = 2**SCALES
"""The features of an image of H x W are maps of ceil(H / 4) x ceil(W / 4)."""
MAPS = 1 + SCALES * DIRECTIONS + DIRECTIONS**2
"""Maps of features for each channel of the input."""
SMOOTHING = 1e-3
"""The modulus of z is sqrt(|z|^2 + SMOOTHING^2): an empty background has a gradient, too."""


# Half a megabyte of maps is made for each image of 28x28: a large batch is cut so that they take a few gigabytes at most.
_IMAGES_AT_ONCE = 8192


class Scattering(nn.Module):
    """(rows, channels, height, width) -> (rows, 81 channels, height / 4, width / 4), rounded up; zeros around the image.

    Maps of a channel: the smoothed image; the moduli of the 8 fine wavelets; those of the 8 coarse ones; and for each of the
    fine ones in turn those of the 8 coarse ones over its modulus. Each is divided by what white noise makes of it
    (``noise_answers``), so that noise at the input is of the same size in all maps.

    Guarantees
        No parameter: every number is a fixed buffer, computed from the kernels and never from records. Each row is treated
        alone. Before that division the features of two images are no further apart than the images: the squared spectra of the
        filters add up to at most 1 at every frequency (Littlewood-Paley), and the modulus is a contraction.
    """

    fine: Tensor
    coarse: Tensor
    rows_from_full: Tensor
    columns_from_full: Tensor
    rows_from_half: Tensor
    columns_from_half: Tensor
    scale: Tensor

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self._half = (-(-height // 2), -(-width // 2))
        self.register_buffer("fine", _stacked(wavelets(0)))
        self.register_buffer("coarse", _coarse_kernels())
        for name, size in (("rows", height), ("columns", width)):
            self.register_buffer(f"{name}_from_full", _sampled_filter(bell(SCALES), size, STRIDE))
            self.register_buffer(f"{name}_from_half", _sampled_filter(bell(SCALES, step=2), -(-size // 2), STRIDE // 2))
        self.register_buffer("scale", torch.from_numpy(1 / noise_answers()).float().view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        images = x.reshape(rows * channels, 1, height, width)
        parts = [self._features(part) for part in torch.split(images, _IMAGES_AT_ONCE)]
        features = parts[0] if len(parts) == 1 else torch.cat(parts)
        return features.reshape(rows, channels * MAPS, *features.shape[2:])

    def _features(self, images: Tensor) -> Tensor:
        """(images, 1, height, width) -> (images, 81, height / 4, width / 4)."""
        height, width = images.shape[2:]
        fine = _modulus(F.conv2d(images, self.fine, padding=self.fine.shape[-1] // 2))
        maps = torch.cat([images, fine], dim=1)
        coarse = _modulus(self._coarse(maps.reshape(-1, 1, height, width))).reshape(len(images), -1, *self._half)
        smoothed = [
            _filtered(maps, self.rows_from_full, self.columns_from_full),
            _filtered(coarse, self.rows_from_half, self.columns_from_half),
        ]
        return torch.cat(smoothed, dim=1) * self.scale

    def _coarse(self, maps: Tensor) -> Tensor:
        """The coarse wavelets at every other pixel.

        Four neighbours become four channels, of the image and of the kernels, and the stride is gone: the same sums. A GPU's
        matrix units take channels four by four; of a single one they would fill the rest with zeros.
        """
        margin = self.coarse.shape[-1] - 1
        (height, width), (half_height, half_width) = maps.shape[2:], self._half
        right, below = 2 * (half_width + margin) - width - margin, 2 * (half_height + margin) - height - margin
        return F.conv2d(F.pixel_unshuffle(F.pad(maps, (margin, right, margin, below)), 2), self.coarse)


def _modulus(waves: Tensor) -> Tensor:
    """Real parts in the first half of the maps, imaginary ones in the second."""
    real, imaginary = waves.chunk(2, dim=1)
    squares = torch.addcmul(torch.full((), SMOOTHING**2, dtype=waves.dtype, device=waves.device), real, real)
    return torch.addcmul(squares, imaginary, imaginary).sqrt()


def _filtered(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Low-pass filter and sampling in one: a matrix for each axis, since a Gaussian is a product of two."""
    return F.linear(F.linear(maps, columns).transpose(2, 3), rows).transpose(2, 3)


def _stacked(kernels: NDArray[np.complex128]) -> Tensor:
    """Real parts, then imaginary parts, as the weights of a convolution of one channel."""
    return torch.from_numpy(np.concatenate([kernels.real, kernels.imag])[:, None]).float()


def _coarse_kernels() -> Tensor:
    """Blocks of 2 x 2 as four channels, innermost in memory: convolutions follow the layout of their weights."""
    even = F.pad(_stacked(wavelets(1)), (0, 1, 0, 1))
    return F.pixel_unshuffle(even, 2).contiguous(memory_format=torch.channels_last)


def _sampled_filter(kernel: NDArray[np.float64], size: int, stride: int) -> Tensor:
    """The matrix (samples, size) that filters a line with zeros around it and keeps every ``stride``-th place."""
    radius = len(kernel) // 2
    offsets = np.arange(size)[None, :] - stride * np.arange(-(-size // stride))[:, None] + radius
    inside = (offsets >= 0) & (offsets < len(kernel))
    return torch.from_numpy(np.where(inside, kernel[offsets.clip(0, len(kernel) - 1)], 0.0)).float()
