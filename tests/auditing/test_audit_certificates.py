"""Attacks on certificates: true ones hold, planted lies are refuted, and where the boundary is known it is found."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import audited_runs as small
import numpy as np
import pytest
import torch

import twinproof as tp
from interruption import StopAfter
from twinproof.auditing import audit as audit_module
from twinproof.auditing.certificate_attacks import CertificateAttacker
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import FLIPPED, HELD, CertificateAudit, audits_of
from twinproof.certification.method import Method, Sampling, read_certificate_settings
from twinproof.certification.promise import certified_promise
from twinproof.certification.smoothed import smooth
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.files import sha256_file
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.runs.layout import read_run_json, update_run_json
from twinproof.runs.records import ABSTAIN, Certificate, read_certificates
from twinproof.runs.run import Run


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    return small.certified_run(tmp_path_factory.mktemp("audited") / "run")


@pytest.fixture
def root(certified: tuple[Path, Dataset], tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified[0], tmp_path / "run"))


@pytest.fixture
def digits(certified: tuple[Path, Dataset]) -> Dataset:
    return certified[1]


def _audit(root: Path, dataset: Dataset, **options: Any) -> CertificateAudit:
    settings = {"budget": small.QUICK, "device": "cpu", "key": small.AUDIT_KEY, **options}
    audited: CertificateAudit = tp.audit(Run.open(root), dataset, **settings)
    return audited


def _content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_true_certificates_hold_and_the_run_records_it(root: Path, digits: Dataset) -> None:
    """Alpha is 0.001: of 12 inputs two or more fail with probability below 1e-4."""
    before = read_run_json(root)
    audit = _audit(root, digits)
    claims = [one for one in read_certificates(root / small.CSV) if one.prediction != ABSTAIN and one.radius > 0]
    assert [(one.index, one.prediction, one.radius) for one in audit.attacked] == [
        (one.index, one.prediction, one.radius) for one in claims
    ]
    assert audit.verdict is not None
    assert (audit.verdict.inputs, audit.verdict.attacked) == (small.LIMIT, len(claims))
    assert (audit.verdict.flips, audit.verdict.refuted) == (0, False)
    assert audit.verdict.closest is not None
    assert 1 < audit.verdict.closest < 2, "the search reaches the boundary, which lies beyond the radius"
    assert audits_of(root) == {"l2": audit}
    after = read_run_json(root)
    assert after["files"]["audits/l2.json"] == {"sha256": sha256_file(root / "audits/l2.json")}
    assert {**after, "files": 0} == {**before, "files": 0}, "nothing else changes"
    assert tp.verify(root).ok


def test_planted_radii_are_refuted(root: Path, digits: Dataset) -> None:
    small.rewrite_lines(root, small.times_radius(2.0))
    audit = _audit(root, digits)
    assert audit.verdict is not None
    assert audit.verdict.refuted
    assert audit.verdict.flips >= 3
    assert audit.verdict.probability < 1e-5
    robustness = Run.open(root).robustness["l2"]
    assert robustness.status is Status.REFUTED
    assert f"{audit.verdict.flips} certified answers" in robustness.reason
    _check_evidence(root, digits, audit)
    with pytest.raises(RunError, match="is kept"):
        _audit(root, digits, overwrite=True, limit=1)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_bound_that_is_known_to_be_false_stays_refuted_whatever_is_found(root: Path, digits: Dataset, factor: float) -> None:
    """Attacks that succeed are added to its own reason; attacks that fail do not mend it."""
    small.rewrite_settings(root, bound="published")
    known = certified_promise(read_certificate_settings(root / small.SETTINGS))
    update_run_json(root, guarantees={**read_run_json(root)["guarantees"], "robustness": {"l2": known.as_dict()}})
    small.rewrite_lines(root, small.times_radius(factor))
    audit = _audit(root, digits)
    assert audit.verdict is not None
    assert audit.verdict.refuted is (factor > 1)
    robustness = Run.open(root).robustness["l2"]
    assert robustness.status is Status.REFUTED
    found = f"; as expected, attacks changed {audit.verdict.flips} certified answers"
    assert robustness.reason.startswith(known.reason)
    assert "Eq. 10" in known.reason
    assert (found in robustness.reason) is audit.verdict.refuted


def _check_evidence(root: Path, dataset: Dataset, audit: CertificateAudit) -> None:
    """Every contradiction, recomputed from the stored levels: whole numbers in range, near enough, and of another class."""
    run, flipped = Run.open(root), [one for one in audit.attacked if one.verdict == FLIPPED]
    sigma = json.loads((root / small.SETTINGS).read_text())["noise"]["sigma"]
    for one in flipped:
        assert one.flip is not None
        assert one.flip.stored is not None
        original = dataset.test.inputs[one.index].astype(int).flatten().tolist()
        squares = sum((a - b) ** 2 for a, b in zip(one.flip.stored, original, strict=True))
        assert all(type(level) is int and 0 <= level <= dataset.levels for level in one.flip.stored)
        assert one.flip.distance == pytest.approx(math.sqrt(squares) / dataset.levels, rel=1e-14)
        assert one.flip.distance < one.radius
        assert one.flip.ratio == pytest.approx(one.flip.distance / one.radius, abs=1e-6)
        point = torch.tensor(one.flip.stored).reshape(1, *dataset.shape)
        again = smooth(run.model(), sigma, levels=dataset.levels).certify(
            point, sampling=Sampling(2000, 50_000), key=Key.from_seed(9)
        )
        assert again[0].prediction == one.flip.prediction != one.prediction


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_shared_noise_is_judged_by_the_mean(root: Path, digits: Dataset, factor: float) -> None:
    """Alpha 1e-5: failures that coincide still happen with probability 1e-5 x inputs / flips at most."""
    small.certify(root, digits, shared_noise=True, alpha=1e-5)
    small.rewrite_lines(root, small.times_radius(factor))
    audit = _audit(root, digits)
    assert audit.verdict is not None
    assert audit.verdict.bound == "markov"
    assert audit.verdict.refuted is (factor > 1)
    if audit.verdict.flips:
        assert audit.verdict.probability == pytest.approx(small.LIMIT * 1e-5 / audit.verdict.flips)


DIMENSION, SIGMA = 12, 0.25
# 100,000 votes prove a majority 0.006 beyond the boundary (six deviations), which is 4 % of the smallest distance here; the
# rest is for rungs and for rounding to levels.
CLOSE = 1.06


def _half_space_audit(radii: float = 1.0) -> tuple[CertificateAttacker, torch.Tensor, list[Certificate], np.ndarray[Any, Any]]:
    generator = torch.Generator().manual_seed(8)
    direction = torch.randn(DIMENSION, generator=generator)
    model = small.half_space(direction, float(direction.sum()) / 2)
    stored = torch.randint(30, 226, (28, DIMENSION), generator=generator)
    made = smooth(model, SIGMA)
    sampling = Sampling(100, 20_000, 0.001)
    smoothed = replace(made, base=made.base_for(stored[:1], sampling, form="as given"))
    certificates = smoothed.certify(stored, sampling=sampling, key=small.CERTIFY_KEY)
    exact = (stored.double().numpy() / 255 - 0.5) @ direction.double().numpy() / float(direction.double().norm())
    claims = [
        replace(one, radius=one.radius * radii) for one in certificates if one.prediction != ABSTAIN and one.radius >= 0.15
    ]
    rows = [one.index for one in claims]
    budget = replace(small.QUICK, votes=100_000, screen=400, rounds=8)
    means = torch.stack((torch.full((DIMENSION,), 0.4), torch.full((DIMENSION,), 0.6)))
    attacker = CertificateAttacker(smoothed, "l2", means, len(claims), budget, small.AUDIT_KEY)
    return attacker, stored[rows], claims, np.abs(exact[rows])


@pytest.mark.slow
def test_the_boundary_of_a_half_space_is_found() -> None:
    """The closest flip lies on or behind the true boundary, and within a few percent of it; alpha is 0.001 for each input."""
    attacker, stored, claims, exact = _half_space_audit()
    assert len(claims) >= 8
    attacked = attacker.attack(stored, claims)
    for one, distance in zip(attacked, exact, strict=True):
        assert one.flip is not None
        assert one.flip.ratio >= 1
        assert one.verdict != FLIPPED
        assert distance <= one.flip.distance * (1 + 1e-9)
        assert one.flip.distance <= distance * CLOSE, f"input {one.index}"


@pytest.mark.slow
def test_certificates_in_linf_are_measured_in_linf() -> None:
    """A half-space is margin / |w|_1 away in linf; a true radius of 0.9 of that holds, one of 1.2 does not."""
    attacker, stored, claims, exact = _half_space_audit()
    weight = next(attacker.smoothed.model.parameters())[1].detach().double()
    distances = exact * float(weight.norm() / weight.abs().sum())
    for share, verdict in ((0.9, HELD), (1.2, FLIPPED)):
        claimed = [replace(one, radius=share * float(far)) for one, far in zip(claims, distances, strict=True)]
        attacked = replace(attacker, norm="linf").attack(stored, claimed)
        for one, far in zip(attacked, distances, strict=True):
            assert one.verdict == verdict
            assert one.flip is not None
            # One level is up to 8 % of these distances.
            assert far <= one.flip.distance * (1 + 1e-9) <= far * 1.1


def test_planted_radii_of_a_half_space_are_flipped_one_by_one() -> None:
    """Where the truth is known, every radius 1.2 times as large is contradicted, unless the slack of its bound covers that."""
    attacker, stored, claims, exact = _half_space_audit(1.2)
    wrong = [claim.radius > distance * CLOSE for claim, distance in zip(claims, exact, strict=True)]
    assert sum(wrong) >= 5
    attacked = attacker.attack(stored, claims)
    assert [one.verdict == FLIPPED for one, planted in zip(attacked, wrong, strict=True) if planted] == [True] * sum(wrong)


def test_an_interrupted_audit_goes_on_to_the_same_bits(
    root: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = 2
    monkeypatch.setitem(audit_module._BATCH, "cpu", 4)
    whole = Path(shutil.copytree(root, tmp_path / "whole"))
    uninterrupted = _audit(whole, digits)
    with pytest.raises(KeyboardInterrupt):
        _audit(root, digits, progress=StopAfter(batches))
    assert "audits/l2.json" not in read_run_json(root)["files"], "bound only when complete"
    progress = StopAfter(-1)
    audit = _audit(root, digits, key=None, progress=progress)
    assert progress.started == ("attacking", len(uninterrupted.attacked), 4 * batches)
    assert (audit.attacked, audit.verdict) == (uninterrupted.attacked, uninterrupted.verdict)
    assert tp.verify(root).ok


def test_a_complete_audit_is_not_made_again(root: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, before = _audit(root, digits, limit=3), _content(root)
    monkeypatch.setattr(CertificateAttacker, "attack", None)
    assert _audit(root, digits, limit=3, key=None) == audit
    assert _content(root) == before
    (root / "audits/l2.json").write_bytes(before["audits/l2.json"].replace(b'"held"', b'"Held"'))
    _audit(root, digits, limit=3, key=None)
    assert read_run_json(root)["files"]["audits/l2.json"] != {"sha256": sha256_file(root / "audits/l2.json")}, (
        "no lie is bound again"
    )


def test_the_certification_is_chosen_by_name(root: Path, digits: Dataset) -> None:
    small.certify(root, digits, name="linf", method=Method(norm="linf"))
    audit = _audit(root, digits, limit=2, certificates="linf", name="first")
    assert (audit.name, audit.settings.of, audit.settings.norm) == ("first", "linf", "linf")
    assert _audit(root, digits, limit=2).settings.of == "l2", "the norm of the run"
    assert audits_of(root).keys() == {"first", "l2"}


def test_nothing_to_attack_is_said(root: Path, digits: Dataset) -> None:
    small.rewrite_lines(root, small.abstention)
    verdict = _audit(root, digits).verdict
    assert verdict is not None
    assert (verdict.words, verdict.refuted, verdict.attacked) == ("nothing to attack", False, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"budget": replace(small.QUICK, steps=13)}, "steps 13"), ({"limit": 4}, "inputs 4"), ({"key": Key.from_seed(6)}, "key")],
)
def test_other_settings_are_refused_and_nothing_is_lost(
    root: Path, digits: Dataset, options: dict[str, Any], words: str
) -> None:
    _audit(root, digits, limit=3)
    before = _content(root)
    with pytest.raises(RunError, match="other settings") as refused:
        _audit(root, digits, **{"limit": 3, **options})
    assert words in refused.value.wanted
    assert _content(root) == before
    assert _audit(root, digits, **{"limit": 3, **options}, overwrite=True).verdict is not None


def test_new_certificates_need_a_new_audit(root: Path, digits: Dataset) -> None:
    _audit(root, digits, limit=3)
    small.rewrite_lines(root, small.times_radius(0.5))
    with pytest.raises(RunError, match="other settings") as refused:
        _audit(root, digits, limit=3)
    assert "certificates_sha256" in refused.value.wanted


def _tampered(root: Path) -> None:
    path = root / "certificates/l2/certificates.csv"
    path.write_text(path.read_text().replace(",0.", ",0.9"))


def _broken_audit(root: Path, text: str = '{"format": 3, "certificates": {"norm": "l2"}}') -> None:
    (root / "audits").mkdir()
    (root / "audits/l2.json").write_text(text)
    update_run_json(root, files=("audits/l2.json",))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: (root / small.SETTINGS).unlink(), "no certificates to attack"),
        (lambda root: small.rewrite_settings(root, state="sampling"), "no certificates to attack"),
        (lambda root: small.rewrite_lines(root, lambda row: None), "not a single certificate"),
        (lambda root: small.rewrite_settings(root, norm="l7"), "certificates.json is broken"),
        (_tampered, "not the ones that this run recorded"),
        (lambda root: small.rewrite_settings(root, model_sha256="ab" * 32), "about other weights"),
        (lambda root: small.rewrite_settings(root, levels=255), "about other inputs"),
        (lambda root: small.rewrite_lines(root, lambda row: {**row, "index": str(int(row["index"]) + 1)}), "makes no sense"),
        (lambda root: small.rewrite_lines(root, lambda row: {**row, "radius": "inf"}), "certificates.csv is broken"),
        (lambda root: small.rewrite_lines(root, lambda row: {**row, "prediction": "10"}), "makes no sense"),
        (_broken_audit, "l2.json is broken"),
        (lambda root: _broken_audit(root, "[]"), "l2.json is broken"),
    ],
)
def test_what_cannot_be_attacked_is_one_clear_error(root: Path, digits: Dataset, spoil: Any, words: str) -> None:
    spoil(root)
    before = _content(root)
    with pytest.raises(RunError, match=words):
        _audit(root, digits)
    assert _content(root) == before


def test_settings_that_make_no_sense(root: Path, digits: Dataset) -> None:
    before = _content(root)
    with pytest.raises(ConfigError, match="nothing to attack"):
        _audit(root, digits, limit=0)
    with pytest.raises(ConfigError, match="own noise"):
        _audit(root, digits, key=small.CERTIFY_KEY)
    for name in ("steps", "draws", "restarts", "directions", "rounds", "screen", "votes"):
        with pytest.raises(ConfigError, match=f"{name} cannot be used"):
            AttackBudget(**{name: 0})
    assert _content(root) == before
