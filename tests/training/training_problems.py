"""A small private problem in float64 with everything in the open, and DP-SGD written out by hand as its oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.data.record import Split
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan, PrivateExecution
from twinproof.privacy.step_randomness import poisson_sample
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import ONE_BY_ONE, Augmentation, Batching, DeviceRecords, PassMode, Repeats
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss, VmapPath
from twinproof.training.sources import PrivateGradients

RECORDS, FEATURES, CLASSES, LEVELS = 40, 5, 3, 255
CPU = torch.device("cpu")
KEY = Key.from_seed(8)
PLAN = Plan(sample_rate=0.3, noise_multiplier=0.7, clip_norm=2.0, divisor=12.0, steps=20, delta=1e-5)

Gradients = dict[str, Tensor]


def training_split(records: int = RECORDS) -> Split:
    generator = np.random.default_rng(2)
    inputs = generator.integers(0, LEVELS + 1, (records, FEATURES), dtype=np.uint8)
    return Split(inputs, (np.arange(records) % CLASSES).astype(np.int64))


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES)).double()
        with torch.no_grad():  # large enough that some gradients exceed the bound and others do not
            for parameter in model.parameters():
                parameter.mul_(2)
        return model


@dataclass
class Problem:
    """One model, plan and data set, and the source of its private gradients."""

    model: nn.Module
    records: DeviceRecords
    source: PrivateGradients
    batching: Batching
    ledger: Ledger


def problem(
    folder: Path,
    *,
    plan: Plan = PLAN,
    augmentation: Augmentation | None = None,
    rows: int = 9,
    path: Callable[[nn.Module, RecordLoss], PerExamplePath] = FastPath,
    loss: RecordLoss = mean_cross_entropy,
    split: Split | None = None,
    model: nn.Module | None = None,
    mode: PassMode = ONE_BY_ONE,
) -> Problem:
    model = network() if model is None else model
    records = DeviceRecords(split or training_split(), LEVELS, CPU, torch.float64)
    batching = Batching(records, augmentation or Repeats(), rows, KEY)
    shapes = {name: value.detach() for name, value in model.named_parameters()}
    parameters = sum(value.numel() for value in shapes.values())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ledger.jsonl").unlink(missing_ok=True)
    ledger = Ledger.create(folder / "ledger.jsonl", config_sha256="0" * 64, delta=plan.delta)
    execution = PrivateExecution(plan, KEY, ledger, records=len(records), parameters=parameters)
    source = PrivateGradients(execution, path(model, loss), batching, shapes, mode)
    return Problem(model, records, source, batching, ledger)


PATHS: dict[str, Callable[[nn.Module, RecordLoss], PerExamplePath]] = {"fast": FastPath, "vmap": VmapPath}


def drawn(step: int, plan: Plan = PLAN, records: int = RECORDS) -> list[int]:
    return [int(index) for index in poisson_sample(KEY, step, records=records, sample_rate=plan.sample_rate)]


def one_gradient(model: nn.Module, copies: Tensor, label: Tensor) -> Gradients:
    """The gradient of the mean loss of one record's copies, by plain autograd."""
    loss = sum(
        (nn.functional.cross_entropy(model(copy[None]), label[None]) for copy in copies), torch.zeros((), dtype=torch.float64)
    ) / len(copies)
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, values), strict=True))


def norm_of(gradient: Gradients) -> float:
    return float(torch.cat([value.flatten() for value in gradient.values()]).norm())


def clipped(gradient: Gradients, bound: float) -> Gradients:
    scale = min(1.0, bound / norm_of(gradient))
    return {name: scale * value for name, value in gradient.items()}


def added(gradients: Sequence[Gradients], model: nn.Module) -> Gradients:
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for gradient in gradients:
        total = {name: total[name] + gradient[name] for name in total}
    return {name: value.detach() for name, value in total.items()}


def noise_of(step: int, model: nn.Module, deviation: float) -> Gradients:
    """The noise of a step as the run's key gives it, cut into the parameters in their order."""
    count = sum(value.numel() for value in model.parameters())
    numbers = torch.from_numpy(KEY.normals("noise", step, count=count)) * deviation
    parts = torch.split(numbers, [value.numel() for value in model.parameters()])
    return {name: part.view_as(value) for (name, value), part in zip(model.named_parameters(), parts, strict=True)}


def hand_step(given: Problem, step: int, plan: Plan = PLAN) -> Gradients:
    """DP-SGD by the book: per-record gradients, flat clipping, the sum, its noise, a constant divisor."""
    rows = torch.tensor(drawn(step, plan, len(given.records)), dtype=torch.int64)
    inputs, labels = given.records.inputs(rows), given.records.labels[rows]
    gradients = [clipped(one_gradient(given.model, x[None], y), plan.clip_norm) for x, y in zip(inputs, labels, strict=True)]
    return noisy(added(gradients, given.model), step, given.model, plan)


def noisy(total: Gradients, step: int, model: nn.Module, plan: Plan = PLAN) -> Gradients:
    noise = noise_of(step, model, plan.noise_multiplier * plan.clip_norm)
    return {name: (total[name] + noise[name]) / plan.divisor for name in total}


def distance(one: Gradients, other: Gradients) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)
