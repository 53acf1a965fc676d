"""The network of a run, built from the settings in its ``run.json``: for training, and when a run is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from twinproof.extensions import Group, find
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import BOTH_PLACES, NoiseForm, RedistributionKind, with_noise, with_two_noises


def build_run_network(
    settings: Mapping[str, Any], shape: tuple[int, ...], classes: int, network: nn.Module | None = None
) -> nn.Module:
    """The network of these ``settings`` (``config`` of run.json), with its noise layers and random weights.

    ``network`` is the caller's own, where the settings name such a one. Where weights are loaded afterwards, the deviations
    and scales of the noise are loaded with them.
    """
    if network is None:
        network = build_network(settings["model"], shape, classes, width=settings["width"])
    variant = find(Group.VARIANTS, f"{settings.get('recipe')}.{settings.get('variant')}")
    if (adds := getattr(variant, "network", None)) is not None:
        made: nn.Module = adds(network, shape)
        return made
    noise = settings.get("noise_layer")
    if noise is None:
        return network
    sigma, law = float(settings["sigma"]), Law(noise["law"])
    if noise["place"] == BOTH_PLACES:  # scales in proportion to the layer are set by the constraint
        return with_two_noises(network, shape, sigma, sigma, law)
    redistribution = RedistributionKind(noise["redistribution"])
    form = NoiseForm(Place(noise["place"]), law, redistribution, float(noise["floor"]), float(noise["width"]))
    return with_noise(network, shape, form, sigma)
