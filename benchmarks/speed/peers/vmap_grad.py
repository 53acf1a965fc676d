"""``torch.func.vmap(grad)``: what a reader of the torch tutorial would write. The answer that the others must agree with."""

from __future__ import annotations

from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from speed.peers.peer import Answer, Peer, Step, added, clipped_sum
from speed.workloads import Task


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
