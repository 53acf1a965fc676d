"""Attacks and audits of the small runs of ``report_runs``, written as docs/formats/run.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report_runs import LABELS, certificate_settings, make_certificates, make_metrics, run_record, write_run
from safetensors.numpy import save

from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import (
    FLIPPED,
    HELD,
    UNDECIDED,
    AttackedCertificate,
    AuditSettings,
    CertificateAudit,
    Flip,
    verdict_of,
)
from twinproof.data.record import Dataset
from twinproof.evaluation.attack_record import AttackLine, AttackSettings, format_lines, read_attacks
from twinproof.evaluation.attack_results import attack_results
from twinproof.evaluation.certified import CertifiedLine
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Entry
from twinproof.files import sha256_file
from twinproof.runs.certificates import ABSTAIN, Certificate
from twinproof.runs.records import json_file
from work_settings import changed

SIZES = (0.25, 0.5, 1.0)
Answer = Callable[[Certificate, Entry], int]


def attack_settings(dataset: Dataset, **changes: Any) -> AttackSettings:
    certified = certificate_settings(levels=dataset.levels, grid=1.0, dimension=int(np.prod(dataset.shape)), n=1000)
    plan = AttackPlan("l2", SIZES, ("fgsm", "pgd"))
    settings = AttackSettings(
        network=certified.network,
        inputs=len(LABELS),
        key="11" * 32,
        made=replace(certified.made, created="2025-01-01T12:00:00Z", seconds=12.5),
        state="complete",
        plan=plan,
        method=certified.method,
        sampling=certified.sampling,
        noise=certified.noise,
        certificates="l2",
        dimension=certified.noise.dimension,
        random_network=False,
    )
    planned = {name: changes.pop(name) for name in list(changes) if hasattr(plan, name)}
    method = {"norm": changes.pop("certificate_norm", "l2")}
    settings = replace(settings, plan=replace(plan, **planned), method=replace(certified.method, **method))
    return changed(settings, **changes)


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
    plan = settings.plan
    entries = (CLEAN, *plan.entries)
    lines = [attack_line(one, entry, answer(one, entry)) for entry in entries for one in certificates]
    results = attack_results(settings, lines, CertifiedLine(certificates, 0.001, "certificates.csv"))
    inputs = {entry.name: moved(dataset, entry, factor=factor) for entry in plan.entries}
    folder = root / "attacks" / "l2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attacks.safetensors").write_bytes(save({name: np.ascontiguousarray(one) for name, one in inputs.items()}))
    (folder / "attacks.csv").write_bytes(format_lines(lines))
    (folder / "attacks.json").write_bytes(json_file({**settings.as_dict(), "results": results}))
    return lines


def attacked_run(root: Path, dataset: Dataset, answer: Answer = plausible, **changes: Any) -> Path:
    """A complete run with certificates and attacks."""
    certificates = make_certificates(LABELS)
    write_run(root, run_record(), certificates, metrics=make_metrics())
    add_attacks(root, dataset, certificates, answer, **changes)
    return root


def change_results(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites the results of ``attacks.json`` alone."""
    path = root / "attacks" / "l2" / "attacks.json"
    record = read_attacks(path, "l2")
    change(record.results)
    path.write_bytes(json_file({**record.settings.as_dict(), "results": record.results}))


def audit_settings(root: Path, **changes: Any) -> AuditSettings:
    certified = certificate_settings()
    settings = AuditSettings(
        network=certified.network,
        inputs=len(LABELS),
        key="22" * 32,
        made=replace(certified.made, created="2025-01-01T13:00:00Z", seconds=33.0),
        state="complete",
        of="l2",
        certificates_sha256=sha256_file(root / "certificates/l2/certificates.csv"),
        settings_sha256=sha256_file(root / "certificates/l2/certificates.json"),
        norm="l2",
        attackable=50,
        within=0.99,
        outward=3.0,
        budget=AttackBudget(directions=8, rounds=20),
        false_flips=1e-6,
    )
    return changed(settings, **changes)


def attacked_certificate(index: int, ratio: float | None, *, inside: bool = False, doubt: bool = False) -> AttackedCertificate:
    flip = None if ratio is None else Flip(ratio * 0.5, ratio, 2, 8000, 10_000, "walk", (1, 2) if inside else None)
    return AttackedCertificate(index, 1, 0.5, FLIPPED if inside else UNDECIDED if doubt else HELD, flip)


def add_audit(
    root: Path, attacked: Sequence[AttackedCertificate], *, complete: bool = True, shared_noise: bool = False, **changes: Any
) -> CertificateAudit:
    """Writes an audit with these findings; the verdict is the one that the audit itself would give."""
    settings = audit_settings(root, attackable=len(attacked) if complete else 50, **changes)
    audit = CertificateAudit("l2", settings, tuple(attacked))
    if complete:
        audit = replace(audit, verdict=verdict_of(attacked, len(LABELS), 0.001, shared_noise=shared_noise))
    (root / "audits").mkdir(exist_ok=True)
    (root / "audits" / "l2.json").write_bytes(audit.content())
    return audit


def shared_noise_run(root: Path) -> Path:
    settings = certificate_settings(inputs=len(LABELS), shared_noise=True, form="exact first layer", arithmetic="tf32")
    return write_run(root, run_record(), make_certificates(LABELS), settings, make_metrics())
