"""The table of the package's networks is that of their code, and weights of any other network are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import DEMO, NOISY, TWO_NOISES, copied, count_each_ledger_once, reconfigured, reweighted
from safetensors.torch import save
from torch import nn

from synthetic_run import forge_run
from twinproof.auditing.ask_network import loaded_network
from twinproof.auditing.verify import verify_run
from twinproof.errors import ConfigError
from twinproof.layers.fixed_draws import with_fixed_draws
from twinproof.layers.networks import NETWORKS as BUILT
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import NoiseForm, RedistributionKind, with_noise, with_two_noises
from twinproof_verify.findings import Problem
from twinproof_verify.weights import NETWORKS, Misfit, network_of, network_problems, tensors_of

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 11), (1, 4, 5), (30,), (1, 21, 33), (2, 12, 8)]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module", autouse=True)
def one_account_for_each_ledger() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        count_each_ledger_once(patched)
        yield


def run_of(model: str, shape: tuple[int, ...], width: int = 1, **config: Any) -> dict[str, Any]:
    return {"config": {"model": model, "width": width, **config}, "data": {"shape": list(shape), "classes": list("abcdefg")}}


def built(model: str, shape: tuple[int, ...], width: int = 1) -> nn.Module | None:
    try:
        with torch.device("meta"):
            return build_network(model, shape, 7, width=width)
    except ConfigError:
        return None


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("model", BUILT)
def test_the_table_is_that_of_the_networks(model: str, width: int) -> None:
    for shape in SHAPES:
        network, found = built(model, shape, width), tensors_of(run_of(model, shape, width))
        if network is None:
            assert isinstance(found, Problem), shape
        else:
            assert found == {name: ("F32", tuple(value.shape)) for name, value in network.state_dict().items()}, shape


def test_every_network_is_in_the_table() -> None:
    assert set(NETWORKS) == BUILT.keys()


@pytest.mark.parametrize("redistribution", list(RedistributionKind))
@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("model", ["mlp", "small-cnn"])
def test_noise_layers_are_in_the_table(model: str, place: Place, redistribution: RedistributionKind) -> None:
    shape, layer = (1, 9, 12), {"place": str(place), "redistribution": str(redistribution), "law": "gaussian"}
    network = with_noise(build_network(model, shape, 7), shape, NoiseForm(place, Law.GAUSSIAN, redistribution, 0.1, 0.5), 1.0)
    run = run_of(model, shape, noise_layer={**layer, "floor": 0.1, "width": 0.5})
    content = save(dict(network.state_dict()))
    assert list(network_problems(content, run)) == []
    assert isinstance(loaded_network(content, run), nn.Module)
    assert list(network_problems(content, run_of(model, shape)))


@pytest.mark.parametrize("model", ["tramer-boneh-cnn", "gelu-cnn", "stobatch-cnn", "wrn-16-4", "resnet-18"])
def test_a_noise_layer_is_as_large_as_the_first_layer(model: str) -> None:
    shape, form = (1, 21, 32), NoiseForm(Place.FIRST_LAYER, Law.GAUSSIAN, RedistributionKind.LEARNED, 0.1, 0.5)
    with torch.device("meta"):
        network = with_noise(build_network(model, shape, 7), shape, form, 1.0)
    found = tensors_of(run_of(model, shape, noise_layer={"place": "first-layer", "redistribution": "learned"}))
    assert isinstance(found, dict)
    assert found["noise.spread.log_shares"] == ("F32", tuple(network.state_dict()["noise.spread.log_shares"].shape))


@pytest.mark.parametrize("variant", ["sound", "published"])
def test_two_noises_and_kept_draws_are_in_the_table(variant: str) -> None:
    shape, layer = (1, 8, 8), {"place": "input-and-first-layer", "law": "laplace"}
    network = with_two_noises(build_network("stobatch-cnn", shape, 7), shape, 1.0, 2.0)
    network = with_fixed_draws(network, shape) if variant == "published" else network
    content = save(dict(network.state_dict()))
    run = run_of("stobatch-cnn", shape, noise_layer=layer, variant=variant)
    assert list(network_problems(content, run)) == []
    assert isinstance(loaded_network(content, run), nn.Module)
    other = run_of("stobatch-cnn", shape, noise_layer=layer, variant="sound" if variant == "published" else "published")
    assert any("fixed_draws" in problem.what for problem in network_problems(content, other))


def without_noise(config: dict[str, Any]) -> None:
    config["noise_layer"] = None


LIES: list[tuple[str, str, Callable[[Path], object]]] = [
    ("no noise layer", NOISY, lambda root: reconfigured(root, without_noise)),
    ("no noise layers", TWO_NOISES, lambda root: reconfigured(root, without_noise)),
    ("a noise layer", DEMO, lambda root: reconfigured(root, lambda c: c.update(noise_layer={"place": "input"}))),
    ("one pixel", DEMO, forge_run(lambda run: run["data"].update(shape=[1, 1, 1]))),
    ("another shape", NOISY, forge_run(lambda run: run["data"].update(shape=[1, 4, 4]))),
    ("another network", DEMO, lambda root: reconfigured(root, lambda c: c.update(model="small-cnn"))),
    ("no network", DEMO, lambda root: reconfigured(root, lambda c: c.pop("model"))),
    ("an invented network", DEMO, lambda root: reconfigured(root, lambda c: c.update(model="vgg"))),
    ("another width", DEMO, lambda root: reconfigured(root, lambda c: c.update(width=2))),
    ("a width without end", DEMO, lambda root: reconfigured(root, lambda c: c.update(width=2**50))),
    ("more classes", DEMO, forge_run(lambda run: run["data"].update(classes=[str(at) for at in range(11)]))),
    ("kept draws", TWO_NOISES, lambda root: reconfigured(root, lambda c: c.update(variant="published"))),
    ("equal scales", NOISY, lambda root: reconfigured(root, lambda c: c["noise_layer"].update(redistribution="uniform"))),
    ("one tensor more", DEMO, lambda root: reweighted(root, lambda w: w.update(more=np.zeros(1, np.float32)))),
    ("a tensor gone", DEMO, lambda root: reweighted(root, lambda w: w.pop("3.bias"))),
    ("double precision", DEMO, lambda root: reweighted(root, lambda w: w.update({"3.bias": w["3.bias"].astype(np.float64)}))),
]


@pytest.mark.parametrize(("name", "run", "lie"), LIES, ids=[name.replace(" ", "-") for name, _, _ in LIES])
def test_weights_of_another_network_are_refused(tmp_path: Path, name: str, run: str, lie: Callable[[Path], object]) -> None:
    root = copied(run, tmp_path)
    lie(root)
    found = [check for check in verify_run(root).checks if check.name == "network"]
    assert [check.passed for check in found] == [False], name


@pytest.mark.parametrize("run", [DEMO, NOISY, TWO_NOISES])
def test_runs_of_format_1_name_their_network(run: str, tmp_path: Path) -> None:
    found = [check for check in verify_run(copied(run, tmp_path)).checks if check.name == "network"]
    assert [check.passed for check in found] == [True]


def test_a_hostile_record_names_no_network() -> None:
    for run in ({}, {"config": 3}, run_of("mlp", (2**53,) * 9), run_of("mlp", (0,)), {**run_of("mlp", (4,)), "data": []}):
        assert isinstance(tensors_of(run), Problem)
    assert isinstance(tensors_of(run_of("small-vit", (1, 9, 9))), Problem)
    with pytest.raises(Misfit):
        network_of("small-vit", (1, 10, 12), 3, 1)


def test_an_owners_network_is_checked_with_its_module_alone(tmp_path: Path) -> None:
    root = copied(DEMO, tmp_path)
    reconfigured(root, lambda config: config.update(model="own:Sequential"))
    assert any("owner's network" in one for one in verify_run(root).not_checked)
    assert not [check for check in verify_run(root).checks if check.name == "network"]
    right = build_network("mlp", (1, 8, 8), 10)
    passed = [check.passed for check in verify_run(root, network=right).checks if check.name == "network"]
    assert passed == [True]
    wrong = build_network("mlp", (1, 8, 8), 10, width=2)
    passed = [check.passed for check in verify_run(root, network=wrong).checks if check.name == "network"]
    assert passed == [False]
