"""Radii against the definition of the bound, not against another inverse of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta, binom, norm

from synthetic_run import certificate_settings
from twinproof_verify.bounds import Counts, Rule
from twinproof_verify.certificate_lines import HEADER, Lines, line_problems, read_lines
from twinproof_verify.certificates import (
    CertificateSettings,
    look_problems,
    read_settings,
    rules_of,
    smallest_tau,
)
from twinproof_verify.models import read, translated
from twinproof_verify.run_json import PublicData

FILE = "certificates.csv"
ANY = PublicData(None, None, None, None)


def radii(rule: Rule, votes: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower bounds and radii of votes."""
    answers = rule.answers(Counts.of_votes(votes))
    return answers.low, answers.radius


@pytest.mark.parametrize(("n", "alpha"), [(100, 0.001), (1000, 0.05), (100_000, 0.001)])
def test_the_bound_is_the_probability_at_which_so_many_votes_are_just_unlikely(n: int, alpha: float) -> None:
    votes = np.array([0, 1, n // 2, int(0.9 * n), n - 1, n])
    p, _ = radii(Rule(sigma=1.0, tau=0.0, n=n, alpha=alpha), votes)
    assert p[0] == 0.0
    np.testing.assert_allclose(binom.sf(votes[1:] - 1, n, p[1:]), alpha, rtol=1e-9)


def test_the_radius_pays_tau_and_scales_with_sigma() -> None:
    votes = np.array([999, 700, 999])
    p, radius = radii(Rule(sigma=0.5, tau=0.01, n=1000, alpha=0.001), votes)
    free, _ = radii(Rule(sigma=0.5, tau=0.0, n=1000, alpha=0.001), votes)
    np.testing.assert_allclose(p, free - 0.01)
    np.testing.assert_allclose(norm.cdf(radius / 0.5), p, rtol=1e-12)
    assert radius[0] == radius[2]


def test_no_answer_at_or_below_one_half() -> None:
    _, radius = radii(Rule(sigma=0.5, tau=0.0, n=1000, alpha=0.001), np.arange(0, 545))
    assert not radius.any()


@pytest.mark.parametrize("tau", [0.6, 1e300])
def test_a_hopeless_tau_leaves_no_radius(tau: float) -> None:
    assert not radii(Rule(sigma=0.5, tau=tau, n=1000, alpha=0.001), np.array([1000]))[1].any()


def test_tau_grows_with_all_that_makes_cells() -> None:
    base = smallest_tau("gaussian", 0.25 * 255 / 0.0625, 784)
    assert base == pytest.approx(784 * (17 * 0.25 * 255 * 16 * 2**-64 + 2**-49) + 2**-36, rel=1e-12)
    assert smallest_tau("gaussian", 2 * 1020.0, 784) > base
    assert smallest_tau("gaussian", 1020.0, 783) < base
    steps = 2.0**40
    assert smallest_tau("laplace", steps, 10) - 2**-36 == pytest.approx(10 * (72 * steps * 2**-64 + 2**-49), rel=1e-6)


@pytest.mark.parametrize(
    "line",
    [
        "0,0,0,1,0,0.1,0,5",
        "0,0,0,1,0,0.1000000,0,5",
        "0,0,0,1,0,1e-10000,0,5",
        "0,0,0,1,0,inf,0,5",
        "00,0,0,1,0,0.100000,0,5",
        "0,0,-2,1,0,0.100000,0,5",
        "0,0,0,1,0,0.100000,2,5",
        "0,0,0,9999999999999999999,0,0.100000,0,5",
        "0,0,0,1,0,0.100000,0,9999999999999999999",
        "0,0,0,1,0,0.100000,0,-5",
        "0,0,0,1,0,0.100000,0,5,0",
        "0,0,0,1,0,0.100000,0",
        "0,0,0,1,0,0.100000,0,5\r",
        " 0,0,0,1,0,0.100000,0,5",
        "٠,0,0,1,0,0.100000,0,5",
        "",
    ],
)
def test_lines_that_are_no_certificates(line: str) -> None:
    lines, problems = read_lines(HEADER + b"\n" + line.encode() + b"\n", FILE)
    assert len(lines.rows) == 0
    assert [problem.what for problem in problems] == ["line 2: this is no certificate"]


# Three looks that share alpha, and the rule that an input which stopped at each of them is judged by.
LOOKS = [{"draws": 100, "alpha": 0.00025}, {"draws": 200, "alpha": 0.00025}, {"draws": 1000, "alpha": 0.0005}]
SEQUENTIAL: dict[str, Any] = {
    **certificate_settings("ab" * 32),
    "n": 1000,
    "alpha": 0.001,
    "sigma": 0.5,
    "tau": 0.0,
    "target_radius": 0.25,
    "looks": LOOKS,
    "inputs": 1,
}


def found(lines: Lines, settings: dict[str, Any]) -> list[str]:
    """What the verifier says of lines under settings."""
    read, problems = read_settings("certificates.json", translated("certificates", settings), ANY)
    assert read is not None, problems
    return [problem.what for problem in line_problems(lines, rules_of(read), settings["inputs"], ANY)]


def _line(votes: int, look: dict[str, Any], settings: dict[str, Any] = SEQUENTIAL) -> list[str]:
    """What the verifier says of a line that stopped at ``look`` with the radius of that look's own bound."""
    bound = float(beta.ppf(look["alpha"], votes, look["draws"] - votes + 1))
    size = np.floor(0.5 * norm.ppf(bound) * 1e6) / 1e6
    lines, _ = read_lines(HEADER + f"\n0,0,0,{votes},0,{size:.6f},1,{look['draws']}\n".encode(), FILE)
    return found(lines, settings)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("share", [0.75, 0.95, 1.0])
def test_a_line_is_judged_by_the_look_at_which_it_stopped(look: dict[str, Any], share: float) -> None:
    """Whether it reached the target or gave up: stopping is free, only the bound must be that look's own."""
    assert _line(int(share * look["draws"]), look) == []


@pytest.mark.parametrize("look", LOOKS)
def test_a_bound_at_all_of_alpha_is_caught_at_every_look(look: dict[str, Any]) -> None:
    assert _line(int(0.95 * look["draws"]), {**look, "alpha": 0.001}) == ["line 2: the radius is above what the votes prove"]


def test_more_votes_than_the_draws_of_the_look() -> None:
    lines, _ = read_lines(HEADER + b"\n0,0,0,150,0,0.100000,1,100\n", FILE)
    assert any("more votes than draws" in what for what in found(lines, SEQUENTIAL))


def test_sound_looks_have_no_problem() -> None:
    assert list(look_problems("f", CertificateSettings.model_validate(translated("certificates", SEQUENTIAL)))) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"looks": [{**look, "alpha": 0.001} for look in LOOKS]}, "spend more than alpha"),
        ({"looks": [*LOOKS[:2], {"draws": 1000, "alpha": 0.0005001}]}, "spend more than alpha"),
        ({"looks": [LOOKS[1], LOOKS[0], LOOKS[2]]}, "do not grow"),
        ({"looks": [LOOKS[0], LOOKS[0], LOOKS[2]]}, "do not grow"),
        ({"looks": LOOKS[:2]}, "not at n draws"),
        ({"target_radius": None}, "without a target"),
        ({"looks": [{"draws": 100}, LOOKS[2]]}, r"looks\[0\].alpha is missing"),
        ({"looks": [{**LOOKS[2], "alpha": 0.0}]}, "alpha has a value"),
        ({"looks": [{**LOOKS[2], "draws": True}]}, "draws has a value"),
        ({"looks": [{**LOOKS[2], "why": "later"}]}, "unknown key"),
        ({"looks": [None]}, r"looks\[0\] has a value"),
    ],
)
def test_looks_that_void_the_union_bound_are_problems(changes: dict[str, Any], what: str) -> None:
    settings, problems = read(CertificateSettings, translated("certificates", {**SEQUENTIAL, **changes}), "f")
    problems += [] if settings is None else look_problems("f", settings)
    assert len(problems) == 1
    assert re.search(what, problems[0].what), problems


def test_an_unrecomputable_radius_is_a_problem_not_a_pass() -> None:
    changes = {"sigma": 1e308, "tau": 0.0, "looks": [{"draws": 10, "alpha": 1 - 1e-16}], "inputs": 1}
    lines, _ = read_lines(HEADER + b"\n0,0,0,10,0,5.000000,1,10\n", FILE)
    radius = radii(Rule(1e308, 0.0, 10, 1 - 1e-16), np.array([10]))[1]
    assert np.isinf(radius).all()
    assert any("cannot be recomputed" in what for what in found(lines, {**SEQUENTIAL, **changes}))
