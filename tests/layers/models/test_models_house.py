"""The networks of the house recipe: their sizes, gradients by the fast path, and what certification asks of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twinproof.certification.base_classifier import base_classifier
from twinproof.certification.lowering import AS_GIVEN, CHANNELS_LAST
from twinproof.compute.devices import Captured
from twinproof.errors import ConfigError, ModelError
from twinproof.layers.cross_example import refuse_cross_example_layers
from twinproof.layers.networks import build_network
from twinproof.layers.scattering import Scattering
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example import FastPath, VmapPath, choose_path

HOUSE = ["scatter-cnn", "gelu-cnn"]
SHAPE, CLASSES = (1, 12, 12), 3


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(name, SHAPE, CLASSES)


def _records(number: int, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(number, copies, *SHAPE, generator=generator)
    return inputs, torch.randint(0, CLASSES, (number,), generator=generator)


@pytest.mark.parametrize(("name", "wanted"), [("scatter-cnn", 33_066), ("gelu-cnn", 34_298)])
def test_sizes(name: str, wanted: int) -> None:
    assert sum(value.numel() for value in build_network(name, (1, 28, 28), 10).parameters()) == wanted


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 8, 8), (1, 9, 22)])
@pytest.mark.parametrize("name", HOUSE)
def test_scores_for_every_input(name: str, shape: tuple[int, ...], width: int) -> None:
    model = build_network(name, shape, 7, width=width)
    scores = model(torch.rand(2, *shape))
    assert scores.shape == (2, 7)
    scores.sum().backward()
    assert all(value.grad is not None for value in model.parameters())
    refuse_cross_example_layers(model)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 7, 8), (1, 1, 8, 8)])
@pytest.mark.parametrize("name", HOUSE)
def test_an_input_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="does not fit the input"):
        build_network(name, shape, 10)


@pytest.mark.parametrize("name", HOUSE)
def test_the_fast_path_is_chosen_and_equals_vmap(name: str) -> None:
    model = _model(name).double()
    chosen = choose_path(model, mean_cross_entropy, SHAPE, CLASSES, copies=2)
    assert isinstance(chosen, FastPath), getattr(chosen, "reason", "")
    inputs, labels = _records(3, 2, seed=1)
    found = chosen.gradients(inputs.double(), labels).by_name
    wanted = VmapPath(model, mean_cross_entropy).gradients(inputs.double(), labels).by_name
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    scale = max(float(value.instantiate().abs().max()) for value in wanted.values())
    for parameter, value in wanted.items():
        assert float((found[parameter].instantiate() - value.instantiate()).abs().max()) <= 1e-10 * scale, parameter


class AverageScattering(nn.Module):
    """The planted variant: features measured by the batch's own mean, as data-dependent normalisation does it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scattering(*SHAPE[1:])

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.inner(x)
        return features / features.mean((0, 2, 3), keepdim=True)


def _changes_with_neighbours(model: nn.Module) -> bool:
    path = FastPath(model, mean_cross_entropy)
    inputs, labels = _records(4, 2, seed=2)
    others, other_labels = _records(4, 2, seed=3)
    others[0], other_labels[0] = inputs[0], labels[0]
    first, second = path.gradients(inputs, labels).by_name, path.gradients(others, other_labels).by_name
    return any(not torch.equal(value.instantiate()[0], second[name].instantiate()[0]) for name, value in first.items())


@pytest.mark.parametrize("name", HOUSE)
def test_a_record_keeps_every_bit_of_its_gradient_beside_other_records(name: str) -> None:
    assert not _changes_with_neighbours(_model(name))


def test_features_measured_by_the_batch_are_caught() -> None:
    planted = _model("scatter-cnn")
    assert isinstance(planted, nn.Sequential)
    planted[0] = AverageScattering()
    assert _changes_with_neighbours(planted)
    with torch.no_grad(), pytest.raises(ModelError, match="depends on the other inputs"):
        base_classifier(planted.eval(), torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(0)), 64)


@pytest.mark.parametrize("form", [None, AS_GIVEN, CHANNELS_LAST])
@pytest.mark.parametrize("name", HOUSE)
def test_certification_takes_them_in_every_form(name: str, form: str | None) -> None:
    model, example = _model(name).eval(), torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(4))
    noisy = example + torch.randn((6, *SHAPE), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        base = base_classifier(model, example, 16, form=form)
        torch.testing.assert_close(base.network(noisy.clone()), model(noisy), rtol=0, atol=1e-5)
    assert base.classes == CLASSES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", HOUSE)
def test_a_recording_gives_the_same_scores(name: str) -> None:
    device = torch.device("cuda")
    model, inputs = _model(name).to(device).eval(), torch.zeros(64, *SHAPE, device=device)
    scores = torch.zeros(64, CLASSES, device=device)

    def work() -> None:
        with torch.no_grad():
            scores.copy_(model(inputs))

    captured = Captured(work, device)
    generator = torch.Generator(device).manual_seed(6)
    for _ in range(5):
        inputs.copy_(torch.randn(inputs.shape, device=device, generator=generator))
        captured()
        with torch.no_grad():
            torch.testing.assert_close(scores, model(inputs), rtol=0, atol=1e-3)
    assert captured.is_recorded
