"""Votes depend on the key and the input's number alone; inputs and purposes share no noise; broken scores vote for nobody."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from certify_oracles import bound_from_votes
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification import votes as noisy_rows
from twinproof.certification.grid_noise import GridNoise, input_noise, write_noise
from twinproof.certification.method import Sampling
from twinproof.certification.noise_site import InputSite
from twinproof.certification.noise_tables import Stream
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.certification.votes import VoteCounter
from twinproof.keys import Key
from twinproof.layers.noise import Law
from twinproof.runs.certificates import ABSTAIN, Certificate

# A number of draws that no size of batches divides.
SAMPLING = Sampling(n0=120, n=1253, alpha=0.001)
KEY = Key.from_seed(4)
NOISE = input_noise(0.5, 16)


def _exact_network() -> nn.Module:
    """Three classes with dyadic weights on dyadic inputs: no rounding, so that votes cannot depend on the order of sums."""
    layer = nn.Linear(4, 3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-4, 5, (3, 4), generator=generator) / 4)
        layer.bias.copy_(torch.randint(-2, 3, (3,), generator=generator) / 8)
    return layer


def _inputs(count: int = 9) -> NDArray[np.int64]:
    return np.random.default_rng(2).integers(0, 17, size=(count, 4))


def _certify(inputs: NDArray[np.int64], *, first: int = 0, rows: int | None = None, key: Key = KEY) -> list[Certificate]:
    return smooth(_exact_network(), 0.5, levels=16).certify(inputs, sampling=SAMPLING, key=key, first_index=first, rows=rows)


WHOLE = _certify(_inputs())


def test_there_is_something_to_compare() -> None:
    assert len({one.votes for one in WHOLE}) > 5
    assert any(one.prediction != ABSTAIN for one in WHOLE)


@pytest.mark.parametrize("rows", [1, 7, 999, 1000, 1001, 2500, 10**6])
def test_rows_do_not_change_the_result(rows: int) -> None:
    assert _certify(_inputs(), rows=rows) == WHOLE


@pytest.mark.parametrize("order", [[0], [8], [3, 1, 2], [8, 7, 6, 5, 4, 3, 2, 1, 0]])
def test_one_by_one_in_any_order_is_the_same(order: list[int]) -> None:
    for index in order:
        assert _certify(_inputs()[index : index + 1], first=index) == [WHOLE[index]]


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_part_is_the_same_as_in_the_whole(cut: int) -> None:
    assert _certify(_inputs()[:cut]) + _certify(_inputs()[cut:], first=cut) == WHOLE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
@pytest.mark.parametrize("rows", [7, 1000, 10**6])
def test_a_gpu_counts_the_same_votes(rows: int) -> None:
    smoothed = smooth(_exact_network().to("cuda"), 0.5, levels=16)
    assert smoothed.certify(_inputs(), sampling=SAMPLING, key=KEY, rows=rows) == WHOLE


def test_another_key_gives_other_votes() -> None:
    other = _certify(_inputs(), key=Key.from_seed(5))
    assert sum(ours.votes != theirs.votes for ours, theirs in zip(WHOLE, other, strict=True)) >= 7
    assert _certify(_inputs()) == WHOLE


@dataclass(frozen=True)
class CoarseSampler(GridNoise):
    """A sampler that is known to be 2 % off, so that forgetting tau shows."""

    def tau(self, dimension: int) -> float:
        """Half a percent for each coordinate."""
        return 0.005 * dimension


def test_certify_selects_on_n0_draws_and_bounds_on_n_others() -> None:
    """Each certificate, put together again from its parts."""
    noise, model, inputs = CoarseSampler(0.5, 16, Law.GAUSSIAN, NOISE.grid, 16.0), _exact_network(), _inputs()
    counter = VoteCounter(model, noise, 3, KEY, rows=2000)
    stored, indices = torch.from_numpy(inputs).to(torch.float32), list(range(len(inputs)))
    with torch.inference_mode():
        top = counter.count("select", indices, stored, SAMPLING.n0).argmax(dim=1)
        votes = counter.count("estimate", indices, stored, SAMPLING.n)
    chosen = votes[torch.arange(len(inputs)), top].numpy()
    bound = bound_from_votes(chosen, SAMPLING, 0.5, 0.02)
    assert votes.sum(dim=1).tolist() == [SAMPLING.n] * len(inputs)
    made = SmoothedClassifier(model, InputSite(model, noise, own_noise=False)).certify(inputs, sampling=SAMPLING, key=KEY)
    assert [(one.top, one.votes, one.radius) for one in made] == list(
        zip(top.tolist(), chosen.tolist(), bound.radii, strict=True)
    )
    assert [one.prediction != ABSTAIN for one in made] == bound.certified.tolist()
    assert [one.radius for one in made] != [one.radius for one in WHOLE], "tau was forgotten"


def test_without_a_key_every_call_is_fresh() -> None:
    smoothed = smooth(_exact_network(), 0.5, levels=16)
    first, second = (smoothed.certify(_inputs(), sampling=SAMPLING) for _ in range(2))
    assert [one.votes for one in first] != [one.votes for one in second]


class Recorder(nn.Module):
    """Keeps every batch it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 2)."""
        self.seen.append(x.clone())
        return torch.stack((x.sum(dim=1), -x.sum(dim=1)), dim=1)


def _noise_seen(purposes: tuple[str, ...] = ("select", "estimate")) -> NDArray[np.float32]:
    """All noise vectors that three equal inputs met, for all purposes, one a row."""
    recorder = Recorder()
    counter = VoteCounter(recorder, NOISE, 2, KEY, rows=500)
    for purpose in purposes:
        counter.count(purpose, [0, 1, 2], torch.zeros(3, 4), 1500)
    return np.asarray(torch.cat(recorder.seen))


def test_no_two_inputs_draws_or_purposes_share_noise() -> None:
    seen = _noise_seen()
    assert seen.shape == (2 * 3 * 1500, 4)
    assert len(np.unique(seen, axis=0)) == len(seen)


class Forgetful:
    """The planted bug: one stream for all inputs, or for both purposes."""

    def __init__(self, forget: str) -> None:
        self.forget = forget

    def named(self, key: Key, purpose: str, index: int) -> Stream:
        """The stream, with one part of its name forgotten."""
        return Stream.named(key, "all" if self.forget == "purpose" else purpose, 0 if self.forget == "index" else index)


@pytest.mark.parametrize("forget", ["index", "purpose"])
def test_planted_shared_streams_are_caught(forget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_rows, "Stream", Forgetful(forget))
    seen = _noise_seen()
    assert len(np.unique(seen, axis=0)) < len(seen)


def test_planted_draws_that_start_again_with_each_batch_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_rows, "write_noise", lambda table, stream, first, out: write_noise(table, stream, 0, out))
    seen = _noise_seen()
    assert len(np.unique(seen, axis=0)) < len(seen)


def test_the_network_sees_input_plus_noise_in_input_units() -> None:
    recorder, stored = Recorder(), torch.tensor([[0.0, 3.0, 8.0, 16.0]])
    VoteCounter(recorder, NOISE, 2, KEY, rows=100).count("estimate", [5], stored, 40)
    noise = NOISE.draws(KEY, "estimate", 5, 0, 40, 4, torch.device("cpu"))
    assert torch.equal(torch.cat(recorder.seen), (stored + noise) / 16)


@pytest.mark.parametrize(("rows", "batches"), [(2000, 15), (7000, 5), (10**6, 1)])
def test_all_batches_but_the_last_are_full_and_none_is_larger(rows: int, batches: int) -> None:
    """So that memory does not grow with the number of draws, and a batch holds as many inputs as it takes."""
    recorder = Recorder()
    VoteCounter(recorder, NOISE, 2, KEY, rows).count("estimate", list(range(6)), torch.zeros(6, 4), 5000)
    sizes = [len(batch) for batch in recorder.seen]
    assert sizes[:-1] == [rows] * (batches - 1)
    assert sum(sizes) == 30_000


class Stubborn(nn.Module):
    """Always class 1, but scores nothing (NaN) for a share of the noisy inputs."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 3)."""
        scores = torch.tensor([0.0, 1.0, 0.5]).repeat(len(x), 1)
        broken = (x[:, 0] * 4096).remainder(1.0) < self.share
        scores[broken, 2] = float("nan")
        return scores


def test_nan_scores_vote_for_nobody() -> None:
    sampling = Sampling(50, 2000)
    fractions = {}
    for share in (0.0, 0.25, 1.0):
        made = smooth(Stubborn(share), 0.5, levels=255).certify(np.full((4, 2), 100), sampling=sampling, key=KEY)
        fractions[share] = [one.votes / sampling.n for one in made]
    assert fractions[0.0] == [1.0] * 4
    assert all(0.70 < fraction < 0.80 for fraction in fractions[0.25])
    assert fractions[1.0] == [0.0] * 4, "argmax would have given NaN the victory"


def test_only_nan_is_an_abstention_and_infinite_scores_are_scores() -> None:
    class Infinite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([-float("inf"), float("inf")]).repeat(len(x), 1)

    made = smooth(Stubborn(1.0), 0.5, levels=16).certify(np.zeros((2, 4), dtype=np.uint8), sampling=Sampling(10, 100))
    assert [(one.prediction, one.radius) for one in made] == [(ABSTAIN, 0.0)] * 2
    sure = smooth(Infinite(), 0.5, levels=16).certify(np.zeros((1, 4), dtype=np.uint8), sampling=Sampling(10, 100))
    assert (sure[0].prediction, sure[0].votes) == (1, 100)
