"""Weights to start from that were learned from generated images and lie in the package.

Private training learns little from each record; what it need not learn it cannot lose. `benchmarks/make_prior.py` made them.
"""

from __future__ import annotations

import functools
import math
from enum import StrEnum
from importlib.resources import as_file, files

from safetensors.torch import load_file
from torch import Tensor, nn

from twinproof.files import sha256_file


class Prior(StrEnum):
    """What a network starts from: random weights, or some that were learned from generated figures."""

    NONE = "none"
    FIGURES = "figures"


PRIOR_NETWORK, PRIOR_WIDTH = "gelu-cnn", 2
PRIOR_SIGMAS = (0.25, 0.5, 1.0)
"""Input noise that each of them was learned under."""
_FILE = "prior.safetensors"


def has_prior(network: str, shape: tuple[int, ...], width: int) -> bool:
    """Whether there are weights for this network: images of one channel, of any size that the network takes."""
    return (network, width) == (PRIOR_NETWORK, PRIOR_WIDTH) and len(shape) == 3 and shape[0] == 1


def prior_key(sigma: float, name: str) -> str:
    """The name in the file of a weight learned under ``sigma``."""
    return f"{sigma:g}/{name}"


def start_from_prior(network: nn.Module, sigma: float) -> None:
    """Gives ``network``, one that has a prior, the weights learned under the noise nearest to ``sigma``; the last layer stays.

    Guarantees
        What is loaded is a constant of this package, learned from images that a program drew. The account of privacy holds for
        any weights to start from that were fixed without looking at the records.
    """
    nearest = min(PRIOR_SIGMAS, key=lambda known: abs(math.log(known / sigma)))
    prefix = prior_key(nearest, "")
    learned = {name.removeprefix(prefix): value.float() for name, value in _weights().items() if name.startswith(prefix)}
    network.load_state_dict({**network.state_dict(), **learned})


@functools.lru_cache(maxsize=1)
def prior_sha256() -> str:
    """The digest of the file in this package: another version may ship other weights."""
    with as_file(files(__package__) / _FILE) as path:
        return sha256_file(path)


@functools.lru_cache(maxsize=1)
def _weights() -> dict[str, Tensor]:
    with as_file(files(__package__) / _FILE) as path:
        return load_file(path)
