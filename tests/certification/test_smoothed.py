"""What may be certified, by which methods, how the network is treated meanwhile, and certificates that stay as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.method import PLAIN, Method, Sampling, default_confidence
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.runs.records import ABSTAIN, UNKNOWN, Certificate

KEY, SAMPLING = Key.from_seed(9), Sampling(n0=30, n=200)


def _linear(features: int = 4, classes: int = 3) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(features, classes)


def _certify(inputs: Any, model: nn.Module | None = None, levels: int = 255, **options: Any) -> list[Certificate]:
    smoothed = smooth(model or _linear(), 0.25, levels=levels)
    return smoothed.certify(inputs, sampling=SAMPLING, key=KEY, **options)


INPUTS = np.random.default_rng(0).integers(0, 256, size=(5, 4)).astype(np.uint8)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.uint16),
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(x.astype(np.uint16)),
        lambda x: x.astype(np.float32) / np.float32(255),
        lambda x: x / 255,
        lambda x: torch.from_numpy(x).to(torch.float32) / 255,
    ],
    ids=["int64", "uint16", "torch uint8", "torch uint16", "float32", "float64", "torch float32"],
)
def test_every_form_of_the_same_input_is_the_same(form: Callable[[NDArray[np.uint8]], Any]) -> None:
    assert _certify(form(INPUTS)) == _certify(INPUTS)


def test_all_65536_levels_survive_float32() -> None:
    stored = np.arange(65536, dtype=np.uint16).reshape(-1, 4)[::64]
    floats = (stored / 65535).astype(np.float32)
    assert _certify(floats, levels=65535) == _certify(stored, levels=65535)


OFF_THE_GRID = "do not lie on the stored levels"
OUTSIDE = "outside the stored range"


@pytest.mark.parametrize(
    ("inputs", "levels", "message"),
    [
        (np.full((1, 4), 0.5), 255, OFF_THE_GRID),
        (np.full((1, 4), 100.3 / 255, dtype=np.float32), 255, OFF_THE_GRID),
        (np.full((1, 4), np.nan), 255, OFF_THE_GRID),
        (np.full((1, 4), np.inf), 255, OFF_THE_GRID),
        (np.array([[0, 1, 2, 256]]), 255, OUTSIDE),
        (np.array([[0, 1, 2, -1]]), 255, OUTSIDE),
        (np.array([[0, 17, 0, 0]], dtype=np.uint8), 16, OUTSIDE),
        (np.full((1, 4), 2.0), 255, OUTSIDE),
        (np.full((1, 4), -1 / 255), 255, OUTSIDE),
        (np.full((1, 4), 200.0), 255, OUTSIDE),  # levels given as floats: a unit too far, never silently divided
        (np.float64(1.0), 255, "not a batch of inputs"),
    ],
)
def test_inputs_that_cannot_be_stored_are_refused(inputs: Any, levels: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _certify(inputs, levels=levels)


def test_no_inputs_give_no_certificates() -> None:
    assert _certify(np.zeros((0, 4), dtype=np.uint8)) == []
    assert _certify(np.zeros((0, 4), dtype=np.uint8), labels=[]) == []


def test_labels_only_fill_the_record() -> None:
    unknown, known = _certify(INPUTS), _certify(INPUTS, labels=[0, 1, 2, UNKNOWN, 0])
    assert [one.label for one in unknown] == [UNKNOWN] * 5
    assert not any(one.correct for one in unknown)
    assert [(one.votes, one.radius, one.prediction) for one in known] == [(o.votes, o.radius, o.prediction) for o in unknown]


@pytest.mark.parametrize("labels", [[], [1], [0] * 6])
def test_labels_must_match_in_number(labels: list[int]) -> None:
    with pytest.raises(DataError, match="differ in number"):
        _certify(INPUTS, labels=labels)


def test_a_label_that_reads_like_an_abstention_is_refused() -> None:
    with pytest.raises(DataError, match="not a class"):
        _certify(INPUTS, labels=[0, 1, ABSTAIN, 0, 0])


@pytest.mark.parametrize(("option", "value"), [("first_index", -1), ("rows", 0), ("rows", -3)])
def test_impossible_numbers_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError) as refused:
        _certify(INPUTS, None, 255, **{option: value})
    assert refused.value.where == option


def test_indices_are_counted_from_first_index() -> None:
    assert [one.index for one in _certify(INPUTS, first_index=7)] == [7, 8, 9, 10, 11]


class Forgetful(nn.Module):
    """Dropout that would change the answer: in train mode nearly everything is dropped and class 1 wins."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.norm = nn.BatchNorm1d(4)
        self.norm.eval()  # frozen by its owner while the rest trains

    def forward(self, x: Tensor) -> Tensor:
        kept = self.dropout(torch.ones_like(x)).mean(dim=1) + 0 * self.norm(x)[:, 0]
        return torch.stack(((kept == 1).to(torch.float32), torch.full_like(kept, 0.5)), dim=1)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_runs_in_eval_mode_and_is_left_as_it_was(training: bool) -> None:
    model = Forgetful()
    model.train(training)
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = _certify(INPUTS, model)
    assert all(one.prediction == 0 and one.votes == SAMPLING.n for one in made), "dropout was active"
    assert (model.training, model.dropout.training, model.norm.training) == (training, training, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_failing_network_is_left_as_it_was() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("out of order")

    model = Fails().train()
    with pytest.raises(RuntimeError, match="out of order"):
        _certify(INPUTS, model)
    assert model.training


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ModelError, match="autocast"):
        _certify(INPUTS)
    assert len(_certify(INPUTS)) == 5


