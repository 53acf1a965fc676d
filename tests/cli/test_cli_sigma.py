"""``twinproof sigma``: every mechanism, and what it prints is private as printed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinproof.cli.calculators import Mechanism
from twinproof.privacy.mechanisms import NAMES, gaussian_delta, laplace_delta

TARGET = ("--epsilon", "1", "--delta", "1e-5")


def answer(call: Any, *arguments: object) -> dict[str, Any]:
    given = call("sigma", *arguments, "--json")
    assert (given.code, given.err) == (0, ""), given.out
    return dict(given.json())


def test_all_mechanisms_of_the_catalogue_can_be_asked_for() -> None:
    assert {str(name) for name in Mechanism} == {*NAMES, "hgm", "dpsgd"}


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "wanted"),
    [
        ("classic", 1, 4.844805263),
        ("extended", 1, 4.854241307),
        ("heterogeneous", 1, 4.854241307),
        ("hgm", 16, 0.3793337030),
        ("analytic", 16, 0.3441774285),
        ("heterogeneous-analytic", 1, 3.730631635),
    ],
)
def test_reference_numbers(call: Any, mechanism: str, epsilon: float, wanted: float) -> None:
    found = answer(call, "--mechanism", mechanism, "--epsilon", epsilon, "--delta", 1e-5)
    assert found["sigma"] == pytest.approx(wanted, rel=1e-9)
    assert (found["mechanism"], found["epsilon"], found["delta"], found["sensitivity"]) == (mechanism, epsilon, 1e-5, 1)


@pytest.mark.parametrize("sensitivity", [1e-4, 0.7, 3000.0])
@pytest.mark.parametrize("mechanism", [name for name in NAMES if name != "laplace"])
def test_what_is_printed_is_private_as_printed(call: Any, mechanism: str, sensitivity: float) -> None:
    arguments = ("--mechanism", mechanism, "--epsilon", 0.3, "--delta", 1e-6, "--sensitivity", sensitivity)
    found = answer(call, *arguments)
    assert gaussian_delta(0.3, found["sigma"], sensitivity) <= found["exact_delta"] <= 1e-6
    assert gaussian_delta(found["exact_epsilon"], found["sigma"], sensitivity) <= 1e-6
    assert found["exact_epsilon"] <= 0.3 * (1 + 1e-9)
    shown = float(call("sigma", *arguments).out.split()[1])
    assert found["sigma"] <= shown <= found["sigma"] * (1 + 1e-8)


def test_laplace_needs_no_delta_and_says_its_scale(call: Any) -> None:
    pure = answer(call, "--mechanism", "laplace", "--epsilon", 0.3, "--sensitivity", 2)
    assert (pure["delta"], pure["exact_delta"]) == (0, 0)
    assert pure["scale"] == pytest.approx(2 / 0.3, rel=1e-11)
    assert pure["sigma"] == pytest.approx(math.sqrt(2) * pure["scale"], rel=1e-11)
    assert laplace_delta(0.3, pure["scale"], 2.0) == 0
    relaxed = answer(call, "--mechanism", "laplace", "--epsilon", 0.3, "--delta", 0.1)
    assert relaxed["scale"] == pytest.approx(1 / (0.3 - 2 * math.log(0.9)), rel=1e-11)
    assert "sqrt(2) times the scale" in call("sigma", "--mechanism", "laplace", "--epsilon", 0.3).out


@pytest.mark.parametrize("mechanism", ["heterogeneous", "heterogeneous-analytic", "hgm"])
def test_shares_from_a_list_or_a_file(call: Any, tmp_path: Path, mechanism: str) -> None:
    (tmp_path / "r.txt").write_text("0.1\n0.4\n0.5\n")
    np.save(tmp_path / "r.npy", np.array([0.1, 0.4, 0.5]))
    answers = [
        answer(call, "--mechanism", mechanism, *TARGET, "--r", r, "--dimension", 3)
        for r in ("0.1,0.4,0.5", tmp_path / "r.txt", tmp_path / "r.npy")
    ]
    assert answers[0] == answers[1] == answers[2]
    found = answers[0]
    assert found["deviations"] == pytest.approx([found["sigma"] * math.sqrt(3 * share) for share in (0.1, 0.4, 0.5)])
    assert found["covered_l2_sensitivity"] == pytest.approx(math.sqrt(0.3))
    assert found["covered_l2_sensitivity"] <= math.sqrt(0.3)
    assert "up to 0.5477" in call("sigma", "--mechanism", mechanism, *TARGET, "--r", "0.1,0.4,0.5").out


def test_equal_shares_by_dimension(call: Any) -> None:
    found = answer(call, "--mechanism", "heterogeneous", *TARGET, "--dimension", 7)
    assert found["dimension"] == 7
    assert found["deviations"] == pytest.approx([found["sigma"]] * 7)
