"""What batch norm does to noise that a batch shares: networks differ in their norms alone, and draws are what they say."""

from __future__ import annotations

import benchmarks_path  # noqa: F401  (first: it makes `stobatch_batch_norm` importable)
import pytest
import torch
from torch import nn

from stobatch_batch_norm import NETWORK, Effort, answers, lines, one_draw_for_all, trained, with_batch_norm
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.keys import Key
from twinproof.layers.fixed_draws import fixed_draws_of
from twinproof.layers.networks import build_network

EFFORT = Effort(steps=2, attack_steps=1, batch=100, learning_rate=1e-3, images=50)
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def test_only_norms_are_exchanged() -> None:
    network = build_network(NETWORK, (1, 28, 28), 10)
    assert isinstance(network, nn.Sequential)
    made = with_batch_norm(network)
    exchanged = [(type(old), type(new)) for old, new in zip(network, made, strict=True) if old is not new]
    assert exchanged == [(nn.GroupNorm, nn.BatchNorm2d), (nn.LayerNorm, nn.BatchNorm1d)]
    assert not any(module.track_running_stats for module in made if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d))


def test_one_draw_moves_all_images_alike_and_is_taken_back() -> None:
    model = trained("group", 1.0, load(DataConfig(source="digits")), EFFORT, Key.from_seed(0), CPU)
    two, draws = fixed_draws_of(model)
    kept = {name: value.clone() for name, value in draws.state_dict().items()}
    with one_draw_for_all(model, Key.from_seed(1)):
        moved = {name: value.clone() for name, value in draws.state_dict().items()}
    assert all(torch.equal(kept[name], value) for name, value in draws.state_dict().items())
    for name, noise in (("on_input", two.input_noise), ("on_layer", two.hidden.noise)):
        sizes = (moved[name] - kept[name]).abs() / noise.deviation
        assert 0.5 < float(sizes.mean()) < 2, "standard Laplace numbers, of mean magnitude 1, times the fresh scale"
    assert not torch.equal(moved["offset"], kept["offset"])


def test_batch_norm_sees_through_noise_that_a_batch_shares() -> None:
    """The finding, on digits: with one draw for all it answers as without, with a draw for each image it guesses."""
    dataset = load(DataConfig(source="digits"))
    effort = Effort(steps=30, attack_steps=1, batch=100, learning_rate=3e-3, images=300)
    found = {line["norm"]: line for line in lines(dataset, [1.0], effort, CPU)}
    assert found["batch"]["without fresh noise"] > 0.6
    assert found["batch"]["one draw for all"] > found["batch"]["a draw for each"] + 0.2
    assert found["batch"]["a draw for each"] < 0.35
    assert found["group"]["without fresh noise"] < 0.35


def test_copies_of_one_image_are_answered_alike_unless_each_has_its_draw() -> None:
    """Were the shared draw one for each row, or the silent pass noisy, copies would not agree."""
    dataset = load(DataConfig(source="digits"))
    model = trained("batch", 1.0, dataset, EFFORT, Key.from_seed(0), CPU)
    copies = torch.rand(1, *dataset.shape, generator=torch.Generator().manual_seed(1)).expand(200, *dataset.shape)
    shares: dict[str, list[float]] = {}
    for label in range(10):
        for name, share in answers(model, copies, torch.full((200,), label), Key.from_seed(2)).items():
            shares.setdefault(name, []).append(share)
    assert sorted(shares["without fresh noise"]) == sorted(shares["one draw for all"]) == [0.0] * 9 + [1.0]
    assert max(shares["a draw for each"]) < 1
