"""Morlet wavelets and their low-pass filter, as small kernels, and how white noise answers to them.

A wavelet here is a wave under a Gaussian, less as much of the Gaussian as makes its sum zero: scale 2^j pixels, a direction,
and a Gaussian that is twice as long across the direction of the wave as along it. Frequencies and widths are those that the
scattering transform is usually built with (Bruna and Mallat 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, eq=False)
class NoiseAnswers:
    """How far white noise of deviation 1 moves the features: by path, for the two scales of the transform.

    ``low`` is the deviation of the smoothed input; the others are means of moduli: ``fine`` and ``coarse`` (directions,) of
    the wavelets of scales 0 and 1, ``second`` (directions, directions) of the coarse ones over the moduli of the fine ones.
    """

    low: float
    fine: Reals
    coarse: Reals
    second: Reals


@cache
def noise_answers() -> NoiseAnswers:
    """The answers, from the kernels alone.

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
    smooth = bell(2)
    return NoiseAnswers(
        low=float((smooth**2).sum()),
        fine=means,
        coarse=_mean_modulus(coarse),
        second=np.asarray(math.sqrt(math.pi) / 2 * np.sqrt(variances), dtype=np.float64),
    )


def _mean_modulus(kernels: Waves) -> Reals:
    norms = np.sqrt((np.abs(kernels) ** 2).sum(axis=(1, 2)))
    return np.asarray(math.sqrt(math.pi) / 2 * norms, dtype=np.float64)


def _spectra(kernels: Waves) -> Waves:
    return np.asarray(np.fft.fft2(kernels, s=(_GRID, _GRID)), dtype=np.complex128)
