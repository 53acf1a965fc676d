"""Runs with noise at two places: certified, attacked and verified, and lies about their norms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import twinproof as tp
from twinproof.attacks.objective import without_noise
from twinproof.auditing.verify import verify_run
from twinproof.certification import run as certify_module
from twinproof.certification.method import Method, Sampling, find_certification
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.certification.two_noise_bounds import outgoing_sums, rates
from twinproof.data import Dataset, from_arrays
from twinproof.evaluation.attack_record import attacks_of
from twinproof.evaluation.protocols import AttackPlan
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread
from twinproof.layers.noise_placement import add_two_noises
from twinproof.recipes.train import train
from twinproof.runs.records import default_name
from twinproof.runs.run import Run
from twinproof_verify.certificates import Noise, noise_problems
from twinproof_verify.first_layer import TwoNoises, two_noises_problems
from twinproof_verify.layers import column_sums, convolution, joint_matrix, row_sums
from twinproof_verify.operator_norms import least_provable

SETTINGS: dict[str, Any] = {"recipe": "dpsgd", "noise_multiplier": 1.0, "delta": 1e-3, "steps": 6, "batch_size": 20}
SAMPLING = Sampling(20, 200, 0.01)
SHAPE = (1, 4, 4)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    generator = np.random.default_rng(3)
    labels = np.arange(90) % 3
    inputs = generator.integers(0, 60, (90, 4, 4), dtype=np.uint8) + (labels * 90).astype(np.uint8)[:, None, None]
    return from_arrays("memory", {"x_train": inputs[:60], "y_train": labels[:60], "x_test": inputs[60:], "y_test": labels[60:]})


@pytest.fixture(scope="module")
def trained(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8, 3))

    def noise(shape: tuple[int, ...]) -> NoiseLayer:
        return NoiseLayer(shape, Law.LAPLACE, 0.05, UniformSpread(shape))

    network = add_two_noises(inner, SHAPE, noise(SHAPE), noise)
    return train({**SETTINGS, "seed": 2}, tmp_path_factory.mktemp("two") / "run", dataset=dataset, network=network)


def _certified(trained: Run, dataset: Dataset, method: Method) -> Run:
    tp.certify(trained, dataset, sampling=SAMPLING, method=method, limit=12, overwrite=True, device="cpu", key=Key.from_seed(1))
    return Run.open(trained.root, trained.network)


@pytest.mark.parametrize(
    ("norm", "bound"), [("l1", "best"), ("linf", "pure-epsilon"), ("linf", "composition"), ("l2", "pixeldp")]
)
def test_a_run_with_two_noises_is_certified_and_verified(trained: Run, dataset: Dataset, norm: str, bound: str) -> None:
    run = _certified(trained, dataset, Method(norm=norm, bound=bound))
    name = default_name(norm, bound, "best")
    found, promise = find_certification(run.root, name=name), run.robustness[name]
    assert found is not None
    noise = found.settings.noise
    assert (noise.place, noise.law, noise.sigma) == ("input-and-first-layer", "laplace", 0.05)
    assert noise.dimension == 16 + 8
    assert noise.slackless_norm is not None
    assert noise.slackless_norm >= noise.operator_norm
    assert promise.status is Status.PROVEN
    assert "in the same pass" in promise.theorem
    assert sum(one.radius > 0 for one in found.certificates) > 3
    verified = verify_run(run.root, network=run.network)
    assert verified.ok, verified.problems


def test_the_run_can_be_attacked_and_audited(trained: Run, dataset: Dataset) -> None:
    run = _certified(trained, dataset, Method(norm="linf"))
    verdict = tp.audit(run, dataset, limit=2, device="cpu", key=Key.from_seed(6)).verdict
    assert verdict is not None
    assert not verdict.refuted
    plan = AttackPlan(norm="linf", sizes=(0.01,), attacks=("pgd",), steps=2, draws=2)
    tp.attack(run, dataset, plan=plan, sampling=SAMPLING, limit=4, device="cpu", key=Key.from_seed(4), overwrite=True)
    assert (attacks_of(run.root)["linf"].settings.noise.slackless_norm or 0) > 0
    found = verify_run(run.root, network=run.network)
    assert found.ok, found.problems


def _facts() -> tuple[Noise, TwoNoises]:
    """A layer, what is drawn behind and before it, and a true record."""
    torch.manual_seed(1)
    layer, scales, shape = nn.Conv2d(1, 3, 3, padding=1, dtype=torch.float64), np.linspace(0.5, 2, 48), SHAPE
    found = rates(layer, shape, "linf", 0.1, 0.3, scales)
    matrix = convolution(layer.weight.detach().numpy(), shape, (1, 1), (1, 1)).matrix(scales)
    columns = column_sums(matrix)
    np.testing.assert_allclose(columns, outgoing_sums(layer, shape, scales), rtol=1e-10)
    drawn = TwoNoises(
        *(0.1, 0.3, columns, row_sums(matrix)),
        lambda claimed: least_provable(matrix, "linf", "l1", claimed),
        lambda claimed: least_provable(joint_matrix(matrix, 0.1, 0.3), "linf", "l2", claimed),
    )
    grid = 2.0**-11
    tau = 64 * (72 * 0.1 * 255 / grid * 2.0**-64 + 2.0**-49) + 2.0**-36
    noise = Noise(
        *("certificates.json", "linf", "laplace", "input-and-first-layer", "tight", 0.1, grid, 255, 64, tau),
        operator_norm=0.1 * found.single_pass,
        slack=48 * grid / 255 + 1e-9,
        slackless_norm=0.1 * found.input,
    )
    return noise, drawn


LIES: dict[str, Callable[[Noise], Noise]] = {
    "sigma is not the scale": lambda noise: replace(noise, sigma=0.2),
    "dimension is not the number": lambda noise: replace(noise, dimension=48),
    "slack is understated": lambda noise: replace(noise, slack=noise.slack * 0.99),
    "operator_norm is below": lambda noise: replace(noise, operator_norm=noise.operator_norm * 0.999),
    "slackless_norm is below": lambda noise: replace(noise, slackless_norm=noise.operator_norm * 0.999),
    "too fine": lambda noise: replace(noise, grid=noise.grid / 64),
}


def test_a_true_record_has_no_problem() -> None:
    noise, drawn = _facts()
    assert list(two_noises_problems(noise, drawn)) == []
    assert list(noise_problems(noise)) == []


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found(lie: str) -> None:
    noise, drawn = _facts()
    assert any(lie in problem.what for problem in two_noises_problems(LIES[lie](noise), drawn))


@pytest.mark.parametrize("weights", [1.0, 1e6])
def test_what_float64_errs_in_the_layer_must_be_paid_too(weights: float) -> None:
    """However little it is beside the steps of the grid."""
    noise, drawn = _facts()
    drawn = replace(drawn, columns=drawn.columns * weights)
    rounding, error = drawn.costs_of_slack(noise, "laplace")
    assert (error < 1e-8 * rounding) == (weights == 1.0)

    def understated(slack: float) -> bool:
        problems = two_noises_problems(replace(noise, slack=slack), drawn)
        return any("slack is understated" in problem.what for problem in problems)

    assert understated(rounding)
    assert not understated(rounding + error)


def _both_charges(drawn: TwoNoises) -> float:
    """What the noise of the input and that behind the layer charge together, the latter by the certifier's own bound."""
    torch.manual_seed(1)
    layer = nn.Conv2d(1, 3, 3, padding=1, dtype=torch.float64)
    found = rates(layer, SHAPE, "linf", 0.1, 0.3, np.linspace(0.5, 2, 48))
    assert found.input == pytest.approx(drawn.known_costs("linf")[0])
    return found.input + found.hidden


