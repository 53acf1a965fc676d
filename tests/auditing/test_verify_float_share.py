"""What float64 errs in the layer before the noise: bounded for every layer, and demanded of certificates and attacks."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification import noise_site
from twinproof.certification.confidence import few_digits_above
from twinproof.certification.method import Method, Sampling
from twinproof.certification.noise_site import WhitenedLayer
from twinproof.data import Dataset, from_arrays
from twinproof.evaluation.attack_record import attacks_of
from twinproof.evaluation.protocols import AttackPlan
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_verify.certificates import Distance
from twinproof_verify.first_layer import layer_error, relative_share, share_problems
from twinproof_verify.layers import convolution, linear, row_sums

Array = NDArray[np.float64]
SHAPE, SIGMA, SAMPLING = (1, 4, 4), 0.4, Sampling(20, 200, 0.01)
# An owner's network with noise inside: the settings' sigma, which they do not give, is another one.
SETTINGS: dict[str, Any] = {"recipe": "dpsgd", "noise_multiplier": 20.0, "delta": 1e-3, "steps": 6, "batch_size": 20, "seed": 2}
FLOAT_SHARE = "slack is understated: rounding to the grid and in float64 costs more"


def _linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3))


def _convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(16, 3))


def _sums(layer: nn.Module, shape: tuple[int, ...], scales: Array) -> Array:
    """Of the verifier's own matrix."""
    weight = layer.get_parameter("weight").detach().double().numpy()
    if not isinstance(layer, nn.Conv2d):
        return row_sums(linear(weight, *shape).matrix(scales))
    padding = (1, 1) if layer.padding == (1, 1) else (0, 0)
    return row_sums(convolution(weight, shape, tuple(layer.stride), padding, groups=layer.groups).matrix(scales))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(16, 6), (16,), 6),
    "convolution": (lambda: nn.Conv2d(1, 3, 3, padding=1), SHAPE, 48),
    "groups, strides and no bias": (lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2, bias=False), (2, 5, 5), 16),
}


def _layer(name: str) -> tuple[nn.Module, tuple[int, ...], Array]:
    make, shape, outputs = LAYERS[name]
    torch.manual_seed(5)
    return make(), shape, np.linspace(0.5, 2.0, outputs)


def _exact_rows(layer: nn.Module, shape: tuple[int, ...], scales: Array) -> list[list[Fraction]]:
    """The whitened matrix in rational numbers: float64 holds each weight, and a unit vector meets one weight at a time."""
    plain = layer.double()
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    bias = plain.bias
    plain.register_parameter("bias", None)
    with torch.no_grad():
        columns = plain(units).flatten(1).numpy()
    plain.register_parameter("bias", bias if isinstance(bias, nn.Parameter) else None)
    return [
        [Fraction(float(weight)) / Fraction(float(scale)) for weight in row]
        for row, scale in zip(columns.T, scales, strict=True)
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_row_sums_are_those_of_the_matrix(name: str) -> None:
    layer, shape, scales = _layer(name)
    wanted = [float(sum(map(abs, row))) for row in _exact_rows(layer, shape, scales)]
    np.testing.assert_allclose(_sums(layer, shape, scales), wanted, rtol=1e-13)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_that_is_computed_errs_by_no_more_than_the_share_and_does_err(name: str) -> None:
    """The certifier's own product against rational arithmetic, before it is rounded to the grid."""
    layer, shape, scales = _layer(name)
    rows, sums = _exact_rows(layer, shape, scales), _sums(layer, shape, scales)
    whitened = WhitenedLayer(layer, shape, scales, Law.GAUSSIAN, SIGMA, 255)
    share, errs = relative_share(math.prod(shape)), 0
    for stored in np.random.default_rng(2).integers(0, 256, (20, math.prod(shape))):
        inputs = stored.astype(np.float64) / 255
        matrix = whitened._matrix
        computed = np.ldexp(matrix.apply(inputs[:, None])[:, 0], matrix.exponent)
        for row, answer, most in zip(rows, computed, sums, strict=True):
            truth = sum((weight * Fraction(int(level), 255) for weight, level in zip(row, stored, strict=True)), Fraction(0))
            error = abs(Fraction(float(answer)) - truth)
            assert error <= Fraction(share * most)
            errs += error > 0
    assert errs > 20, "a share that nothing needs would prove nothing"


@pytest.mark.parametrize("law", list(Law))
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("weights", [1.0, 1e-3, 1e3])
def test_what_the_certifier_pays_is_never_below_what_is_demanded(law: Law, name: str, weights: float) -> None:
    layer, shape, scales = _layer(name)
    with torch.no_grad():
        layer.get_parameter("weight").mul_(weights)
    made = WhitenedLayer(layer, shape, scales, law, SIGMA, 255)
    rounding = made.noise.grid * (math.sqrt(len(scales)) if law is Law.GAUSSIAN else len(scales))
    error = layer_error(str(law), math.prod(shape), _sums(layer, shape, scales))
    assert list(share_problems(*_record(made.slack), rounding, error)) == []
    assert [problem.what for problem in share_problems(*_record(rounding), rounding, error)] == [FLOAT_SHARE]


def _record(slack: float) -> tuple[str, Distance]:
    return "certificates.json", Distance("", "gaussian", 1.0, slack, None)


@pytest.mark.parametrize(("law", "order"), [("gaussian", 2), ("laplace", 1)])
def test_the_error_of_two_inputs_is_in_the_norm_of_the_noise(law: str, order: int) -> None:
    rows = np.array([3.0, 4.0])
    assert layer_error(law, 16, rows) == 2 * 24 * 2.0**-53 * float(np.linalg.norm(rows, ord=order))


def test_one_part_in_ten_to_the_thirteen_is_still_demanded() -> None:
    """A tolerance of a billionth, as for two float64 computations of a norm, would let every real share be left out."""
    assert list(share_problems(*_record(1.0), 1.0, 1e-13))
    assert not list(share_problems(*_record(1.0 + 1e-13), 1.0, 1e-13))
    assert not list(share_problems(*_record(1.0), 1.0, 0.0))


class Unpaid(WhitenedLayer):
    """The planted bug: a certifier that pays for rounding to the grid alone, in ten digits as ever."""

    def slack_for(self, law: Law) -> float:
        steps = math.sqrt(self.dimension) if law is Law.GAUSSIAN else float(self.dimension)
        # 16 or 64 outputs: a whole power of two, which ten digits hold, so that nothing is paid by rounding up either.
        return few_digits_above(steps * self.noise.grid)


@pytest.fixture(scope="module")
def images() -> Dataset:
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(0, 60, (90, 4, 4), dtype=np.uint8) + (labels * 90).astype(np.uint8)[:, None, None]
    return from_arrays("memory", {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]})


