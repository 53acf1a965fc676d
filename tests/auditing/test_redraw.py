"""Votes are drawn again for every way of certifying, and forged ones are not: noise, statistics, looks, forms and networks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import DEMO, KEPT, NOISY, TWO_NOISES, count_each_ledger_once, digits
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
    (found,) = [check for check in result.checks if check.name.startswith("votes of certificates")]
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

    (path,) = root.glob("certificates/*/certificates.csv")
    forge_lines(path.relative_to(root).as_posix(), change)(root)


SETTINGS: dict[str, Any] = {"data": {"source": "digits"}, "steps": 5, "seed": 1, "performance": {"device": "cpu"}}
PLAIN = {"recipe": "dpcert-gaussian", "model": "mlp", "delta": 1e-4, "noise_multiplier": 1.0, "steps": 60}
RUNS: dict[str, dict[str, Any]] = {
    DEMO: PLAIN,
    NOISY: {"recipe": "hgm-pixeldp", "model": "small-cnn", "delta": 1e-4},
    TWO_NOISES: {"recipe": "stobatch", "model": "mlp", "delta": 1e-4},
}


@pytest.fixture(scope="module")
def uncertified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs by name, each trained when it is first asked for; not to be changed."""

    @cache
    def trained(name: str) -> Path:
        root = tmp_path_factory.mktemp("uncertified") / name
        train({**SETTINGS, **RUNS[name]}, root)
        return root

    return trained


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
def test_votes_of_every_way_are_drawn_again(
    way: str, uncertified: Callable[[str], Path], dataset: Dataset, tmp_path: Path
) -> None:
    name, how = WAYS[way]
    root = Path(shutil.copytree(uncertified(name), tmp_path / "run"))
    tp.certify(Run.open(root), dataset, **{"sampling": Sampling(50, 600), **how}, limit=6, device="cpu")
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
    "unequal noise at the input": {"recipe": "hgm-pixeldp", "model": "mlp", "noise_layer": {"place": "input"}},
    "kept draws": {"recipe": "stobatch", "variant": "published", "model": "mlp"},
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_votes_of_every_network_are_drawn_again(kind: str, dataset: Dataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    train({**SETTINGS, **NETWORKS[kind]}, root)
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
    train({**SETTINGS, "recipe": "regular"}, root, network=network)
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


def test_every_name_of_a_run_is_drawn_again(tmp_path: Path) -> None:
    """Two certifications and their attacks, each with its own key; a vote that moved is found under its name."""
    root = Path(shutil.copytree(KEPT.parent / "format-3" / "demo", tmp_path / "run"))
    result = verify_run(root, originals=digits(), redraw=3)
    assert result.problems == ()
    names = ("certificates (l2)", "certificates (linf-hgm)", "answers to attacked inputs (l2)")
    details = {check.name: check.detail for check in result.checks}
    assert all(details[f"votes of {name}"].startswith("3 of them") for name in names)
    assert {f"votes of 57 of 60 {names[0]}", f"votes of 37 of 40 {names[1]}"} <= set(result.not_checked)
    keys = [root / "certificates" / name / "certificates.json" for name in ("l2", "linf-hgm")]
    texts = [path.read_text() for path in keys]
    for path, text, other in zip(keys, texts, reversed(texts), strict=True):
        path.write_text(text.replace(json.loads(text)["key"], json.loads(other)["key"]))
    failed = {check.name for check in verify_run(root, originals=digits(), redraw=3).checks if not check.passed}
    assert {f"votes of {name}" for name in names[:2]} <= failed
    assert f"votes of {names[2]}" not in failed
