"""Random numbers are counted where they are drawn, and two passes part where they part."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from twinproof.certification.row_trial import Draws, first_difference

GENERATORS = (torch.default_generator,)


class Calls(nn.Module):
    """A layer made of a function's name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Draws as the name says."""
        if self.name == "own":
            return x + torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(1))
        if self.name == "shared":
            return x + torch.randn(x.shape[1:])
        if self.name == "mixes":
            return x - x.mean(dim=0)
        return F.dropout(x, 0.5, training=self.name == "on")


def _network(name: str) -> nn.Module:
    return nn.Sequential(OrderedDict(before=nn.Linear(4, 4), inner=nn.Sequential(Calls(name)), after=nn.Linear(4, 2))).eval()


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
        """(rows, 2)."""
        hidden = self.first(x)
        scores: Tensor = self.last(hidden - hidden.mean(dim=0))
        return scores


def test_code_around_a_layer_is_blamed_for_what_the_layer_gets() -> None:
    network = nn.Sequential(OrderedDict(body=Outside()))
    one, two = torch.rand(5, 4), torch.rand(5, 4)
    two[1] = one[1]
    runs = [partial(network, one), partial(network, two)]
    assert first_difference(network, runs, torch.tensor([1]), torch.equal) == "body"
