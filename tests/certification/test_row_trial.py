"""The certifier trusts no model: harmful networks are refused by name, harmless ones are certified."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from own_modules.harmful import HARMFUL as HARMFUL_IN_TRAINING
from own_modules.harmful_certifying import CHANGES, FEATURES, HARMFUL, MIXES, SHARES, Base, Harmful
from own_modules.harmless import PROVEN, SHAPE, plain_sequence
from own_modules.harmless_certifying import HARMLESS
from twinproof.certification import row_trial, votes
from twinproof.certification.method import Method, Sampling
from twinproof.certification.row_trial import Draws, RowTrial, Watched, first_difference
from twinproof.certification.smoothed import smooth
from twinproof.certification.votes import base_classifier
from twinproof.errors import ModelError
from twinproof.guarantee import Status
from twinproof.keys import Key

INPUTS = np.random.default_rng(0).integers(0, 256, (3, FEATURES)).astype(np.uint8)
EXAMPLE = torch.from_numpy(INPUTS[:1]).float() / 255
SAMPLING = Sampling(20, 200)
KEY = Key.from_seed(3)


def _certify(model: nn.Module, sampling: Sampling = SAMPLING) -> list[tuple[int, int]]:
    return [(one.top, one.votes) for one in smooth(model, 0.25).certify(INPUTS, sampling=sampling, key=KEY)]


@pytest.mark.parametrize("harmful", HARMFUL.values(), ids=HARMFUL)
def test_harmful_networks_are_refused(harmful: Harmful) -> None:
    with pytest.raises(ModelError, match=harmful.says) as refused:
        _certify(harmful.make())
    assert refused.value.where
    if harmful.layer is not None:
        assert refused.value.where == harmful.layer


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_networks_are_certified(name: str) -> None:
    assert len(_certify(HARMLESS[name]())) == len(INPUTS)


IMAGES = np.random.default_rng(1).integers(0, 256, (3, *SHAPE)).astype(np.uint8)


# Harm to the privacy of training that is none in eval mode: a coin of training, and what is written with the weights.
FINE_IN_EVAL_MODE = {"OneCoin", "StateDictHook", "ExtraState", "SwappedWeights"}


@pytest.mark.parametrize("make", [*PROVEN, plain_sequence], ids=lambda make: make.__name__)
def test_networks_that_can_be_trained_privately_can_be_certified(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    smoothed = smooth(make(), 0.25)
    assert len(smoothed.certify(IMAGES, sampling=SAMPLING)) == len(IMAGES)
    assert smoothed.bound.status is Status.PROVEN


@pytest.mark.parametrize("make", HARMFUL_IN_TRAINING, ids=lambda make: make.__name__)
def test_networks_that_harm_privacy_are_refused_here_too_where_it_concerns_answers(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    if make.__name__ in FINE_IN_EVAL_MODE:
        assert len(smooth(make(), 0.25).certify(IMAGES, sampling=SAMPLING)) == len(IMAGES)
        return
    with pytest.raises(ModelError, match=f"{MIXES}|{SHARES}|{CHANGES}"):
        smooth(make(), 0.25).certify(IMAGES, sampling=SAMPLING)


def test_harmful_networks_are_refused_with_scores_and_with_shared_noise_too() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), HARMFUL["one coin per pass"].make())
    method = Method(statistic="scores", confidence="hoeffding")
    with pytest.raises(ModelError, match=SHARES):
        smooth(model, 0.25, method=method).certify(INPUTS, sampling=SAMPLING)
    with pytest.raises(ModelError, match=SHARES):
        smooth(model, 0.25).certify(INPUTS, sampling=Sampling(20, 200, shared_noise=True))


@pytest.mark.parametrize(
    ("name", "without"),
    [("the mean of numbers per row", "_refuse_shared_randomness"), ("what the first call left", "_refuse_memory")],
)
def test_planted_gaps_let_harmful_networks_pass(name: str, without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowTrial, without, lambda trial: None)
    _certify(HARMFUL[name].make())


def test_planted_comparison_without_centring_misses_what_an_offset_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old rule: one per cent of the largest score, and no look at answers."""
    old: Callable[[Tensor, Tensor, float], bool] = lambda one, two, tolerance: bool(  # noqa: E731
        ((one - two).abs() > 1e-2 * max(1.0, float(one.abs().max()))).any()
    )
    monkeypatch.setattr(row_trial, "_differ", old)
    _certify(HARMFUL["vote by the batch mean, scores + 200"].make())


def test_planted_trial_of_few_rows_alone_misses_what_large_batches_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "forward", lambda watched, x: watched.network(x))
    _certify(HARMFUL["mixing in large batches only"].make())


