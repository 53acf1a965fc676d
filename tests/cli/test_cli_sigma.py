"""``twinproof sigma``: every mechanism, what it prints is private as printed, and one clear error for each mistake."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinproof.cli.calculators import Mechanism
from twinproof.cli.main import run
from twinproof.privacy.mechanisms import NAMES, gaussian_delta, laplace_delta

Call = Callable[..., tuple[int, str, str]]
TARGET = ("--epsilon", "1", "--delta", "1e-5")


@pytest.fixture
def sigma(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(["sigma", *(str(argument) for argument in arguments)])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def answer(sigma: Call, *arguments: object) -> dict[str, Any]:
    code, out, err = sigma(*arguments, "--json")
    assert (code, err) == (0, ""), out
    value = json.loads(out)
    assert isinstance(value, dict)
    return value


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
def test_reference_numbers(sigma: Call, mechanism: str, epsilon: float, wanted: float) -> None:
    found = answer(sigma, "--mechanism", mechanism, "--epsilon", epsilon, "--delta", 1e-5)
    assert found["sigma"] == pytest.approx(wanted, rel=1e-9)
    assert (found["mechanism"], found["epsilon"], found["delta"], found["sensitivity"]) == (mechanism, epsilon, 1e-5, 1)


@pytest.mark.parametrize("sensitivity", [1e-4, 0.7, 3000.0])
@pytest.mark.parametrize("mechanism", [name for name in NAMES if name != "laplace"])
def test_what_is_printed_is_private_as_printed(sigma: Call, mechanism: str, sensitivity: float) -> None:
    arguments = ("--mechanism", mechanism, "--epsilon", 0.3, "--delta", 1e-6, "--sensitivity", sensitivity)
    found = answer(sigma, *arguments)
    assert gaussian_delta(0.3, found["sigma"], sensitivity) <= found["exact_delta"] <= 1e-6
    assert gaussian_delta(found["exact_epsilon"], found["sigma"], sensitivity) <= 1e-6
    assert found["exact_epsilon"] <= 0.3 * (1 + 1e-9)
    shown = float(sigma(*arguments)[1].split()[1])
    assert found["sigma"] <= shown <= found["sigma"] * (1 + 1e-8)


def test_laplace_needs_no_delta_and_says_its_scale(sigma: Call) -> None:
    pure = answer(sigma, "--mechanism", "laplace", "--epsilon", 0.3, "--sensitivity", 2)
    assert (pure["delta"], pure["exact_delta"]) == (0, 0)
    assert pure["scale"] == pytest.approx(2 / 0.3, rel=1e-11)
    assert pure["sigma"] == pytest.approx(math.sqrt(2) * pure["scale"], rel=1e-11)
    assert laplace_delta(0.3, pure["scale"], 2.0) == 0
    relaxed = answer(sigma, "--mechanism", "laplace", "--epsilon", 0.3, "--delta", 0.1)
    assert relaxed["scale"] == pytest.approx(1 / (0.3 - 2 * math.log(0.9)), rel=1e-11)
    assert "sqrt(2) times the scale" in sigma("--mechanism", "laplace", "--epsilon", 0.3)[1]


@pytest.mark.parametrize("mechanism", ["heterogeneous", "heterogeneous-analytic", "hgm"])
def test_shares_from_a_list_or_a_file(sigma: Call, tmp_path: Path, mechanism: str) -> None:
    (tmp_path / "r.txt").write_text("0.1\n0.4\n0.5\n")
    np.save(tmp_path / "r.npy", np.array([0.1, 0.4, 0.5]))
    answers = [
        answer(sigma, "--mechanism", mechanism, *TARGET, "--r", r, "--dimension", 3)
        for r in ("0.1,0.4,0.5", tmp_path / "r.txt", tmp_path / "r.npy")
    ]
    assert answers[0] == answers[1] == answers[2]
    found = answers[0]
    assert found["deviations"] == pytest.approx([found["sigma"] * math.sqrt(3 * share) for share in (0.1, 0.4, 0.5)])
    assert found["covered_l2_sensitivity"] == pytest.approx(math.sqrt(0.3))
    assert found["covered_l2_sensitivity"] <= math.sqrt(0.3)
    assert "up to 0.5477" in sigma("--mechanism", mechanism, *TARGET, "--r", "0.1,0.4,0.5")[1]


def test_equal_shares_by_dimension(sigma: Call) -> None:
    found = answer(sigma, "--mechanism", "heterogeneous", *TARGET, "--dimension", 7)
    assert found["dimension"] == 7
    assert found["deviations"] == pytest.approx([found["sigma"]] * 7)


MISTAKES = [
    (["--epsilon", "0", "--delta", "1e-5"], "epsilon"),
    (["--epsilon", "-1", "--delta", "1e-5"], "epsilon"),
    (["--epsilon", "nan", "--delta", "1e-5"], "epsilon"),
    (["--epsilon", "1", "--delta", "0"], "delta"),
    (["--epsilon", "1", "--delta", "1"], "delta"),
    (["--epsilon", "1"], "needs a delta"),
    (["--mechanism", "dpsgd", "--epsilon", "1", "--sample-rate", "0.1", "--steps", "5"], "needs a delta"),
    ([*TARGET, "--sensitivity", "0"], "sensitivity"),
    ([*TARGET, "--mechanism", "dpsgd", "--sample-rate", "0.1", "--steps", "5", "--sensitivity", "-1"], "sensitivity"),
    (["--mechanism", "classic", "--epsilon", "1.01", "--delta", "1e-5"], "up to 1 only"),
    (["--mechanism", "laplace", "--epsilon", "1", "--delta", "1"], "delta"),
    ([*TARGET, "--r", "0.5,0.5"], "heterogeneous"),
    ([*TARGET, "--mechanism", "laplace", "--dimension", "3"], "heterogeneous"),
    ([*TARGET, "--mechanism", "hgm", "--steps", "3"], "dpsgd"),
    ([*TARGET, "--mechanism", "hgm", "--r", "0.5,0,0.5"], "entry 1"),
    ([*TARGET, "--mechanism", "hgm", "--r", "1.5,-0.5"], "entry 1"),
    ([*TARGET, "--mechanism", "hgm", "--r", "0.5,0.4"], "add up to 1"),
    ([*TARGET, "--mechanism", "hgm", "--r", "0.5,0.5", "--dimension", "3"], "wrong length"),
    ([*TARGET, "--mechanism", "hgm", "--dimension", "0"], "dimension"),
    ([*TARGET, "--mechanism", "hgm", "--r", "no-such-file"], "cannot be read"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_end_in_one_clear_message(sigma: Call, arguments: list[str], message: str) -> None:
    code, out, err = sigma(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    code, out, err = sigma(*arguments, "--json")
    error = json.loads(out)["error"]
    assert (code, err) == (2, "")
    assert all(error[key] for key in ("what", "where", "got", "wanted"))
