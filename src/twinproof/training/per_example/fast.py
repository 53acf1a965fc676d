"""Per-example gradients by layer: one forward and one backward over all copies of all records."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vmap
from torch.utils.hooks import RemovableHandle

from twinproof.compute.devices import repeatable_convolutions
from twinproof.errors import ModelError
from twinproof.extensions import Group, Plugin, find, plugin_of, plugin_of_code
from twinproof.layers.interval import Magnitude
from twinproof.layers.noise_constraint import Adjoint
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient, zero_gradient
from twinproof.training.per_example.paths import (
    PerExamplePath,
    RecordGradients,
    RecordLoss,
    checked_logits,
    checked_loss,
    naming_the_operation,
    no_records,
    watched_buffers,
)

Layer = TypeVar("Layer", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Call:
    """One use of a layer in a forward pass: its ``inputs`` and the loss's gradient at its output, ``errors``.

    The first axis of both counts the copies of all records, record by record: rows ``r * copies`` to ``(r + 1) * copies``
    belong to record r. Neither carries an autograd graph.

    ``transposed``: a use of its weights by an ``Adjoint``, without its bias. What went into that, shaped like outputs of the
    layer, stands as ``errors``, and the error at what came out of it, shaped like inputs, as ``inputs``: since z = W'c is
    linear in both, the gradient in W is the same product of the two as that of y = Wx.

    ``magnitude``: the ``Magnitude`` that used its weights by their absolute values, without its bias.
    """

    inputs: Tensor
    errors: Tensor
    transposed: bool = False
    magnitude: Magnitude | None = None

    @property
    def adds_bias(self) -> bool:
        """Whether the layer itself was called."""
        return not self.transposed and self.magnitude is None


SecondUse = Adjoint | Magnitude
"""Modules that use the weights of another layer."""


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
    """The handler of this layer's exact type, if there is one."""
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
    parts = [summed(call.errors) for call in calls if call.adds_bias]
    return Instantiated(added(parts)) if parts else zero_gradient(bias, records)


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum over the calls of a shared layer."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The calls of a shared layer one after the other along T: sums over T then add them up."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


@dataclass(frozen=True, eq=False)
class Passage:
    """One call of one layer. ``edge`` is the place of the output in the graph, taken before anything changes it in place.

    ``by``: the module that was called, where it is not the layer itself.
    """

    path: str
    inputs: Tensor
    version: int
    edge: GradientEdge
    by: SecondUse | None = None

    def unchanged_inputs(self) -> Tensor:
        """The inputs as the layer read them."""
        if self.inputs._version != self.version:
            raise ModelError(
                "an input of a layer was changed in place after the layer read it",
                where=self.path,
                got="an in-place operation on the layer's input",
                wanted="the input still as it was in the forward pass",
                fix="use the operation that makes a new tensor, for example relu(x) for relu_(x)",
            )
        return self.inputs


