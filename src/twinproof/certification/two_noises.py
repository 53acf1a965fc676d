"""Noise at two places of one network as a ``NoiseSite``."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.certification.bounds import Charge
from twinproof.certification.confidence import few_digits_above
from twinproof.certification.grid_noise import GridNoise, joint_noise
from twinproof.certification.noise_site import (
    ROUNDED_UP,
    FirstLayerSite,
    Movement,
    NormBound,
    Unwhitened,
    identity_norm,
    refuse_hidden_work,
    refuse_zeros,
)
from twinproof.certification.two_noise_bounds import Rates, incoming_sums, joint_norm, rates
from twinproof.errors import ConfigError, ModelError
from twinproof.layers.fixed_draws import stated_over_drawn
from twinproof.layers.noise import Law, NoiseLayer
from twinproof.layers.noise_placement import BOTH_PLACES, NoiseSplit, TwoNoisesSplit
from twinproof.privacy.linear_maps import LinearMap, layer_map

# Numbers of patches cut out at a time.
_MOST_NUMBERS = {"cpu": 2**19, "cuda": 2**26}


class NoisyLayer(nn.Module):
    """Rows (w, n) of noisy inputs w and the layer's noise n, to the whitened layer with its noise.

    ``matrix`` is S^-1 W on inputs in [0, 1]; n has the scale ``noise.sigma`` and stands for noise of ``hidden_scale`` on
    outputs of ``shape``. Rows were divided by the number of levels in float32: which whole number of steps they were is read
    back (``joint_noise``).

    The answer is ``step`` times a sum of whole numbers that float64 holds exactly: those of n, and v(w), the whole numbers
    nearest to what float64 finds for A w / step, A = S^-1 W. What it finds errs, in whatever order it adds, by at most a share
    ``matrix.error`` of sum_j |A_kj| |w_j| / step in output k. So two noisy inputs w and w + a have v at most |A a|_1 / step
    apart in l1, plus one for each output, plus the sum over all outputs of both errors. Only sums of products are computed: a
    routine for convolutions may use transforms, for which that share would not do.
    """

    def __init__(
        self, matrix: LinearMap, noise: GridNoise, hidden_scale: float, shape: tuple[int, ...], device: torch.device
    ) -> None:
        super().__init__()
        self.inputs, self.levels, self.grid, self.shape = matrix.inputs, noise.levels, noise.grid, shape
        # One step of the grid, in units of the whitened layer.
        self.step = hidden_scale / noise.steps
        self._scale = 2.0**matrix.exponent / self.step
        for name in ("patches", "weights", "row_scale"):
            self.register_buffer(name, torch.from_numpy(getattr(matrix, name)).to(device))
        self.patches: Tensor
        self.weights: Tensor
        self.row_scale: Tensor

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, inputs + outputs) in input units to (rows, *shape) in units of the whitened layer, float64."""
        whole = rows.to(torch.float64, copy=True).mul_(self.levels / self.grid).round_()
        inputs, noise = whole[:, : self.inputs] * (self.grid / self.levels), whole[:, self.inputs :]
        piece = max(1, _MOST_NUMBERS["cuda" if rows.is_cuda else "cpu"] // self.patches.numel())
        layer = torch.cat([self._applied(inputs[first : first + piece]) for first in range(0, len(rows), piece)])
        # In place: this is most of what passes through memory for a row, and each pass counts.
        return layer.mul_(self._scale).round_().add_(noise).mul_(self.step).view(len(rows), *self.shape)

    def _applied(self, inputs: Tensor) -> Tensor:
        """(rows, outputs): the matrix without its power of two; padding sees a zero behind the last input."""
        seen = nn.functional.pad(inputs, (0, 1))[:, self.patches]
        return (self.weights @ seen).mul_(self.row_scale).flatten(1)


class TwoNoisesSite(FirstLayerSite):
    """Noise of one law, of ``input_scale`` on the input and of ``split.noise.deviation`` behind the first layer, as drawn.

    Points are stored levels followed by zeros, to which the noise of the layer is added: it reaches the layer inside
    ``network``, whose first module computes the layer for every noisy input (``NoisyLayer``). ``noise.sigma`` is the scale at
    the input, in input units, as are ``slack`` and all norms here.

    "How far points are apart" is for Laplace noise sigma * N(a) of ``rates``: what a change costs where both noises are drawn
    afresh for every row. Proof: shift the noise of the input by a1, on the grid, and the layer's by the difference of its whole
    numbers, which is exact; by ``NoisyLayer`` that is at most |S^-1 W a2|_1 in units of its step, plus ``slack``. A change that
    is left to the input's noise alone needs no rounding: ``slackless_norm``. So the composition, which charges more than that,
    is paid without slack. None of this holds for ``Charge.CLAIMED``, what StoBatch says of noise that is ``stated`` to be
    larger than it is: refuted, to compare.
    In l2, which is Gaussian noise's norm, it is sigma * |M a| of ``joint_norm``, for a split that M makes. To stay on the grid
    a1 is rounded to it: both parts move by at most half a step h in each coordinate, which costs at most h / 2 times
    sqrt(inputs / sigma^2 + |S^-1 |W| 1|^2 / ``hidden_scale``^2), and lengths of both parts together add up.
    """

    place = BOTH_PLACES

    def __init__(
        self, split: NoiseSplit, input_scale: float, input_shape: tuple[int, ...], levels: int, stated: float = 1.0
    ) -> None:
        super().__init__(split, input_shape, levels)
        matrix = layer_map(self.layer, self.layer_shape, self.scales)
        sums = incoming_sums(self.layer, self.layer_shape, self.scales)
        refuse_zeros(self.layer, sums)
        self.noise = joint_noise(input_scale, levels, matrix.outputs, split.noise.law)
        self._hidden_scale, self._inputs, self._outputs = float(split.noise.deviation), matrix.inputs, matrix.outputs
        step, ratio = self.noise.grid / levels, self.noise.sigma / self._hidden_scale
        error = 2 * matrix.error * (1 + (self.noise.table.reach + 1) * step) * ratio
        length = float(np.linalg.norm(sums))
        split_up = step / 2 * math.hypot(math.sqrt(self._inputs), ratio * length)
        self._slack_in_l2 = few_digits_above(ROUNDED_UP * (math.sqrt(self._outputs) * step + error * length + split_up))
        in_l1 = few_digits_above(ROUNDED_UP * (self._outputs * step + error * float(sums.sum())))
        self.slack = in_l1 if self.noise.law is Law.LAPLACE else self._slack_in_l2
        self._stated = stated
        self._in_l2: dict[str, NormBound] = {}
        self._rates: dict[str, Rates] = {}
        noisy = NoisyLayer(matrix, self.noise, self._hidden_scale, split.noise.shape, split.noise.deviation.device)
        self.network = nn.Sequential(noisy, Unwhitened(split, self.scales), *split.after)

    def points(self, stored: Tensor) -> Tensor:
        """Stored levels, and a zero for each output of the layer."""
        self.check_shape(tuple(stored.shape[1:]))
        return nn.functional.pad(stored.flatten(1), (0, self._outputs))

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the input and those of the layer."""
        return self._inputs + self._outputs

    def rates(self, norm: str) -> Rates:
        """Epsilon per unit of ``norm``; found once, since an operator norm is part of it."""
        if norm not in self._rates:
            sigma = self.noise.sigma
            self._rates[norm] = rates(self.layer, self.layer_shape, norm, sigma, self._hidden_scale, self.scales)
        return self._rates[norm]

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """sigma times the single-pass rate; ``composed``: times that of the composition; ``claimed``: as if it were larger."""
        self.check_shape(shape)
        if self.noise.law is Law.GAUSSIAN:
            if charge is not Charge.PROVEN:
                what = "no paper claims anything of two Gaussian noises in one pass"
                raise ConfigError(what, where="bound", got=str(charge), wanted="a bound that is proven")
            return self._joint_norm(norm)
        found = self.rates(norm)
        if charge is Charge.CLAIMED:
            rate = found.composed / self._stated
            method = f"paper: composition, noise stated as {self._stated:g} times what is drawn"
        elif charge is Charge.COMPOSED:
            rate, method = found.composed, "composition of input and first layer"
        else:
            rate, name = min((found.split, "split"), (found.hidden, "first layer"), (found.input, "input"))
            method = f"single pass: {name}"
        return NormBound(self._of_rate(rate), method)

    def slackless_norm(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> float:
        """That of the input's noise alone, or that of a charge for both, which is the same with slack and without."""
        if charge is Charge.PROVEN:
            return self._alone(self.noise.law, norm)
        return self.norm_bound(shape, norm, charge).value

    def in_l2(self, shape: tuple[int, ...], norm: str) -> Movement:
        """By both noises, or without slack by that of the input alone."""
        self.check_shape(shape)
        found = self._joint_norm(norm)
        return Movement(found.value, found.method, self._slack_in_l2, self._alone(Law.GAUSSIAN, norm))

    def _joint_norm(self, norm: str) -> NormBound:
        if norm not in self._in_l2:
            scales = (self.noise.sigma, self._hidden_scale, self.scales)
            found = joint_norm(self.layer, self.layer_shape, norm, *scales)
            self._in_l2[norm] = NormBound(self._of_rate(found.value), found.method)
        return self._in_l2[norm]

    def _alone(self, law: Law, norm: str) -> float:
        return few_digits_above(ROUNDED_UP * identity_norm(law, norm, self._inputs).value)

    def _of_rate(self, rate: float) -> float:
        return few_digits_above(ROUNDED_UP * self.noise.sigma * rate)


def two_noises_site(
    model: nn.Module, two: TwoNoisesSplit, sigma: float | None, input_shape: tuple[int, ...], levels: int
) -> TwoNoisesSite:
    """The site of a network that was made by ``add_two_noises``; what has no proof is refused."""
    refuse_hidden_work(model, NoiseSplit(None, False, two.input_noise, two.inner))
    refuse_hidden_work(two.inner, two.hidden)
    if sigma is not None and sigma != float(two.input_noise.deviation):
        raise ConfigError(
            "a network with two noises has two deviations",
            where="sigma",
            got=sigma,
            wanted="nothing, or the scale of its noise on the input",
            fix="set the deviations of its noise layers (NoiseLayer.set_deviation)",
        )
    for name, noise in (("input_noise", two.input_noise), ("noise", two.hidden.noise)):
        _refuse_other_laws(name, noise, two.hidden.noise.law)
    if not bool(np.all(two.input_noise.spread.least_scales() == 1)):
        raise ModelError(
            "unequal noise on the input cannot be certified beside noise behind the first layer",
            where="input_noise",
            got="scales that differ",
            wanted="equal noise on the input",
        )
    shape = input_shape or two.input_noise.shape
    return TwoNoisesSite(two.hidden, float(two.input_noise.deviation), shape, levels, stated_over_drawn(two))


def _refuse_other_laws(name: str, noise: NoiseLayer, law: Law) -> None:
    if noise.law is not law or noise.spread.random or not float(noise.deviation) > 0:
        raise ModelError(
            "two noises are certified together where both have one law",
            where=name,
            got=f"{noise.law}, deviation {float(noise.deviation)}, scales drawn at random: {noise.spread.random}",
            wanted=f"{law}, a deviation above 0, scales that are fixed",
            fix="leave one of the noise layers out, or give both one law",
        )
