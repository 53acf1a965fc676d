"""What must hold of a network with a noise layer before its noise is taken out of it.

Its first modules are not called: a product in float64 and exact noise stand for them. So they must do what their types say, and
nothing else, or the certificate would be about another network.
"""

from __future__ import annotations

import torch
from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.noise import NoiseLayer, NoiseSplit, Spread


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
