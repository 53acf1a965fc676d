"""Weights that a network uses a second time, transposed: gradients of one record, and bugs that the trial sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from twinproof.layers.noise_constraint import Adjoint
from twinproof.layers.noise_placement import FirstLayer
from twinproof.training.per_example import fast
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.fast import Call, FastPath
from twinproof.training.per_example.paths import VmapPath

COPIES, CLASSES = 2, 4
LAYERS: list[tuple[Callable[[], FirstLayer], tuple[int, ...]]] = [
    (lambda: nn.Linear(7, 4), (7,)),
    (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    (lambda: nn.Conv2d(1, 4, 5, stride=2, padding=2), (1, 8, 8)),
    (lambda: nn.Conv2d(4, 6, 3, stride=3, padding=2, groups=2), (4, 7, 8)),
    (lambda: nn.Conv2d(2, 3, 2, padding="same", dilation=2, bias=False), (2, 5, 6)),
]


class Tied(nn.Module):
    """An auto-encoder with tied weights, and logits of its code and of what it reconstructs."""

    def __init__(self, layer: FirstLayer, shape: tuple[int, ...], *, encodes: bool = True) -> None:
        super().__init__()
        self.layer, self.decoder, self.encodes = layer, Adjoint(layer), encodes
        outputs = layer(torch.zeros(1, *shape))
        self.code_shape = outputs.shape[1:]
        self.after = nn.Linear(outputs[0].numel() + torch.zeros(shape).numel(), CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        code = self.layer(rows) if self.encodes else rows.new_ones(len(rows), *self.code_shape)
        back = self.decoder(torch.tanh(code), rows)
        return self.after(torch.cat([code.flatten(1), torch.tanh(back).flatten(1)], dim=1))  # type: ignore[no-any-return]


def _loss(logits: Tensor, label: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, label.expand(len(logits)))


def _model(place: int, *, encodes: bool = True) -> tuple[Tied, tuple[int, ...]]:
    make, shape = LAYERS[place]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Tied(make(), shape, encodes=encodes), shape


def _path(place: int) -> FastPath | VmapPath:
    model, shape = _model(place)
    found = choose_path(model, _loss, shape, CLASSES, copies=COPIES)
    assert isinstance(found, FastPath | VmapPath)
    return found


@pytest.mark.parametrize("place", range(len(LAYERS)))
@pytest.mark.parametrize("encodes", [True, False])
def test_gradients_of_each_record_are_autograds(place: int, encodes: bool) -> None:
    """One record at a time through plain autograd, which knows nothing of calls; also where the bias is never added."""
    model, shape = _model(place, encodes=encodes)
    exact = model.double()
    inputs = torch.rand(3, COPIES, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 3, 1])
    found = FastPath(exact, _loss).gradients(inputs, labels)
    for record in range(3):
        loss = _loss(exact(inputs[record]), labels[record])
        wanted = torch.autograd.grad(loss, list(exact.parameters()), allow_unused=True, materialize_grads=True)
        for (name, parameter), slope in zip(exact.named_parameters(), wanted, strict=True):
            mine = found.by_name[name].instantiate()[record].view_as(parameter)
            assert torch.allclose(mine, slope, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("place", range(len(LAYERS)))
def test_the_fast_path_is_proven_on_its_trial(place: int) -> None:
    assert isinstance(_path(place), FastPath)


def test_a_second_use_that_is_not_found_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the weights act where nobody looks."""
    monkeypatch.setattr(fast, "second_uses_of", lambda model, layers: [])
    assert isinstance(_path(2), VmapPath)


def test_a_transposed_use_that_counts_for_the_bias_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what went into the decoder is taken for the error at the layer's output."""
    kept = Call

    def careless(inputs: Tensor, errors: Tensor, *, transposed: bool = False) -> Call:
        return kept(inputs, errors)

    monkeypatch.setattr(fast, "Call", careless)
    assert isinstance(_path(2), VmapPath)


def test_a_transposed_use_that_is_not_turned_round_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: with as many inputs as outputs nothing complains about shapes."""
    model = Tied(nn.Linear(5, 5), (5,))
    assert isinstance(choose_path(model, _loss, (5,), CLASSES, copies=COPIES), FastPath)

    def straight(inputs: Tensor, errors: Tensor, *, transposed: bool = False) -> Call:
        return Call(errors, inputs, transposed) if transposed else Call(inputs, errors)

    monkeypatch.setattr(fast, "Call", straight)
    assert isinstance(choose_path(model, _loss, (5,), CLASSES, copies=COPIES), VmapPath)


def test_a_layer_that_is_only_used_transposed_has_no_slope_in_its_bias() -> None:
    layer = nn.Linear(3, 2)
    call = Call(torch.rand(4, 3), torch.rand(4, 2), transposed=True)
    handler = registry.handler_of(layer)
    assert handler is not None
    calls: Sequence[Call] = [call]
    found = handler(layer, calls, 4)
    assert not found["bias"].instantiate().any()
    assert torch.equal(found["weight"].instantiate(), torch.einsum("no,ni->noi", call.errors, call.inputs))
