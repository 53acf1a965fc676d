"""AdLM as its paper has it: one draw of its noise, Adam, no epsilon; neighbours are told apart."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import RECORDS, blobs, ledger_lines, run_json, tiny, with_other_record, write_blobs
from torch import Tensor, nn

from twinproof.auditing.verify import verify_run
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.files import canonical_json
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.networks import build_network
from twinproof.layers.noise import silenced
from twinproof.layers.noise_placement import with_noise
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.gradients import optimizer_of
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.training.sources import GradientSource
from twinproof.training.stobatch import balanced_cross_entropy, taylor_cross_entropy
from twinproof_papers.published.adlm import OneDraw, paper_output_sensitivity


def _settings(source: Path, **changes: Any) -> dict[str, Any]:
    if changes.get("variant") == "published":
        changes = {"epsilon": 3.0, **changes}
    settings = tiny(source, recipe="adlm", noise_layer=changes.pop("noise", {}), **changes)
    if "epsilon" in changes:
        del settings["noise_multiplier"]
    return settings


def _resolved(settings: dict[str, Any]) -> tuple[ResolvedConfig, Dataset]:
    config = parse_train_config(settings)
    dataset = load(config.data)
    return resolve(config, dataset), dataset


def _initial(config: ResolvedConfig, dataset: Dataset) -> nn.Sequential:
    assert config.noise_layer is not None
    assert config.seed is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key.from_seed(config.seed).seed("initial weights"))
        network = build_network("mlp", dataset.shape, len(dataset.classes))
    return with_noise(network, dataset.shape, config.noise_layer.form, config.sigma)


class _Still(GradientSource):
    """A source that finds nothing, so that what is added shows."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def gradient(self, step: int) -> dict[str, Tensor]:
        with torch.no_grad():  # one draw that depends on the noise layer, to see whether it is silent
            self.seen = self._model(torch.zeros(2, 4))
        return {name: torch.zeros_like(value) for name, value in self._model.named_parameters()}


def _printed(source: Path, seed: int = 3) -> tuple[OneDraw, nn.Sequential, _Still, ResolvedConfig]:
    config, dataset = _resolved(_settings(source, variant="published"))
    model = _initial(config, dataset)
    inner = _Still(model)
    return OneDraw(config, inner, model, Key.from_seed(seed)), model, inner, config


def test_printed_noise_is_one_draw_of_the_papers_scale(source: Path) -> None:
    draws, scale = [], paper_output_sensitivity(3, 64) / (1.0 * 20)
    for seed in range(60):
        printed, *_ = _printed(source, seed)
        first, later = (printed.gradient(step) for step in (1, 2))
        assert torch.equal(first["3.weight"], later["3.weight"]), "every step meets the same draw"
        assert all(not value.any() for name, value in first.items() if name != "3.weight")
        draws.append(first["3.weight"])
    size = torch.stack(draws).double().abs()
    assert abs(float(size.mean()) / scale - 1) < 6 / size.numel() ** 0.5
    assert not torch.equal(draws[0], draws[1])


def test_the_published_variant_is_moved_by_adam_at_the_programs_rate(source: Path) -> None:
    kinds = {}
    for variant in ("sound", "published"):
        config, dataset = _resolved(_settings(source, variant=variant))
        kinds[variant] = type(optimizer_of(config, _initial(config, dataset)))
    assert kinds == {"sound": torch.optim.SGD, "published": torch.optim.Adam}
    published = RECIPES["adlm"].variant("published")
    assert published is not None
    assert published.defaults["learning_rate"] == 5e-4


def test_printed_noise_of_the_first_layer_is_a_constant(source: Path) -> None:
    printed, model, inner, _ = _printed(source)
    before = copy.deepcopy(model.state_dict())
    printed.gradient(1)
    assert torch.equal(model.state_dict()["1.bias"], before["1.bias"]), "a resumed run is not disturbed again"
    assert torch.equal(inner.seen[0], inner.seen[1]), "no other noise is drawn"
    printed.gradient(0)
    offset = (model.state_dict()["1.bias"] - before["1.bias"]).double()
    deviation = float(before["noise.deviation"])
    assert 0.4 * deviation < float(offset.abs().mean()) < 1.8 * deviation
    with silenced(model):
        again = model(torch.zeros(2, 4))
    assert torch.equal(again, inner.seen)


