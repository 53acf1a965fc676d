"""Attacks and audits of the small runs of ``report_runs``, written as docs/formats/run.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report_runs import LABELS, certificate_settings, make_certificates, make_metrics, run_record, write_run

from twinproof.auditing.certificate_verdict import verdict_of
from twinproof.data.record import Dataset
from twinproof.evaluation.attack_results import attack_results
from twinproof.evaluation.certified import CertifiedLine
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Entry
from twinproof.files import sha256_file
from twinproof.evaluation.attack_record import AttackLine, AttackRecord, AttackSettings, read_attacks, write_attacks, write_record
from twinproof.auditing.certificate_verdict import (
    FLIPPED,
    HELD,
    UNDECIDED,
    AttackedCertificate,
    AuditSettings,
    CertificateAudit,
    Flip,
    write_audit,
)
from twinproof.runs.certificates import ABSTAIN, Certificate

SIZES = (0.25, 0.5, 1.0)
Answer = Callable[[Certificate, Entry], int]


def attack_settings(dataset: Dataset, **changes: Any) -> AttackSettings:
    values: dict[str, Any] = {
        "model_sha256": "ab" * 32, "norm": "l2", "sizes": SIZES, "attacks": ("fgsm", "pgd"), "protocols": ("paper", "adaptive"),
        "steps": 20, "step_size": None, "paper_steps": 10, "restarts": 1, "draws": 8, "aim": None, "inputs": len(LABELS),
        "certificate_norm": "l2", "sigma": 0.5, "levels": dataset.levels, "law": "gaussian", "place": "input", "bound": "tight",
        "operator_norm": 1.0, "slack": 0.0, "grid": 1.0, "tau": 1e-9, "dimension": int(np.prod(dataset.shape)),
        "noise_dimension": int(np.prod(dataset.shape)), "n0": 100, "n": 1000, "alpha": 0.001,
        "key": "11" * 32, "random_network": False, "form": "as given", "device": "cpu", "versions": {"torch": "2.13.0"},
        "created": "2025-01-01T12:00:00Z", "seconds": 12.5, "state": "complete",
    }  # fmt: skip
    return AttackSettings(**{**values, **changes})


def plausible(certificate: Certificate, entry: Entry) -> int:
    """Answers that respect every certificate: beyond the radius some go silent or wrong, more of them when adaptive."""
    if entry == CLEAN or certificate.prediction == ABSTAIN or certificate.radius >= entry.size:
        return certificate.prediction
    kind = (certificate.index + (entry.attack == "pgd")) % (4 if entry.protocol == "adaptive" else 6)
    return ABSTAIN if kind == 1 else (certificate.label + 1) % 4 if kind == 0 else certificate.prediction


def crossing(certificate: Certificate, entry: Entry) -> int:
    """The planted bug: attacks of the adaptive protocol mislead everybody, certified or not."""
    return (certificate.label + 1) % 4 if entry.protocol == "adaptive" else plausible(certificate, entry)


def moved(dataset: Dataset, entry: Entry, *, factor: float = 0.9) -> NDArray[Any]:
    """The test inputs with two coordinates moved by ``factor`` times the size in all, inside the range."""
    inputs = dataset.test.inputs.astype(np.int64)
    flat = inputs.reshape(len(inputs), -1)
    step = int(factor * entry.size * dataset.levels / np.sqrt(2))
    for place in (0, -1):
        upwards = flat[:, place] <= dataset.levels // 2
        flat[:, place] += np.where(upwards, step, -step)
    return np.clip(flat, 0, dataset.levels).reshape(inputs.shape).astype(dataset.test.inputs.dtype)


def attack_line(certificate: Certificate, entry: Entry, answer: int) -> AttackLine:
    return AttackLine(
        index=certificate.index,
        protocol=entry.protocol,
        target=entry.target,
        attack=entry.attack,
        size=entry.size,
        label=certificate.label,
        aim=-1,
        length=0.9 * entry.size,
        network=certificate.label if entry.size < 1 else (certificate.label + 2) % 4,
        network_unrounded=certificate.label if entry.size < 1 else (certificate.label + 2) % 4,
        prediction=answer,
        votes=900,
        top=max(answer, 0),
        radius=0.0 if answer == ABSTAIN else 0.3,
        draws=1000,
    )


def add_attacks(
    root: Path, dataset: Dataset, certificates: Sequence[Certificate], answer: Answer = plausible, **changes: Any
) -> list[AttackLine]:
    """Attacks the run on paper; ``factor`` is the share of each size that attacked inputs really moved."""
    factor = changes.pop("factor", 0.9)
    settings = attack_settings(dataset, **changes)
    plan = AttackPlan(norm=settings.norm, sizes=settings.sizes, attacks=settings.attacks, protocols=settings.protocols)
    entries = (CLEAN, *plan.entries)
    lines = [attack_line(one, entry, answer(one, entry)) for entry in entries for one in certificates]
    results = attack_results(settings, lines, CertifiedLine(certificates, 0.001, "certificates.csv"))
    inputs = {entry.name: moved(dataset, entry, factor=factor) for entry in plan.entries}
    write_attacks(root, AttackRecord(settings, results), lines, inputs)
    return lines


def attacked_run(root: Path, dataset: Dataset, answer: Answer = plausible, **changes: Any) -> Path:
    """A complete run with certificates and attacks."""
    certificates = make_certificates(LABELS)
    write_run(root, run_record(), certificates, metrics=make_metrics())
    add_attacks(root, dataset, certificates, answer, **changes)
    return root


def change_results(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites the results of ``attacks.json`` alone."""
    record = read_attacks(root)
    if record is None:
        raise ValueError("the run was not attacked")
    change(record.results)
    write_record(root, record)


