"""Opacus 1.6 in its three modes, on all copies of all records as rows of one batch.

Inputs are contiguous: Opacus 1.6.0 computes wrong per-example gradients of convolutions, without an error, where the channels
lie innermost. The control row gives it that layout with the one line that mends it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from speed.peers.peer import Answer, NotRun, Peer, Step, added, clipped_sum
from speed.workloads import CLIP, Task


def _samples(task: Task, wrapped: Any, layout: torch.memory_format) -> Step:
    """Gradients of every row by ``wrapped``, averaged over a record's copies, then clipped: as DP-CERT does it."""
    names = [name for name, _ in wrapped._module.named_parameters()]
    parameters = list(wrapped.parameters())
    parts = [
        (rows.flatten(0, 1).contiguous(memory_format=layout), labels.repeat_interleave(task.copies))
        for rows, labels in task.passes()
    ]

    def clipped(rows: Tensor, labels: Tensor) -> Answer:
        wrapped.zero_grad(set_to_none=True)
        torch.autograd.backward(F.cross_entropy(wrapped(rows), labels, reduction="sum"))
        samples = [parameter.grad_sample for parameter in parameters]
        if task.copies > 1:
            samples = [sample.unflatten(0, (-1, task.copies)).mean(1) for sample in samples]
        answer = clipped_sum(names, samples)
        wrapped.zero_grad(set_to_none=True)  # frees the samples: they would count against the next method
        return answer

    return Step(_quiet(lambda: added(clipped(*part) for part in parts)))


def hooks(task: Task) -> Step:
    """The default mode: a rule for each kind of layer, run by backward hooks."""
    from opacus import GradSampleModule

    return _samples(task, GradSampleModule(task.model(), loss_reduction="sum"), torch.contiguous_format)


def functorch(task: Task) -> Step:
    """The mode that takes every layer's rule from ``torch.func``."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(task.model(), loss_reduction="sum", force_functorch=True)
    return _samples(task, wrapped, torch.contiguous_format)


def hooks_channels_last(task: Task) -> Step:
    """A control at equal layout: the default mode, mended for channels that lie innermost."""
    from opacus import GradSampleModule

    if task.device.type != "cpu":
        raise NotRun("a matter of convolutions on a CPU")
    model = task.model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stock: Callable[..., Any] = GradSampleModule.GRAD_SAMPLERS[nn.Conv2d]

    def mended(layer: nn.Conv2d, activations: list[Tensor], backprops: Tensor) -> Any:
        return stock(layer, [activations[0].contiguous()], backprops)

    wrapped = GradSampleModule(model, loss_reduction="sum")
    wrapped.GRAD_SAMPLERS = {**GradSampleModule.GRAD_SAMPLERS, nn.Conv2d: mended}  # of this object, not of the class
    return _samples(task, wrapped, torch.channels_last)


def hooks_same_passes(task: Task) -> Step:
    """A control at equal layout and equal passes: the mended mode, given twinproof's passes."""
    if task.device.type != "cpu":
        raise NotRun("a matter of caches on a CPU")
    return hooks_channels_last(task.cut())


def ghost(task: Task) -> Step:
    """Ghost clipping: norms without gradients, then a second backward of the weighted losses."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    if task.copies > 1:
        raise NotRun("ghost norms are of single rows: the mean over copies cannot be clipped")
    wrapped = GradSampleModuleFastGradientClipping(
        task.model(), loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    parameters = dict(wrapped._module.named_parameters())
    parts = [(rows.flatten(0, 1), labels) for rows, labels in task.passes()]

    def clipped(rows: Tensor, labels: Tensor) -> Answer:
        wrapped.zero_grad(set_to_none=True)
        losses = F.cross_entropy(wrapped(rows), labels, reduction="none")
        torch.autograd.backward(losses.sum(), retain_graph=True)
        wrapped.zero_grad(set_to_none=True)
        weights = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        torch.autograd.backward((weights * losses).sum())
        wrapped.enable_hooks()
        return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}

    return Step(_quiet(lambda: added(clipped(*part) for part in parts)))


def _quiet(run: Callable[[], Answer]) -> Callable[[], Answer]:
    """Opacus's hooks on inputs without a gradient make torch warn at every step."""

    def step() -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()

    return step


OPACUS = (
    Peer("Opacus hooks", "opacus", hooks, package="opacus"),
    Peer("Opacus hooks, channels last (mended)", "opacus", hooks_channels_last, package="opacus"),
    Peer("Opacus hooks, same layout and passes", "opacus", hooks_same_passes, package="opacus"),
    Peer("Opacus ghost", "opacus", ghost, package="opacus"),
    Peer("Opacus functorch", "opacus", functorch, package="opacus"),
)
