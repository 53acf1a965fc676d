"""Attacking inputs: ``run_attack`` on any network or smoothed classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof import checks
from twinproof.attacks.objective import Objective, as_objective, untouched
from twinproof.attacks.search import (
    Attack,
    AttackResult,
    Best,
    Keep,
    Look,
    Looker,
    Search,
    class_count,
    device_of,
    global_seed,
    joined,
    left_the_threat,
)
from twinproof.attacks.threat import Threat, violations
from twinproof.compute.devices import repeatable_convolutions
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.layers.cross_example import is_known
from twinproof.progress import Progress, Silent


def check_inputs(inputs: Tensor, threat: Threat) -> None:
    if inputs.dtype not in (torch.float32, torch.float64):
        raise DataError("inputs are no floats", where="inputs", got=inputs.dtype, wanted="float32 or float64")
    if inputs.ndim < 2:
        raise DataError("inputs are no batch", where="inputs", got=tuple(inputs.shape), wanted="(inputs, *shape)")
    if inputs.numel() and not bool(((inputs >= threat.low) & (inputs <= threat.high)).all()):
        raise DataError(
            "inputs lie outside their range",
            where="inputs",
            got=f"{float(inputs.min()):g}..{float(inputs.max()):g}",
            wanted=f"{threat.low:g}..{threat.high:g}, and no NaN",
            fix="name the range of the inputs in the threat (low, high)",
        )


def check_labels(labels: Tensor, inputs: int, classes: int) -> None:
    if labels.dtype != torch.int64 or tuple(labels.shape) != (inputs,):
        raise DataError(
            "labels do not fit the inputs",
            where="labels",
            got=f"{labels.dtype} of shape {tuple(labels.shape)}",
            wanted=f"int64 of shape ({inputs},)",
        )
    outside = (labels < 0) | (labels >= classes)
    if bool(outside.any()):
        raise DataError(
            "a label is no class of the network",
            where=f"labels, row {int(outside.nonzero()[0])}",
            got=int(labels[outside][0]),
            wanted=f"0..{classes - 1}",
        )


def refuse_nan(model: nn.Module, losses: Tensor) -> None:
    """A network that has no answer for the inputs themselves cannot be attacked, and must not be called robust for it."""
    broken = losses.isnan()
    if bool(broken.any()):
        raise ModelError(
            "the network gives NaN scores",
            where=type(model).__name__,
            got=f"NaN for {int(broken.sum())} of {len(losses)} inputs, the first in row {int(broken.nonzero()[0])}",
            wanted="numbers",
            fix="check the weights and the range of the inputs",
        )


def run_attack(
    attack: Attack,
    target: nn.Module | Objective,
    inputs: Tensor,
    labels: Tensor | None,
    threat: Threat,
    *,
    targeted: bool = False,
    key: Key,
    batch: int | None = None,
    first_index: int = 0,
    progress: Progress | None = None,
) -> AttackResult:
    """Attacks each row of ``inputs`` (floats within the threat's range); batches travel to the network's device and back.

    ``labels`` are the classes to get away from, or to reach with ``targeted``; None takes the predicted ones.
    ``first_index`` numbers the rows: a batch that begins at the same number draws the same random numbers.

    Guarantees
        - Every returned row lies in the range and within the size of its original, measured in float64 (``violations``).
        - With ``keep='best'`` the loss of a row is never below that of its original (above, with a target), over the same
          draws; a network that is constant, or a gradient that is no number, leaves the original or the best point so far.
        - Size zero returns the inputs bit for bit.
        - The result is a function of the arguments (on one machine); a row's, of its own row, its place and the batch's size.
    """
    objective, progress = as_objective(target), progress or Silent()
    device = device_of(objective, inputs)
    batch = default_batch(device) if batch is None else batch
    labels = checked_labels(objective, inputs, labels, threat, targeted=targeted, key=key, batch=batch)
    progress.start("attacking", len(inputs))
    results = []
    for first in range(0, max(len(inputs), 1), batch):
        rows = slice(first, first + batch)
        there, wanted = inputs[rows].detach().to(device), labels[rows].to(device)
        result = _attack_batch(attack, objective, there, wanted, threat, targeted, key, first_index + first)
        results.append(result.to(inputs.device))
        progress.advance(len(result))
    return joined(results)


def predicted_labels(target: nn.Module | Objective, inputs: Tensor, *, key: Key, batch: int | None = None) -> Tensor:
    """The class that the target gives to each input: the smoothed classifier's by its votes, a random network's in the mean."""
    objective = as_objective(target)
    device = device_of(objective, inputs)
    batch = default_batch(device) if batch is None else batch
    checks.whole(1, batch=batch)
    found = [torch.empty(0, dtype=torch.int64, device=inputs.device)]
    for first in range(0, len(inputs), batch):
        rows = inputs[first : first + batch].to(device)
        generator = torch.Generator(device).manual_seed(key.seed("predict", first))
        with untouched(objective.model):
            looker = Looker(objective, rows, generator, key.seed("predict-judge", first))
            look = looker.judge(rows, torch.zeros(len(rows), dtype=torch.int64, device=device))
        refuse_nan(objective.model, look.losses)
        found.append(look.predictions.to(inputs.device))
    return torch.cat(found)


def checked_labels(
    objective: Objective, inputs: Tensor, labels: Tensor | None, threat: Threat, *, targeted: bool, key: Key, batch: int
) -> Tensor:
    """Refuses what cannot be attacked; the labels on the inputs' device, the predicted ones where none were given."""
    checks.whole(1, batch=batch)
    if targeted and labels is None:
        wanted = "the class to reach, for each input; the prediction is where it already is"
        raise ConfigError("a targeted attack needs targets", where="labels", got="none", wanted=wanted)
    check_inputs(inputs, threat)
    if labels is None:
        return predicted_labels(objective, inputs, key=key, batch=batch)
    labels = labels.to(inputs.device)
    check_labels(labels, len(inputs), class_count(objective, inputs) if len(inputs) else 0)
    return labels


def may_capture(model: nn.Module, device: torch.device) -> bool:
    """Whether a step may be recorded as a CUDA graph, which freezes what the network's Python code decides."""
    return device.type == "cuda" and is_known(model)


def default_batch(device: torch.device) -> int:
    """Inputs attacked together where the caller does not say."""
    return 1024 if device.type == "cuda" else 128


def judged_result(
    points: Tensor, look: Look, start: Look, original: Tensor, labels: Tensor, threat: Threat, *, targeted: bool
) -> AttackResult:
    """The record of points with what was seen of them; the last check before anything leaves the room."""
    outside = violations(threat, points, original)
    if bool(outside.any()):
        raise left_the_threat(threat, outside)
    return AttackResult(
        points,
        labels,
        starting_losses=start.losses,
        losses=look.losses,
        starting_predictions=start.predictions,
        predictions=look.predictions,
        lengths=threat.ball.length(points.double() - original.double()),
        targeted=targeted,
    )


def _attack_batch(
    attack: Attack, objective: Objective, inputs: Tensor, labels: Tensor, threat: Threat, targeted: bool, key: Key, first: int
) -> AttackResult:
    device = inputs.device
    generator = torch.Generator(device).manual_seed(key.seed("attack", first))
    with untouched(objective.model), global_seed(key.seed("attack-layers", first), device), repeatable_convolutions(device):
        looker = Looker(objective, inputs, generator, key.seed("attack-judge", first))
        start = looker.judge(inputs, labels)
        refuse_nan(objective.model, start.losses)
        best = Best(inputs, start, labels, targeted=targeted)
        if threat.size > 0 and len(inputs):
            tracked = None if objective.sampled or attack.keep == Keep.LAST else best
            capture = may_capture(objective.model, device)
            search = Search(attack, looker, inputs, labels, threat, generator, targeted=targeted, best=tracked, capture=capture)
            for _ in range(attack.restarts):
                search.run()
                look = looker.judge(search.points, labels)
                best.offer(search.points, look, always=attack.keep == Keep.LAST)
            search.finish()
    return judged_result(best.points, best.look, start, inputs, labels, threat, targeted=targeted)
