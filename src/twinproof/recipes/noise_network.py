"""A run's network with its noise layer, and the rule that holds the layer before the noise."""

from __future__ import annotations

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.layers.models.prior import Prior, start_from_prior
from twinproof.layers.models.registry import build_network
from twinproof.layers.models.with_noise import with_noise, with_two_noises
from twinproof.layers.noise import BOTH_PLACES
from twinproof.layers.noise.constraint import Constraint
from twinproof.layers.noise.two_noises_constraint import TwoNoisesConstraint
from twinproof.randomness import Key
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.own import Own
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.variant import Holds
from twinproof.runs.run import is_own_network


def run_network(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
    """The network that the settings describe, with weights to start from, or a copy of the caller's own."""
    if is_own_network(config.model):
        network = own.network_copy(config.model)
    else:
        network = build_network(config.model, dataset.shape, len(dataset.classes), width=config.width)
    if config.prior is Prior.FIGURES:
        start_from_prior(network, config.sigma)
    variant = find_recipe(config.recipe).variant(config.variant)
    if variant is not None and variant.network is not None:
        made = variant.network(network, dataset.shape)
        if variant.prepare is not None:
            variant.prepare(made, config)
        return made
    if config.noise_layer is None:
        return network
    if config.noise_layer.place == BOTH_PLACES:  # scales in proportion to the layer are set by the constraint
        return with_two_noises(network, dataset.shape, config.sigma, config.sigma, config.noise_layer.law)
    return with_noise(network, dataset.shape, config.noise_layer.form, config.sigma)


def initial_network(config: ResolvedConfig, own: Own, dataset: Dataset, key: Key) -> nn.Module:
    """The network before the first step: a function of the settings and the key, whatever torch's generator holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial weights"))
        return run_network(config, own, dataset)


def constraint_of(config: ResolvedConfig, shape: tuple[int, ...]) -> Holds | None:
    """What is done to the network before the first step and after each one; a function of its weights alone.

    Guarantees
        The released weights went through it, so that it is post-processing of the private steps and costs no privacy. No
        certificate rests on it: certification measures the final layer itself.
    """
    variant, noise = find_recipe(config.recipe).variant(config.variant), config.noise_layer
    if variant is not None and variant.constraint is not None:
        return variant.constraint()
    if noise is None:
        return None
    if noise.place != BOTH_PLACES:
        return Constraint(noise.weights, noise.norm, noise.law, config.sigma, shape)
    hidden = Constraint(noise.weights, noise.norm, noise.law, config.sigma * noise.hidden_share, shape)
    return TwoNoisesConstraint(config.sigma, hidden)
