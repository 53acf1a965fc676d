"""Where the noise enters a network, what comes before and after it, and how far the input moves it.

Noise sigma * S * xi on h = W x + b is noise sigma * xi on u = S^-1 W x: the network goes on with S (u + noise) + b, which is
post-processing. u is a float64 product, rounded to the grid of the noise, so that u + noise is exact and what follows sees a
function of a continuous shift (docs/decisions/0011-noise-after-the-first-layer.md). The price is ``slack``.

Its first modules are not called: a product in float64 and exact noise stand for them. So they must do what their types say, and
nothing else, or the certificate would be about another network.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.bounds import Charge
from twinproof.certification.confidence import few_digits_above
from twinproof.certification.grid_noise import GridNoise, RemainingNoise, layer_noise
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.noise import Law, NoiseLayer, Place, Spread
from twinproof.layers.noise_placement import NoiseSplit
from twinproof.privacy.linear_maps import Norm, layer_map
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.paper_formulas import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map

# Sums, roots and products that make up the slack are each right to 2^-53 of their value; far below this share.
_ROUNDED_UP = 1 + 2.0**-40


class WhitenedLayer:
    """u = S^-1 W x for inputs x in [0, 1] of ``levels`` stored levels, on the grid of the noise of deviation ``sigma``.

    ``shape`` is that of one input as ``layer`` gets it, ``scales`` the diagonal of S.

    Guarantees
        ``points`` is a fixed function of the stored input, whatever stands beside it. For two inputs x and x' its values are at
        most |A (x - x')| + ``slack`` apart, A = S^-1 W, in l2 (Gaussian) or l1 (Laplace). Proof: A is applied as the matrix
        whose norm is bounded, in float64; by the usual model of its arithmetic (``sensitivity.float_error``) a coordinate errs
        by at most a share ``error`` of sum_j |A_kj|, since 0 <= x <= 1. Rounding to the grid moves a coordinate by half a
        step. Twice the sum of both, for two inputs: sqrt(K) steps in l2 or K steps in l1, and 2 * error times that norm of the
        row sums.
    """

    def __init__(
        self, layer: nn.Module, shape: tuple[int, ...], scales: NDArray[np.float64], law: Law, sigma: float, levels: int
    ) -> None:
        self._matrix, self._levels = layer_map(layer, shape, scales), levels
        ones = np.ones((self._matrix.inputs, 1))
        rows = np.ldexp(self._matrix.absolute().apply(ones)[:, 0], self._matrix.exponent) * (1 + self._matrix.error)
        refuse_zeros(layer, rows)
        self.noise: GridNoise = layer_noise(sigma, law, self._matrix.outputs, float(rows.max()))
        whole, root = float(self._matrix.outputs), math.sqrt(self._matrix.outputs)
        steps, error = (root, np.linalg.norm(rows)) if law is Law.GAUSSIAN else (whole, rows.sum())
        self.slack = few_digits_above(_ROUNDED_UP * (steps * self.noise.grid + 2 * self._matrix.error * float(error)))

    @property
    def dimension(self) -> int:
        """Coordinates that get noise."""
        return self._matrix.outputs

    def points(self, stored: Tensor) -> Tensor:
        """(inputs, dimension) float32 multiples of the grid, on the device of ``stored``, which holds levels."""
        inputs = stored.reshape(len(stored), self._matrix.inputs).cpu().double().numpy() / self._levels
        made = np.empty((len(inputs), self.dimension), dtype=np.float32)
        # One by one: a product of matrices may sum in another order for another number of inputs.
        for place, one in enumerate(inputs):
            answers = np.ldexp(self._matrix.apply(one[:, None])[:, 0], self._matrix.exponent)
            made[place] = np.rint(answers / self.noise.grid) * self.noise.grid
        if made.size and not float(np.abs(made).max()) <= self.noise.largest:
            raise ModelError(
                "the layer before the noise is larger than its weights allow",
                where="certify",
                got=float(np.abs(made).max()),
                wanted=f"at most {self.noise.largest}, for inputs in [0, 1]",
            )
        return torch.from_numpy(made).to(stored.device)


def refuse_zeros(layer: nn.Module, sums: NDArray[np.float64]) -> None:
    """Refuses a layer whose weights, added up in ``sums`` of magnitudes, are all zero: no radius can be read off it."""
    if not sums.any():
        raise ModelError(
            "the layer before the noise ignores its input",
            where=type(layer).__name__,
            got="weights that are all zero",
            wanted="a layer that depends on its input",
            fix="train the network first",
        )


class Unwhitened(nn.Module):
    """S v + b: rows v of the whitened layer times the scales S, plus the layer's bias b; numbers of ``dtype``.

    ``shape`` is the layer's, ``bias`` one number for each of its channels (or features), or None.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        scales: NDArray[np.float64],
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        uniform = bool((scales == 1).all())
        given = torch.ones(()) if uniform else torch.from_numpy(scales).view(shape)
        self.register_buffer("scales", given.to(device, dtype))
        channels = torch.zeros(1) if bias is None else bias.detach().clone()
        self.register_buffer("bias", channels.view(-1, *[1] * (len(shape) - 1)).to(device, dtype))
        self.scales: Tensor
        self.bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(rows, *shape)."""
        return torch.addcmul(self.bias, x.to(self.bias.dtype), self.scales)


class FrozenLayer:
    """A copy of the linear layer before the noise (at the input: one that multiplies by one), and the scales of the noise.

    ``layer`` gets inputs of ``shape``; ``scales`` are the least ones that are drawn, ``bias`` and ``dtype`` those of the layer.
    """

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...]) -> None:
        self._split, self.input_shape = split, input_shape
        self._convolves = split.before is not None and not isinstance(split.before, nn.Linear)
        self.layer, self.shape = _layer_of(split, input_shape)
        self.scales = split.noise.spread.least_scales()
        self.dtype = torch.float32 if split.before is None else split.before.weight.dtype
        self.bias = None if split.before is None else split.before.bias

    def refuse_changes(self) -> None:
        """A first layer of before a training step with what follows it of after it would be a network that nobody has."""
        before = self._split.before
        same = np.array_equal(self._split.noise.spread.least_scales(), self.scales)
        if before is not None:
            pairs = zip(before.parameters(), self.layer.parameters(), strict=True)
            same = same and all(torch.equal(now.detach().to(then), then) for now, then in pairs)
        if not same:
            raise ModelError(
                "the network was changed after it was smoothed",
                where="certify",
                got="other weights before the noise, or other scales of it",
                wanted="those of the moment at which its layer was bounded",
                fix="smooth the network again",
            )

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuses inputs of another shape than the one that the layer was bounded for."""
        same = shape == self.input_shape if self._convolves else math.prod(shape) == math.prod(self.shape)
        if not same:
            raise DataError(
                "the inputs do not have the shape that the first layer was bounded for",
                where="certify",
                got=shape,
                wanted=str(self.input_shape if self._convolves else self.shape),
            )


def _layer_of(split: NoiseSplit, input_shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    """The linear layer before the noise, a copy of its own, and the shape of what goes into it."""
    if split.before is None:
        # Every coordinate by itself: a convolution with a kernel of one, whose only weight is 1.
        identity = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(identity.weight)
        return identity, (1, math.prod(split.noise.shape))
    layer = copy.deepcopy(split.before)
    if isinstance(layer, nn.Linear):
        return layer, (layer.in_features,)
    if not input_shape:
        raise ConfigError(
            "the norm of a convolution depends on the size of the images",
            where="input_shape",
            got="nothing",
            wanted="the shape of one input, e.g. (1, 28, 28)",
        )
    return layer, input_shape


def refuse_hidden_work(model: nn.Module, split: NoiseSplit) -> None:
    """Refuses whatever ``model`` does around its noise that its ``split`` does not show.

    Guarantees
        Left out without a word is nothing: no hook or replaced ``forward`` on the container, a leading Flatten, the noise or
        its spread; no noise layer of a class of its own; no spread that is not random and multiplies by other scales than
        those that are certified. The first layer is looked at where its norm is bounded (``checked_layer``).
    """
    for module in (model, *_flatten(model, split), split.noise, split.noise.spread):
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            raise ModelError(
                "a hook would be left out of what is certified",
                where=type(module).__name__,
                got="a forward hook, or a replaced forward",
                wanted="a network whose noise can be taken out of it",
                fix="remove the hook while certifying",
            )
    if type(split.noise) is not NoiseLayer:
        raise ModelError(
            "a noise layer of another class may add other noise",
            where=type(split.noise).__name__,
            got="a subclass of NoiseLayer",
            wanted="NoiseLayer itself, whose noise is known",
            fix="write a Spread for other scales",
        )
    if not split.noise.spread.random and not _multiplies_by_its_least(split.noise.spread):
        raise ModelError(
            "the noise has other scales than those that would be certified",
            where=type(split.noise.spread).__name__,
            got="a spread that is not random, with a forward that does not multiply by least()",
            wanted="both from one function of the same tensors",
        )


def front_of(model: nn.Module, split: NoiseSplit) -> tuple[nn.Module, ...]:
    """The modules of ``model`` that are not called when votes are counted: a leading Flatten, the first layer, the noise."""
    return (*_flatten(model, split), *(() if split.before is None else (split.before,)), split.noise)


def _flatten(model: nn.Module, split: NoiseSplit) -> tuple[nn.Module, ...]:
    return (next(iter(model.children())),) if split.flattens else ()


def _multiplies_by_its_least(spread: Spread) -> bool:
    with torch.no_grad():
        least = spread.least()
        scales = spread(torch.ones((1, *spread.shape), dtype=least.dtype, device=least.device))
        # Numbers that are not numbers are equal here: that they are no scales is for the bound of the layer to say.
        return bool(torch.allclose(scales.reshape(-1), least.to(scales.dtype), rtol=0, atol=0, equal_nan=True))


# The norm in which each law's noise hides a shift.
TARGETS = {Law.GAUSSIAN: Norm.L2, Law.LAPLACE: Norm.L1}


@dataclass(frozen=True)
class NormBound:
    """A bound on an operator norm, and where it comes from."""

    value: float
    method: str


def identity_norm(law: Law, norm: str, dimension: int) -> NormBound:
    """The norm of the identity on ``dimension`` coordinates, from ``norm`` to the law's own; rounded up."""
    powers = (
        {Norm.L1: 0.0, Norm.L2: 0.0, Norm.LINF: 0.5} if law is Law.GAUSSIAN else {Norm.L1: 0.0, Norm.L2: 0.5, Norm.LINF: 1.0}
    )
    power = powers[Norm(norm)]
    value = math.nextafter(math.sqrt(dimension), math.inf) if power == 0.5 else float(dimension) ** power
    return NormBound(value, "identity")


def layer_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> NormBound:
    """The norm of ``layer`` with its outputs divided by ``scale``: never below the truth (``operator_norm``); ten digits."""
    bound = operator_norm(layer, shape, source=norm, target=TARGETS[law], scale=scale)
    return NormBound(few_digits_above(bound.value), bound.method)


def papers_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: NDArray[np.float64]) -> NormBound:
    """What the papers put in its place, where they have something of their own: for bounds that are published, not proven."""
    convolution = not isinstance(layer, nn.Linear)
    if law is Law.GAUSSIAN and norm == Norm.LINF and convolution:
        return NormBound(paper_single_feature_map(layer, shape, scale), "paper: single feature map")
    if law is Law.GAUSSIAN and norm == Norm.LINF:
        return NormBound(paper_row_norm(layer, shape, scale), "paper: largest row")
    if law is Law.GAUSSIAN and norm == Norm.L2 and convolution and bool((scale == 1).all()):
        return NormBound(paper_reshaped_kernel(layer), "paper: reshaped kernel")
    return layer_norm(layer, shape, law, norm, scale)


class NoiseSite(ABC):
    """``network`` maps rows of points plus noise to outputs; ``levels`` are those of the inputs.

    Guarantees
        ``points`` is a fixed function of a stored input with values on the grid of ``noise``. For two inputs at a distance r in
        a norm, their points (in units of ``noise.sigma``) are at most ``norm_bound(norm).value * r + slack`` apart, in l2 for
        Gaussian and in l1 for Laplace noise.
    """

    place: str
    levels: int
    noise: GridNoise
    network: nn.Module
    own_noise: bool
    slack: float

    @abstractmethod
    def points(self, stored: Tensor) -> Tensor:
        """What the noise is added to, for inputs in stored levels (float32)."""

    @abstractmethod
    def dimension(self, shape: tuple[int, ...]) -> int:
        """How many coordinates get noise, for inputs of ``shape``."""

    @abstractmethod
    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """How far the points of inputs of ``shape`` move for one unit of ``norm``; ``claimed``: what the papers say."""

    def slackless_norm(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> float | None:
        """A norm, not below that of ``norm_bound``, which holds without ``slack``; None where there is none to prefer."""
        return None


class InputSite(NoiseSite):
    """Equal noise on the input itself: points are stored levels, and nothing is rounded."""

    place = Place.INPUT
    slack = 0.0

    def __init__(self, network: nn.Module, noise: GridNoise, *, own_noise: bool) -> None:
        self.network, self.noise, self.own_noise, self.levels = network, noise, own_noise, noise.levels

    def points(self, stored: Tensor) -> Tensor:
        """The stored levels."""
        return stored

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the input."""
        return math.prod(shape)

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """That of the identity, which the papers do not claim to be anything else."""
        return identity_norm(self.noise.law, norm, self.dimension(shape))


class LayerSite(NoiseSite):
    """Noise behind the first layer, or unequal noise on the input: a layer that multiplies by one.

    The layer's weights are taken as they are now, and ``points`` are refused once the network has others: the modules behind
    the noise are the network's own. What is drawn beyond the least scales of a random spread is part of the network.
    """

    own_noise = True

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...], sigma: float, levels: int) -> None:
        noise = split.noise
        self.place, self.levels = split.place, levels
        self._frozen = frozen = FrozenLayer(split, input_shape)
        self._whitened = WhitenedLayer(frozen.layer, frozen.shape, frozen.scales, noise.law, sigma, levels)
        self.noise, self.slack, self._layer_shape = self._whitened.noise, self._whitened.slack, noise.shape
        self._norms: dict[tuple[str, bool], NormBound] = {}
        parts: list[nn.Module] = [
            Unwhitened(noise.shape, frozen.scales, frozen.bias, dtype=frozen.dtype, device=noise.deviation.device),
            *([RemainingNoise(noise.law, sigma, noise.spread)] if noise.spread.random else []),
            *split.after,
        ]
        self.network = nn.Sequential(*parts)

    def points(self, stored: Tensor) -> Tensor:
        """The whitened layer on the grid, in the shape of the layer."""
        self._frozen.check_shape(tuple(stored.shape[1:]))
        self._frozen.refuse_changes()
        return self._whitened.points(stored).view(len(stored), *self._layer_shape)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the layer."""
        return self._whitened.dimension

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """The operator norm of the whitened layer, where one noise alone is added; found once, since it can take seconds."""
        self._frozen.check_shape(shape)
        claimed = charge is Charge.CLAIMED
        if (norm, claimed) not in self._norms:
            bound = papers_norm if claimed else layer_norm
            frozen = self._frozen
            self._norms[norm, claimed] = bound(frozen.layer, frozen.shape, self.noise.law, norm, frozen.scales)
        return self._norms[norm, claimed]
