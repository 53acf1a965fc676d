"""AdLM's gradients as its paper has them: noise drawn once, on the first layer and on the coefficients of the output layer.

Never a promise. What the paper perturbs once, before training, is read again at every step under the same draw, and the
features that it multiplies are functions of weights that saw the records: see ``REFUTATION``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.compute.devices import seed_generator
from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.noise import NoiseLayer, laplace_from_uniform, silenced
from twinproof.layers.noise_placement import split_at_noise
from twinproof.recipes.config import ResolvedConfig
from twinproof.training.sources import GradientSource

REFUTATION = (
    "one draw of noise serves all steps, each of which reads the records again: differences of steps are free of it, and the "
    "gradients of all layers but the last get none; and relevance from the training records is released as it is, "
    "so that two data sets that differ in one record are told apart with certainty"
)
# The paper has three parts of its budget, for relevance, first layer and output layer; here they are equal.
_OUTPUT_SHARE = 1 / 3


def paper_output_sensitivity(classes: int, features: int) -> float:
    """Delta_F = M (|h| + |h|^2 / 4), for M classes and features in [-1, 1].

    True of all coefficients of one second-order objective, for one record replaced: twice K (A/2 + A^2/8) with A = |h|
    (``polynomial_sensitivity``). It forgets that every step is another objective: its features come from other weights.
    """
    return classes * (features + features**2 / 4)


class OneDraw(GradientSource):
    """Plain gradients of the noisy objective: what ``source`` finds, without fresh noise, plus that of the coefficients' noise.

    The first layer's noise is the same for every record and step, which is a constant on its outputs: it is put into the bias
    before the first step, and stays with the model. The output layer's objective gets sum_k n_k' w_k with entries of scale
    Delta_F / (epsilon_3 batch), drawn once; only linear coefficients get noise, since noise on the quadratic ones leaves an
    objective without a minimum, so that what is compared here is better than what was printed.
    """

    def __init__(self, settings: ResolvedConfig, source: GradientSource, model: nn.Module, key: Key) -> None:
        self._source, self._model, self._key = source, model, key
        self._bias, self._noise, self._name, last = parts_for_noise(model)
        epsilon = 0.0 if settings.epsilon is None else settings.epsilon * _OUTPUT_SHARE
        checks.positive(epsilon=epsilon)
        scale = paper_output_sensitivity(*last.weight.shape) / (epsilon * settings.batch_size)
        self._slope = scale * self._draw("printed: output layer", tuple(last.weight.shape)).to(last.weight)

    def gradient(self, step: int) -> dict[str, Tensor]:
        if step == 0:
            self._disturb()
        with silenced(self._model):
            found = self._source.gradient(step)
        self.last = self._source.last
        return {name: value + self._slope if name == self._name else value for name, value in found.items()}

    def _disturb(self) -> None:
        """Adds one draw of the first layer's noise to its bias: one number for each map of a convolution, of its mean scale."""
        with torch.no_grad():
            scales = (self._noise.deviation * self._noise.spread.least()).view(len(self._bias), -1).mean(dim=1)
            self._bias += (scales * self._draw("printed: first layer", tuple(scales.shape)).to(scales)).to(self._bias)

    def _draw(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator()
        seed_generator(generator, self._key, purpose)
        return laplace_from_uniform(torch.rand(shape, generator=generator))


def parts_for_noise(model: nn.Module) -> tuple[Tensor, NoiseLayer, str, nn.Linear]:
    """The first layer's bias and its noise, the name of the output layer's weights, and that layer; refuses what lacks one."""
    split, named = split_at_noise(model), list(model.named_children())
    name, last = named[-1] if named else ("", model)
    bias = None if split is None or split.before is None else split.before.bias
    if split is None or bias is None or type(last) is not nn.Linear:
        raise ModelError(
            "noise that is drawn once, and noise on an output layer's coefficients, have no place in this network",
            where="network",
            got=f"{'no' if bias is None else 'a'} bias of the first layer before its noise, and {last} at the end",
            wanted="a Sequential whose first layer has a bias, with noise behind it, and which ends in Linear",
            fix="choose another model (mlp, small-cnn), or the sound variant",
        )
    return bias, split.noise, f"{name}.weight", last
