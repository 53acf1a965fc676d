"""A disk that fails at any write of a training: the ledger never counts too little, and the resumed run has the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import on_one_thread as on_one_thread
from small_runs import STAYS_PRIVATE, announced_steps, released, tiny, write_blobs

from disk_faults import VANISHED, DiskFault
from twinproof.errors import SystemFault
from twinproof.privacy import plan as plan_module
from twinproof.privacy import step_randomness
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.train import train


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger lines of two steps, so that a run of six has several moments of announcing."""
    monkeypatch.setattr(plan_module, "LEDGER_BLOCK", 2)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each draw of records."""
    made: list[None] = []
    honest = vars(step_randomness)["poisson_sample"]

    def counted(*given: Any, **named: Any) -> Any:
        made.append(None)
        return honest(*given, **named)

    monkeypatch.setattr(step_randomness, "poisson_sample", counted)
    return made


def differences(root: Path, whole: Path) -> list[str]:
    wrong = [name for name in {*released(whole), *released(root)} if released(whole).get(name) != released(root).get(name)]
    return wrong + [path.name for path in (root / "private").iterdir() if path.name not in STAYS_PRIVATE]


def faulted(settings: dict[str, Any], root: Path, kind: str, moment: int, *, torn: bool = False) -> bool:
    """Whether the fault came before the end; it must be told as one of the system."""
    with DiskFault(root, kind, moment, torn=torn):
        try:
            train(settings, root, resume=True)
        except SystemFault as error:
            fault = error
        else:
            return False
    assert fault.where.startswith(str(root))
    assert "resume" in fault.fix
    return True


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "torn"), [("full", True), (VANISHED, False)])
def test_a_fault_at_any_write_is_told_and_mended(kind: str, torn: bool, stride: int, draws: list[None], tmp_path: Path) -> None:
    settings = tiny(write_blobs(tmp_path / "data"))
    whole = train(settings, tmp_path / "whole").root
    moment = 0
    while True:
        root = tmp_path / f"run{moment}"
        draws.clear()
        if not faulted(settings, root, kind, moment, torn=torn):
            break
        assert announced_steps(root) >= len(draws), f"moment {moment}"
        train(settings, root, resume=True)
        assert differences(root, whole) == [], f"moment {moment}"
        moment += stride
    assert moment >= 60, "too few writes were seen"


def test_a_ledger_that_passes_over_a_full_disk_is_caught(
    draws: list[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: training goes on although the announcement could not be written."""
    honest = Ledger.append

    def careless(self: Ledger, kind: str, body: dict[str, Any]) -> None:
        try:
            honest(self, kind, body)
        except OSError:
            return

    monkeypatch.setattr(Ledger, "append", careless)
    settings = tiny(write_blobs(tmp_path / "data"))
    caught = 0
    for moment in range(24, 50):
        root = tmp_path / f"run{moment}"
        draws.clear()
        if faulted(settings, root, "full", moment):
            caught += announced_steps(root) < len(draws)
    assert caught > 0
