"""Networks whose code is torch's or this package's own."""

from __future__ import annotations

from types import FunctionType, MethodType

from torch import nn

_KNOWN_ROOTS = ("torch.nn.", "twinproof.layers.")


def is_known(model: nn.Module) -> bool:
    """Whether torch or this package wrote every layer, and nobody has hooked into one or replaced one of its methods."""
    return all(
        type(layer).__module__.startswith(_KNOWN_ROOTS)
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and not layer._backward_hooks
        and not layer._backward_pre_hooks
        and not any(_is_foreign(layer, name, value) for name, value in vars(layer).items())
        for layer in model.modules()
    )


def _is_foreign(layer: nn.Module, name: str, value: object) -> bool:
    """Whether an attribute is code of somebody else: a method replaced, or a function that is not torch's."""
    if callable(getattr(type(layer), name, None)):
        return True
    return isinstance(value, FunctionType | MethodType) and not (value.__module__ or "").startswith("torch.")
