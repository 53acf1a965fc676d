"""A run with a noise layer, read back: its network with its noise, from the settings and the weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from twinproof.errors import RunError
from twinproof.files import write_atomic
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, NoiseLayer, Place, silenced
from twinproof.layers.noise_placement import NoiseForm, RedistributionKind, with_noise
from twinproof.runs.layout import COMPLETE, file_digests, write_run_json
from twinproof.runs.run import Run

SHAPE, CLASSES, SIGMA = (5,), ("a", "b", "c"), 0.3
KINDS = tuple(RedistributionKind)


def _form(kind: RedistributionKind, place: Place = Place.FIRST_LAYER, law: Law = Law.GAUSSIAN) -> NoiseForm:
    return NoiseForm(place, law, kind, floor=0.2, width=0.4)


def _stored(form: NoiseForm) -> dict[str, Any]:
    return {name: getattr(form, name) for name in ("place", "law", "redistribution", "floor", "width")}


def _write(root: Path, model: nn.Module, noise: dict[str, Any] | None, name: str = "mlp") -> Run:
    root.mkdir()
    write_atomic(root / "model.safetensors", save({key: value.contiguous() for key, value in model.state_dict().items()}))
    config = {"model": name, "width": 1, "sigma": SIGMA, "noise_layer": noise}
    data = {"shape": list(SHAPE), "classes": list(CLASSES)}
    write_run_json(
        root, {"state": COMPLETE, "config": config, "data": data, "files": file_digests(root, ("model.safetensors",))}
    )
    return Run.open(root)


def _trained(form: NoiseForm) -> nn.Sequential:
    """A network whose numbers are not those that it begins with."""
    torch.manual_seed(3)
    model = with_noise(build_network("mlp", SHAPE, len(CLASSES)), SHAPE, form, SIGMA)
    for value in model.state_dict().values():
        value.add_(torch.rand(value.shape, dtype=value.dtype))
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "law"), [(Place.FIRST_LAYER, Law.GAUSSIAN), (Place.INPUT, Law.LAPLACE)])
def test_the_network_comes_back_with_its_noise(tmp_path: Path, kind: RedistributionKind, place: Place, law: Law) -> None:
    form = _form(kind, place, law)
    model = _trained(form)
    found = _write(tmp_path / "run", model, _stored(form)).model()
    inputs = torch.rand(6, *SHAPE)
    outputs = []
    for network in (model.eval(), found):
        torch.manual_seed(9)
        with torch.no_grad():
            outputs.append(network(inputs))
    assert torch.equal(*outputs), "the same noise, to the bit"
    with torch.no_grad(), silenced(found):
        assert not torch.equal(outputs[0], found(inputs)), "there is noise"
    (layer,) = [module for module in found.modules() if isinstance(module, NoiseLayer)]
    assert layer.law is law
    assert float(layer.deviation) != SIGMA, "the deviation is that of the weights, not of the settings"


def test_a_run_without_a_noise_layer_has_none(tmp_path: Path) -> None:
    found = _write(tmp_path / "run", build_network("mlp", SHAPE, len(CLASSES)), None).model()
    assert not any(isinstance(module, NoiseLayer) for module in found.modules())


def test_an_own_network_gets_the_noise_on_a_copy(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    form = _form(RedistributionKind.LEARNED)
    model = with_noise(network, SHAPE, form, SIGMA)
    run = _write(tmp_path / "run", model, _stored(form), name="own:Sequential")
    found = Run.open(run.root, network).model()
    assert [name for name, _ in found.named_children()] == ["0", "noise", "1", "2"]
    assert [name for name, _ in network.named_children()] == ["0", "1", "2"]
    assert found[0] is not network[0]  # type: ignore[index]


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"place": "output"}, "cannot be built(.|\n)*output"),
    ({"law": "cauchy"}, "cannot be built(.|\n)*cauchy"),
    ({"redistribution": "guessed"}, "cannot be built(.|\n)*guessed"),
    ({"floor": 0.0, "redistribution": "learned"}, "cannot be built(.|\n)*floor"),
    ({"place": None}, "cannot be built"),
    ({"redistribution": "training"}, "weights do not fit"),
    ({"law": ...}, "cannot be built"),  # left out
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_settings_that_are_not_the_runs_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    form = _form(RedistributionKind.UNIFORM)
    stored = {name: value for name, value in (_stored(form) | change).items() if value is not ...}
    run = _write(tmp_path / "run", _trained(form), stored)
    with pytest.raises(RunError, match=message):
        run.model()
