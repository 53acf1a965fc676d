"""Every supported layer, both paths, against one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from per_example_oracle import CLASSES, mean_loss, one_at_a_time, records, worst_error
from torch import Tensor, nn

from twinproof.training.per_example import FastPath, Instantiated, LinearFactors, PerExampleGradient, PerExamplePath, VmapPath
from twinproof.training.per_example import fast as registry
from twinproof.training.per_example.fast import Call
from twinproof.training.per_example.gradients import Rearranged
from twinproof.training.per_example.layers import convolution

PATHS: dict[str, type[FastPath] | type[VmapPath]] = {"fast": FastPath, "vmap": VmapPath}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True)
class Case:
    """A layer, made anew by ``make``, and the shape of its input; a head that turns its output into logits follows."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    ids: int = 0

    def model(self, dtype: torch.dtype) -> nn.Module:
        torch.manual_seed(0)
        layer = self.make()
        probe = torch.zeros(1, *self.shape, dtype=torch.long if self.ids else torch.float32)
        width = layer(probe).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, CLASSES)).to(dtype)


CASES: dict[str, Case] = {
    "linear": Case(lambda: nn.Linear(5, 4), (5,)),
    "linear without bias": Case(lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear kept as factors": Case(lambda: nn.Linear(40, 30), (40,)),
    "linear over a sequence": Case(lambda: nn.Linear(5, 6), (4, 5)),
    "linear over a grid": Case(lambda: nn.Linear(5, 6), (2, 3, 5)),
    "conv1d": Case(lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1), (2, 9)),
    "conv1d circular": Case(lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), (2, 7)),
    "conv1d same": Case(lambda: nn.Conv1d(2, 3, 4, padding="same"), (2, 7)),
    "conv2d": Case(lambda: nn.Conv2d(3, 4, 3), (3, 6, 5)),
    "conv2d one channel": Case(lambda: nn.Conv2d(1, 4, 3, stride=2, padding=1), (1, 6, 5)),
    "conv2d stride and padding": Case(lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2)), (3, 6, 5)),
    "conv2d dilation": Case(lambda: nn.Conv2d(3, 4, 2, dilation=(1, 2), padding=1), (3, 6, 5)),
    "conv2d groups": Case(lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    "conv2d depthwise": Case(lambda: nn.Conv2d(3, 6, 3, groups=3, bias=False), (3, 5, 6)),
    "conv2d same": Case(lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (2, 6, 7)),
    "conv2d valid": Case(lambda: nn.Conv2d(2, 3, 2, padding="valid"), (2, 4, 4)),
    "conv2d circular": Case(lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", stride=2), (2, 6, 5)),
    "conv2d reflect": Case(lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect"), (2, 6, 5)),
    "conv2d pointwise": Case(lambda: nn.Conv2d(4, 3, 1), (4, 3, 3)),
    "conv2d kept as factors": Case(lambda: nn.Conv2d(16, 32, 3), (16, 4, 4)),
    "conv3d": Case(lambda: nn.Conv3d(2, 4, 2, padding=(0, 1, 0), groups=2, stride=(1, 1, 2)), (2, 3, 4, 5)),
    "group norm": Case(lambda: nn.GroupNorm(2, 4), (4, 3, 5)),
    "group norm on features": Case(lambda: nn.GroupNorm(2, 6), (6,)),
    "group norm without affine": Case(lambda: nn.GroupNorm(2, 4, affine=False), (4, 3, 5)),
    "layer norm": Case(lambda: nn.LayerNorm(5), (4, 5)),
    "layer norm over two axes": Case(lambda: nn.LayerNorm((4, 5)), (3, 4, 5)),
    "layer norm without bias": Case(lambda: nn.LayerNorm(5, bias=False), (5,)),
    "layer norm without affine": Case(lambda: nn.LayerNorm(5, elementwise_affine=False), (5,)),
    "embedding": Case(lambda: nn.Embedding(4, 3), (6,), ids=4),
    "embedding with padding": Case(lambda: nn.Embedding(4, 3, padding_idx=1), (6,), ids=4),
}


def batches(case: Case, dtype: torch.dtype) -> list[tuple[str, Tensor, Tensor]]:
    """Every number of records and copies, and for images both memory layouts."""
    made = []
    for number in (0, 1, 2, 7):
        for copies in (1, 3):
            inputs, labels = records(case.shape, number, copies, dtype, ids=case.ids)
            made.append((f"{number} records, {copies} copies", inputs, labels))
            if len(case.shape) == 3:
                rows = inputs.flatten(0, 1).to(memory_format=torch.channels_last)
                made.append((f"{number} records, {copies} copies, channels last", rows.view(inputs.shape), labels))
    return made


def initialised(case: Case, dtype: torch.dtype) -> nn.Module:
    """The model with scales and shifts off their special starting values 1 and 0."""
    model = case.model(dtype)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_equals_one_record_at_a_time(name: str, path: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    model = initialised(case, dtype)
    subject: PerExamplePath = PATHS[path](model, mean_loss)
    for what, inputs, labels in batches(case, dtype):
        found = subject.gradients(inputs, labels)
        wanted = one_at_a_time(model, inputs, labels)
        assert list(found.by_name) == list(wanted), what
        assert worst_error(found, wanted) <= TOLERANCE[dtype], what
        assert found.losses.shape == labels.shape
        check_norms_and_sums(found.by_name, wanted, labels.shape[0], TOLERANCE[dtype])


def check_norms_and_sums(
    found: dict[str, PerExampleGradient], wanted: dict[str, Tensor], number: int, tolerance: float
) -> None:
    weights = torch.linspace(0.1, 2.0, number, dtype=torch.float64)
    for name, values in wanted.items():
        exact = values.double()
        norms = exact.flatten(1).square().sum(1) if number else torch.zeros(0, dtype=torch.float64)
        total = torch.einsum("m,m...->...", weights, exact)
        assert found[name].squared_norms().dtype == torch.float64
        torch.testing.assert_close(found[name].squared_norms(), norms, rtol=10 * tolerance, atol=float(norms.sum()) * tolerance)
        scale = float(torch.einsum("m,m...->...", weights, exact.abs()).max()) if values.numel() else 0.0
        torch.testing.assert_close(found[name].weighted_sum(weights), total, rtol=tolerance, atol=10 * tolerance * scale)


@pytest.mark.parametrize("name", ["linear kept as factors", "conv2d kept as factors"])
def test_wide_layers_are_kept_as_factors(name: str) -> None:
    inputs, labels = records(CASES[name].shape, 2, 3, torch.float32)
    gradient = FastPath(CASES[name].model(torch.float32), mean_loss).gradients(inputs, labels).by_name["0.weight"]
    assert isinstance(gradient.inner if isinstance(gradient, Rearranged) else gradient, LinearFactors)


def ignoring_groups(layer: nn.Conv2d, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
    """Wrong on purpose: every group is given the input channels of the first."""
    width = layer.in_channels // layer.groups
    repeat = [Call(call.inputs[:, :width].repeat(1, layer.groups, 1, 1), call.errors) for call in calls]
    return convolution(layer, repeat, number)


def mean_over_positions(layer: nn.Conv2d, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
    """Wrong on purpose: the mean over positions instead of their sum."""
    positions = calls[0].errors.shape[2:].numel()
    return {name: Instantiated(g.instantiate() / positions) for name, g in convolution(layer, calls, number).items()}


def contiguous_strides(layer: nn.Conv2d, calls: Sequence[Call], number: int) -> dict[str, PerExampleGradient]:
    """Wrong on purpose: reads any layout as if it were contiguous."""
    flat = [
        Call(call.inputs.as_strided(call.inputs.shape, torch.empty(call.inputs.shape).stride()), call.errors) for call in calls
    ]
    return convolution(layer, flat, number)


@pytest.mark.parametrize(
    ("wrong", "name"), [(ignoring_groups, "conv2d groups"), (mean_over_positions, "conv2d"), (contiguous_strides, "conv2d")]
)
def test_planted_bug_in_a_handler_is_caught(wrong: registry.Handler, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    model = initialised(case, torch.float32)
    monkeypatch.setitem(registry._HANDLERS, nn.Conv2d, wrong)
    errors = [
        worst_error(FastPath(model, mean_loss).gradients(inputs, labels), one_at_a_time(model, inputs, labels))
        for _, inputs, labels in batches(case, torch.float32)
    ]
    assert max(errors) > 1e-2
