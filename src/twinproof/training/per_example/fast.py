"""Per-example gradients by layer: one forward and one backward over all copies of all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from twinproof.errors import ModelError
from twinproof.layers.adjoint import Adjoint
from twinproof.training.per_example.buffers import watched_buffers
from twinproof.training.per_example.failures import naming_the_operation
from twinproof.training.per_example.gradients import PerExampleGradient, zero_gradient
from twinproof.training.per_example.outputs import checked_logits, checked_loss
from twinproof.training.per_example.path import (
    PerExamplePath,
    RecordGradients,
    RecordLoss,
    no_records,
)
from twinproof.training.per_example.recorder import Passage, recording
from twinproof.training.per_example.registry import Call, handler_of, trainable
from twinproof.training.per_example.repeatable import repeatable_convolutions


class FastPath(PerExamplePath):
    """Hooks collect each supported layer's input; one backward gives the error at its output; a handler contracts the two.

    The backward stops at the outputs of the layers, so that gradients of the whole batch are never formed. With
    ``channels_last`` a batch of images is laid out with its channels innermost, which convolutions on a CPU run faster; the
    model itself is not touched, and most of its tensors follow the layout of the input.

    Guarantees
        Right for models that pass the trial in :func:`choose_path`: no operation mixes rows of the batch, and each
        parameter acts only through calls of its own layer, or of an ``Adjoint`` of it. The loss sees one record at a time (it
        is mapped over records). Nothing that was collected outlives the call except what the result holds. Several threads
        may call ``gradients`` at the same time: each gets the bits that it would get alone, unless a layer draws from torch's
        global generator.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss, *, channels_last: bool = False) -> None:
        self.model = model
        self.loss = loss
        self.channels_last = channels_last

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        records, copies = inputs.shape[:2]
        if records == 0:
            return no_records(self.model, inputs)
        layers = supported_layers(self.model)
        rows = self._laid_out(inputs.flatten(0, 1))
        with repeatable_convolutions(inputs.device):
            with torch.enable_grad(), watched_buffers(self.model):
                with recording(layers, records * copies, adjoints_of(self.model, layers)) as recorder:
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


def adjoints_of(model: nn.Module, layers: Mapping[str, nn.Module]) -> list[Adjoint]:
    """Where ``model`` uses weights of ``layers`` a second time, transposed."""
    known = set(map(id, layers.values()))
    return [module for module in model.modules() if isinstance(module, Adjoint) and id(module.layer) in known]


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
            call = Call(error, seen, transposed=True) if passage.transposed else Call(seen, error)
            calls.setdefault(passage.path, []).append(call)
    return calls


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
