"""Which earlier work may be gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from twinproof.certification.promise import certified_promise, unfinished_promise
from twinproof.certification.run import COMPLETE, SAMPLING, earlier_form, is_recorded, take_up
from twinproof.errors import RunError
from twinproof.guarantee import Status
from twinproof.runs.certificates import Certificate, CertificateSettings, CertificateWriter, read_settings, write_settings
from twinproof.runs.layout import read_run_json, update_run_json, write_run_json

SETTINGS = CertificateSettings(
    model_sha256="0" * 64,
    norm="l2",
    sigma=0.25,
    grid=0.125,
    levels=255,
    dimension=4,
    tau=1e-9,
    n0=10,
    n=100,
    alpha=0.001,
    key="ab" * 32,
    largest_radius=0.37,
    inputs=5,
    state=SAMPLING,
    device="cpu: x86_64, 1 threads",
    versions={"torch": "2.13.0"},
    created="2026-01-01T00:00:00Z",
    seconds=0.0,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run_json(tmp_path, {"state": "complete", "guarantees": {"privacy": {"kept": True}}, "files": {"a": {"sha256": "x"}}})
    return tmp_path


def _leave(root: Path, lines: int, **changes: Any) -> None:
    """An earlier certification of so many lines."""
    write_settings(root, replace(SETTINGS, **changes))
    writer = CertificateWriter(root)
    writer.append([Certificate(index, 0, 0, 90, 0, 0.1) for index in range(lines)])
    writer.close()


def test_a_first_certification_begins_with_nothing_promised(root: Path) -> None:
    update_run_json(root, guarantees={"privacy": {"kept": True}, "robustness": certified_promise(SETTINGS).as_dict()})
    assert take_up(root, SETTINGS, own_key=False, overwrite=False) == (SETTINGS, 0)
    record = read_run_json(root)
    assert record["guarantees"]["robustness"] == unfinished_promise(SETTINGS).as_dict()
    assert record["guarantees"]["privacy"] == {"kept": True}
    assert record["files"] == {"a": {"sha256": "x"}}
    assert read_settings(root) == SETTINGS
    assert not is_recorded(root)


def test_certificates_without_settings_are_not_counted(root: Path) -> None:
    _leave(root, 5)
    (root / "certificates.json").unlink()
    assert take_up(root, SETTINGS, own_key=False, overwrite=False)[1] == 0
    assert not (root / "certificates.csv").exists()


@pytest.mark.parametrize(
    "changes",
    [{}, {"created": "2027-01-01T00:00:00Z"}, {"seconds": 3.0}, {"key": "cd" * 32}, {"device": "cpu: x86_64, 8 threads"}],
)
def test_the_same_work_goes_on(root: Path, changes: dict[str, Any]) -> None:
    _leave(root, 3, **changes)
    settings, done = take_up(root, SETTINGS, own_key=False, overwrite=False)
    assert (settings, done) == (replace(SETTINGS, **changes), 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"sigma": 0.5},
        {"model_sha256": "1" * 64},
        {"n": 200},
        {"n0": 20},
        {"alpha": 0.01},
        {"inputs": 6},
        {"levels": 16},
        {"grid": 0.25},
        {"dimension": 5},
        {"tau": 2e-9},
        {"device": "cuda: a GPU"},
        {"versions": {"torch": "2.11.0"}},
        {"arithmetic": "tf32"},
        {"form": "dense convolutions"},
        {"shared_noise": True},
    ],
)
def test_votes_drawn_in_another_way_are_not_mixed(root: Path, changes: dict[str, Any]) -> None:
    _leave(root, 3, **changes)
    before = [path.read_bytes() for path in sorted(root.iterdir())]
    with pytest.raises(RunError, match="other settings") as refused:
        take_up(root, SETTINGS, own_key=False, overwrite=False)
    assert next(iter(changes)) in refused.value.got
    assert [path.read_bytes() for path in sorted(root.iterdir())] == before


def test_a_key_that_the_caller_chose_must_be_the_same(root: Path) -> None:
    _leave(root, 3)
    assert take_up(root, SETTINGS, own_key=True, overwrite=False)[1] == 3
    with pytest.raises(RunError, match="other settings"):
        take_up(root, replace(SETTINGS, key="cd" * 32), own_key=True, overwrite=False)


@pytest.mark.parametrize(
    "changes",
    [{"device": "cuda: a GPU", "form": "dense convolutions"}, {"versions": {"torch": "2.11.0"}}, {"arithmetic": "tf32"}],
)
def test_a_complete_certification_stands_wherever_it_was_made(root: Path, changes: dict[str, Any]) -> None:
    _leave(root, 5, state=COMPLETE, **changes)
    assert take_up(root, SETTINGS, own_key=False, overwrite=False)[1] == 5


@pytest.mark.parametrize(("lines", "state"), [(4, COMPLETE), (6, COMPLETE), (6, SAMPLING), (0, COMPLETE)])
def test_lines_that_do_not_fit_the_settings_are_refused(root: Path, lines: int, state: str) -> None:
    _leave(root, lines, state=state)
    with pytest.raises(RunError, match=r"not the ones that certificates\.json describes"):
        take_up(root, SETTINGS, own_key=False, overwrite=False)


def test_shared_noise_is_another_certification_even_when_complete(root: Path) -> None:
    _leave(root, 5, state=COMPLETE, shared_noise=True)
    with pytest.raises(RunError, match="other settings") as refused:
        take_up(root, SETTINGS, own_key=False, overwrite=False)
    assert refused.value.got == "shared_noise True"


@pytest.mark.parametrize(("device", "shared", "form"), [("cpu", False, "sliced"), ("cuda", False, None), ("cpu", True, None)])
def test_the_form_of_earlier_work_of_the_same_kind_is_known(root: Path, device: str, shared: bool, form: str | None) -> None:
    assert earlier_form(root, torch.device(device), shared_noise=shared) is None
    _leave(root, 3, form="sliced")
    assert earlier_form(root, torch.device(device), shared_noise=shared) == form


def test_the_promise_says_that_noise_was_shared() -> None:
    plain, shared = (certified_promise(replace(SETTINGS, shared_noise=shared)).assumptions for shared in (False, True))
    assert shared[: len(plain)] == plain
    assert any("fail together" in line for line in shared[len(plain) :])


def test_lines_out_of_order_are_refused(root: Path) -> None:
    _leave(root, 3)
    path = root / "certificates.csv"
    header, first, second, third = path.read_text().splitlines()
    path.write_text("\n".join((header, first, third, second)) + "\n")
    with pytest.raises(RunError, match="in order"):
        take_up(root, SETTINGS, own_key=False, overwrite=False)


def test_overwrite_passes_over_broken_settings(root: Path) -> None:
    (root / "certificates.json").write_text("{")
    with pytest.raises(RunError, match=r"certificates\.json is broken"):
        take_up(root, SETTINGS, own_key=False, overwrite=False)
    assert take_up(root, SETTINGS, own_key=False, overwrite=True) == (SETTINGS, 0)


@pytest.mark.parametrize("alpha", [0.001, 1e-9, 0.0012345678])
def test_the_promise_states_alpha_as_it_is(alpha: float) -> None:
    promise = certified_promise(replace(SETTINGS, alpha=alpha))
    assert repr(alpha) in promise.promise
    assert promise.status is Status.PROVEN
    assert unfinished_promise(SETTINGS).status is Status.NONE
