"""Laplace lines of a ledger: recomputed on their own, against what the run's own accountant says."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from synthetic_run import BLOCKS, DELTA, NOISE, RANGE_NOISE, RATE, chain, events, forge_ledger, write_run
from twinproof.auditing.verify import verify_run
from twinproof.privacy.accounting import Event, GaussianEvent, LaplaceEvent, PoissonGaussianEvent, spending
from twinproof.privacy.mechanisms import Laplace
from twinproof_verify.epsilon import Mechanism, Spent, account, recompute
from twinproof_verify.findings import Problem
from twinproof_verify.ledger import read_ledger

SPENT: list[Event] = [GaussianEvent(RANGE_NOISE), PoissonGaussianEvent(RATE, NOISE, sum(BLOCKS))]


def line(noise: float, purpose: str = "functional mechanism: products") -> tuple[str, dict[str, Any]]:
    return "laplace", {"noise_multiplier": noise, "purpose": purpose}


def recomputed(*noises: float) -> Spent | Problem | None:
    story = events("0" * 64)
    return recompute(read_ledger(chain([story[0], *(line(noise) for noise in noises), *story[1:]]).encode()))


@pytest.mark.parametrize("noise", [0.5, 3.0, 20_000.0])
def test_one_laplace_is_its_exact_profile(noise: float) -> None:
    spent, exact = account({Mechanism(1.0, noise, laplace=True): 1}, 1e-5), Laplace(noise).epsilon_at(1e-5)
    assert exact * (1 - 1e-9) <= spent.epsilon <= min(1 / noise, exact + 1.1e-4)
    assert exact < spent.epsilon_rdp <= 1 / noise


@pytest.mark.parametrize("noises", [(3.0,), (3.0, 3.0, 40.0), (20_000.0,) * 12, (0.2,)])
def test_the_verifier_and_the_accountant_agree(noises: tuple[float, ...]) -> None:
    spent = recomputed(*noises)
    wanted = spending([*(LaplaceEvent(noise) for noise in noises), *SPENT], DELTA)
    assert isinstance(spent, Spent)
    assert (spent.epsilon, spent.epsilon_rdp) == pytest.approx((wanted.epsilon, wanted.epsilon_rdp), abs=2e-6)
    assert spent.epsilon > spending(SPENT, DELTA).epsilon


@pytest.mark.parametrize(("noises", "got"), [((1e-6,), "noise multiplier"), ((1e300,), "noise multiplier")])
def test_what_would_stop_the_machine_is_refused(noises: tuple[float, ...], got: str) -> None:
    outcome = recomputed(*noises)
    assert isinstance(outcome, Problem)
    assert got in outcome.got


def test_an_epsilon_beyond_use_is_infinite() -> None:
    assert account({Mechanism(1.0, 0.1, laplace=True): 1000}, 1e-5).epsilon == math.inf


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("laplace") / "run"
    write_run(root)
    return root


def problems(honest: Path, folder: Path, *, close: bool, told: float = 3.0, purpose: str = "coefficients") -> list[str]:
    """Of a run that used a Laplace mechanism of multiplier 3; ``told`` is what its line says, ``close`` pays for the truth."""
    root = Path(shutil.copytree(honest, folder / "run"))
    spent = spending([LaplaceEvent(3.0), *SPENT], DELTA)

    def forge(story: list[tuple[str, dict[str, Any]]]) -> None:
        story.insert(1, line(told, purpose))
        if close:
            story[-1][1].update(epsilon=spent.epsilon, epsilon_rdp=spent.epsilon_rdp)

    forge_ledger(forge)(root)
    return [problem.what for problem in verify_run(root).problems if problem.file == "ledger.jsonl"]


def test_a_laplace_line_that_is_paid_for_is_no_problem(honest: Path, tmp_path: Path) -> None:
    assert problems(honest, tmp_path, close=True) == []


def test_planted_lies_about_a_laplace_line_are_found(honest: Path, tmp_path: Path) -> None:
    for name in ("forgotten", "scale"):
        (tmp_path / name).mkdir()
    forgotten = problems(honest, tmp_path / "forgotten", close=False)
    assert any("close: epsilon is smaller" in what for what in forgotten)
    # The scale 12 of a sensitivity of 4, written where the multiplier belongs.
    confused = problems(honest, tmp_path / "scale", close=True, told=12.0)
    assert any("more than 1 %" in what for what in confused)


def test_a_laplace_line_pays_for_nothing_that_is_gaussian() -> None:
    """The same number for the same purpose is another noise."""
    story = [events("0" * 64)[0], line(RANGE_NOISE, "feature ranges"), events("0" * 64)[-1]]
    assert read_ledger(chain(story).encode()).paid_for("feature ranges") == frozenset()
    story[1] = ("gaussian", story[1][1])
    assert read_ledger(chain(story).encode()).paid_for("feature ranges") == {RANGE_NOISE}
