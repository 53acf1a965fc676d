"""Per-example gradients of any module by mapping ``grad`` over records: slower than the fast path, and its oracle."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from twinproof.training.per_example.buffers import changed_buffers
from twinproof.training.per_example.failures import naming_the_operation
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.outputs import checked_logits, checked_loss
from twinproof.training.per_example.path import PerExamplePath, RecordGradients, RecordLoss, no_records
from twinproof.training.per_example.repeatable import repeatable_convolutions


class VmapPath(PerExamplePath):
    """``vmap(grad)`` over records, with a record's copies inside; any module without layers that mix examples.

    ``reason`` says why the fast path was not taken, where it was tried.

    Guarantees
        The mapped function is given one record, so that its gradient cannot depend on another one; randomness (dropout) is
        drawn for each record anew.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss, *, reason: str = "") -> None:
        self.model = model
        self.loss = loss
        self.reason = reason

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        if inputs.shape[0] == 0:
            return no_records(self.model, inputs)
        trained: dict[str, Tensor] = {}
        fixed: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            (trained if parameter.requires_grad else fixed)[name] = parameter.detach()
        buffers = dict(self.model.named_buffers())

        def record_loss(values: dict[str, Tensor], record: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            state = {**values, **fixed, **buffers}
            logits = checked_logits(functional_call(self.model, state, (record,)), record.shape[0])
            changed = [name for name, buffer in buffers.items() if state[name] is not buffer]
            if changed:
                raise changed_buffers(changed)
            value = checked_loss(self.loss(logits, label))
            return value, value.detach()

        mapped = vmap(grad(record_loss, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        with repeatable_convolutions(inputs.device), naming_the_operation("a record's gradient"):
            values, losses = mapped(trained, inputs, labels)
        by_name: dict[str, PerExampleGradient] = {name: Instantiated(value) for name, value in values.items()}
        return RecordGradients(by_name, losses)
