"""AdLM: shares against relevance, by hand; what the estimate costs; the law of its noise; what is printed, and refuted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import noisy_start, parts_of, resolved
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from scipy.stats import spearmanr
from small_runs import ledger_lines, run_json, tiny
from torch import Tensor, nn

from twinproof.auditing.verify import verify_run
from twinproof.data.record import Split
from twinproof.errors import ModelError, RunError
from twinproof.guarantee import Status, round_up
from twinproof.keys import Key
from twinproof.layers.noise import NoiseLayer, silenced
from twinproof.layers.noise_placement import split_at_noise
from twinproof.privacy.accounting import GaussianEvent, PoissonGaussianEvent, epsilon_pld
from twinproof.recipes import redistribution
from twinproof.recipes import train as train_module
from twinproof.recipes.network import Own, run_network
from twinproof.recipes.redistribution import exact_mean, private_mean, relevances, scales_against, scales_from
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import redistribution_plan
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof.training.passes import DeviceRecords
from twinproof.training.stobatch import taylor_cross_entropy

CPU = torch.device("cpu")


def _settings(source: Path, **changes: Any) -> dict[str, Any]:
    if changes.get("variant") == "published":
        changes = {"epsilon": 3.0, **changes}
    settings = tiny(source, recipe="adlm", noise_layer=changes.pop("noise", {}), **changes)
    if "epsilon" in changes:
        del settings["noise_multiplier"]
    return settings


def _by_hand(network: nn.Sequential, split: Split, levels: int, beta: float) -> Tensor:
    """One record at a time: a_k w_lk z_l / (z_l + e sign z_l) for the label l, its magnitude to beta, length 1."""
    first, last = (layer for layer in network if isinstance(layer, nn.Linear))
    rows = []
    for stored, label in zip(split.inputs, split.labels, strict=True):
        hidden = first(torch.from_numpy(stored.astype(np.float32)).flatten() / levels).tanh().detach().double()
        weights, bias = last.weight.detach().double()[label], last.bias.detach().double()[label]
        score = weights @ hidden + bias
        found = (weights * hidden * score / (score + torch.sign(score) * 0.01)).abs() ** beta
        rows.append(found / found.norm())
    return torch.stack(rows)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_the_relevance_of_each_record_is_the_one_written_by_hand(source: Path, beta: float, alone: bool) -> None:
    config, dataset = resolved(_settings(source))
    network = noisy_start(config, dataset)
    split = parts_of(network)
    records = DeviceRecords(dataset.train, dataset.levels, CPU)
    found = torch.cat(list(relevances(split, records, beta, alone=alone)))
    assert torch.allclose(found, _by_hand(network, dataset.train, dataset.levels, beta), rtol=1e-4, atol=1e-7)


def test_no_record_changes_what_another_adds(source: Path) -> None:
    config, dataset = resolved(_settings(source))
    split = parts_of(noisy_start(config, dataset))
    inputs, labels = dataset.train.inputs.copy(), dataset.train.labels.copy()
    inputs[1:], labels[1:] = dataset.levels - inputs[1:], (labels[1:] + 1) % 3
    found = [
        next(relevances(split, DeviceRecords(part, dataset.levels, CPU), 1.0, alone=True))
        for part in (dataset.train, Split(inputs, labels))
    ]
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])


def test_a_record_without_relevance_adds_nothing(source: Path) -> None:
    config, dataset = resolved(_settings(source))
    network = noisy_start(config, dataset)
    with torch.no_grad():
        for value in network[4].parameters():
            value.zero_()
    split = parts_of(network)
    found = torch.cat(list(relevances(split, DeviceRecords(dataset.train, dataset.levels, CPU), 2.0, alone=True)))
    assert not found.any()


UNFIT: list[tuple[str, nn.Module, str]] = [
    ("sound", nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)), "relevance cannot be handed back"),
    ("published", nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)), "relevance cannot be handed back"),
    ("published", nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)), "no bias of the first layer"),
    ("published", nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Tanh()), r"drawn once(.|\n)*Tanh\(\) at the end"),
]


@pytest.mark.parametrize(("variant", "network", "words"), UNFIT)
def test_a_network_that_does_not_fit_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, variant: str, network: nn.Module, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        train(_settings(source, variant=variant), tmp_path / "run", network=network)
    assert not (tmp_path / "run").exists()


def test_equal_shares_need_no_relevance(source: Path, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3))
    run = train(_settings(source, noise={"redistribution": "uniform"}), tmp_path / "run", network=network)
    assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "poisson-gaussian", "close"]


def _noise_falls_with_relevance(rule: Any) -> bool:
    mean = torch.tensor([0.1, 0.4, 0.2, 0.8], dtype=torch.float64)
    scales = rule(mean, 0.1).double()
    return torch.equal(scales.argsort(), mean.argsort(descending=True)) and torch.allclose(
        scales * mean, (scales * mean)[0].expand(4), rtol=1e-6
    )


def test_scales_go_against_relevance_and_the_planted_other_way_is_caught() -> None:
    assert _noise_falls_with_relevance(scales_against)
    assert not _noise_falls_with_relevance(scales_from)


def test_shares_are_floored_and_normalised() -> None:
    scales = scales_against(torch.tensor([-3.0, 0.0, 1.0, 7.0], dtype=torch.float64), 0.1)
    inverse = [1 / value for value in (0.1, 0.1, 0.5, 3.5)]
    length = (sum(value**2 for value in inverse) / 4) ** 0.5
    assert scales.tolist() == pytest.approx([value / length for value in inverse], rel=1e-6)
    assert float(scales.double().square().mean()) == pytest.approx(1, abs=1e-6)


def test_scales_in_the_weights_follow_public_records(source: Path, tmp_path: Path) -> None:
    settings = _settings(source, steps=1, learning_rate=0, noise={"redistribution": "public"})
    run = train(settings, tmp_path / "run")
    config, dataset = resolved(settings)
    mean = _by_hand(noisy_start(config, dataset), dataset.test, dataset.levels, 1.0).mean(dim=0)
    inverse = 1 / (mean / mean.mean()).clamp_min(0.25)
    wanted = (inverse / inverse.square().mean().sqrt()).float()
    assert torch.allclose(load_file(run.layout.model)["noise.spread.scales"], wanted, rtol=1e-4)
    assert float(wanted.max() / wanted.min()) > 2, "the test would see equal scales"


def _undercharged(root: Path) -> bool:
    """Whether a run promises less than it cost, or its ledger does not hold the estimate of relevance."""
    config, privacy = (run_json(root)[name] for name in ("config", "privacy"))
    steps = PoissonGaussianEvent(config["batch_size"] / config["records"], config["noise_multiplier"], config["steps"])
    truth = epsilon_pld([GaussianEvent(config["noise_layer"]["r_noise_multiplier"]), steps], config["delta"])
    paid = [line["body"] for line in ledger_lines(root) if line["kind"] == "gaussian"]
    return [body["purpose"] for body in paid] != ["redistribution"] or privacy["epsilon"] < round_up(truth)


def test_relevance_is_paid_for_and_proven(source: Path, tmp_path: Path) -> None:
    root = train(_settings(source, seed=None), tmp_path / "run").root
    assert not _undercharged(root)
    kinds = [line["kind"] for line in ledger_lines(root)]
    assert kinds.index("gaussian") < kinds.index("poisson-gaussian")
    assert Run.open(root).guarantee.status is Status.PROVEN
    assert verify_run(root).ok


def test_planted_relevance_that_is_not_charged_is_caught(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module, "spent_on_redistribution", lambda config: [])
    with pytest.raises(RunError, match="does not count the private estimate of r"):
        train(_settings(source), tmp_path / "guarded")
    monkeypatch.setattr(redistribution, "_refuse_unpaid", lambda ledger, plan: None)
    root = train(_settings(source), tmp_path / "unguarded").root
    assert _undercharged(root)
    verdict = verify_run(root)
    assert not verdict.ok
    assert any("no event of the ledger pays for it" in problem.what for problem in verdict.problems)


def test_records_are_not_read_before_the_ledger_counts_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, list[str]]] = []

    def watched(*arguments: Any, alone: bool) -> Iterator[Tensor]:
        seen.append((alone, [line["body"].get("purpose", "") for line in ledger_lines(tmp_path / "run")]))
        return relevances(*arguments, alone=alone)

    monkeypatch.setattr(redistribution, "relevances", watched)
    train(_settings(source), tmp_path / "run")
    assert seen == [(True, ["", "redistribution"])]


def _is_laplace(layer: NoiseLayer, draw: Any) -> bool:
    """60,000 draws of each of 64 outputs: E|x| = b to six deviations (2.5 %), E x^2 = 2 b^2 (normal: pi/2 b^2)."""
    scales = layer.deviation * layer.spread.least().double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        drawn = draw(torch.zeros(60_000, *layer.shape)).double()
    size, square = drawn.abs().mean(dim=0), drawn.square().mean(dim=0)
    return bool(((size / scales - 1).abs() < 0.025).all() and ((square / (2 * scales**2) - 1).abs() < 0.06).all())


def test_the_noise_has_laplaces_law_and_the_written_scales(source: Path, tmp_path: Path) -> None:
    run = train(_settings(source), tmp_path / "run")
    layer = parts_of(run.model()).noise
    assert float(layer.spread.least().max() / layer.spread.least().min()) > 1.5
    assert _is_laplace(layer, layer)
    assert not _is_laplace(layer, lambda x: 1.04 * layer(x)), "noise 4 % too large is seen"
    scales = (layer.deviation * layer.spread.least()).float()
    assert not _is_laplace(layer, lambda x: scales * (np.pi / 2) ** 0.5 * torch.randn_like(x)), "another law is seen"


@pytest.mark.slow
def test_convolutions_of_tanh_units_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the loss as printed in its place the same training learns next to nothing."""
    settings: dict[str, Any] = {
        "recipe": "adlm",
        "data": {"source": "digits"},
        "delta": 1e-4,
        "noise_multiplier": 2.0,
        "seed": 1,
    }
    settings |= {"model": "small-cnn", "copies": 1, "steps": 60, "performance": {"device": "cpu", "report_every": 1000}}
    found = train(settings, tmp_path / "run").record["accuracy"]["value"]
    monkeypatch.setitem(RECIPES, "adlm", replace(RECIPES["adlm"], loss=taylor_cross_entropy))
    planted = train(settings, tmp_path / "planted").record["accuracy"]["value"]
    assert found > 0.6
    assert planted < found - 0.2


