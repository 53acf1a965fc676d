"""Noise layers: at the input or behind the first linear layer, Gaussian or Laplace, with equal or redistributed scales."""

from twinproof.layers.noise.constraint import Constraint, WeightRule
from twinproof.layers.noise.law import Law, Place
from twinproof.layers.noise.learned_spread import LearnedSpread
from twinproof.layers.noise.noise_layer import NoiseLayer, silenced
from twinproof.layers.noise.placement import NOISE_NAME, NoiseSplit, add_noise, split_at_noise
from twinproof.layers.noise.random_spread import RandomSpread
from twinproof.layers.noise.spread import FixedSpread, Spread, UniformSpread
from twinproof.layers.noise.two_noises import BOTH_PLACES, INPUT_NOISE_NAME, TwoNoisesSplit, add_two_noises, split_at_two_noises

__all__ = [
    "BOTH_PLACES",
    "INPUT_NOISE_NAME",
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
    "TwoNoisesSplit",
    "UniformSpread",
    "WeightRule",
    "add_noise",
    "add_two_noises",
    "silenced",
    "split_at_noise",
    "split_at_two_noises",
]
