"""Plain training, which protects nobody, and ``torch.func.vmap(grad)``: what a reader of the torch tutorial would write.

The first is what a private step would like to be as fast as, the second the answer that the others must agree with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from speed.peers.peer import Answer, NotRun, Peer, Step, added, captured, clipped_sum
from speed.workloads import Task


def _plain(task: Task, model: nn.Module, layout: torch.memory_format) -> Callable[[], Answer]:
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    parts = [
        (rows.flatten(0, 1).contiguous(memory_format=layout), labels.repeat_interleave(task.copies))
        for rows, labels in task.passes()
    ]

    def gradients(rows: Tensor, labels: Tensor) -> Answer:
        loss = F.cross_entropy(model(rows), labels, reduction="sum") / task.copies
        return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))

    return lambda: added(gradients(*part) for part in parts)


def eager(task: Task) -> Step:
    """The gradient of a batch, as everybody computes it."""
    return Step(_plain(task, task.model(), torch.contiguous_format))


def channels_last(task: Task) -> Step:
    """The same with the channels innermost, which is the faster layout on a CPU."""
    if task.device.type != "cpu" or not any(isinstance(layer, nn.Conv2d) for layer in task.model().modules()):
        raise NotRun("a matter of convolutions on a CPU")
    return Step(_plain(task, task.model().to(memory_format=torch.channels_last), torch.channels_last))  # type: ignore[call-overload]


def graph(task: Task) -> Step:
    """The same, captured in a CUDA graph."""
    return captured(_plain(task, task.model(), torch.contiguous_format), task.device)


SGD = (
    Peer("plain SGD", "sgd", eager, private=False),
    Peer("plain SGD, channels last", "sgd", channels_last, private=False),
    Peer("plain SGD, CUDA graph", "sgd", graph, private=False),
)


def per_record(task: Task) -> Step:
    """One record's mean loss over its copies, mapped over records."""
    model = task.model()
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    parts = list(task.passes())

    def loss(weights: dict[str, Tensor], copies: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (copies,)), label.expand(copies.shape[0]))

    mapped = vmap(grad(loss), in_dims=(None, 0, 0))

    def clipped(inputs: Tensor, labels: Tensor) -> Answer:
        found = mapped(values, inputs, labels)
        return clipped_sum(found.keys(), list(found.values()))

    return Step(lambda: added(clipped(*part) for part in parts))


VMAP_GRAD = (Peer("torch vmap(grad)", "vmap", per_record),)
