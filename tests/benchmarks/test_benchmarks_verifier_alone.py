"""Wheels that fit each other, and the verifier alone in an empty environment without PyTorch."""

from __future__ import annotations

from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `verifier_alone` importable)
import pytest

from verifier_alone import RUNS, NoIndex, build_wheels, empty_environment, has_torch, requirements, verify_alone


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    try:
        return build_wheels(tmp_path_factory.mktemp("wheels"))
    except NoIndex:
        pytest.skip("wheels are built with setuptools from a package index, and there is none")


@pytest.mark.slow
def test_wheels_of_one_version_require_each_other(wheels: dict[str, Path]) -> None:
    version, _ = requirements(wheels["twinproof"])
    assert {name: requirements(wheel) for name, wheel in wheels.items()} == {
        "twinproof-verify": (version, []),
        "twinproof": (version, [f"twinproof-verify=={version}"]),
        "twinproof-papers": (version, [f"twinproof=={version}"]),
    }


@pytest.mark.slow
def test_the_verifier_alone_checks_runs_of_every_format(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = empty_environment(tmp_path / "alone", wheels["twinproof-verify"])
    assert not has_torch(python)
    found = {number: verify_alone(python, root) for number, root in RUNS.items()}
    assert {number: (one["exit code"], one["problems"]) for number, one in found.items()} == dict.fromkeys(RUNS, (0, 0))