@dataclass(eq=False)
class Recorder:
    """The calls of ``layers`` and of their ``second_uses`` in one forward pass over ``rows`` copies, in their order."""

    layers: Mapping[str, nn.Module]
    rows: int
    second_uses: Sequence[SecondUse] = ()
    passages: list[Passage] = field(default_factory=list)

    def __post_init__(self) -> None:
        paths = {id(layer): path for path, layer in self.layers.items()}
        self._paths: dict[int, tuple[str, SecondUse | None]] = {number: (path, None) for number, path in paths.items()}
        self._paths |= {id(use): (paths[id(use.layer)], use) for use in self.second_uses}

    def note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Keeps one call; a call outside the graph (under ``no_grad``) has no gradient and is left out."""
        path, by = self._paths.get(id(layer), (None, None))
        if path is None or not output.requires_grad:
            return
        inputs: Tensor = args[0] if args else kwargs["input"]
        if inputs.dim() == 0 or inputs.shape[0] != self.rows:
            raise ModelError(
                "a layer's first axis does not count the rows of the batch",
                where=path,
                got=f"an input of shape {tuple(inputs.shape)} in a batch of {self.rows} rows",
                wanted=f"({self.rows}, ...)",
                fix="keep the batch first, or use the vmap path",
            )
        self.passages.append(Passage(path, inputs.detach(), inputs._version, get_gradient_edge(output), by))


class _Recorders(threading.local):
    """The recorders at work in this thread, innermost last: a forward pass in another thread is none of their business."""

    def __init__(self) -> None:
        self.active: list[Recorder] = []


@dataclass(eq=False)
class _SharedHook:
    """The one hook of a layer, and how many recorders in all threads need it."""

    handle: RemovableHandle
    users: int = 0


_RECORDERS = _Recorders()
_LOCK = threading.Lock()
_HOOKS: weakref.WeakKeyDictionary[nn.Module, _SharedHook] = weakref.WeakKeyDictionary()


@contextmanager
def recording(layers: Mapping[str, nn.Module], rows: int, second_uses: Sequence[SecondUse] = ()) -> Iterator[Recorder]:
    """Records the calls of ``layers`` by this thread inside the block, and ``second_uses``, whose layers are among them.

    No hook is left when the last block has ended.

    The hooks run before any hook of the user's, so that they see the layer's own output. Threads that record the same layer
    share its hook: torch reads a layer's hooks in several steps, and one that vanishes in between would break the other
    thread's forward pass.

    A recorder sees the forward passes of the thread that opened it and of no other. The hooks are gone after an error too.
    """
    recorder = Recorder(layers, rows, second_uses)
    hooked: list[nn.Module] = []
    try:
        with _LOCK:
            for layer in (*layers.values(), *second_uses):
                _use_hook(layer)
                hooked.append(layer)
        _RECORDERS.active.append(recorder)
        yield recorder
    finally:
        if recorder in _RECORDERS.active:
            _RECORDERS.active.remove(recorder)
        with _LOCK:
            for layer in hooked:
                _drop_hook(layer)


def _use_hook(layer: nn.Module) -> None:
    if layer not in _HOOKS:
        _HOOKS[layer] = _SharedHook(layer.register_forward_hook(_note, with_kwargs=True, prepend=True))
    _HOOKS[layer].users += 1


def _drop_hook(layer: nn.Module) -> None:
    hook = _HOOKS[layer]
    hook.users -= 1
    if not hook.users:
        hook.handle.remove()
        del _HOOKS[layer]


def _note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
    for recorder in _RECORDERS.active:
        recorder.note(layer, args, kwargs, output)


class FastPath(PerExamplePath):
    """Hooks collect each supported layer's input; one backward gives the error at its output; a handler contracts the two.

    The backward stops at the outputs of the layers, so that gradients of the whole batch are never formed. With
    ``channels_last`` a batch of images is laid out with its channels innermost, which convolutions on a CPU run faster; the
    model itself is not touched, and most of its tensors follow the layout of the input.

    Right for models that pass the trial in :func:`choose_path`: no operation mixes rows of the batch, and each
    parameter acts only through calls of its own layer, or of a ``SecondUse`` of it. The loss sees one record at a time (it
    is mapped over records). Nothing that was collected outlives the call except what the result holds. Several threads
    may call ``gradients`` at the same time: each gets the bits that it would get alone, unless a layer draws from torch's
    global generator.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss, *, channels_last: bool = False) -> None:
        self.model = model
        self.loss = loss
        self.channels_last = channels_last

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        records, copies = inputs.shape[:2]
        if records == 0:
            return no_records(self.model, inputs)
        layers = supported_layers(self.model)
        rows = self._laid_out(inputs.flatten(0, 1))
        with repeatable_convolutions(inputs.device):
            with torch.enable_grad(), watched_buffers(self.model):
                with recording(layers, records * copies, second_uses_of(self.model, layers)) as recorder:
                    logits = checked_logits(self.model(rows), records * copies)
                losses = self._losses(logits.reshape(records, copies, -1), labels)
            calls = _calls(losses, recorder.passages)
            recorder.passages.clear()
        by_name: dict[str, PerExampleGradient] = {}  # modules and their own parameters in order: that of named_parameters()
        for path, layer in layers.items():
            # Taken out, so that a layer's inputs and errors are free again before the next one's gradients are formed.
            by_name |= _layer_gradients(path, layer, calls.pop(path, []), records)
        return RecordGradients(by_name, losses.detach())

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        def record_loss(record_logits: Tensor, label: Tensor) -> Tensor:
            return checked_loss(self.loss(record_logits, label))

        with naming_the_operation("a record's loss"):
            return vmap(record_loss, randomness="different")(logits, labels)

    def _laid_out(self, rows: Tensor) -> Tensor:
        if not self.channels_last or rows.dim() != 4 or rows.stride(1) == 1:
            return rows
        # A tensor of one channel counts as laid out both ways and would be returned as it is; empty_strided fixes the strides.
        _, channels, height, width = rows.shape
        strides = (channels * height * width, 1, channels * width, channels)
        if channels == 1 and rows.is_contiguous():
            return rows.as_strided(rows.shape, strides, rows.storage_offset())
        return torch.empty_strided(rows.shape, strides, dtype=rows.dtype, device=rows.device).copy_(rows)


