"""A federated run on disk: a pooled run's epsilon and accuracy, and everything that takes a run takes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Cheat, agreed, digits, local, members, public, settings, shares, with_sums

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Sampling
from twinproof.errors import RunError
from twinproof.federated.agreement import agree
from twinproof.federated.coordinator import read_rounds
from twinproof.federated.local import Answering, federate_shares
from twinproof.federated.messages import Update
from twinproof.federated.train import federate
from twinproof.guarantee import Status
from twinproof.progress import Silent
from twinproof.recipes.train import train
from twinproof.reporting.run import write_report
from twinproof.runs.run import Run, load_run_data

LEARNING = {"noise_multiplier": 2.0, "steps": 60, "performance": {"device": "cpu", "report_every": 60}}


def pooled(root: Path, **changes: Any) -> Run:
    return train({"data": {"source": "digits"}, **settings(**changes)}, root)


def federated(root: Path, found: dict[str, Answering] | None = None, **changes: Any) -> Run:
    agreement = agreed(**changes)
    return federate(agreement, local(found or members(agreement, changes.get("seed", 3))), public(), root)


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Fresh keys from the system: a run that is private."""
    root = tmp_path_factory.mktemp("federated") / "run"
    return federate_shares({**settings(seed=None, sigma=0.25), "recipe": "dpcert-gaussian", "copies": 1}, digits(), root)


def test_a_run_of_all_records_is_the_pooled_run(tmp_path: Path) -> None:
    """With rate 1 nothing but the order of addition differs: the same noise, and the same weights up to rounding."""
    everybody: dict[str, Any] = {"batch_size": len(digits().train), "noise_multiplier": 300.0}
    one, other = pooled(tmp_path / "pooled", **everybody), federated(tmp_path / "federated", **everybody)
    for name, value in one.model().state_dict().items():
        torch.testing.assert_close(other.model().state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert one.record["privacy"] == other.record["privacy"]


def test_the_ledger_is_the_pooled_runs(tmp_path: Path) -> None:
    one, other = pooled(tmp_path / "pooled"), federated(tmp_path / "federated")
    assert one.epsilon == other.epsilon
    lines = [
        [(entry["kind"], {**entry["body"], "model_sha256": ""}) for entry in map(json.loads, root.open(encoding="utf-8"))]
        for root in (one.layout.ledger, other.layout.ledger)
    ]
    for kind, body in (entry for part in lines for entry in part):
        body.pop("config_sha256", None)  # the settings of one say 1397 records, of the other nothing
        assert kind in ("open", "poisson-gaussian", "close")
    assert lines[0] == lines[1]


def test_verify_certify_and_report_accept_it(run: Run) -> None:
    assert verify_run(run.root).problems == ()
    data = load_run_data(run)
    certified = tp.certify(run, data, sampling=Sampling(n0=10, n=100, alpha=0.01), limit=5, device="cpu")
    assert len(certified.certificates) == 5
    found = verify_run(run.root)
    assert found.problems == ()
    assert write_report(run.root, dataset=data, verification=found.as_dict()).html.is_file()


def test_the_record_names_the_parties_and_what_is_taken_for_granted(run: Run) -> None:
    wanted = [{"name": name, "records": len(share)} for name, share in shares().items()]
    assert run.record["federation"]["parties"] == wanted
    assert run.record["data"]["records"] == sum(len(share) for share in shares().values())
    assert run.guarantee.status is Status.PROVEN
    assert any("no secure aggregation" in text for text in run.guarantee.assumptions)


def test_nothing_about_rounds_is_released(run: Run) -> None:
    files = {path.name for path in run.root.iterdir() if path.is_file()}
    assert {"run.json", "ledger.jsonl", "metrics.jsonl", "model.safetensors"} <= files
    assert not {name for name in files if "round" in name or "key" in name}
    text = (run.root / "run.json").read_text()
    assert "drawn" not in text
    assert len(read_rounds(run.layout.private)) == 6
    assert not (run.layout.private / "key").exists()
    assert not (run.layout.private / "checkpoint.safetensors").exists()


def test_a_known_seed_promises_nothing(tmp_path: Path) -> None:
    found = federated(tmp_path / "run")
    assert found.guarantee.status is Status.NONE
    assert found.guarantee.assumptions == ()
    assert verify_run(found.root).problems == ()


def liars(found: dict[str, Answering]) -> dict[str, Answering]:
    """Party 1 lies in another way in every round; it is a tenth of the records."""
    lies: list[Callable[[Update], Update]] = [
        lambda update: with_sums(update, lambda sums: sums * np.nan),
        lambda update: with_sums(update, np.ravel),
        lambda update: with_sums(update, lambda sums: sums - 1e6),
        lambda update: replace(update, step=update.step - 1),
        lambda update: replace(update, weights_sha256="0" * 64),
    ]
    return {**found, "party-1": Cheat(found["party-1"], lambda update, request: lies[request.step % len(lies)](update))}


def test_a_party_that_lies_in_every_round_is_named_and_the_model_is_fine(tmp_path: Path) -> None:
    agreement, heard = agreed(**LEARNING), Heard()
    found = federate(agreement, local(liars(members(agreement))), public(), tmp_path / "run", progress=heard)
    rounds = read_rounds(found.layout.private)
    assert [[one.party for one in happened.refused] for happened in rounds] == [["party-1"]] * 60
    assert len({happened.refused[0].reason.split(" ")[1] for happened in rounds[:5]}) > 1
    assert len(heard.lines) == 60
    assert "party-1 is refused" in heard.lines[0]
    assert found.record["accuracy"]["value"] > 0.85
    assert found.epsilon == pooled(tmp_path / "pooled", **LEARNING).epsilon
    assert verify_run(found.root).problems == ()


def test_a_run_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a run in this directory already"):
        federate(agreed(), local({}), public(), run.root)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="not empty"):
        federate(agreed(), local({}), public(), tmp_path)


