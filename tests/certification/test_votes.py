"""Rows of input plus noise, what is counted of them, and votes that depend on key, input number and draw alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from certify_oracles import bound_from_votes
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification import votes as noisy_rows
from twinproof.certification.grid_noise import GridNoise, Stream, input_noise, layer_noise, write_noise
from twinproof.certification.method import Sampling
from twinproof.certification.noise_site import InputSite
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.certification.votes import NoisyRows, RowStatistic, Scores, VoteCounter, Votes, row_statistic
from twinproof.keys import Key
from twinproof.layers.noise import Law
from twinproof.runs.records import ABSTAIN, Certificate

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


ROWS_KEY, INDICES = Key.from_seed(12), [4, 9, 2]
CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")


# Sums of several grids, dimensions that fill blocks and others, on coarse and on fine levels.
CASES = [(0.5, 255, 784), (0.25, 255, 21), (0.5, 16, 3), (1.0, 65535, 30), (0.01, 255, 100)]


def _stored(levels: int, dimension: int, device: torch.device = CPU) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, levels + 1, (len(INDICES), dimension), generator=generator).to(device, torch.float32)


def _source(sigma: float, levels: int, dimension: int, device: torch.device = CPU) -> NoisyRows:
    stored = _stored(levels, dimension, device)
    return NoisyRows(input_noise(sigma, levels), ROWS_KEY, "estimate", INDICES, stored, draws=70, after=20)


def _row(sigma: float, levels: int, dimension: int, number: int) -> NDArray[np.float32]:
    """By the definition, one draw alone: float64 holds the sum exactly and the quotient is rounded once."""
    owner, place = divmod(number, 50)
    noise = input_noise(sigma, levels).draws(ROWS_KEY, "estimate", INDICES[owner], 20 + place, 1, dimension, CPU)[0]
    total = np.asarray(noise, dtype=np.float64) + np.asarray(_stored(levels, dimension)[owner], dtype=np.float64)
    return (total.astype(np.float32) / np.float32(levels)).astype(np.float32)


def _filled(source: NoisyRows, first: int, count: int) -> NDArray[np.float32]:
    out = torch.full((count, source.dimension), torch.nan, device=source.stored.device)
    source.fill(first, out)
    return np.asarray(out.cpu())


@pytest.mark.parametrize(("sigma", "levels", "dimension"), CASES)
@pytest.mark.parametrize(("first", "count"), [(0, 150), (0, 1), (49, 2), (149, 1), (37, 100)])
def test_rows_are_those_of_their_numbers(sigma: float, levels: int, dimension: int, first: int, count: int) -> None:
    source = _source(sigma, levels, dimension)
    assert len(source) == 150
    wanted = np.stack([_row(sigma, levels, dimension, number) for number in range(first, first + count)])
    assert (_filled(source, first, count) == wanted).all()
    assert source.owners(first, count).tolist() == [number // 50 for number in range(first, first + count)]


@CUDA
@pytest.mark.parametrize(("sigma", "levels", "dimension"), CASES)
def test_a_gpu_makes_the_same_bits(sigma: float, levels: int, dimension: int) -> None:
    wanted, source = _source(sigma, levels, dimension), _source(sigma, levels, dimension, torch.device("cuda"))
    for first, count in ((0, 150), (37, 100), (149, 1)):
        assert (_filled(source, first, count) == _filled(wanted, first, count)).all()
    assert source.owners(37, 100).tolist() == wanted.owners(37, 100).tolist()


@CUDA
def test_a_gpu_makes_the_same_bits_far_out_and_with_ties() -> None:
    """Many rows of a fine grid, where first halves tie thousands of times, from a draw beyond 32 bits of words."""
    noise, first = input_noise(4.0, 65535), 2**31
    rows = [
        NoisyRows(noise, ROWS_KEY, "estimate", [1], torch.zeros(1, 64, device=device), draws=first + 30_000, after=first)
        for device in ("cpu", "cuda")
    ]
    assert (_filled(rows[0], 0, 30_000) == _filled(rows[1], 0, 30_000)).all()


@CUDA
def test_a_gpu_without_triton_makes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinproof.certification.votes.kernels_run", lambda device: False)
    source = _source(0.5, 255, 784, torch.device("cuda"))
    assert (_filled(source, 37, 100) == _filled(_source(0.5, 255, 784), 37, 100)).all()


# Noise of other laws and places, whose tables are far larger.
OTHERS = [
    input_noise(0.25, 255, Law.LAPLACE),
    layer_noise(0.3, Law.GAUSSIAN, 784, 3.0),
    layer_noise(0.3, Law.LAPLACE, 784, 3.0),
]


def _other(noise: GridNoise, device: torch.device = CPU) -> NoisyRows:
    """Rows of points on the noise's own grid."""
    whole = int(min(noise.largest / noise.grid - 1, 2**20))
    points = torch.randint(-whole, whole + 1, (3, 21), generator=torch.Generator().manual_seed(4)).float() * noise.grid
    return NoisyRows(noise, ROWS_KEY, "estimate", INDICES, points.to(device), draws=70, after=20)