def test_the_papers_sensitivity_is_what_one_replaced_record_can_do() -> None:
    """Two records with features at opposite corners and other labels: the l1 distance of all monomials of all classes."""
    from twinproof.privacy.functional import output_polynomial

    corner = torch.ones(1, 6, dtype=torch.float64)
    mixed = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    for other in (-corner, mixed):
        one, two = (output_polynomial(rows, torch.tensor([label]), 3).monomials() for rows, label in ((corner, 0), (other, 1)))
        assert float((one - two).abs().sum()) <= paper_output_sensitivity(3, 6)
    assert paper_output_sensitivity(10, 30) == 2550


def test_as_published_it_is_refuted_and_prints_no_epsilon(source: Path, tmp_path: Path) -> None:
    run = train(_settings(source, variant="published", seed=None), tmp_path / "run")
    assert run.guarantee.status is Status.REFUTED
    assert "one draw of noise serves all steps" in run.guarantee.reason
    assert run.guarantee.values == ()
    assert run.epsilon is None
    assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "close"]
    assert all(json.loads(line)["epsilon"] is None for line in run.layout.metrics.read_text().splitlines())
    assert verify_run(run.root).ok
    assert RECIPES["adlm"].variant_status("published") is Status.REFUTED


def test_only_the_sound_variant_begins_at_balance(source: Path) -> None:
    """Clipped gradients of the loss as printed first lower all scores, which leaves tanh units saturated."""
    logits, label = torch.tensor([[0.3, -0.2, 0.1]]), torch.tensor(1)
    values = {
        variant: float(RECIPES["adlm"].record_loss(_resolved(_settings(source, variant=variant))[0])(logits, label))
        for variant in ("sound", "published")
    }
    assert values["published"] == pytest.approx(float(taylor_cross_entropy(logits, label)))
    assert values["sound"] == pytest.approx(float(balanced_cross_entropy(logits, label)))
    assert values["sound"] != pytest.approx(values["published"], rel=1e-2)


def test_as_published_it_takes_no_steps_of_dp_sgd(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes no DP-SGD steps(.|\n)*noise_multiplier(.|\n)*epsilon"):
        _resolved(tiny(source, recipe="adlm", variant="published"))


@pytest.mark.parametrize("status", ["proven", "published", "none"])
def test_a_planted_promise_over_what_is_printed_is_caught(source: Path, tmp_path: Path, status: str) -> None:
    root = train(_settings(source, variant="published", seed=None), tmp_path / "run").root
    record = run_json(root)
    record["guarantees"]["privacy"] |= {"status": status, "values": {"epsilon": 3.0, "delta": 1e-4}}
    (root / "run.json").write_text(canonical_json(record))
    verdict = verify_run(root)
    assert any("steps as a paper printed them" in problem.what for problem in verdict.problems)


def test_as_published_neighbours_are_told_apart_whatever_the_key(tmp_path: Path) -> None:
    """The counter-example itself: the exact relevance of a data set is recomputed, and no other data set has it."""
    scales = []
    for name, arrays in (("base", blobs()), ("again", blobs()), ("other", with_other_record(7))):
        data = write_blobs(tmp_path / name, arrays)
        run = train(_settings(data, variant="published", steps=1, learning_rate=0, records=RECORDS), tmp_path / name / "run")
        scales.append(load_file(run.layout.model)["noise.spread.scales"])
    assert torch.equal(scales[0], scales[1])
    assert not torch.equal(scales[0], scales[2])


def test_a_published_run_that_was_interrupted_ends_with_the_same_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(source, variant="published")
    whole = train(settings, tmp_path / "whole").root
    honest = OneDraw.gradient

    def stopped(self: OneDraw, step: int) -> dict[str, Tensor]:
        if step == 3:
            raise KeyboardInterrupt
        return honest(self, step)

    monkeypatch.setattr(OneDraw, "gradient", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "cut")
    monkeypatch.undo()
    cut = train(settings, tmp_path / "cut", resume=True).root
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