def test_planted_trial_of_scores_without_state_misses_a_small_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_trial, votes):
        monkeypatch.setattr(module, "refuse_other", lambda before, now, got: None)
    _certify(HARMFUL["a bias that moves"].make())


class LateMixing(Base):
    """Mixes after a number of rows that no trial sees, and shows it nowhere."""

    seen = 0

    def hidden(self, h: Tensor) -> Tensor:
        type(self).seen += len(h)
        return h - h.mean(dim=0) if type(self).seen > 20_000 else h


def test_a_network_that_changes_while_votes_are_counted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    LateMixing.seen = 0
    with pytest.raises(ModelError, match=f"{CHANGES}|{MIXES}"):
        _certify(LateMixing(), Sampling(20, 20_000))
    LateMixing.seen = 0
    monkeypatch.setattr(Watched, "forward", lambda watched, x: watched.network(x))
    with pytest.raises(ModelError, match=CHANGES):
        _certify(LateMixing(), Sampling(20, 20_000))
    LateMixing.seen = 0
    monkeypatch.setattr(RowTrial, "finish", lambda trial: None)  # both planted: nobody looks any more
    _certify(LateMixing(), Sampling(20, 20_000))


def test_nobodys_network_is_tried_but_a_copy() -> None:
    model = HARMLESS["a table of the first call"]()
    _certify(model)
    assert model.table is None, "the first call is still to come"


@pytest.mark.parametrize("name", ["dropout in eval mode", "its own generator, per row", "a table of the first call"])
def test_a_trial_leaves_network_and_generators_as_they_were(name: str) -> None:
    model = HARMLESS[name]().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    with torch.inference_mode():
        RowTrial(model, EXAMPLE, 0.25, 3).run()
    assert torch.equal(torch.rand(3), wanted)
    base_classifier(model, EXAMPLE, 64)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_votes_of_a_watched_network_are_those_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = _certify(HARMLESS["experts without a capacity"]())
    monkeypatch.setattr(Watched, "forward", lambda watched, x: watched.network(x))
    assert _certify(HARMLESS["experts without a capacity"]()) == watched


@contextmanager
def _counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    calls: list[int] = []
    examine = RowTrial.examine

    def noted(trial: RowTrial, made: row_trial.Asked) -> None:
        calls.append(len(made.rows))
        examine(trial, made)

    monkeypatch.setattr(RowTrial, "examine", noted)
    yield calls


def test_every_batch_size_that_is_used_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with _counting(monkeypatch) as tried:
        smooth(Base(), 0.25).certify(INPUTS, sampling=Sampling(20, 700), rows=100)
    assert {60, 100} <= set(tried), "3 x 20 draws to choose, 3 x 700 to estimate"
    assert tried.count(100) == 1, "21 passes, the first of them"


def test_networks_of_torch_are_not_watched() -> None:
    with torch.inference_mode():
        plain = base_classifier(nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), EXAMPLE, 64)
        own = base_classifier(Base().eval(), EXAMPLE, 64)
    assert not any(isinstance(module, Watched) for module in plain.network.modules())
    assert any(isinstance(module, Watched) for module in own.network.modules())


def _chance(shared: float, generator: np.random.Generator, *, heavy: bool = False) -> float:
    """The probability that the test of shared randomness gives, for scores with that share of common variance."""
    shape = (row_trial._TEST_CALLS, row_trial._TEST_COPIES, row_trial._TEST_ROWS, 3)
    own = generator.standard_cauchy(shape) if heavy else generator.standard_normal(shape)
    common = generator.standard_normal((shape[0], 1, *shape[2:]))
    return row_trial._common_part(np.sqrt(shared) * common + np.sqrt(1 - shared) * own)


def test_shared_randomness_is_told_from_randomness_of_each_row() -> None:
    """Laws without a variance: a test that compares variances would cry wolf."""
    generator = np.random.default_rng(1)
    assert min(_chance(0.0, generator, heavy=heavy) for heavy in (False, True) for _ in range(100)) > 1e-4
    assert all(_chance(0.2, generator) < 1e-6 for _ in range(20))


FUNCTION_INPUTS = np.full((3, 4), 128, dtype=np.uint8)


