"""The smoothed classifier of a run: its network, its noise, and the norm that it was made for."""

from __future__ import annotations

import torch
from torch import nn

from twinproof.certification.method import PLAIN, Method
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.data.record import Dataset
from twinproof.errors import ModelError
from twinproof.layers.noise import NoiseLayer, Place
from twinproof.runs.run import Run


def smoothed_for_run(
    run: Run, dataset: Dataset, device: torch.device, *, sigma: float | None = None, method: Method | None = None
) -> SmoothedClassifier:
    """What is certified, attacked and audited of ``run``: its trained network over inputs like those of ``dataset``.

    ``sigma`` replaces the noise's deviation: that of the network's own noise layer where it has one, else the run's, at the
    input. Without a ``method`` it is plain CERTIFY in the run's norm (``norm_of_run``).
    """
    network = _network(run, dataset, device)
    if sigma is None and not any(isinstance(module, NoiseLayer) for module in network.modules()):
        sigma = float(run.record["config"]["sigma"])
    chosen = method or Method(norm=norm_of_run(run))
    smoothed = smooth(network, sigma, levels=dataset.levels, method=chosen, input_shape=tuple(dataset.shape))
    if smoothed.site.place == Place.INPUT and smoothed.site.slack > 0:
        raise ModelError(
            "unequal noise at the input cannot be recorded in a run",
            where="noise",
            got="scales that differ, or are drawn at random",
            wanted="equal noise at the input, or noise behind the first layer",
            fix="certify the network in Python with twinproof.smooth",
        )
    return smoothed


def norm_of_run(run: Run) -> str:
    """The norm that the run's noise layer was made for; l2 without one."""
    layer = run.record["config"].get("noise_layer") or {}
    return str(layer.get("norm", PLAIN.norm))


def _network(run: Run, dataset: Dataset, device: torch.device) -> nn.Module:
    model = run.model(device)
    if len(dataset.shape) == 3 and device.type == "cpu":
        # The largest single gain on a CPU where layers stay as they are; the same function of the same weights.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
