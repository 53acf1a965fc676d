"""Votes are drawn again for every way of certifying, and forged ones are not: noise, statistics, looks, forms and networks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import DEMO, NOISY, TWO_NOISES, copied, count_each_ledger_once, digits
from torch import nn

import twinproof as tp
from synthetic_run import forge_lines
from twinproof.auditing.redraw_noise import Draws
from twinproof.auditing.verify import verify_run
from twinproof.certification.grid_noise import input_noise, layer_noise
from twinproof.certification.method import Method, Sampling
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.layers.noise import Law
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_verify.findings import Check

KEY = Key(bytes(range(32)))
SCORES = Method(norm="l2", statistic="scores", confidence="empirical-bernstein", runner_up="union")


@pytest.fixture(scope="module", autouse=True)
def one_account_for_each_ledger() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        count_each_ledger_once(patched)
        yield


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("dimension", [1, 61, 64])
def test_noise_is_the_same_to_the_bit(law: Law, dimension: int) -> None:
    for noise in (input_noise(0.25, 16, law), input_noise(0.5, 255, law), layer_noise(0.485, law, 1024, 30.0)):
        for index, first in ((0, 0), (1023, 5), (1024, 3), (2**20, 100)):
            theirs = noise.draws(KEY, "estimate", index, first, 200, dimension, torch.device("cpu")).numpy() / noise.grid
            ours = Draws(KEY.secret, str(law), noise.steps, dimension).of("estimate", index, first, 200)
            assert np.array_equal(theirs, ours)


@pytest.mark.parametrize("law", list(Law))
def test_noise_has_the_deviation_of_its_law(law: Law) -> None:
    """By itself, without the other program: a million draws, six deviations of their mean square."""
    drawn = Draws(KEY.secret, str(law), 70.5, 1000).of("estimate", 3, 0, 1000) / 70.5
    second, fourth = (1.0, 3.0) if law is Law.GAUSSIAN else (2.0, 24.0)
    spread = ((fourth - second**2) / drawn.size) ** 0.5
    assert abs((drawn**2).mean() - second) < 6 * spread + 1 / 70.5**2
    assert abs(drawn.mean()) < 6 * (second / drawn.size) ** 0.5


def votes_again(root: Path, redraw: int = 6, **given: Any) -> Check:
    result = verify_run(root, originals=digits(), redraw=redraw, **given)
    (found,) = [check for check in result.checks if check.name == "votes of certificates"]
    return found


def forge(root: Path, *, unanimous: bool = False) -> None:
    """A twentieth of the draws more for every answer, or all; whether a radius follows from them is not asked here."""

    def change(lines: list[str]) -> None:
        for at, line in enumerate(lines[1:], start=1):
            cells = line.rstrip("\n").split(",")
            votes, draws = int(cells[3]), int(cells[7])
            most = draws * (1 if votes <= draws else 2**20)
            more = votes + most // 20
            cells[3] = str(most if unanimous else more if more <= most else votes - most // 20)
            lines[at] = ",".join(cells) + "\n"

    forge_lines("certificates.csv", change)(root)


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "shared noise": (DEMO, {"sampling": Sampling(50, 1000, shared_noise=True)}),
    "target radius": (DEMO, {"sampling": Sampling(50, 4000, target_radius=0.3)}),
    "union of votes": (DEMO, {"method": Method(runner_up="union")}),
    "scores": (DEMO, {"method": Method(statistic="scores", confidence="hoeffding")}),
    "scores and union": (DEMO, {"method": Method(statistic="scores", confidence="empirical-bernstein", runner_up="union")}),
    "another sigma": (DEMO, {"sigma": 0.4}),
    "l1": (DEMO, {"method": Method(norm="l1")}),
    "scores behind a layer": (NOISY, {"method": SCORES}),
    "another sigma behind a layer": (NOISY, {"sigma": 0.3, "method": Method(norm="l2")}),
    "two noises, composition": (TWO_NOISES, {"method": Method(norm="l1", bound="composition")}),
}


@pytest.mark.parametrize("way", WAYS)
def test_votes_of_every_way_are_drawn_again(way: str, dataset: Dataset, tmp_path: Path) -> None:
    name, how = WAYS[way]
    root = copied(name, tmp_path)
    tp.certify(Run.open(root), dataset, **{"sampling": Sampling(50, 600), **how}, limit=6, device="cpu", overwrite=True)
    check = votes_again(root)
    assert check.passed
    if way != "shared noise" and "scores" not in way:
        assert ": 0 votes differ" in check.detail
    forge(root)
    assert not votes_again(root).passed


NETWORKS: dict[str, dict[str, Any]] = {
    "convolutions": {"recipe": "regular", "model": "small-cnn"},
    "norms": {"recipe": "regular", "model": "gelu-cnn"},
    "random scales": {"recipe": "hgm-pixeldp", "model": "mlp", "noise_layer": {"redistribution": "random"}},
    "learned scales": {"recipe": "hgm-pixeldp", "model": "mlp", "noise_layer": {"redistribution": "learned"}},
    "laplace behind a layer": {
        "recipe": "pixeldp",
        "model": "mlp",
        "noise_layer": {"law": "laplace", "mechanism": "laplace", "norm": "l1"},
    },
    "noise layer at the input": {"recipe": "pixeldp", "model": "mlp", "noise_layer": {"place": "input"}},
    "kept draws": {"recipe": "stobatch", "variant": "published", "model": "mlp"},
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_votes_of_every_network_are_drawn_again(kind: str, dataset: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    settings = {"data": {"source": "digits"}, "steps": 5, "seed": 1, "performance": {"device": "cpu"}}
    train({**settings, **NETWORKS[kind]}, root)
    tp.certify(Run.open(root), dataset, sampling=Sampling(50, 600), limit=6, device="cpu")
    check = votes_again(root)
    assert check.passed
    by_chance = kind == "random scales"
    assert (": 0 votes differ" in check.detail) is not by_chance
    forge(root, unanimous=by_chance)
    assert not votes_again(root).passed


class Own(nn.Module):
    """Not a Sequential; with dropout that stays on, or none."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(64, 32), nn.Linear(32, 10), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.first(x.flatten(1))), self.dropout, training=self.dropout > 0)
        scores: torch.Tensor = self.last(hidden)
        return scores


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_votes_of_an_owners_network_are_drawn_again(dropout: float, dataset: Dataset, tmp_path: Path) -> None:
    """One that draws numbers of its own for every row is held to chance, and still shows what was forged."""
    root, network = tmp_path / "run", Own(dropout)
    settings = {"data": {"source": "digits"}, "recipe": "regular", "steps": 5, "seed": 1, "performance": {"device": "cpu"}}
    train(settings, root, network=network)
    tp.certify(Run.open(root, network=network), dataset, sampling=Sampling(50, 600), sigma=0.25, limit=6, device="cpu")
    check = votes_again(root, network=network)
    assert check.passed
    assert ("answers at random" in check.detail) is (dropout > 0)
    forge(root, unanimous=dropout > 0)
    assert not votes_again(root, network=network).passed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["mlp", "small-cnn", "gelu-cnn"])
def test_votes_of_a_gpu_are_drawn_again_there_and_on_the_host(model: str, dataset: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": model, "steps": 60, "seed": 1}
    train({**settings, "performance": {"device": "cuda"}}, root)
    tp.certify(Run.open(root), dataset, sampling=Sampling(50, 10_000), limit=6, sigma=0.25, device="cuda")
    assert votes_again(root).passed
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: False)
        elsewhere = votes_again(root)
    assert elsewhere.passed
    assert "another device class" in elsewhere.detail
    forge(root)
    assert not votes_again(root).passed