@pytest.fixture(scope="module", params=[(Law.GAUSSIAN, _linear), (Law.LAPLACE, _convolution)], ids=["gaussian", "laplace"])
def noisy(request: pytest.FixtureRequest, images: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with one noise behind its first layer; not to be changed."""
    law, make = request.param
    torch.manual_seed(0)
    network = add_noise(make(), SHAPE, Place.FIRST_LAYER, lambda shape: NoiseLayer(shape, law, SIGMA, UniformSpread(shape)))
    return train(SETTINGS, tmp_path_factory.mktemp("noisy") / "run", dataset=images, network=network)


def _problems(run: Run) -> list[tuple[str, str]]:
    return [(problem.file, problem.what) for problem in verify_run(run.root, network=run.network).problems]


def _copy(noisy: Run, root: Path) -> Run:
    shutil.copytree(noisy.root, root)
    return Run.open(root, noisy.network)


def _refused(file: str, law: str, bound: str = "best") -> list[tuple[str, str]]:
    """Both norms in which the best bound measures Laplace noise have their share."""
    names = ("", "in_l2.") if (law, bound) == ("laplace", "best") else ("",)
    return [(file, f"{name}{FLOAT_SHARE}") for name in names]


@pytest.mark.parametrize("bound", ["best", "pixeldp"])
def test_certificates_that_leave_the_share_out_are_refused(
    noisy: Run, images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Radii, largest radius and promise all follow from the understated slack: nothing else tells."""
    slacks: list[float] = []
    file = f"certificates/{'linf' if bound == 'best' else 'linf-pixeldp'}/certificates.json"
    for name in ("honest", "unpaid"):
        if name == "unpaid":
            monkeypatch.setattr(noise_site, "WhitenedLayer", Unpaid)
        run = _copy(noisy, tmp_path / name)
        method = Method(norm="linf", bound=bound)
        made = tp.certify(run, images, sampling=SAMPLING, method=method, limit=12, device="cpu", key=Key.from_seed(1))
        assert made.settings.noise.place == "first-layer"
        assert any(certificate.radius > 0 for certificate in made.certificates)
        wanted = [] if name == "honest" else _refused(file, made.settings.noise.law, bound)
        assert _problems(Run.open(run.root, noisy.network)) == wanted
        slacks.append(made.settings.noise.slack)
    assert slacks[1] < slacks[0] < slacks[1] * (1 + 1e-8), "the share is a small one"


def test_attacks_that_leave_the_share_out_are_refused(
    noisy: Run, images: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = AttackPlan(norm="linf", sizes=(0.01,), attacks=("fgsm",), protocols=("paper",), steps=2, draws=2)
    for name in ("honest", "unpaid"):
        if name == "unpaid":
            monkeypatch.setattr(noise_site, "WhitenedLayer", Unpaid)
        run = _copy(noisy, tmp_path / name)
        tp.attack(run, images, plan=plan, sampling=SAMPLING, limit=4, device="cpu", key=Key.from_seed(4))
        noise = attacks_of(run.root)["linf"].settings.noise
        assert noise.place == "first-layer"
        assert _problems(run) == ([] if name == "honest" else _refused("attacks/linf/attacks.json", noise.law))