class Calls(nn.Module):
    """A network made of a function."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x)


def _certify_function(function: Callable[[Tensor], object]) -> None:
    smooth(Calls(function), 0.25).certify(FUNCTION_INPUTS, sampling=Sampling(10, 50))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 0],
        lambda x: x[:, :1],
        lambda x: x[:, :, None],
        lambda x: x.sum(),
        lambda x: (x, x),
        lambda x: x.sum(dim=0, keepdim=True),  # one row for all: every draw would be counted for the first one's class
        lambda x: x.repeat(2, 1),
        lambda x: x.T if len(x) > 4 else x,
        lambda x: x if len(x) < 4 else x[:1],
        lambda x: x if len(x) < 4 else x[:, :3],
    ],
    ids=["vector", "one class", "cube", "number", "pair", "pooled", "doubled", "transposed", "pooled later", "fewer later"],
)
def test_wrong_outputs_are_refused(function: Callable[[Tensor], object]) -> None:
    with pytest.raises(ModelError, match="one score per class"):
        _certify_function(function)


LATE_MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "from the fourth row on": lambda x: torch.cat((x[:3], x[3:] - x[3:].mean(dim=0))) if len(x) > 3 else x,
    "in larger batches": lambda x: x - x.mean(dim=0) if len(x) > 3 else x,
    "the last row": lambda x: torch.cat((x[:-1], x.sum(dim=0, keepdim=True))) if len(x) > 3 else x,
    "in blocks of sixteen": lambda x: torch.cat([part.cumsum(dim=0) for part in torch.split(x, 16)]) if len(x) > 16 else x,
}


@pytest.mark.parametrize("function", LATE_MIXERS.values(), ids=LATE_MIXERS.keys())
def test_networks_that_leave_the_first_rows_alone_are_refused_too(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="depends on the other inputs"):
        _certify_function(function)
    monkeypatch.setattr(row_trial, "_SIZES", (3,))  # the planted bug: three rows, and no look at what is counted
    monkeypatch.setattr(row_trial.Watched, "forward", lambda watched, x: watched.network(x))
    _certify_function(function)


def test_batch_norm_without_running_statistics_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with pytest.raises(ModelError, match="statistics of the batch") as refused:
        smooth(model, 0.25).certify(FUNCTION_INPUTS, sampling=Sampling(10, 50))
    assert refused.value.where == "1"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: torch.full_like(x, float("nan")),
        lambda x: torch.full_like(x, float("inf")),
        lambda x: x * 1e30,
        lambda x: (x * 100).round().to(torch.int64),
        lambda x: x.to(torch.float16),
        lambda x: x + torch.randn_like(x),  # noise of its own, fresh for each row
    ],
    ids=["identity", "nan", "infinite", "huge", "integers", "half", "random"],
)
def test_honest_networks_pass(function: Callable[[Tensor], object]) -> None:
    assert base_classifier(Calls(function), torch.full((1, 4), 0.5), 64).classes == 4
    _certify_function(function)


GENERATORS = (torch.default_generator,)


class WatchCalls(nn.Module):
    """A layer made of a function's name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        if self.name == "own":
            return x + torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(1))
        if self.name == "shared":
            return x + torch.randn(x.shape[1:])
        if self.name == "mixes":
            return x - x.mean(dim=0)
        return F.dropout(x, 0.5, training=self.name == "on")


def _network(name: str) -> nn.Module:
    return nn.Sequential(
        OrderedDict(before=nn.Linear(4, 4), inner=nn.Sequential(WatchCalls(name)), after=nn.Linear(4, 2))
    ).eval()


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize(("name", "counted"), [("on", {"inner.0": 28}), ("shared", {"inner.0": 4}), ("off", {}), ("own", {})])
def test_numbers_are_counted_by_layer(name: str, counted: dict[str, int], inference: bool) -> None:
    network = _network(name)
    draws = Draws(network, GENERATORS)
    with torch.inference_mode(inference), draws.watching():
        network(torch.ones(7, 4))
    assert dict(draws.numbers) == counted
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_forward_pre_hooks


def test_two_passes_part_in_the_layer_that_mixes() -> None:
    network = _network("mixes")
    one, two = torch.rand(5, 4), torch.rand(5, 4)
    two[1] = one[1]
    runs = [partial(network, one), partial(network, two)]
    assert first_difference(network, runs, torch.tensor([1]), torch.equal) == "inner.0"
    assert first_difference(network, [runs[0], runs[0]], torch.tensor([1]), torch.equal) == ""


class Outside(nn.Module):
    """Mixes between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        scores: Tensor = self.last(hidden - hidden.mean(dim=0))
        return scores


def test_code_around_a_layer_is_blamed_for_what_the_layer_gets() -> None:
    network = nn.Sequential(OrderedDict(body=Outside()))
    one, two = torch.rand(5, 4), torch.rand(5, 4)
    two[1] = one[1]
    runs = [partial(network, one), partial(network, two)]
    assert first_difference(network, runs, torch.tensor([1]), torch.equal) == "body"
