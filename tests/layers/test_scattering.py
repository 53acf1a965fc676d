"""The scattering transform: its filters, a slow computation of the same features, and what makes such features useful."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import convolve2d
from torch import Tensor

from twinproof.layers import scattering
from twinproof.layers.scattering import DIRECTIONS, MAPS, SMOOTHING, Scattering, bell, wavelets

Array = NDArray[np.float64]
GRID = 64


def _layer(height: int = 28, width: int = 28) -> Scattering:
    return Scattering(height, width).double()


def _images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand((rows, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _unscaled(layer: Scattering, images: Tensor) -> Tensor:
    features: Tensor = layer(images) / layer.scale
    return features


def _slowly(image: Array) -> Array:
    """The features of one map by the definition, in numpy: convolve everywhere, take moduli, smooth, keep every fourth."""

    def moduli(values: Array, scale: int) -> list[Array]:
        waves = [convolve2d(values, kernel, mode="same") for kernel in wavelets(scale)]
        return [np.sqrt(np.abs(wave) ** 2 + SMOOTHING**2) for wave in waves]

    def smoothed(values: Array, step: int) -> Array:
        line = bell(2, step=step)
        return np.asarray(convolve2d(values, np.outer(line, line), mode="same")[:: 4 // step, :: 4 // step])

    fine = moduli(image, 0)
    coarse = [value[::2, ::2] for source in (image, *fine) for value in moduli(source, 1)]
    return np.stack([smoothed(value, 1) for value in (image, *fine)] + [smoothed(value, 2) for value in coarse])


@pytest.mark.parametrize("scale", [0, 1])
def test_wavelets_are_waves_of_their_direction_and_length(scale: int) -> None:
    kernels = wavelets(scale)
    size = 2 * 4 * 2**scale + 1
    assert kernels.shape == (DIRECTIONS, size, size)
    assert np.abs(kernels.sum(axis=(1, 2))).max() < 1e-15, "a constant image has no waves"
    np.testing.assert_allclose(kernels[:, ::-1, ::-1], kernels.conj(), atol=1e-15)
    np.testing.assert_allclose(np.rot90(kernels[0], -1), kernels[DIRECTIONS // 2], atol=1e-15)
    for direction, kernel in enumerate(kernels):
        spectrum = np.abs(np.fft.fft2(kernel, s=(GRID, GRID)))
        down, across = np.unravel_index(spectrum.argmax(), spectrum.shape)
        peak = np.array([down, across]) * 2 * math.pi / GRID
        peak = (peak + math.pi) % (2 * math.pi) - math.pi
        angle, length = math.pi * direction / DIRECTIONS, 3 * math.pi / 4 / 2**scale
        # Where the filter is cut at pi its mirror image is as good; the grid and the zero sum move the peak a little.
        assert min(np.abs(sign * peak - length * np.array([math.sin(angle), math.cos(angle)])).max() for sign in (1, -1)) < 0.25


@pytest.mark.parametrize("step", [1, 2])
def test_the_low_pass_filter_keeps_constants(step: int) -> None:
    assert bell(2, step=step).sum() == pytest.approx(1, abs=1e-15)
    np.testing.assert_array_equal(bell(2, step=step), bell(2, step=step)[::-1])


def test_eighty_one_maps_of_seven_by_seven() -> None:
    assert MAPS == 81
    assert _layer()(_images(2, 1, 28, 28)).shape == (2, 81, 7, 7)
    assert _layer(32, 32)(_images(1, 3, 32, 32)).shape == (1, 243, 8, 8)


@pytest.mark.parametrize("shape", [(28, 28), (32, 24), (9, 14)])
def test_the_features_are_those_of_the_definition(shape: tuple[int, int]) -> None:
    layer, images = _layer(*shape), _images(1, 2, *shape) - 0.3
    found = _unscaled(layer, images.transpose(0, 1)).numpy()
    for got, image in zip(found, images[0].numpy(), strict=True):
        wanted = _slowly(image)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, atol=2e-8)  # the filters are kept in float32
        assert np.abs(got - _slowly(image.T).transpose(0, 2, 1)).max() > 1e-3, "the comparison sees turned directions"


def test_channels_are_transformed_one_by_one() -> None:
    layer, images = _layer(), _images(2, 3, 28, 28)
    together = layer(images)
    for channel in range(3):
        alone = layer(images[:, channel : channel + 1])
        torch.testing.assert_close(together[:, 81 * channel : 81 * (channel + 1)], alone, rtol=0, atol=1e-12)


def test_a_batch_that_is_cut_has_the_same_features(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, images = _layer(16, 16), _images(5, 3, 16, 16)
    whole = layer(images)
    monkeypatch.setattr(scattering, "_IMAGES_AT_ONCE", 4)
    torch.testing.assert_close(layer(images), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("columns", [4, -8])
def test_an_image_that_moves_moves_its_features(rows: int, columns: int) -> None:
    """By the stride, exactly; and by less than the stride, features hardly change, where pixels change a lot."""
    layer, image = _layer(64, 64), torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    image[..., 26:38, 26:38] = _images(1, 1, 12, 12)
    features = _unscaled(layer, image)
    moved = _unscaled(layer, image.roll((rows, columns), (2, 3)))
    inner = slice(5, 10)  # near the border, zeros around the image cut the answer of the empty background
    wanted = features.roll((rows // 4, columns // 4), (2, 3))[..., inner, inner]
    torch.testing.assert_close(moved[..., inner, inner], wanted, rtol=0, atol=1e-12)
    off_grid = _unscaled(layer, image.roll((rows + 2, columns), (2, 3)))[..., inner, inner]
    assert float((off_grid - wanted).abs().max()) > 1e-3, "the check sees a shift that is not the stride's"
    little = _unscaled(layer, image.roll(1, 3))
    change = float((little - features).norm() / features.norm())
    assert change < 0.5 * float((image.roll(1, 3) - image).norm() / image.norm())


def _littlewood_paley(kernels: list[NDArray[np.complex128]], low: Array) -> Array:
    def power(kernel: NDArray[np.complex128] | Array) -> Array:
        return np.asarray(np.abs(np.fft.fft2(kernel, s=(GRID, GRID))) ** 2)

    waves = [(power(kernel) + power(kernel.conj())) / 2 for stack in kernels for kernel in stack]
    return np.asarray(power(np.outer(low, low)) + sum(waves))


def test_the_filters_share_out_the_energy_and_add_none() -> None:
    total = _littlewood_paley([wavelets(0), wavelets(1)], bell(2))
    assert total.max() <= 1 + 1e-12
    assert total[0, 0] == pytest.approx(1, abs=1e-12)
    assert total.min() > 0.1, "no frequency is lost but at the corners"
    assert _littlewood_paley([1.3 * wavelets(0), wavelets(1)], bell(2)).max() > 1.05, "the check sees larger filters"


NEIGHBOURS: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": lambda image: image + torch.randn(image.shape, generator=torch.Generator().manual_seed(1), dtype=image.dtype),
    "empty": torch.zeros_like,
    "brighter": lambda image: image + 3,
    "one pixel": lambda image: image + torch.eye(28 * 28, dtype=image.dtype)[400].view(28, 28),
    "stripes": lambda image: image + torch.cos(torch.arange(28, dtype=image.dtype) * 3 * math.pi / 4),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_features_are_no_further_apart_than_images(name: str) -> None:
    layer, image = _layer(), _images(4, 1, 28, 28, seed=5)
    other = NEIGHBOURS[name](image)
    distances = (_unscaled(layer, image) - _unscaled(layer, other)).flatten(1).norm(dim=1)
    assert bool((distances <= (image - other).flatten(1).norm(dim=1) * (1 + 1e-6)).all())
    assert float(distances.min()) > 0


def test_white_noise_is_of_one_size_in_all_maps() -> None:
    """What the constants are for; from the filters alone they are right to a fifth. A wrong one is off by far more."""
    noise = torch.randn((300, 1, 28, 28), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        features = Scattering(28, 28)(noise)[:, :, 2:5, 2:5]  # away from the zeros around the image
    assert float(features[:, 0].std()) == pytest.approx(1, abs=0.1)
    means = features[:, 1:].mean((0, 2, 3))
    assert float((means - 1).abs().max()) < 0.2, means
    plain = Scattering(28, 28)
    plain.scale.fill_(1.0)
    with torch.inference_mode():
        unscaled = plain(noise[:20])[:, 1:, 2:5, 2:5].mean((0, 2, 3))
    assert float(unscaled.max() / unscaled.min()) > 5, "without them the sizes differ widely"


def test_nothing_is_trained_and_everything_is_stored() -> None:
    layer = Scattering(28, 28)
    assert not list(layer.parameters())
    assert set(layer.state_dict()) == {name for name, _ in layer.named_buffers()}
    other = Scattering(28, 28)
    for value in other.buffers():
        value.zero_()
    other.load_state_dict(layer.state_dict())
    images = _images(1, 1, 28, 28).float()
    assert torch.equal(layer(images), other(images))


def test_an_empty_image_has_a_gradient() -> None:
    """The modulus alone has none at zero, and most of a digit's image is zero."""
    image = torch.zeros(1, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(Scattering(28, 28)(image).sum(), image)
    assert bool(torch.isfinite(gradient).all())
    waves = torch.zeros(2, requires_grad=True)
    (plain,) = torch.autograd.grad((waves**2).sum().sqrt(), waves)
    assert bool(plain.isnan().any()), "which a plain modulus would not have"
