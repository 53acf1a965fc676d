"""The network of a run, built from its settings, and the rule that holds the layer before its noise."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.networks import Prior, build_run_network, start_from_prior
from twinproof.layers.noise_constraint import Constraint, TwoNoisesConstraint
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.variant import Holds
from twinproof.runs.run import is_own_network, own_network_name


@dataclass(frozen=True)
class Own:
    """A data set and a network from the caller, or None for what the settings name."""

    dataset: Dataset | None = None
    network: nn.Module | None = None

    def named(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with the names under which these are written down; a second source for the same thing is refused."""
        named = dict(settings)
        for key, mine in (("data", self.dataset), ("model", self.network)):
            if mine is not None and settings.get(key) is not None:
                raise ConfigError(
                    f"{key} is given twice", where=key, got=f"{settings[key]!r}, and an object", wanted="one of the two"
                )
        if self.dataset is not None:
            named["data"] = {"source": self.dataset.name}
        if self.network is not None:
            named["model"] = own_network_name(self.network)
        return named

    def network_copy(self, name: str) -> nn.Module | None:
        """A copy of the caller's network, if ``name`` says that the run trains one; it must be that one."""
        if not is_own_network(name):
            return None
        if self.network is None or own_network_name(self.network) != name:
            raise ConfigError(
                "the run trains a network of your own",
                where="network",
                got="no network" if self.network is None else own_network_name(self.network),
                wanted=name,
                fix="give the module: train(..., network=...)",
            )
        return copy.deepcopy(self.network)


def run_network(config: ResolvedConfig, own: Own, dataset: Dataset) -> nn.Module:
    """The network that the settings describe, with weights to start from, or a copy of the caller's own."""
    settings, variant = config.model_dump(mode="json"), config.spec.variant(config.variant)
    network = build_run_network(settings, dataset.shape, len(dataset.classes), own.network_copy(config.model))
    if config.spec.initialise is not None and own.network is None:
        config.spec.initialise(network)
    if config.prior is Prior.FIGURES:
        start_from_prior(network, config.spec.prior_level(config), config.model)
    if variant is not None and variant.prepare is not None:
        variant.prepare(network, config)
    return network


def initial_network(config: ResolvedConfig, own: Own, dataset: Dataset, key: Key) -> nn.Module:
    """The network before the first step: a function of the settings and the key, not of torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.seed("initial weights"))
        return run_network(config, own, dataset)


def constraint_of(config: ResolvedConfig, shape: tuple[int, ...]) -> Holds | None:
    """What is done to the network before the first step and after each one.

    It is a function of the weights alone: post-processing of the private steps, which costs no privacy.
    """
    variant, noise = config.spec.variant(config.variant), config.noise_layer
    if variant is not None and variant.constraint is not None:
        return variant.constraint()
    if noise is None:
        return None
    if noise.place != BOTH_PLACES:
        return Constraint(noise.weights, noise.norm, noise.law, config.sigma, shape)
    hidden = Constraint(noise.weights, noise.norm, noise.law, config.sigma * noise.hidden_share, shape)
    return TwoNoisesConstraint(config.sigma, hidden)
