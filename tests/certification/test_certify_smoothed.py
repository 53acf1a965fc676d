"""What may be certified and how the network is treated meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.keys import Key
from twinproof.runs.certificates import ABSTAIN, UNKNOWN, Certificate

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
        (np.float64(1.0), 255, "no batch of inputs"),
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
    with pytest.raises(DataError, match="no class"):
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
        """(rows, 2)."""
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


def test_batch_norm_with_running_statistics_is_allowed() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), _linear()).train()
    assert len(_certify(INPUTS, model)) == 5


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


def test_networks_on_images() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2 * 4, 3))
    images = np.random.default_rng(1).integers(0, 256, size=(3, 1, 4, 4)).astype(np.uint8)
    whole = smooth(model, 0.5).certify(images, sampling=SAMPLING, key=KEY)
    assert [one.index for one in whole] == [0, 1, 2]
    assert all(0 <= one.votes <= SAMPLING.n for one in whole)
