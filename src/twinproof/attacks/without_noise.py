"""A network without its noise layer, for attacks that must not or need not see the noise."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from twinproof.layers.noise import NoiseLayer, split_at_noise, split_at_two_noises


def without_noise(network: nn.Module) -> nn.Module:
    """``network`` as the papers attack it: the same modules without the noise layers, or itself where it has none.

    Guarantees
        The scores are those of the network with its noise layer silenced, for the weights that it has when it is asked: the
        modules are shared, under their own names. The network itself is not changed. A new Sequential, and not a block in
        which the layer is silent, so that a GPU can record its passes.
    """
    if split_at_two_noises(network) is None and split_at_noise(network) is None:
        return network
    # Not named_children(), which leaves out a module that is used twice; split_at_noise has made sure of the Sequential.
    kept = OrderedDict((name, module) for name, module in network._modules.items() if not isinstance(module, NoiseLayer))
    made = nn.Sequential(kept)  # type: ignore[arg-type]
    made.training = network.training  # not train(), which would overrule the modules' own modes
    return made