def supported_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that hold the trainable parameters, by path; ModelError where one is not supported or shares a parameter."""
    owners: dict[int, str] = {}
    layers: dict[str, nn.Module] = {}
    for path, layer in model.named_modules():
        for local, parameter in trainable(layer).items():
            name = f"{path}.{local}" if path else local
            if handler_of(layer) is None:
                raise _unsupported("a parameter lies in a layer without a fast rule", name, type(layer).__name__)
            if id(parameter) in owners:
                raise _unsupported("a parameter is shared by two places", name, f"also {owners[id(parameter)]}")
            owners[id(parameter)] = name
            layers[path] = layer
    return layers


def second_uses_of(model: nn.Module, layers: Mapping[str, nn.Module]) -> list[SecondUse]:
    """Where ``model`` uses weights of ``layers`` a second time."""
    known = set(map(id, layers.values()))
    return [module for module in model.modules() if isinstance(module, Adjoint | Magnitude) and id(module.layer) in known]


def _unsupported(what: str, where: str, got: str) -> ModelError:
    return ModelError(
        what,
        where=where,
        got=got,
        wanted="each trainable parameter in exactly one layer that has a registered handler",
        fix="use the vmap path (path='auto' does), or register a handler for the layer",
    )


def _calls(losses: Tensor, passages: Sequence[Passage]) -> dict[str, list[Call]]:
    """The passages with their errors, by layer; one that the losses do not depend on is left out."""
    if not passages or not losses.requires_grad:
        return {}
    edges = [passage.edge for passage in passages]
    errors = torch.autograd.grad(losses, edges, grad_outputs=torch.ones_like(losses), allow_unused=True)
    calls: dict[str, list[Call]] = {}
    for passage, error in zip(passages, errors, strict=True):
        if error is not None:
            seen = passage.unchanged_inputs()
            calls.setdefault(passage.path, []).append(_call(seen, error, passage.by))
    return calls


def _call(inputs: Tensor, errors: Tensor, by: SecondUse | None) -> Call:
    if isinstance(by, Magnitude):
        return Call(inputs, errors, magnitude=by)
    return Call(inputs, errors) if by is None else Call(errors, inputs, transposed=True)


def _layer_gradients(path: str, layer: nn.Module, calls: list[Call], records: int) -> dict[str, PerExampleGradient]:
    """The gradients of one layer's own parameters, by full name."""
    own = trainable(layer)
    prefix = f"{path}." if path else ""
    if not calls:
        return {prefix + local: zero_gradient(parameter, records) for local, parameter in own.items()}
    handler = handler_of(layer)
    found = {} if handler is None else handler(layer, calls, records)
    if found.keys() != own.keys():
        raise _unsupported("the layer's handler does not cover its parameters", path, f"{sorted(found)} of {sorted(own)}")
    return {prefix + local: found[local] for local in own}
