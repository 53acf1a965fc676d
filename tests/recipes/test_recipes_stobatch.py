"""StoBatch as a whole: it learns, both of its noises are certified, it verifies, is attacked and reported, and resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_fixtures import interrupt
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import model_bytes, one_thread, tiny

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Method, Sampling
from twinproof.data.load import load
from twinproof.errors import RunError
from twinproof.evaluation.protocols import AttackPlan
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law
from twinproof.layers.noise_constraint import Constraint, TwoNoisesConstraint, WeightRule
from twinproof.layers.noise_placement import split_at_two_noises, with_two_noises
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.resolve import resolve
from twinproof.recipes.stobatch import STOBATCH, stobatch_loss
from twinproof.recipes.train import train
from twinproof.reporting.run import report_run
from twinproof.runs.run import Run
from twinproof.training.stobatch import ATTACKS, balanced_cross_entropy, taylor_cross_entropy

DIGITS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "stobatch",
    "delta": 1e-4,
    "model": "mlp",
    "noise_multiplier": 0.7,
    "learning_rate": 2.0,
    "regulariser": {"attack_steps": 1, "attack_size": 0.2},
    "performance": {"device": "cpu", "checkpoint_every": 1000, "report_every": 1000},
}
KEY = Key.from_seed(5)
FAST = {"attack_steps": 1}


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with one_thread():
        return train(DIGITS | {"steps": 40, "seed": 2}, tmp_path_factory.mktemp("stobatch") / "run")


def test_it_learns_and_both_bounds_certify_it(digits_run: Run) -> None:
    assert digits_run.record["accuracy"]["value"] >= 0.65
    assert digits_run.record["config"]["noise_layer"]["place"] == "input-and-first-layer"
    radii: dict[str, list[float]] = {}
    for bound in ("composition", "pure-epsilon"):
        method = Method(norm="linf", bound=bound)
        made = tp.certify(
            digits_run, load("digits"), sampling=Sampling(20, 200), limit=20, method=method, overwrite=True, key=KEY
        )
        assert made.settings.noise.place == "input-and-first-layer"
        radii[bound] = [certificate.radius for certificate in made.certificates]
        assert sum(certificate.correct and certificate.radius > 0 for certificate in made.certificates) >= 8
        assert {one.status for one in Run.open(digits_run.root).robustness.values()} == {Status.PROVEN}
        verification = verify_run(digits_run.root)
        assert verification.ok, [str(problem) for problem in verification.problems]
    assert all(single >= composed for single, composed in zip(radii["pure-epsilon"], radii["composition"], strict=True))


def test_it_is_attacked_and_reported(digits_run: Run) -> None:
    run, dataset = Run.open(digits_run.root), load("digits")
    tp.certify(run, dataset, sampling=Sampling(20, 100), limit=4, overwrite=True, key=KEY)
    plan = AttackPlan(norm="linf", sizes=(0.005,), attacks=("pgd",), steps=2, restarts=1, draws=2, paper_steps=2)
    attacked = tp.attack(run, dataset, plan=plan, sampling=Sampling(20, 100), limit=4, key=KEY)
    assert {line.protocol for line in attacked.lines} >= {"paper", "adaptive"}
    assert verify_run(run.root).ok
    page = report_run(run.root).html.read_text()
    assert "StoBatch" in page or "stobatch" in page


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sound", "published"])
def test_the_papers_network_is_trained_certified_and_verified(tmp_path: Path, variant: str) -> None:
    """``stobatch-cnn``, on images smaller than it is chosen for."""
    noise = {"noise_multiplier": 20.0} if variant == "sound" else {"noise_multiplier": None, "epsilon": 10.0}
    changes = {"model": "stobatch-cnn", "steps": 6, "seed": 1, "variant": variant, "learning_rate": 0.01} | noise
    run = train(DIGITS | changes, tmp_path / "run")
    assert run.record["config"]["model"] == "stobatch-cnn"
    made = tp.certify(run, load("digits"), sampling=Sampling(20, 100), limit=4, key=KEY)
    assert made.settings.method.norm == "linf"
    verification = verify_run(run.root)
    assert verification.ok, [str(problem) for problem in verification.problems]


def test_a_run_opens_from_its_files_alone_with_both_scales(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, recipe="stobatch", regulariser=FAST), tmp_path / "run")
    stored = load_file(run.root / "model.safetensors")
    two = split_at_two_noises(Run.open(run.root).model())
    assert two is not None
    assert float(two.input_noise.deviation) == float(stored["input_noise.deviation"])
    assert float(two.hidden.noise.deviation) == float(stored["noise.deviation"])
    config = run.record["config"]
    assert float(two.input_noise.deviation) == pytest.approx(4 * config["sigma"])
    share = config["noise_layer"]["hidden_share"]
    assert float(two.hidden.noise.deviation) == pytest.approx(4 * config["sigma"] * share)


def test_settings_of_the_noise_that_were_changed_are_refused(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, recipe="stobatch", regulariser=FAST), tmp_path / "run")
    record = json.loads((run.root / "run.json").read_text())
    record["config"]["noise_layer"]["law"] = "cauchy"
    (run.root / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match="noise layer of this run cannot be built"):
        Run.open(run.root).model()


def test_an_interrupted_run_ends_with_the_same_bits(source: Path, tmp_path: Path) -> None:
    settings = tiny(source, recipe="stobatch", regulariser=FAST)
    whole = train(settings, tmp_path / "whole")
    interrupt(settings, tmp_path / "broken", steps=5)
    assert model_bytes(train(None, tmp_path / "broken", resume=True).root) == model_bytes(whole.root)


def _settings(**changes: Any) -> Any:
    return resolve(parse_train_config(DIGITS | {"steps": 5} | changes), load("digits"))


@pytest.mark.parametrize("xi", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_loss_is_the_papers_objective(xi: float, weight: float) -> None:
    """Eq. 9 for one record, and the reconstruction of all of its copies; a swap of benign and adversarial rows is seen."""
    settings = _settings(copies=2, regulariser={"xi": xi, "weight": weight})
    outputs = torch.randn(5, 11, generator=torch.Generator().manual_seed(1))
    label = torch.tensor(3)
    logits, costs = outputs[:, :10], outputs[:, 10]
    benign, attacked = balanced_cross_entropy(logits[:2], label), balanced_cross_entropy(logits[2:], label)
    wanted = (benign + xi * attacked) / (1 + xi) + weight * costs.mean()
    assert stobatch_loss(settings)(outputs, label) == pytest.approx(float(wanted), rel=1e-6)
    swapped = stobatch_loss(settings)(outputs.flip(0), label)
    assert swapped != pytest.approx(float(wanted), rel=1e-3)
    paper = (taylor_cross_entropy(logits[:2] - 1.6, label) + xi * taylor_cross_entropy(logits[2:] - 1.6, label)) / (1 + xi)
    assert float(wanted) == pytest.approx(float(paper + weight * costs.mean()), rel=1e-6), "ten classes begin at -1.6"


def test_its_settings_are_the_papers_in_units_of_the_house() -> None:
    defaults, printed = STOBATCH.defaults, _settings(variant="published", noise_multiplier=None, epsilon=3.0, regulariser={})
    assert defaults["regulariser"]["xi"] == 1.0
    assert printed.regulariser.attack_size == 0.5, "mu_t up to 1 on pixels in [-1, 1]"
    assert (printed.regulariser.attack_steps, printed.regulariser.attack_stride) == (10, 1.0)
    assert (defaults["regulariser"]["attack_steps"], defaults["regulariser"]["attack_stride"]) == (3, 2.0), (
        "a third of the passes"
    )
    assert defaults["regulariser"]["attack_size"] == 0.25, "half of it, beyond which digits go under"
    assert [attack.name for attack in ATTACKS] == ["ifgsm", "mim", "pgd"]
    assert _settings().copies == defaults["copies"]
    assert STOBATCH.augmentation(_settings(copies=2)).copies == 2 + len(ATTACKS)


@pytest.mark.parametrize(
    ("shape", "sound", "published"),
    [
        ((1, 28, 28), "stobatch-cnn", "stobatch-cnn"),
        ((3, 16, 20), "stobatch-cnn", "stobatch-cnn"),
        ((1, 8, 8), "mlp", "stobatch-cnn"),
        ((1, 28, 12), "mlp", "stobatch-cnn"),
        ((1, 3, 28), "mlp", "mlp"),
        ((30,), "mlp", "mlp"),
    ],
)
def test_small_images_get_the_papers_network_where_it_is_printed_only(
    shape: tuple[int, ...], sound: str, published: str
) -> None:
    assert STOBATCH.network_for("sound", shape) == sound
    assert STOBATCH.network_for("published", shape) == published


def test_the_default_noise_leaves_images_readable_and_the_layers_own_is_small_beside_it() -> None:
    """On 28x28: 0.35 on a pixel; what the layer adds is below a tenth of what the input's noise is behind it."""
    torch.manual_seed(0)
    network = with_two_noises(build_network("stobatch-cnn", (1, 28, 28), 10), (1, 28, 28), 1.0, 1.0, Law.LAPLACE)
    bound, noise = 0.1 / 28, STOBATCH.defaults["noise_layer"]

    def scales(share: float) -> tuple[float, float]:
        """On the input; and that behind the layer over the median of the input's, seen through the layer."""
        sigma = bound / noise["epsilon_r"]
        held = Constraint(WeightRule(noise["weights"]), "linf", Law.LAPLACE, sigma * share, (1, 28, 28))
        TwoNoisesConstraint(sigma, held).apply(network)
        two = split_at_two_noises(network)
        assert two is not None
        assert two.hidden.before is not None
        through = two.hidden.before.weight.detach().flatten(1).norm(dim=1).median() * two.input_noise.deviation
        return float(two.input_noise.deviation), float(two.hidden.noise.deviation / through)

    at_input, relative = scales(noise["hidden_share"])
    assert at_input == pytest.approx(0.35)
    assert relative < 0.1
    assert scales(0.1)[1] > 0.9, "a share at which the layer's own noise is as large, and more as kernels become smooth"
