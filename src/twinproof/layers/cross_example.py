"""Refuses layers through which one record acts on another, or on the released model, outside the clipped gradient.

DP-SGD bounds what one record can change by clipping its gradient. That bound says nothing where the record also changes other
records' gradients (batch statistics) or the model's state (running averages, rows renormalised on sight).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from twinproof.errors import ModelError


@dataclass(frozen=True)
class Offence:
    """One kind of layer that cannot be trained privately: how to know it, why, and what to use for it."""

    applies: Callable[[nn.Module], bool]
    reason: str
    remedy: str


OFFENCES: tuple[Offence, ...] = (
    Offence(
        lambda layer: isinstance(layer, _BatchNorm),
        "normalises with the mean and variance of the whole batch and stores them",
        "GroupNorm or LayerNorm",
    ),
    Offence(
        lambda layer: isinstance(layer, _InstanceNorm) and bool(layer.track_running_stats),
        "stores running statistics of the records without noise",
        "track_running_stats=False, or GroupNorm",
    ),
    Offence(
        lambda layer: isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None,
        "max_norm rescales in place the rows that a record uses, outside the noisy update",
        "max_norm=None",
    ),
    Offence(
        lambda layer: isinstance(layer, nn.Embedding | nn.EmbeddingBag) and bool(layer.scale_grad_by_freq),
        "scale_grad_by_freq divides a record's gradient by how often the batch uses an id",
        "scale_grad_by_freq=False",
    ),
    Offence(
        lambda layer: isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params(),
        "takes its shape from the first records it sees, and has no parameters until then",
        "the layer with its sizes given, or one forward pass on public data first",
    ),
)
"""The kinds that are refused; a layer is reported once for each kind it belongs to."""


def refuse_cross_example_layers(model: nn.Module) -> None:
    """Raises ModelError that lists every offending module of ``model``: path, class, reason and remedy.

    Guarantees
        After it returns, no module of ``model`` is of a kind in ``OFFENCES``. Code in a custom ``forward`` is not read; the
        trial in ``twinproof.training.per_example`` tests what the model does.
    """
    found = [
        (path or "(the model itself)", type(layer).__name__, offence)
        for path, layer in model.named_modules()
        for offence in OFFENCES
        if offence.applies(layer)
    ]
    if not found:
        return
    raise ModelError(
        "the network has layers through which records act on each other",
        where=", ".join(dict.fromkeys(path for path, _, _ in found)),
        got="; ".join(f"{path} ({kind}) {offence.reason}" for path, kind, offence in found),
        wanted="layers that treat each record alone",
        fix="; ".join(f"{path}: {offence.remedy}" for path, _, offence in found),
    )


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
