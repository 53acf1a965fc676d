"""The clipped sums over a party's draw, by the same per-example path, loss and copies as a pooled run's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from twinproof.data.record import Dataset
from twinproof.federated.agreement import Agreement
from twinproof.privacy.clipping import ClipRule, clip_weights
from twinproof.randomness import Key
from twinproof.recipes.own_path import per_example_path
from twinproof.recipes.registry import find_recipe
from twinproof.training.batching import Batching
from twinproof.training.moved_copies import MovedCopies
from twinproof.training.pass_mode import layers_draw, pass_mode
from twinproof.training.per_example.path import trainable_parameters
from twinproof.training.performance import physical_batch_size
from twinproof.training.records import DeviceRecords
from twinproof.training.step_sums import ClippedPass, DeviceStepSums, HostStepSums, StepSums

Sums = Callable[[Tensor, int], Mapping[str, Tensor]]
"""Rows of the drawn records, and the step -> the sum of their clipped gradients by parameter name, in float64."""


def party_sums(agreement: Agreement, model: nn.Module, records: DeviceRecords, public: Dataset, key: Key) -> Sums:
    """What a party does with its draw; copies and layers take their noise from the party's own ``key``."""
    config, plan, device = agreement.config, agreement.plan, records.device
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())

    def weights(squared_norms: Tensor) -> Tensor:
        return clip_weights(squared_norms, plan.clip_threshold(parameters), ClipRule(plan.clip_rule), plan.clip_r)

    path, mode = per_example_path(config, model, public), pass_mode(model, device)
    augmentation = find_recipe(config.recipe).augmentation(config)
    rows = physical_batch_size(
        config.performance,
        max(1.0, plan.sample_rate * len(records)),
        copies=augmentation.copies,
        device=device.type,
        parameters=parameters,
        workers=mode.workers,
    )
    work, batching = ClippedPass(path, weights), Batching(records, augmentation, rows, key, layers_draw(model))
    found: StepSums = (
        DeviceStepSums(work, batching, shapes) if mode.capture else HostStepSums(work, batching, shapes, workers=mode.workers)
    )

    def sums(rows_drawn: Tensor, step: int) -> Mapping[str, Tensor]:
        if isinstance(path, MovedCopies):
            path.begin(step, key)
        return found.of(rows_drawn, step).by_name

    return sums
