"""``verify`` of certificates by interval bounds: with the test set every radius, without it that is said; planted lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interval_runs import digits_of, make_run
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

import twinproof as tp
from synthetic_run import bind, forge_lines, forge_run, sha256
from twinproof.certification.interval_run import certify_intervals
from twinproof.data.record import Dataset
from twinproof.reporting.run import report_run
from twinproof.runs.run import Run
from twinproof_verify import Originals, Verification, verify
from twinproof_verify.cli import app
from twinproof_verify.interval_certificates import UNGIVEN

FOLDER = "certificates/linf-interval"
Apply = Callable[[Path], Any]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_run(tmp_path_factory.mktemp("certified") / "run")
    certify_intervals(Run.open(root), digits_of(root), limit=50, device="cpu")
    return root


@pytest.fixture
def honest(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified, tmp_path / "run"))


def originals_of(dataset: Dataset) -> Originals:
    return Originals(dataset.test.inputs, dataset.test.labels)


def checked(root: Path) -> Verification:
    return verify(root, originals_of(digits_of(root)))


def test_an_honest_run_passes_with_every_radius_checked(honest: Path) -> None:
    for found in (checked(honest), tp.verify(honest, originals=originals_of(digits_of(honest)))):
        assert found.problems == ()
        assert found.certificates == 50
        assert UNGIVEN not in found.not_checked
        details = {check.name: check.detail for check in found.checks}
        assert details["deterministic radii (linf-interval)"].startswith("50 from weights and inputs")
        assert not any("votes" in line for line in found.not_checked)


def test_without_the_test_set_they_are_named_as_not_checked(honest: Path) -> None:
    for found in (verify(honest), tp.verify(honest)):
        assert found.problems == ()
        assert UNGIVEN in found.not_checked


def test_the_command_takes_the_test_set_from_a_file(honest: Path, tmp_path: Path) -> None:
    test = digits_of(honest).test
    np.savez(tmp_path / "test.npz", x=test.inputs, y=test.labels)
    ended = CliRunner().invoke(app, [str(honest), "--inputs", str(tmp_path / "test.npz"), "--json"])
    answer = json.loads(ended.output)
    assert (ended.exit_code, answer["ok"]) == (0, True)
    assert UNGIVEN not in answer["not_checked"]


def column(line: str, at: int, change: Callable[[str], str]) -> str:
    cells = line.rstrip("\n").split(",")
    cells[at] = change(cells[at])
    if at in (1, 2):
        cells[4] = str(int(cells[1] == cells[2]))
    return ",".join(cells) + line[len(line.rstrip("\n")) :]


def forge_column(row: int, at: int, change: Callable[[str], str]) -> Apply:
    def apply(root: Path) -> None:
        forge_lines(f"{FOLDER}/certificates.csv", lambda lines: lines.__setitem__(row, column(lines[row], at, change)))(root)
        bind(root)

    return apply


def forge_settings(**changes: Any) -> Apply:
    def apply(root: Path) -> None:
        path = root / FOLDER / "certificates.json"
        record = json.loads(path.read_text())
        for name, value in changes.items():
            section, _, key = name.rpartition("__")
            (record[section] if section else record)[key] = value
        path.write_text(json.dumps(record))
        bind(root)

    return apply


def forge_promise(change: Callable[[dict[str, Any]], Any]) -> Apply:
    return forge_run(lambda run: change(run["guarantees"]["robustness"]["linf-interval"]))


def longer(cell: str) -> str:
    return f"{float(cell) * 1.01:.6f}"


def another(cell: str) -> str:
    return str((int(cell) + 1) % 10)


LIES: dict[str, tuple[Apply, str]] = {
    "a radius that is 1 % longer": (forge_column(6, 3, longer), "above what interval bounds"),
    "a radius above 1": (forge_column(6, 3, lambda cell: "1.500000"), "above the largest one"),
    "another answer": (forge_column(3, 2, another), "above what interval bounds"),
    "another label": (forge_column(3, 1, another), "label is not that of the test record"),
    "an abstention": (forge_column(3, 2, lambda cell: "-1"), "this is no certificate"),
    "a line twice": (forge_lines(f"{FOLDER}/certificates.csv", lambda lines: lines.append(lines[-1])), "consecutive"),
    "a class that is none": (forge_column(3, 2, lambda cell: "77"), "prediction is no class"),
    "other levels": (forge_settings(levels=255), "levels"),
    "another arithmetic": (forge_settings(network__arithmetic="tf32"), "float32"),
    "a failure probability": (forge_settings(alpha=0.001), "unknown key"),
    "another norm": (forge_settings(method__norm="l2"), "method.norm"),
    "a larger largest radius": (forge_settings(largest_radius=2.0), "largest_radius"),
    "other weights' certificates": (forge_settings(network__model_sha256="0" * 64), "model_sha256"),
    "another promise": (forge_promise(lambda one: one.update(promise="Nothing changes any answer.")), "promise"),
    "fewer assumptions": (forge_promise(lambda one: one["assumptions"].pop()), "assumptions"),
    "values": (forge_promise(lambda one: one["values"].update(largest_radius=2.0)), "largest_radius"),
}


@pytest.mark.parametrize("lie", LIES)
def test_planted_lies_are_found(lie: str, honest: Path) -> None:
    apply, words = LIES[lie]
    apply(honest)
    bind(honest)
    found = checked(honest)
    assert any(words in f"{one.what} {one.wanted}" for one in found.problems), [one.what for one in found.problems]


def test_an_answer_without_a_radius_must_be_the_networks(honest: Path) -> None:
    def apply(lines: list[str]) -> None:
        lines[4] = column(column(lines[4], 2, another), 3, lambda cell: "0.000000")

    forge_lines(f"{FOLDER}/certificates.csv", apply)(honest)
    bind(honest)
    assert any("not what the network answers" in one.what for one in checked(honest).problems)


def test_swapped_weights_do_not_carry_the_radii(honest: Path) -> None:
    """Every digest is put right: the radii alone tell."""
    path = honest / "model.safetensors"
    weights = {name: value * np.float32(1.2) for name, value in load_file(path).items()}
    path.write_bytes(save(weights))
    digest = sha256(path.read_bytes())
    forge_settings(network__model_sha256=digest)(honest)
    assert any("above what interval bounds" in one.what for one in checked(honest).problems)


def test_broken_lines_and_settings_are_problems_not_errors(honest: Path) -> None:
    for content in (b"", b"index,label\n", b"\xff\xfe", b"index,label,prediction,radius,correct\n0,0,0,nan,1\n"):
        (honest / FOLDER / "certificates.csv").write_bytes(content)
        bind(honest)
        assert checked(honest).problems
    for content in (
        b"{}",
        b'{"method": {"bound": "interval"}}',
        b'{"method": {"bound": "interval", "norm": 3}, "levels": 1e400}',
    ):
        (honest / FOLDER / "certificates.json").write_bytes(content)
        bind(honest)
        assert checked(honest).problems


def test_the_report_shows_them(honest: Path) -> None:
    report_run(honest)
    page, record = (honest / "report.html").read_text(), json.loads((honest / "report.json").read_text())
    assert "interval bounds, outward" in page
    assert "none: certain" in page
    assert "smoothed classifier" not in page.split("Check it yourself")[0].split("It does not say")[1]
    (one,) = record["certifications"]
    assert (one["settings"]["bound"], one["certified"]["n"], one["certified"]["alpha"]) == ("interval", None, None)
    assert "0.025" in one["certified"]["certified_accuracy"]
