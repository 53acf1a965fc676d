"""Noise at two places as a ``NoiseSite``: one draw holds the noise of the input and, behind it, that of the first layer."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from twinproof.certification.bounds.bound import Charge
from twinproof.certification.frozen_layer import FrozenLayer
from twinproof.certification.grid_noise import joint_noise
from twinproof.certification.layer_norm_bound import NormBound
from twinproof.certification.noise_site import NoiseSite
from twinproof.certification.short_numbers import few_digits_above
from twinproof.certification.taken_apart import refuse_hidden_work
from twinproof.certification.two_noises.noisy_layer import NoisyLayer
from twinproof.certification.two_noises.rates import Rates, rates
from twinproof.certification.two_noises.sensitivities import incoming_sums
from twinproof.certification.unwhitened import Unwhitened
from twinproof.certification.whitened_layer import refuse_zeros
from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise import BOTH_PLACES, Law, NoiseSplit, TwoNoisesSplit
from twinproof.layers.noise.fixed_draws import stated_over_drawn
from twinproof.privacy.sensitivity.layer_map import layer_map

# Products and quotients of scales are each right to 2^-53 of their value; far below this share.
_ROUNDED_UP = 1 + 2.0**-40


class TwoNoisesSite(NoiseSite):
    """Laplace noise of ``input_scale`` on the input and of ``split.noise.deviation`` behind the first layer, as drawn.

    Points are stored levels followed by zeros, to which the noise of the layer is added: it reaches the layer inside
    ``network``, whose first module computes the layer for every noisy input (``NoisyLayer``). ``noise.sigma`` is the scale at
    the input, in input units, as are ``slack`` and all norms here.

    Guarantees
        Those of ``NoiseSite``, with "how far points are apart" read as sigma * N(a) of ``rates``: what a change costs where
        both noises are drawn anew for every row. Proof: shift the noise of the input by a1, on the grid, and the layer's by the
        difference of its whole numbers, which is exact; by ``NoisyLayer`` that is at most |S^-1 W a2|_1 in units of its step,
        plus ``slack``. A change that is left to the input's noise alone needs no rounding: ``slackless_norm``. By the same
        reason the published composition, which charges more than that, is paid without slack. None of this holds for
        ``Charge.CLAIMED``, what StoBatch says of noise that is ``stated`` to be larger than it is: refuted, to compare.
    """

    place = BOTH_PLACES
    own_noise = True

    def __init__(
        self, split: NoiseSplit, input_scale: float, input_shape: tuple[int, ...], levels: int, stated: float = 1.0
    ) -> None:
        self.levels, self._stated = levels, stated
        self._frozen = frozen = FrozenLayer(split, input_shape)
        matrix = layer_map(frozen.layer, frozen.shape, frozen.scales)
        sums = incoming_sums(frozen.layer, frozen.shape, frozen.scales)
        refuse_zeros(frozen.layer, sums)
        self.noise = joint_noise(input_scale, levels, matrix.outputs)
        self._hidden_scale, self._inputs, self._outputs = float(split.noise.deviation), matrix.inputs, matrix.outputs
        step = self.noise.grid / levels
        furthest = 1 + (self.noise.table.reach + 1) * step
        error = 2 * matrix.error * float(sums.sum()) * furthest * self.noise.sigma / self._hidden_scale
        self.slack = few_digits_above(_ROUNDED_UP * (matrix.outputs * step + error))
        self._rates: dict[str, Rates] = {}
        shape, device = split.noise.shape, split.noise.deviation.device
        self.network = nn.Sequential(
            NoisyLayer(matrix, self.noise, self._hidden_scale, shape, device),
            Unwhitened(shape, frozen.scales, frozen.bias, dtype=frozen.dtype, device=device),
            *split.after,
        )

    def points(self, stored: Tensor) -> Tensor:
        """Stored levels, and a zero for each output of the layer."""
        self._frozen.check_shape(tuple(stored.shape[1:]))
        self._frozen.refuse_changes()
        return nn.functional.pad(stored.flatten(1), (0, self._outputs))

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the input and those of the layer."""
        return self._inputs + self._outputs

    def rates(self, norm: str) -> Rates:
        """Epsilon per unit of ``norm``; found once, since an operator norm is part of it."""
        if norm not in self._rates:
            frozen, sigma = self._frozen, self.noise.sigma
            self._rates[norm] = rates(frozen.layer, frozen.shape, norm, sigma, self._hidden_scale, frozen.scales)
        return self._rates[norm]

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """sigma times the single-pass rate; ``composed``: times that of the composition; ``claimed``: as if it were larger."""
        self._frozen.check_shape(shape)
        found = self.rates(norm)
        if charge is Charge.CLAIMED:
            method = f"paper: composition, noise stated as {self._stated:g} times what is drawn"
            return NormBound(self._of_rate(found.composed / self._stated), method)
        if charge is Charge.COMPOSED:
            return NormBound(self._of_rate(found.composed), "composition of input and first layer")
        names = ((found.split, "split"), (found.hidden, "first layer"), (found.input, "input"))
        rate, name = min(names)
        return NormBound(self._of_rate(rate), f"single pass: {name}")

    def slackless_norm(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> float:
        """That of the input's noise alone, or that of a charge for both, which is the same with slack and without."""
        if charge is Charge.PROVEN:
            return self._of_rate(self.rates(norm).input)
        return self.norm_bound(shape, norm, charge).value

    def _of_rate(self, rate: float) -> float:
        return few_digits_above(_ROUNDED_UP * self.noise.sigma * rate)


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
        if noise.law is not Law.LAPLACE or noise.spread.random or not float(noise.deviation) > 0:
            raise ModelError(
                "two noises are certified together where both are Laplace's",
                where=name,
                got=f"{noise.law}, deviation {float(noise.deviation)}, scales drawn at random: {noise.spread.random}",
                wanted="laplace, a deviation above 0, scales that are fixed",
                fix="leave one of the noise layers out, or give both the law laplace",
            )
    if not bool(np.all(two.input_noise.spread.least_scales() == 1)):
        raise ModelError(
            "unequal noise on the input cannot be certified beside noise behind the first layer",
            where="input_noise",
            got="scales that differ",
            wanted="equal noise on the input",
        )
    shape = input_shape or two.input_noise.shape
    return TwoNoisesSite(two.hidden, float(two.input_noise.deviation), shape, levels, stated_over_drawn(two))
