"""Weights to start from: those of the file at the nearest noise, a last layer of its own, and a file as it was made."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from twinproof.files import sha256_file
from twinproof.layers import networks
from twinproof.layers.networks import (
    PRIOR_NETWORK,
    PRIOR_SIGMAS,
    PRIOR_WIDTH,
    build_network,
    has_prior,
    prior_key,
    start_from_prior,
)

ROOT = Path(__file__).resolve().parents[2]
SHAPE, CLASSES = (1, 28, 28), 10
LAST = "10."


def _packaged() -> Path:
    return Path(str(files("twinproof.layers") / "prior.safetensors"))


def _network(shape: tuple[int, ...] = SHAPE, classes: int = CLASSES, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_network(PRIOR_NETWORK, shape, classes, width=PRIOR_WIDTH)


def _of_file(sigma: float) -> dict[str, Tensor]:
    """What the file holds for one noise, read without the code under test."""
    start = f"{sigma:g}/"
    return {name[len(start) :]: value for name, value in load_file(_packaged()).items() if name.startswith(start)}


NEAREST = [
    (0.01, 0.25),
    (0.353, 0.25),
    (0.354, 0.5),
    (0.36, 0.5),  # nearer to 0.25 by difference, to 0.5 by ratio
    (0.7, 0.5),
    (0.72, 1.0),
    (1e6, 1.0),
]


@pytest.mark.parametrize(("sigma", "nearest"), NEAREST)
def test_all_but_the_last_layer_are_the_files_at_the_nearest_noise(sigma: float, nearest: float) -> None:
    network, fresh = _network(), _network()
    start_from_prior(network, sigma)
    learned = _of_file(nearest)
    for name, value in network.state_dict().items():
        if name.startswith(LAST):
            assert torch.equal(value, fresh.state_dict()[name]), "the last layer stays as the generator made it"
        else:
            assert torch.equal(value, learned.pop(name).float()), name
            assert value.dtype == torch.float32
    assert not learned, "nothing in the file is left over"


def test_planted_nearest_by_difference_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Linear:
        """Stands for ``math`` in the module, with a logarithm that makes ratios differences."""

        @staticmethod
        def log(ratio: float) -> float:
            return 0.36 * ratio - 0.36

    monkeypatch.setattr(networks, "math", Linear)
    with pytest.raises(AssertionError):
        test_all_but_the_last_layer_are_the_files_at_the_nearest_noise(0.36, 0.5)


def test_the_last_layer_is_the_generators_and_no_memory_is_shared() -> None:
    used, one, other = _network(), _network(seed=1), _network(seed=2)
    start_from_prior(used, 0.5)
    with torch.no_grad():
        for value in used.parameters():
            value.zero_()  # training one must not change what the next one starts from
    for network in (one, other):
        start_from_prior(network, 0.5)
    assert torch.equal(one.state_dict()["0.weight"], _of_file(0.5)["0.weight"].float())
    different = {name for name, value in one.state_dict().items() if not torch.equal(value, other.state_dict()[name])}
    assert different == {f"{LAST}weight", f"{LAST}bias"}


@pytest.mark.parametrize(("shape", "classes"), [((1, 28, 28), 3), ((1, 8, 8), 10), ((1, 33, 20), 7)])
def test_other_sizes_and_numbers_of_classes_start_from_it_too(shape: tuple[int, ...], classes: int) -> None:
    assert has_prior(PRIOR_NETWORK, shape, PRIOR_WIDTH)
    network = _network(shape, classes)
    start_from_prior(network, 0.5)
    assert torch.equal(network.state_dict()["0.weight"], _of_file(0.5)["0.weight"].float())
    scores = network(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert scores.shape == (2, classes)
    assert bool(torch.isfinite(scores).all())


def test_other_networks_have_none_and_take_nothing_by_mistake() -> None:
    assert has_prior("gelu-cnn", SHAPE, 2)
    others = [("gelu-cnn", SHAPE, 1), ("gelu-cnn", SHAPE, 4), ("gelu-cnn", (3, 32, 32), 2), ("gelu-cnn", (64,), 2)]
    others += [
        ("gelu-cnn", (28, 28), 2),
        ("tramer-boneh-cnn", SHAPE, 2),
        ("scatter-cnn", SHAPE, 2),
        ("own:Sequential", SHAPE, 2),
    ]
    assert not any(has_prior(*other) for other in others)
    for network in (build_network("gelu-cnn", SHAPE, CLASSES, width=1), build_network("mlp", SHAPE, CLASSES)):
        with pytest.raises(RuntimeError, match=r"size mismatch|Unexpected key"):
            start_from_prior(network, 0.5)


def test_the_file_is_in_the_package_and_holds_each_noise_once() -> None:
    assert _packaged().is_file()
    stored = load_file(_packaged())
    kept = [name for name in _network().state_dict() if not name.startswith(LAST)]
    assert set(stored) == {prior_key(sigma, name) for sigma in PRIOR_SIGMAS for name in kept}
    assert all(value.dtype == torch.float16 and bool(torch.isfinite(value).all()) for value in stored.values())
    first = [stored[prior_key(sigma, "0.weight")] for sigma in PRIOR_SIGMAS]
    assert not torch.equal(first[0], first[1]), "each was learned under its own noise"
    assert not torch.equal(first[1], first[2])


def test_the_package_data_names_the_file() -> None:
    """A wheel holds what `package-data` names; an editable installation would find the file anyway."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["twinproof"]
    package = ROOT / "src" / "twinproof"
    assert any(package / "layers" / "prior.safetensors" in package.glob(pattern) for pattern in patterns)


def test_the_file_is_the_one_that_the_results_tell_of() -> None:
    told = json.loads((ROOT / "results" / "prior.json").read_text())
    assert told["sha256"] == sha256_file(_packaged())
    assert (told["network"], told["width"]) == (PRIOR_NETWORK, PRIOR_WIDTH)
    assert tuple(one["sigma"] for one in told["priors"]) == PRIOR_SIGMAS
    chance = 1 / told["lesson"]["figures"]
    assert all(one["accuracy"] > 10 * chance for one in told["priors"]), "it learned something"