@pytest.mark.parametrize(("variant", "status"), [("sound", "proven"), ("published", "refuted")])
def test_the_command_line_end_to_end(call: Any, tmp_path: Path, variant: str, status: str) -> None:
    root = tmp_path / "run"
    noise = "noise_multiplier=9" if variant == "sound" else "epsilon=3"
    options = ["--set", "model=mlp", "--set", "steps=8", "--set", f"variant={variant}", "--set", noise, "--delta", "1e-4"]
    trained = call("train", "--data", "digits", "--recipe", "adlm", *options, "--out", root, "--json").json()
    assert trained["status"] == status
    assert (trained["epsilon"] is None) == (variant == "published")
    certified = call("certify", root, "--n", "300", "--limit", "8", "--json").json()
    assert (certified["norm"], certified["law"], certified["place"]) == ("l1", "laplace", "first-layer")
    assert [one.status for one in Run.open(root).robustness.values()] == [Status.PROVEN]
    assert call("verify", root, "--json").json()["ok"]
    assert call("report", root, "--json").code == 0
    assert json.loads((root / "report.json").read_text())["guarantees"]["privacy"]["status"] == status


WORTH = [("mlp", 0.85, -0.4, 0.4), ("small-cnn", 0.5, 0.45, 0.8)]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "private", "least", "most"), WORTH)
def test_what_relevance_at_random_weights_is_worth(model: str, private: float, least: float, most: float) -> None:
    """Rank correlations on digits: of the private estimate with the exact one, and of that with a trained network's."""
    settings = {"data": {"source": "digits"}, "recipe": "adlm", "delta": 1e-4, "noise_multiplier": 2.0, "model": model}
    config, dataset = resolved(settings)
    torch.manual_seed(1)
    network = run_network(config, Own(), dataset).eval()
    split, plan, records = (
        split_at_noise(network),
        redistribution_plan(config),
        DeviceRecords(dataset.train, dataset.levels, CPU),
    )
    assert split is not None
    assert plan is not None
    exact = exact_mean(relevances(split, records, 1.0, alone=False))
    noisy = private_mean(relevances(split, records, 1.0, alone=True), plan, Key.from_seed(1), split.noise.spread.coordinates)
    assert spearmanr(exact, noisy).statistic > private
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    inputs = records.inputs(slice(None))
    with silenced(network):
        for _ in range(300):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), records.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    trained = exact_mean(relevances(split, records, 1.0, alone=False))
    assert least < spearmanr(exact, trained).statistic < most
