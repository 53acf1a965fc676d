"""Watches layers during one forward pass: what went in, and where in the autograd graph it came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from twinproof.errors import ModelError


@dataclass(frozen=True, eq=False)
class Passage:
    """One call of one layer. ``edge`` is the place of the output in the graph, taken before anything changes it in place."""

    path: str
    inputs: Tensor
    version: int
    edge: GradientEdge

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
    """The calls of one forward pass over ``rows`` copies, in their order."""

    rows: int
    passages: list[Passage] = field(default_factory=list)

    def note(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Keeps one call; a call outside the graph (under ``no_grad``) has no gradient and is left out."""
        inputs: Tensor = args[0] if args else kwargs["input"]
        if not output.requires_grad:
            return
        if inputs.dim() == 0 or inputs.shape[0] != self.rows:
            raise ModelError(
                "a layer's first axis does not count the rows of the batch",
                where=path,
                got=f"an input of shape {tuple(inputs.shape)} in a batch of {self.rows} rows",
                wanted=f"({self.rows}, ...)",
                fix="keep the batch first, or use the vmap path",
            )
        self.passages.append(Passage(path, inputs.detach(), inputs._version, get_gradient_edge(output)))


@contextmanager
def recording(layers: Mapping[str, nn.Module], rows: int) -> Iterator[Recorder]:
    """Records the calls of ``layers`` inside the block; the hooks are gone afterwards, also after an error.

    The hooks run before any hook of the user's, so that they see the layer's own output.
    """
    recorder = Recorder(rows)
    handles = []
    try:
        for path, layer in layers.items():
            handles.append(layer.register_forward_hook(_hook(recorder, path), with_kwargs=True, prepend=True))
        yield recorder
    finally:
        for handle in handles:
            handle.remove()


def _hook(recorder: Recorder, path: str) -> Any:
    def note(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        recorder.note(path, args, kwargs, output)

    return note