def test_the_coordinator_sees_no_training_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that still holds its training records gives the same run as one without."""
    broken = replace(digits(), train=replace(digits().train, inputs=digits().train.inputs * 0))
    agreement = agreed()
    one = federate(agreement, local(members(agreement)), public(), tmp_path / "one")
    other = federate(agreement, local(members(agreement)), broken, tmp_path / "other")
    assert one.model_sha256 == other.model_sha256
    assert agree(settings(), agreement.parties, broken).sha256 == agreement.sha256


@pytest.mark.parametrize("recipe", ["securesgd", "twinproof"])
def test_noise_layers_and_averages_work(tmp_path: Path, recipe: str) -> None:
    extra: dict[str, Any] = {"noise_layer": {"redistribution": "public"}} if recipe == "securesgd" else {}
    found = federated(tmp_path / "run", recipe=recipe, copies=1, **extra)
    assert verify_run(found.root).problems == ()


@pytest.mark.slow
def test_four_parties_come_within_two_points_of_the_pooled_run(tmp_path: Path) -> None:
    """The same epsilon exactly, and the mean of three seeds: one seed's accuracy moves by about a point."""
    plan: dict[str, Any] = {
        "noise_multiplier": None,
        "epsilon": 3.0,
        "steps": 218,
        "batch_size": None,
        "performance": {"device": "cpu"},
    }
    accuracies: dict[str, list[float]] = {"pooled": [], "federated": []}
    for seed in range(3):
        one = pooled(tmp_path / f"pooled-{seed}", seed=seed, **plan)
        other = federated(tmp_path / f"federated-{seed}", seed=seed, **plan)
        assert one.epsilon == other.epsilon
        for name, found in (("pooled", one), ("federated", other)):
            accuracies[name].append(found.record["accuracy"]["value"])
    assert abs(np.mean(accuracies["pooled"]) - np.mean(accuracies["federated"])) < 0.02
    assert np.mean(accuracies["federated"]) > 0.92


@pytest.mark.parametrize("inside", [False, True], ids=["a file", "inside a file"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_no_directory_for_a_run(tmp_path: Path, inside: bool, resume: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    agreement = agreed()
    with pytest.raises(RunError, match="this directory cannot be made"):
        federate(agreement, local(members(agreement)), public(), file / "run" if inside else file, resume=resume)
    assert file.read_text() == "mine"
