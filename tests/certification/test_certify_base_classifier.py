"""Networks that are no function of one input are refused: their votes prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twinproof.certification import row_trial
from twinproof.certification.base_classifier import base_classifier
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.errors import ModelError

INPUTS = np.full((3, 4), 128, dtype=np.uint8)


class Calls(nn.Module):
    """A network made of a function."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        """Whatever the function gives."""
        return self.function(x)


def _certify(function: Callable[[Tensor], object]) -> None:
    smooth(Calls(function), 0.25).certify(INPUTS, sampling=Sampling(10, 50))


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
        _certify(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(dim=0),
        lambda x: torch.stack((x.sum(dim=1), x.sum().expand(len(x))), dim=1),
        lambda x: x.softmax(dim=0),
        lambda x: x.flip(0),
    ],
    ids=["batch mean", "batch sum", "attention over the batch", "swapped rows"],
)
def test_networks_that_mix_inputs_are_refused(function: Callable[[Tensor], object]) -> None:
    with pytest.raises(ModelError, match="depends on the other inputs"):
        _certify(function)


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
        _certify(function)
    monkeypatch.setattr(row_trial, "_SIZES", (3,))  # the planted bug: three rows, and no look at what is counted
    monkeypatch.setattr(row_trial.Watched, "forward", lambda watched, x: watched.network(x))
    _certify(function)


def test_batch_norm_without_running_statistics_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with pytest.raises(ModelError, match="statistics of the batch") as refused:
        smooth(model, 0.25).certify(INPUTS, sampling=Sampling(10, 50))
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
    _certify(function)
