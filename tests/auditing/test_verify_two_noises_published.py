"""StoBatch as published under its own bound: certified, verified, attacked, reported, and never more than refuted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import twinproof as tp
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Method, NoiseRecord, Sampling
from twinproof.data.load import load
from twinproof.evaluation.protocols import AttackPlan
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.reporting.run import report_run
from twinproof.runs.run import Run

SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "stobatch",
    "variant": "published",
    "delta": 1e-4,
    "epsilon": 1.0,
    "steps": 2,
    "seed": 7,
    "regulariser": {"attack_steps": 1, "attack_size": 0.1},
    "performance": {"device": "cpu", "report_every": 1000},
}
SAMPLING = Sampling(20, 200)
LIMIT = 8


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(SETTINGS, tmp_path_factory.mktemp("printed") / "run")


def _certified(run: Run, bound: str) -> tuple[NoiseRecord, list[float]]:
    method = Method(norm="l1", bound=bound)
    made = tp.certify(run, load("digits"), sampling=SAMPLING, limit=LIMIT, method=method, key=Key.from_seed(1))
    return made.settings.noise, [one.radius for one in made.certificates]


def _refused(run: Run, file: str, change: Callable[[dict[str, Any]], object], match: str) -> None:
    """``verify`` finds the lie, which is taken back afterwards."""
    path = run.root / file
    honest = path.read_text()
    record = json.loads(honest)
    change(record)
    try:
        path.write_text(json.dumps(record))
        assert any(match in problem.what for problem in verify_run(run.root).problems)
    finally:
        path.write_text(honest)


def test_its_radii_are_psi_times_the_composition_and_verify_finds_them_again(printed: Run) -> None:
    made = {bound: _certified(printed, bound) for bound in ("pure-epsilon", "composition", "published")}
    (_, proven), (composed, sound), (claimed, radii) = made.values()
    assert max(sound) > 0
    assert radii == pytest.approx([2 * radius for radius in sound], abs=2.1e-6)
    assert all(claim <= radius for claim, radius in zip(radii, proven, strict=True))
    assert claimed.sigma == composed.sigma, "the same noise is drawn"
    assert claimed.operator_norm == pytest.approx(composed.operator_norm / 2, rel=1e-8)
    assert claimed.operator_norm_method == "paper: composition, noise stated as 2 times what is drawn"
    assert claimed.slackless_norm == claimed.operator_norm
    found = verify_run(printed.root)
    assert found.ok, found.problems
    promise = Run.open(printed.root).robustness["l1-published"]
    assert promise.status is Status.REFUTED
    assert "0.8047" in promise.reason
    assert promise.promise.startswith("Nothing is promised")


@pytest.fixture(scope="module")
def claiming(printed: Run) -> Run:
    """The run under the published bound; tests leave it as it is."""
    _certified(printed, "published")
    return printed


@pytest.mark.parametrize("status", ["proven", "published", "none"])
def test_verify_refuses_every_other_status(claiming: Run, status: str) -> None:
    _refused(
        claiming,
        "run.json",
        lambda run: run["guarantees"]["robustness"]["l1-published"].update(status=status),
        "bound of the certificates",
    )


def _with_noise(**factors: float) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["noise"].update({name: said["noise"][name] * factor for name, factor in factors.items()})


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "more noise": (
        lambda said: said["noise"].update(operator_norm=said["noise"]["operator_norm"] / 5),
        "operator_norm is below",
    ),
    "without slack": (
        lambda said: said["noise"].update(slackless_norm=said["noise"]["slackless_norm"] / 5),
        "slackless_norm is below",
    ),
    "a sound name": (lambda said: said["method"].update(bound="composition"), "operator_norm is below"),
    "a better name": (lambda said: said["method"].update(bound="pure-epsilon"), "the radius is below"),
    "one place": (lambda said: said["noise"].update(place="first-layer"), "not proven for this noise"),
}


@pytest.mark.parametrize("lie", LIES)
def test_verify_refuses_lies_about_the_claim(claiming: Run, lie: str) -> None:
    _refused(claiming, "certificates/l1-published/certificates.json", *LIES[lie])


def test_a_radius_above_the_claim_is_found(claiming: Run) -> None:
    path = claiming.root / "certificates/l1-published/certificates.csv"
    honest = path.read_text()
    lines = honest.splitlines()
    at = next(number for number, line in enumerate(lines[1:], start=1) if float(line.split(",")[5]) > 0)
    cells = lines[at].split(",")
    cells[5] = f"{2 * float(cells[5]):.6f}"
    try:
        path.write_text("\n".join([*lines[:at], ",".join(cells), *lines[at + 1 :]]) + "\n")
        assert any("above what the votes prove" in problem.what for problem in verify_run(claiming.root).problems)
    finally:
        path.write_text(honest)


def test_attacks_and_the_report_call_it_claimed_and_refuted(claiming: Run) -> None:
    plan = AttackPlan(norm="l1", sizes=(0.01,), attacks=("pgd",), steps=2, draws=2)
    made = "l1-published"
    tp.attack(claiming, load("digits"), plan=plan, sampling=SAMPLING, limit=2, device="cpu", certificates=made)
    found = verify_run(claiming.root)
    assert found.ok, found.problems
    files = report_run(claiming.root)
    assert "claimed, refuted" in files.html.read_text()
    claims = {one["name"]: one["claim"] for one in json.loads(files.json.read_text())["certifications"]}
    assert claims[made] == "claimed, refuted"
