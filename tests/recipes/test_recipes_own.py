"""Runs with a data set in memory and a network of the caller's own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import interrupt
from torch import Tensor, nn

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Sampling
from twinproof.cli.summaries import training_answer
from twinproof.data import Dataset, from_arrays
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.guarantee import Status
from twinproof.recipes.finish import OWN_NETWORK_ASSUMPTIONS, note_own_network, own_network_assumptions
from twinproof.recipes.train import train
from twinproof.runs.layout import read_run_json
from twinproof.runs.run import Run

SETTINGS: dict[str, Any] = {"recipe": "dpsgd", "noise_multiplier": 20.0, "delta": 1e-3, "steps": 4, "batch_size": 20}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(0, 100, (90, 4, 4), dtype=np.uint8) + (labels * 50).astype(np.uint8)[:, None, None]
    return from_arrays("memory", {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]})


class Gated(nn.Module):
    """A bare parameter: only the vmap path can train it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.ones(16))
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(inputs.flatten(1) * self.gate)
        return scores


def test_an_own_network_on_an_own_data_set_end_to_end(dataset: Dataset, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Gated()
    before = copy.deepcopy(network.state_dict())
    run = train(SETTINGS, tmp_path / "run", dataset=dataset, network=network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items()), "the caller's stays as it is"
    assert set(run.model().state_dict()) == set(before), "no parameter is renamed"
    assert run.guarantee.status is Status.PROVEN
    assert run.record["own_network"] == {"assumptions": []}
    assert run.record["config"]["model"] == "own:Gated"
    assert run.record["data"]["name"] == "memory"
    tp.certify(run, dataset, sampling=Sampling(10, 50), limit=3)
    assert verify_run(run.root).ok


def test_the_same_seed_and_weights_give_the_same_model(dataset: Dataset, tmp_path: Path) -> None:
    network = Gated()
    models = [
        train({**SETTINGS, "seed": 5}, tmp_path / name, dataset=dataset, network=network).model_sha256 for name in ("a", "b")
    ]
    assert models[0] == models[1]
    assert train({**SETTINGS, "seed": 5}, tmp_path / "c", dataset=dataset, network=Gated()).model_sha256 != models[0]


def test_a_run_with_an_own_network_asks_for_it(dataset: Dataset, tmp_path: Path) -> None:
    network = Gated()
    train(SETTINGS, tmp_path / "run", dataset=dataset, network=network)
    with pytest.raises(RunError, match="network of your own"):
        Run.open(tmp_path / "run").model()
    assert isinstance(Run.open(tmp_path / "run", network).model(), Gated)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"settings": {**SETTINGS, "model": "mlp"}, "network": Gated()}, ConfigError, "model is given twice"),
        ({"settings": {**SETTINGS, "data": {"source": "digits"}}}, ConfigError, "data is given twice"),
        ({"settings": {**SETTINGS, "model": "own:Gated"}}, ConfigError, "network of your own"),
        (
            {"settings": SETTINGS, "network": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))},
            ModelError,
            "BatchNorm1d",
        ),
        ({"settings": SETTINGS, "network": nn.Sequential(nn.Flatten(), nn.Linear(16, 5))}, ModelError, "5"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    dataset: Dataset, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    settings = arguments.pop("settings")
    with pytest.raises(error, match=message):
        train(settings, tmp_path / "run", dataset=dataset, **arguments)
    assert not (tmp_path / "run").exists()


def test_resuming_needs_the_same_things_again(dataset: Dataset, tmp_path: Path) -> None:
    network = Gated()
    settings = {**SETTINGS, "seed": 1}
    interrupt(settings, tmp_path / "run", steps=1, dataset=dataset, network=network)
    with pytest.raises(ConfigError, match="network of your own"):
        train(None, tmp_path / "run", resume=True, dataset=dataset)
    resumed = train(None, tmp_path / "run", resume=True, dataset=dataset, network=network)
    whole = train(settings, tmp_path / "whole", dataset=dataset, network=network)
    assert resumed.model_sha256 == whole.model_sha256


@pytest.mark.parametrize("code", sorted(OWN_NETWORK_ASSUMPTIONS))
def test_what_could_not_be_shown_lowers_the_status_and_stays(dataset: Dataset, tmp_path: Path, code: str) -> None:
    class Adds:
        """Notes a code in the middle of training, as a session that could not show something does."""

        def start(self, stage: str, total: int, done: int = 0) -> None: ...

        def say(self, text: str) -> None: ...

        def advance(self, units: int = 1) -> None:
            note_own_network(tmp_path / "run", [code])

    run = train(SETTINGS, tmp_path / "run", dataset=dataset, network=Gated(), progress=Adds())
    assert run.record["own_network"] == {"assumptions": [code]}
    assert run.guarantee.status is Status.ASSUMED
    assert run.guarantee.assumptions[-1] == OWN_NETWORK_ASSUMPTIONS[code]
    answer = training_answer(run)
    assert (answer["status"], answer["epsilon"]) == ("assumed", run.epsilon)
    note_own_network(tmp_path / "run", [])
    assert own_network_assumptions(read_run_json(tmp_path / "run")) == (code,), "an assumption stays"


def test_a_built_in_network_has_no_such_entry(dataset: Dataset, tmp_path: Path) -> None:
    run = train(SETTINGS | {"model": "mlp"}, tmp_path / "run", dataset=dataset)
    assert "own_network" not in run.record


def test_an_unknown_assumption_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="kept-state"):
        own_network_assumptions({"own_network": {"assumptions": ["nothing to see here"]}})
