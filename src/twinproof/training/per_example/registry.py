"""Which layers the fast path knows, by type; a project adds its own with the same decorator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from twinproof.extensions import Group, Plugin, find, plugin_of, plugin_of_code
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient, zero_gradient

Layer = TypeVar("Layer", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Call:
    """One use of a layer in a forward pass: its ``inputs`` and the loss's gradient at its output, ``errors``.

    The first axis of both counts the copies of all records, record by record: rows ``r * copies`` to ``(r + 1) * copies``
    belong to record r. Neither carries an autograd graph.

    ``transposed``: a use of its weights by an ``Adjoint``, without its bias. What went into that, shaped like outputs of the
    layer, stands as ``errors``, and the error at what came out of it, shaped like inputs, as ``inputs``: since z = W'c is
    linear in both, the gradient in W is the same product of the two as that of y = Wx.
    """

    inputs: Tensor
    errors: Tensor
    transposed: bool = False


LayerHandler = Callable[[Layer, Sequence[Call], int], dict[str, PerExampleGradient]]
"""(layer, its calls, number of records) -> the gradient of each of the layer's own trainable parameters, by local name."""

Handler = LayerHandler[Any]

_HANDLERS: dict[type[nn.Module], Handler] = {}


def handles(*kinds: type[nn.Module]) -> Callable[[LayerHandler[Layer]], LayerHandler[Layer]]:
    """Registers the decorated function as the handler of these layer types.

    Types are matched exactly: a subclass may compute something else in its ``forward``.
    """

    def register(handler: LayerHandler[Layer]) -> LayerHandler[Layer]:
        for kind in kinds:
            _HANDLERS[kind] = handler
        return handler

    return register


def handler_of(layer: nn.Module) -> Handler | None:
    """The handler of this layer's exact type, if there is one; that of another package is found by the type's full name."""
    own = _HANDLERS.get(type(layer))
    return own if own is not None else find(Group.LAYER_RULES, _full_name(type(layer)))


def rule_plugins(model: nn.Module) -> list[Plugin]:
    """Where the handlers of the model's layers come from, those of this package left out."""
    found: dict[str, Plugin] = {}
    for kind in {type(layer) for layer in model.modules()}:
        name = _full_name(kind)
        own = _HANDLERS.get(kind)
        plugin = plugin_of(Group.LAYER_RULES, name) if own is None else plugin_of_code(Group.LAYER_RULES, name, own)
        if plugin is not None:
            found[name] = plugin
    return [found[name] for name in sorted(found)]


def _full_name(kind: type[nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def trainable(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The layer's own parameters that require a gradient, by local name: those a handler must answer for."""
    own = layer.named_parameters(recurse=False, remove_duplicate=False)
    return {local: parameter for local, parameter in own if parameter.requires_grad}


def by_record(values: Tensor, records: int, *last: int) -> Tensor:
    """(m * copies, ...) as (m, T, *last): copies and all middle axes become the one axis a gradient is summed over."""
    return values.reshape(records, -1, *last)


def bias_gradient(
    bias: nn.Parameter, calls: Sequence[Call], records: int, summed: Callable[[Tensor], Tensor]
) -> PerExampleGradient:
    """The sum over those calls that added the bias; ``summed`` takes a call's errors to (m, outputs)."""
    parts = [summed(call.errors) for call in calls if not call.transposed]
    return Instantiated(added(parts)) if parts else zero_gradient(bias, records)


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum over the calls of a shared layer."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The calls of a shared layer one after the other along T: sums over T then add them up."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
