"""Watches layers during one forward pass: what went in, and where in the autograd graph it came out."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from twinproof.errors import ModelError
from twinproof.layers.adjoint import Adjoint


@dataclass(frozen=True, eq=False)
class Passage:
    """One call of one layer. ``edge`` is the place of the output in the graph, taken before anything changes it in place.

    ``transposed``: the call of an ``Adjoint`` of that layer.
    """

    path: str
    inputs: Tensor
    version: int
    edge: GradientEdge
    transposed: bool = False

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
    """The calls of ``layers`` and of their ``adjoints`` in one forward pass over ``rows`` copies, in their order."""

    layers: Mapping[str, nn.Module]
    rows: int
    adjoints: Sequence[Adjoint] = ()
    passages: list[Passage] = field(default_factory=list)

    def __post_init__(self) -> None:
        paths = {id(layer): path for path, layer in self.layers.items()}
        transposed = {id(adjoint): (paths[id(adjoint.layer)], True) for adjoint in self.adjoints}
        self._paths = {number: (path, False) for number, path in paths.items()} | transposed

    def note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Keeps one call; a call outside the graph (under ``no_grad``) has no gradient and is left out."""
        path, transposed = self._paths.get(id(layer), (None, False))
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
        self.passages.append(Passage(path, inputs.detach(), inputs._version, get_gradient_edge(output), transposed))


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
def recording(layers: Mapping[str, nn.Module], rows: int, adjoints: Sequence[Adjoint] = ()) -> Iterator[Recorder]:
    """Records the calls of ``layers`` by this thread inside the block, and those of ``adjoints``, whose layers are among them.

    No hook is left when the last block has ended.

    The hooks run before any hook of the user's, so that they see the layer's own output. Threads that record the same layer
    share its hook: torch reads a layer's hooks in several steps, and one that vanishes in between would break the other
    thread's forward pass.

    Guarantees
        A recorder sees the forward passes of the thread that opened it and of no other. The hooks are gone after an error too.
    """
    recorder = Recorder(layers, rows, adjoints)
    hooked: list[nn.Module] = []
    try:
        with _LOCK:
            for layer in (*layers.values(), *adjoints):
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
