"""The first layer of a run, read by the verifier alone: understated norms fail, and no file is read a second time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import deserialize
from safetensors.torch import save

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification import noise_site as layer_norm_bound
from twinproof.certification.method import Method, Sampling
from twinproof.data.load import load
from twinproof.keys import Key
from twinproof.layers.networks import NETWORKS, build_network
from twinproof.layers.noise import FixedSpread, Law, LearnedSpread, Place
from twinproof.layers.noise_placement import NoiseForm, RedistributionKind, split_at_noise, with_noise
from twinproof.privacy.linear_maps import Bound
from twinproof.privacy.operator_norm import operator_norm
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_verify.evidence import RunFolder
from twinproof_verify.findings import Problem
from twinproof_verify.layers import FIRST_LAYERS, Layer, placement_of

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "delta": 1e-4,
    "steps": 3,
    "seed": 1,
    "performance": {"device": "cpu", "checkpoint_every": 1000, "report_every": 1000},
}
# Network, norm and law of the noise behind its first layer.
LAYERS = [
    ("small-cnn", "linf", "gaussian"),
    ("small-cnn", "l2", "gaussian"),
    ("mlp", "l1", "gaussian"),
    ("mlp", "l2", "laplace"),
    ("mlp", "linf", "laplace"),
]
BELOW = "operator_norm is below what the weights of the first layer allow"


def _trained(root: Path, model: str, law: str) -> Run:
    noise = {"law": law, "mechanism": "laplace" if law == "laplace" else "heterogeneous", "norm": "l1", "weights": "measure"}
    return train(
        SETTINGS | {"recipe": "hgm-pixeldp", "model": model, "noise_layer": noise | {"redistribution": "uniform"}}, root
    )


@pytest.mark.parametrize(("model", "norm", "law"), LAYERS)
def test_a_certifier_whose_norms_are_understated_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, norm: str, law: str
) -> None:
    """The planted bug: norms times 0.96. Radii, largest radius and promise all follow from them; nothing else tells."""
    run, honest = _trained(tmp_path / "run", model, law), operator_norm
    for share in (1.0, 0.96, 0.98):

        def planted(*arguments: Any, share: float = share, **named: Any) -> Bound:
            bound = honest(*arguments, **named)
            return replace(bound, value=bound.value * share, lower=bound.lower * share)

        monkeypatch.setattr(layer_norm_bound, "operator_norm", planted)
        method = Method(norm=norm)
        sampling = Sampling(10, 50)
        tp.certify(run, load("digits"), sampling=sampling, method=method, limit=5, overwrite=True, key=Key.from_seed(1))
        # Laplace noise is measured in both norms.
        names = ([BELOW, f"in_l2.{BELOW}"] if law == "laplace" else [BELOW]) if share < 1 else []
        wanted = [(f"certificates/{norm}/certificates.json", name) for name in names]
        assert [(one.file, one.what) for one in verify_run(run.root).problems] == wanted


@pytest.mark.parametrize("name", ["demo", "hgm-pixeldp", "stobatch"])
def test_every_file_is_read_once(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is gone as soon as it has been read: what is hashed is what is parsed and loaded, or verification would fail."""
    root = tmp_path / "run"
    root.mkdir()
    for path in (FIXTURES / name).iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    whole, once = RunFolder.content, set[str]()

    def content(self: RunFolder, name: str) -> bytes | Problem:
        found = whole(self, name)
        if name not in once:
            once.add(name)
            (self.root / name).unlink()
        return found

    monkeypatch.setattr(RunFolder, "content", content)
    assert verify_run(root).problems == ()
    assert once == {path.name for path in (FIXTURES / name).iterdir()}
    assert not list(root.iterdir())


