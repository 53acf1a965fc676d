"""Making the weights to start from: lessons teach, the last layer stays behind, noise is as said, and the file is told of."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `make_prior` importable)
import pytest
import torch
from inline_pool import Inline
from safetensors.torch import load_file
from torch import Tensor

import make_prior
from make_prior import NOISY, SIDE, Lesson, learn, noisy, write_priors
from twinproof.files import sha256_file
from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_SIGMAS, PRIOR_WIDTH, build_network

TINY = Lesson(figures=6, steps=25, batch=32, rate=5e-3)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lesson sets threads and torch's seed for its process; it is always on the CPU here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def test_a_lesson_teaches_and_leaves_its_last_layer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_prior, "_JUDGED", 10)
    kept, accuracy, seconds = learn(0.25, TINY)
    assert accuracy > 3.5 / TINY.figures
    assert seconds > 0
    network = build_network(PRIOR_NETWORK, (1, SIDE, SIDE), TINY.figures, width=PRIOR_WIDTH)
    wanted = {name: value.shape for name, value in network.state_dict().items() if not name.startswith("10.")}
    assert {name: value.shape for name, value in kept.items()} == wanted
    assert len(wanted) == len(network.state_dict()) - 2
    assert all(value.dtype == torch.float16 and value.device.type == "cpu" for value in kept.values())


def test_a_lesson_can_be_repeated_and_its_seed_matters() -> None:
    short = {"figures": 4, "steps": 3, "batch": 8}
    first, again, other = (learn(0.5, Lesson(**short, seed=seed))[0] for seed in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["0.weight"], other["0.weight"])


# 4,000 images of 100 pixels: a share of 0.8 has a deviation of 0.0063 and a deviation of about 3.2e5 numbers one of 0.13 %.
# Beyond 5.5 deviations lie 4e-8 of the draws: all nine comparisons together alarm falsely with less than 1e-6.
IMAGES, PIXELS, FAR = 4000, (1, 10, 10), 5.5
Noise = Callable[[Tensor, float, torch.Generator], Tensor]


def _noise_is_wrong(make: Noise, sigma: float) -> bool:
    images = torch.full((IMAGES, *PIXELS), 0.5)
    added = (make(images, sigma, torch.Generator().manual_seed(0)) - images).double().flatten(1)
    touched = added.abs().amax(dim=1) > 0
    share = float(touched.double().mean())
    numbers = added[touched]
    deviation, mean = float(numbers.std()), float(numbers.mean())
    return bool(
        abs(share - NOISY) > FAR * (NOISY * (1 - NOISY) / IMAGES) ** 0.5
        or abs(deviation / sigma - 1) > FAR / (2 * numbers.numel()) ** 0.5
        or abs(mean) > FAR * sigma / numbers.numel() ** 0.5
    )


@pytest.mark.parametrize("sigma", PRIOR_SIGMAS)
def test_most_images_are_noisy_and_the_others_stay_as_they_are(sigma: float) -> None:
    assert NOISY == 0.8
    assert not _noise_is_wrong(noisy, sigma)


@pytest.mark.parametrize(
    "planted",
    [
        lambda images, sigma, generator: noisy(images, 1.01 * sigma, generator),
        lambda images, sigma, generator: noisy(images + 0.01 * sigma, sigma, generator),
        lambda images, sigma, generator: images + sigma * torch.randn(images.shape, generator=generator),
        lambda images, sigma, generator: noisy(noisy(images, sigma, generator), sigma, generator),
    ],
    ids=["1 % more", "shifted", "all of them", "twice"],
)
def test_planted_noise_is_caught(planted: Noise) -> None:
    assert _noise_is_wrong(planted, 0.5)


def test_what_was_learned_is_written_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_prior, "ProcessPoolExecutor", Inline)
    out, results = tmp_path / "prior.safetensors", tmp_path / "prior.json"
    lesson = Lesson(figures=4, steps=3, batch=8)
    write_priors(out, results, lesson, 1)
    told = json.loads(results.read_text())
    assert told["sha256"] == sha256_file(out)
    assert (told["network"], told["width"]) == (PRIOR_NETWORK, PRIOR_WIDTH)
    assert told["lesson"] == {"figures": 4, "steps": 3, "batch": 8, "rate": lesson.rate, "seed": 0}
    assert [one["sigma"] for one in told["priors"]] == list(PRIOR_SIGMAS)
    stored, kept = load_file(out), learn(0.5, lesson)[0]
    assert len(stored) == len(PRIOR_SIGMAS) * len(kept)
    assert all(torch.equal(stored[f"0.5/{name}"], value) for name, value in kept.items())


@pytest.mark.parametrize("given", [[], ["--out", "weights"], ["--results", "told"]], ids=str)
def test_a_call_that_says_too_little_is_refused(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_prior.py", *given])
    with pytest.raises(SystemExit) as ended:
        make_prior.main()
    assert ended.value.code == 2
    assert "--out and --results are needed" in capsys.readouterr().err
