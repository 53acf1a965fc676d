"""The penultimate layer: a network seen as features and the linear classifier behind them."""

from __future__ import annotations

from torch import nn

from twinproof.errors import ModelError


def penultimate(model: nn.Module) -> nn.Sequential:
    """All of a Sequential but its last linear layer: what it gives is what that layer is given.

    Guarantees
        The modules are the network's own, in their order, and the network is not changed. A network that does not end with
        a linear layer, or hides its layers, is refused.
    """
    modules = _layers(model)
    if not modules or not isinstance(modules[-1], nn.Linear):
        raise ModelError(
            "the penultimate layer cannot be found",
            where=type(model).__name__,
            got=f"a network that ends with {type(modules[-1]).__name__}" if modules else "a network that is no Sequential",
            wanted="a Sequential whose last module is a Linear layer",
            fix="write the network as a Sequential, or measure the logits only",
        )
    features = nn.Sequential(*modules[:-1])
    features.training = model.training  # not train(), which would overrule the modules' own modes
    return features


def _layers(model: nn.Module) -> list[nn.Module]:
    """The modules in the order in which they run, Sequentials within it opened up; none where that is not known."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return []
    opened: list[nn.Module] = []
    for module in model:
        opened += _layers(module) or [module]
    return opened