@pytest.mark.parametrize("hidden_scale", [0.1, 0.3, 0.7, 0.123456789, 3.3])
def test_an_honest_norm_of_the_layer_is_accepted_to_the_last_bit(hidden_scale: float) -> None:
    """Rate times scale over scale is not always the rate in floats: the claim that was proven is what counts."""
    drawn = TwoNoises(1e-6, hidden_scale, np.full(4, 1e9), np.ones(4), lambda claimed: max(claimed, 1.0), float)
    for rate in np.random.default_rng(0).uniform(1 / hidden_scale, 40 / hidden_scale, 200):
        assert drawn.least_rate("linf", "tight", float(rate)) == rate
    assert drawn.least_rate("linf", "tight", 0.99 / hidden_scale) == pytest.approx(1 / hidden_scale, rel=1e-12)


def test_the_composition_must_be_charged_in_full() -> None:
    """The single-pass norm under the name of the composition: smaller than the sum that its theorem asks for."""
    noise, drawn = _facts()
    problems = list(two_noises_problems(replace(noise, bound="composition"), drawn))
    assert len(problems) == 2
    honest = 0.1 * _both_charges(drawn) * (1 + 1e-12)
    assert not list(
        two_noises_problems(replace(noise, bound="composition", operator_norm=honest, slackless_norm=honest), drawn)
    )


