"""Weights to start from for interval bounds: lessons teach, their worst case is training's, and what is written is taken up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `make_interval_prior` importable)
import pytest
import torch
from inline_pool import Inline
from safetensors.torch import load_file

import make_interval_prior
from make_interval_prior import LESSONS, SIDE, Lesson, learn, worst_scores
from twinproof.files import sha256_file
from twinproof.layers import networks
from twinproof.layers.interval import CONTRAST_CNN, INTERVAL_CNN, interval_cnn
from twinproof.layers.networks import PRIOR_SIZES, build_network, has_prior, start_from_prior
from twinproof.training.interval import IntervalView


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lesson sets threads and torch's seed for its process; it is always on the CPU here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "last"), [(INTERVAL_CNN, "7."), (CONTRAST_CNN, "8.")])
def test_a_lesson_certifies_images_and_leaves_its_last_layer_behind(
    name: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_interval_prior, "_JUDGED", 10)
    lesson = Lesson(name, 0.02, figures=4, steps=60, batch=32, rate=5e-3, images=400)
    kept, certified, seconds = learn(lesson)
    assert certified > 2 / 4
    assert seconds > 0
    network = build_network(name, (1, SIDE, SIDE), 4)
    wanted = {key: value.shape for key, value in network.state_dict().items() if not key.startswith(last)}
    assert {key: value.shape for key, value in kept.items()} == wanted


def test_the_worst_case_of_a_lesson_is_that_of_training() -> None:
    view = IntervalView(interval_cnn((1, 8, 8), 5))
    view.set(0.1, 1.0)
    images, labels = torch.rand(6, 1, 8, 8), torch.tensor([0, 4, 2, 2, 1, 3])
    _, centre, radius = view.before_last(images)
    bounds = view(images)[:, 5:-1].unflatten(1, (5, 5))
    wanted = -bounds[torch.arange(6), labels]
    assert torch.allclose(worst_scores(view.get_submodule("7"), centre, radius, labels), wanted, atol=1e-6)


def test_there_is_a_lesson_for_every_prior() -> None:
    assert {(lesson.network, lesson.size) for lesson in LESSONS} == {
        (name, size) for name, sizes in PRIOR_SIZES.items() for size in sizes
    }


def test_priors_are_written_and_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_interval_prior, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(make_interval_prior, "LESSONS", tuple(replace(one, figures=3, batch=4) for one in LESSONS))
    out, results = tmp_path / "interval-prior.safetensors", tmp_path / "prior.json"
    given = ["--out", str(out), "--results", str(results), "--steps", "2", "--images", "60"]
    monkeypatch.setattr(sys, "argv", ["make_interval_prior.py", *given])
    make_interval_prior.main()
    told = json.loads(results.read_text())
    assert told["sha256"] == sha256_file(out)
    assert [(one["network"], one["size"]) for one in told["priors"]] == [(one.network, one.size) for one in LESSONS]
    assert all(0 <= one["certified"] <= 1 for one in told["priors"])
    monkeypatch.setattr(networks, "files", lambda package: tmp_path)
    for cached in (networks._loaded, networks._digest):
        cached.cache_clear()
    try:
        for name, weight in ((INTERVAL_CNN, "5.weight"), (CONTRAST_CNN, "6.weight")):
            assert has_prior(name, (1, 28, 28), 1)
            network = build_network(name, (1, 28, 28), 10)
            start_from_prior(network, 0.2, name)
            assert torch.equal(network.state_dict()[weight], load_file(out)[f"{name}/0.33/{weight}"].float())
    finally:
        for cached in (networks._loaded, networks._digest):
            cached.cache_clear()