def test_normalising_inside_the_network_does_not_change_the_unit() -> None:
    """A network that works in normalised units gets radii in input units: here an exact power of two, so bit for bit."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _linear()
            with torch.no_grad():
                self.inner.weight.div_(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * 4)  # type: ignore[no-any-return]

    assert _certify(INPUTS, Normalised()) == _certify(INPUTS)


SCORES = Method(statistic="scores", confidence="hoeffding")


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("norm", "l3", "l1, l2, linf"),
        ("statistic", "logits", "votes, scores"),
        ("confidence", "bootstrap", "clopper-pearson, hoeffding, empirical-bernstein"),
        ("runner_up", "bonferroni", "complement, union"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(name: str, value: str, known: str) -> None:
    with pytest.raises(ConfigError, match="there is no such") as refused:
        Method(**{name: value})
    assert (refused.value.where, refused.value.got) == (name, value)
    assert known in refused.value.wanted


def test_clopper_pearson_is_for_votes() -> None:
    with pytest.raises(ConfigError, match="not binomial") as refused:
        Method(statistic="scores")
    assert refused.value.wanted == "one of: hoeffding, empirical-bernstein"


@pytest.mark.parametrize("statistic", ["votes", "scores"])
def test_the_default_confidence_fits_the_statistic(statistic: str) -> None:
    assert Method(statistic=statistic, confidence=default_confidence(statistic)).statistic == statistic


@pytest.mark.parametrize("method", [SCORES, Method(confidence="hoeffding"), Method(runner_up="union")])
@pytest.mark.parametrize("sampling", [Sampling(target_radius=0.1), Sampling(shared_noise=True)])
def test_looks_and_shared_noise_go_with_plain_votes_only(method: Method, sampling: Sampling) -> None:
    assert PLAIN.is_plain
    sampling.refuse_other_methods(Method(norm="linf", bound="hgm"))
    with pytest.raises(ConfigError, match="plain votes only"):
        smooth(nn.Linear(2, 2), 0.5, method=method).certify(np.zeros((1, 2), dtype=np.uint8), sampling=sampling)


def _with_noise(law: Law, place: Place) -> nn.Module:
    torch.manual_seed(0)
    return add_noise(
        nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)),
        (2,),
        place,
        lambda shape: NoiseLayer(shape, law, 0.5, UniformSpread(shape)),
    )


@pytest.mark.parametrize("bound", ["hgm", "hgm-complement", "published"])
def test_bounds_for_gaussian_noise_are_refused_for_laplace_noise(bound: str) -> None:
    with pytest.raises(ConfigError, match="for laplace noise") as refused:
        smooth(_with_noise(Law.LAPLACE, Place.INPUT), method=Method(bound=bound))
    assert "pixeldp" in refused.value.wanted


def test_so_many_scores_that_their_squares_overflow_are_refused() -> None:
    with pytest.raises(ConfigError, match="overflow"):
        smooth(nn.Linear(2, 2), 0.5, method=SCORES).certify(np.zeros((1, 2), dtype=np.uint8), sampling=Sampling(n=2**23))


def test_a_network_without_noise_needs_a_sigma() -> None:
    with pytest.raises(ConfigError, match="no noise to smooth with"):
        smooth(nn.Linear(2, 2))


BITS_INPUTS: NDArray[np.int64] = np.random.default_rng(5).integers(0, 17, size=(40, 16))


def _network(layers: int) -> nn.Module:
    """Small whole weights on sixteenths: nothing is rounded, so that no machine answers otherwise."""
    first, last = nn.Linear(16, 4), nn.Linear(4, 3)
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(np.random.default_rng(3).integers(-4, 5, size=(4, 16)).astype(np.float32)))
        last.weight.copy_(torch.tensor([[1.0, 2, -1, 0], [0, 1, -3, 1], [2, -1, 0, 1]]))
        first.bias.zero_()
        last.bias.zero_()
    return first if layers == 1 else nn.Sequential(first, nn.ReLU(), last)


# Made by the version before noise could enter anywhere else.
@pytest.mark.parametrize(
    ("layers", "sampling", "digest"),
    [
        (1, Sampling(n0=40, n=900), "6900bd50bd561578fcaf2a6811d0611aa4e69eaeb6be2be3f063d9fa07cf2b88"),
        (1, Sampling(n0=40, n=900, target_radius=0.05), "22db26451f20028477f81a82f7349accdc11dce6c678d05cf85ab9d7e6fe5b3b"),
        (2, Sampling(n0=40, n=900, shared_noise=True), "0da81ceaceb331dc30ec502baef13b828d2a14f0f09cb89f4c98e2871d267868"),
    ],
    ids=["all draws", "target radius", "shared noise"],
)
def test_certificates_are_those_of_the_first_version(layers: int, sampling: Sampling, digest: str) -> None:
    made = smooth(_network(layers), 0.5, levels=16).certify(BITS_INPUTS, sampling=sampling, key=Key.from_seed(77))
    lines = "\n".join(",".join(one.row()) for one in made)
    assert hashlib.sha256(lines.encode()).hexdigest() == digest
