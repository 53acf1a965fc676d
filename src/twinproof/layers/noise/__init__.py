"""Noise layers: at the input or behind the first linear layer, Gaussian or Laplace, with equal or redistributed scales."""

from twinproof.layers.noise.constraint import Constraint, WeightRule
from twinproof.layers.noise.law import Law, Place
from twinproof.layers.noise.learned_spread import LearnedSpread
from twinproof.layers.noise.noise_layer import NoiseLayer, silenced
from twinproof.layers.noise.placement import NOISE_NAME, NoiseSplit, add_noise, split_at_noise
from twinproof.layers.noise.random_spread import RandomSpread
from twinproof.layers.noise.spread import FixedSpread, Spread, UniformSpread

__all__ = [
    "NOISE_NAME",
    "Constraint",
    "FixedSpread",
    "Law",
    "LearnedSpread",
    "NoiseLayer",
    "NoiseSplit",
    "Place",
    "RandomSpread",
    "Spread",
    "UniformSpread",
    "WeightRule",
    "add_noise",
    "silenced",
    "split_at_noise",
]
