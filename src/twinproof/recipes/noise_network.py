"""A run's network with its noise layer, and the rule that holds the layer before the noise."""

from __future__ import annotations

from torch import nn

from twinproof.data.record import Dataset
from twinproof.layers.models.prior import Prior, start_from_prior
from twinproof.layers.models.registry import build_network
from twinproof.layers.models.with_noise import with_noise
from twinproof.layers.noise.constraint import Constraint
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.own import Own
from twinproof.runs.run import is_own_network


def run_network(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
    """The network that the settings describe, with weights to start from, or a copy of the caller's own."""
    if is_own_network(config.model):
        network = own.network_copy(config.model)
    else:
        network = build_network(config.model, dataset.shape, len(dataset.classes), width=config.width)
    if config.prior is Prior.FIGURES:
        start_from_prior(network, config.sigma)
    if config.noise_layer is None:
        return network
    return with_noise(network, dataset.shape, config.noise_layer.form, config.sigma)


def constraint_of(config: ResolvedConfig, shape: tuple[int, ...]) -> Constraint | None:
    """What is done to the network before the first step and after each one; a function of its weights alone.

    Guarantees
        The released weights went through it, so that it is post-processing of the private steps and costs no privacy. No
        certificate rests on it: certification measures the final layer itself.
    """
    noise = config.noise_layer
    return None if noise is None else Constraint(noise.weights, noise.norm, noise.law, config.sigma, shape)