@pytest.mark.parametrize("noise", OTHERS, ids=lambda noise: f"{noise.law} {noise.levels}")
def test_rows_of_other_noise_are_exact_sums(noise: GridNoise) -> None:
    source = _other(noise)
    drawn = torch.cat([noise.draws(ROWS_KEY, "estimate", index, 20, 50, 21, CPU) for index in INDICES]).double().numpy()
    sums = source.stored.double().repeat_interleave(50, dim=0).numpy() + drawn
    assert (_filled(source, 0, 150) == sums.astype(np.float32) / np.float32(noise.levels)).all()
    assert (sums.astype(np.float32) == sums).all(), "nothing is rounded"


@CUDA
@pytest.mark.parametrize("noise", OTHERS, ids=lambda noise: f"{noise.law} {noise.levels}")
def test_a_gpu_makes_the_same_bits_of_other_noise(noise: GridNoise) -> None:
    assert (_filled(_other(noise, torch.device("cuda")), 37, 100) == _filled(_other(noise), 37, 100)).all()


def test_planted_quotient_by_a_reciprocal_is_caught() -> None:
    """Multiplying by 1/255 is another function; the two devices must not take different ones."""
    levels = np.arange(0, 256, dtype=np.float32)
    assert (levels / np.float32(255) != levels * np.float32(1 / 255)).any()


class _Fake:
    """Stands for a tensor on a GPU as far as choosing the kernel goes."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.device = tensor, torch.device("cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def test_without_triton_a_gpu_gets_rows_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinproof.certification.votes.kernels_run", lambda device: False)
    stand_in: Any = _Fake(_stored(255, 21))
    source = NoisyRows(input_noise(0.25, 255), ROWS_KEY, "estimate", INDICES, stand_in, draws=70, after=20)
    assert source.fill == source._fill_through_host
    assert (_filled(source, 37, 100) == _filled(_source(0.25, 255, 21), 37, 100)).all()


NAN, INF = math.nan, math.inf


def _sums(statistic: RowStatistic, outputs: Tensor, owners: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    sums = statistic.empty(inputs, outputs.shape[1], outputs.device)
    statistic.add(sums, owners.clone(), outputs)
    return statistic.moments(sums)


def _outputs(rows: int = 4000, classes: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 6 * torch.randn(rows, classes, generator=generator)


@pytest.mark.parametrize("name", ["votes", "scores"])
def test_sums_do_not_depend_on_the_order_or_the_batch(name: str) -> None:
    statistic, outputs = row_statistic(name), _outputs()
    owners = torch.arange(len(outputs)) % 3
    whole = _sums(statistic, outputs, owners, 3)
    order = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(2))
    shuffled = _sums(statistic, outputs[order], owners[order], 3)
    halves = [_sums(statistic, outputs[part], owners[part], 3) for part in (slice(0, 1234), slice(1234, None))]
    for number in (0, 1):
        assert whole[number].dtype == torch.int64
        assert torch.equal(whole[number], shuffled[number])
        assert torch.equal(whole[number], halves[0][number] + halves[1][number])


def test_votes_are_their_own_squares() -> None:
    sums, squares = _sums(Votes(), torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.5]]), torch.tensor([0, 0, 1]), 2)
    assert sums.tolist() == [[1, 1], [0, 1]]
    assert torch.equal(sums, squares)


def test_scores_are_the_floored_softmax_and_its_square() -> None:
    outputs = _outputs(50)
    sums, squares = _sums(Scores(), outputs, torch.arange(50), 50)
    shares = torch.softmax(outputs.double(), dim=1) * 2**20
    assert torch.equal(sums, shares.floor().long())
    assert torch.equal(squares, sums * sums)


def _add_up(statistic: RowStatistic, outputs: Tensor) -> bool:
    """Whether no row's scores add up to more than one."""
    sums, _ = _sums(statistic, outputs, torch.arange(len(outputs)), len(outputs))
    return bool((sums.sum(dim=1) <= statistic.resolution).all()) and bool((sums >= 0).all())


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_scores_of_a_row_never_add_up_to_more_than_one(classes: int) -> None:
    assert _add_up(Scores(), _outputs(2000, classes))
    assert _add_up(Scores(), torch.zeros(10, classes))


def test_planted_rounding_to_the_nearest_is_caught() -> None:
    class Nearest(Scores):
        """Rounds, so that a row's scores may add up to more than one, and the complement no longer bounds the others."""

        def add(self, sums: Tensor, owners: Tensor, outputs: Tensor) -> None:
            units = (torch.softmax(outputs.double(), dim=1) * self.resolution).round().long()
            sums.index_add_(0, owners, torch.cat((units, units * units), dim=1))

    assert not _add_up(Nearest(), _outputs(2000, 10))


BROKEN = [[NAN, 0.0, 1.0], [INF, INF, 0.0], [NAN, NAN, NAN]]


@pytest.mark.parametrize("row", [BROKEN[0], BROKEN[2]])
@pytest.mark.parametrize("make", [Votes, Scores])
def test_a_row_with_a_nan_counts_for_nobody(make: Callable[[], RowStatistic], row: list[float]) -> None:
    sums, squares = _sums(make(), torch.tensor([row]), torch.zeros(1, dtype=torch.int64), 1)
    assert not sums.any()
    assert not squares.any()


def test_outputs_without_a_softmax_count_for_nobody_and_infinite_ones_for_all() -> None:
    sums, _ = _sums(Scores(), torch.tensor([BROKEN[1], [-INF, 5.0, -INF]]), torch.arange(2), 2)
    assert sums.tolist() == [[0, 0, 0], [0, 2**20, 0]]