def audit_settings(root: Path, **changes: Any) -> AuditSettings:
    values: dict[str, Any] = {
        "certificates_sha256": sha256_file(root / "certificates/l2/certificates.csv"),
        "settings_sha256": sha256_file(root / "certificates/l2/certificates.json"),
        "model_sha256": "ab" * 32, "norm": "l2", "inputs": len(LABELS), "attackable": 50, "within": 0.99, "outward": 3.0,
        "steps": 100, "draws": 32, "restarts": 3, "directions": 8, "rounds": 20, "screen": 200, "votes": 10_000,
        "false_flips": 1e-6, "key": "22" * 32, "form": "as given", "arithmetic": "float32", "device": "cpu",
        "versions": {"torch": "2.13.0"}, "created": "2025-01-01T13:00:00Z", "seconds": 33.0, "state": "complete",
    }  # fmt: skip
    return AuditSettings(**{**values, **changes})


def attacked_certificate(index: int, ratio: float | None, *, inside: bool = False, doubt: bool = False) -> AttackedCertificate:
    flip = None if ratio is None else Flip(ratio * 0.5, ratio, 2, 8000, 10_000, "walk", (1, 2) if inside else None)
    return AttackedCertificate(index, 1, 0.5, FLIPPED if inside else UNDECIDED if doubt else HELD, flip)


def add_audit(
    root: Path, attacked: Sequence[AttackedCertificate], *, complete: bool = True, shared_noise: bool = False, **changes: Any
) -> CertificateAudit:
    """Writes an audit with these findings; the verdict is the one that the audit itself would give."""
    settings = audit_settings(root, attackable=len(attacked) if complete else 50, **changes)
    audit = CertificateAudit(settings, tuple(attacked))
    if complete:
        audit = replace(audit, verdict=verdict_of(attacked, len(LABELS), 0.001, shared_noise=shared_noise))
    write_audit(root, audit)
    return audit


def shared_noise_run(root: Path) -> Path:
    settings = certificate_settings(inputs=len(LABELS), shared_noise=True, form="exact first layer", arithmetic="tf32")
    return write_run(root, run_record(), make_certificates(LABELS), settings, make_metrics())