def test_weights_that_are_swapped_while_it_reads_cannot_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Certificates ten times too long, true for other weights, which take the place of the right ones after each reading."""
    root = tmp_path / "run"
    root.mkdir()
    for path in (FIXTURES / "hgm-pixeldp").iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    right = (root / "model.safetensors").read_bytes()
    tensors = {name: _tensor(one) for name, one in _stored(right).items()}
    tensors["0.weight"] = tensors["0.weight"] / 10
    wrong = save(tensors)
    text = (root / "certificates.json").read_text().replace('"operator_norm": 30.48977671', '"operator_norm": 3.048977671')
    (root / "certificates.json").write_text(text)
    whole = RunFolder.content

    def content(self: RunFolder, name: str) -> bytes | Problem:
        (self.root / "model.safetensors").write_bytes(right)
        found = whole(self, name)
        (self.root / "model.safetensors").write_bytes(wrong)
        return found

    monkeypatch.setattr(RunFolder, "content", content)
    assert ("certificates.json", BELOW) in [(one.file, one.what) for one in verify_run(root).problems]


def _stored(content: bytes) -> dict[str, Any]:
    return dict(deserialize(content))  # type: ignore[no-untyped-call]


def _tensor(stored: dict[str, Any]) -> torch.Tensor:
    kinds = {"F32": np.float32, "F64": np.float64}
    return torch.from_numpy(np.frombuffer(stored["data"], dtype=kinds[stored["dtype"]]).reshape(stored["shape"]).copy())


def _read(model: torch.nn.Module, config: dict[str, Any], shape: tuple[int, ...]) -> tuple[Layer | None, np.ndarray[Any, Any]]:
    tensors = _stored(save({name: value.contiguous() for name, value in model.state_dict().items()}))
    placement = placement_of(config, None)
    assert placement is not None
    layer = None if placement.first is None else placement.first.layer(tensors, shape, flattens=placement.flattens)
    coordinates = int(np.prod(shape)) if layer is None else layer.outputs
    return layer, placement.spread.scales(tensors, coordinates)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_verifiers_table_is_that_of_the_networks(name: str) -> None:
    """First layers by name: the matrix against the layer itself; networks that begin with another layer have no entry."""
    shape = (1, 28, 28)
    torch.manual_seed(0)
    network = build_network(name, shape, 10)
    form = NoiseForm(Place.FIRST_LAYER, Law.GAUSSIAN, RedistributionKind.UNIFORM, 0.1, 0.5)
    if name not in FIRST_LAYERS:
        with pytest.raises(Exception, match="not linear"):
            with_noise(network, shape, form, 0.5)
        return
    model = with_noise(network, shape, form, 0.5)
    split = split_at_noise(model)
    assert split is not None
    assert split.before is not None
    config = {"model": name, "noise_layer": {"place": "first-layer", "law": "gaussian", **_shares("uniform")}}
    layer, scales = _read(model, config, shape)
    assert layer is not None
    assert len(scales) == split.noise.spread.coordinates
    point = torch.rand((1, *shape), dtype=torch.float64)
    plain = split.before.double()
    with torch.no_grad():
        inputs = point.flatten(1) if split.flattens else point
        wanted = (plain(inputs) - plain(torch.zeros_like(inputs))).flatten().numpy()
    np.testing.assert_allclose(layer.matrix(scales) @ point.flatten().numpy(), wanted, rtol=1e-10, atol=1e-12)


def _shares(kind: str) -> dict[str, Any]:
    return {"redistribution": kind, "floor": 0.1, "width": 0.5}


@pytest.mark.parametrize("kind", list(RedistributionKind))
def test_scales_are_those_of_the_noise_layer(kind: RedistributionKind) -> None:
    shape = (1, 8, 8)
    torch.manual_seed(0)
    model = with_noise(
        build_network("small-cnn", shape, 10), shape, NoiseForm(Place.FIRST_LAYER, Law.GAUSSIAN, kind, 0.1, 0.5), 0.5
    )
    split = split_at_noise(model)
    assert split is not None
    spread = split.noise.spread
    with torch.no_grad():
        if isinstance(spread, LearnedSpread):
            spread.log_shares.normal_()
        elif isinstance(spread, FixedSpread):
            spread.scales.uniform_(0.5, 2)
    config = {"model": "small-cnn", "noise_layer": {"place": "first-layer", "law": "gaussian", **_shares(str(kind))}}
    _, scales = _read(model, config, shape)
    np.testing.assert_array_equal(scales, spread.least_scales())


def test_runs_with_noise_of_their_own_are_verified_without_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from twinproof.auditing.verify import verify_run;"
        f"assert verify_run(Path({str(FIXTURES / 'hgm-pixeldp')!r})).ok; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