def _as_published(noise: Noise, drawn: TwoNoises, stated: float) -> Noise:
    """The record of the bound that StoBatch publishes, for noise that is said to be ``stated`` times what is drawn."""
    claimed = 0.1 * _both_charges(drawn) / stated * (1 + 1e-12)
    return replace(noise, bound="published", operator_norm=claimed, slackless_norm=claimed)


def test_the_published_bound_may_claim_psi_times_the_noise_only_beside_draws_that_are_kept() -> None:
    noise, drawn = _facts()
    printed = replace(drawn, stated=2.0)
    assert not list(two_noises_problems(_as_published(noise, drawn, 2.0), printed))
    assert not list(two_noises_problems(_as_published(noise, drawn, 1.0), drawn))
    for lie, truth in (
        (_as_published(noise, drawn, 2.0), drawn),
        (_as_published(noise, drawn, 2.01), printed),
        (replace(_as_published(noise, drawn, 2.0), bound="composition"), printed),
    ):
        assert [problem.what.split()[0] for problem in two_noises_problems(lie, truth)] == ["operator_norm", "slackless_norm"]


def test_a_sound_bound_never_takes_the_stated_noise() -> None:
    noise, drawn = _facts()
    halved = replace(noise, operator_norm=noise.operator_norm / 2)
    assert any("operator_norm is below" in problem.what for problem in two_noises_problems(halved, replace(drawn, stated=2.0)))


def test_a_slackless_norm_elsewhere_is_refused() -> None:
    noise, _ = _facts()
    for place in ("input", "first-layer"):
        assert any("without slack" in problem.what for problem in noise_problems(replace(noise, place=place)))


@pytest.mark.parametrize(
    ("name", "factor", "match"),
    [("operator_norm", 0.5, "operator_norm is below"), ("slackless_norm", 0.5, "slackless_norm is below")],
)
def test_a_run_that_lies_about_its_norms_is_refused(
    trained: Run, dataset: Dataset, tmp_path: Path, name: str, factor: float, match: str
) -> None:
    run = _certified(trained, dataset, Method(norm="l1"))
    path = run.root / "certificates" / "l1" / "certificates.json"
    honest = path.read_text()
    record = json.loads(honest)
    record["noise"][name] *= factor
    try:
        path.write_text(json.dumps(record))
        found = verify_run(run.root, network=run.network)
        assert any(match in problem.what for problem in found.problems)
    finally:
        path.write_text(honest)


def test_a_record_that_speaks_of_plain_noise_is_refused_without_the_owners_network(
    trained: Run, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights say that there is noise inside: Gaussian noise on the input of the network without it is another model."""

    def liar(run: Run, *_: object, **__: object) -> SmoothedClassifier:
        method = Method(norm="l2")
        return smooth(without_noise(run.model()), 5.0, levels=dataset.levels, method=method, input_shape=SHAPE)

    monkeypatch.setattr(certify_module, "smoothed_for_run", liar)
    run = _certified(trained, dataset, Method(norm="l2"))
    for network in (None, trained.network):
        found = verify_run(run.root, network=network)
        assert not found.ok
        assert any("noise" in problem.what for problem in found.problems)
