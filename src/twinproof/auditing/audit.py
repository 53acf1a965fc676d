"""``audit_run``: attacks the certificates of a run, batch by batch, and writes what was found into ``audit.json``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twinproof.attacks.threat import BALLS
from twinproof.auditing.certificate_attacks import OUTWARD, WITHIN, CertificateAttacker
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import FALSE_FLIPS, REFUTED_BELOW, judging_method, verdict_of
from twinproof.certification.method import Sampling
from twinproof.certification.promise import certified_promise
from twinproof.certification.run import smoothed_for_run
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.files import sha256_file
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.keys import Key
from twinproof.layers.noise import Place
from twinproof.progress import Progress, Silent
from twinproof.runs.audits import (
    ATTACKING,
    AUDIT_JSON,
    COMPLETE,
    AuditSettings,
    CertificateAudit,
    Verdict,
    read_audit,
    unbind_audit,
    write_audit,
)
from twinproof.runs.certificates import ABSTAIN, Certificate, CertificateSettings, read_certificates, read_settings
from twinproof.runs.layout import (
    GUARANTEES,
    RunLayout,
    exclusive,
    read_run_json,
    software_versions,
    update_run_json,
    utc_now,
)
from twinproof.runs.run import Run

# Certificates attacked and made durable together: a kill loses at most these.
_BATCH = {"cpu": 16, "cuda": 128}


@dataclass(frozen=True)
class AuditedCertificates:
    """The settings and lines of a complete certification, with the digests of the two files.

    ``lines`` are those of the first inputs of the test set, abstentions among them; ``attackable`` those with an answer and a
    radius.
    """

    settings: CertificateSettings
    lines: tuple[Certificate, ...]
    settings_sha256: str
    lines_sha256: str

    @property
    def attackable(self) -> tuple[Certificate, ...]:
        """Certificates that claim something: an answer within a radius above zero."""
        return tuple(one for one in self.lines if one.prediction != ABSTAIN and one.radius > 0)


def certificates_of(run: Run, dataset: Dataset, limit: int | None) -> AuditedCertificates:
    """The certificates of the first ``limit`` inputs (all by default), as ``run.json`` binds them."""
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to attack", where="limit", got=limit, wanted="at least 1 input")
    layout = RunLayout(run.root)
    settings = read_settings(run.root)
    if settings is None or settings.state != "complete":
        raise RunError(
            "this run has no certificates to attack",
            where=str(layout.certificates_json),
            got="nothing" if settings is None else f"a certification in state {settings.state!r}",
            wanted="a complete certification",
            fix=f"twinproof certify {run.root}",
        )
    if settings.norm not in BALLS:
        raise RunError(
            "the certificates are in an unknown norm",
            where=str(layout.certificates_json),
            got=settings.norm,
            wanted=", ".join(BALLS),
        )
    digests = [_bound_digest(run, path) for path in (layout.certificates_json, layout.certificates_csv)]
    if settings.model_sha256 != run.model_sha256:
        raise RunError(
            "the certificates are about other weights",
            where=str(layout.certificates_json),
            got=settings.model_sha256[:12],
            wanted=f"{run.model_sha256[:12]}, the digest of {layout.model.name}",
            fix="certify the run again with --overwrite",
        )
    lines = read_certificates(run.root)[:limit]
    _refuse_impossible(layout, settings, lines, dataset)
    return AuditedCertificates(settings, tuple(lines), *digests)


def _bound_digest(run: Run, path: Path) -> str:
    """The digest of a file, which must be the one that the run recorded: otherwise it is nobody's claim."""
    bound = str(run.record.get("files", {}).get(path.name, {}).get("sha256", "no digest"))
    found = sha256_file(path) if path.is_file() else "no file"
    if found != bound:
        raise RunError(
            "the certificates are not the ones that this run recorded",
            where=str(path),
            got=found[:12],
            wanted=bound[:12],
            fix="`twinproof verify` shows what changed; restore the files or certify again with --overwrite",
        )
    return found


def _refuse_impossible(layout: RunLayout, settings: CertificateSettings, lines: list[Certificate], dataset: Dataset) -> None:
    """Lines that cannot be about these inputs would be attacked at the wrong ones."""
    if not lines:
        raise RunError(
            "there is not a single certificate", where=str(layout.certificates_csv), got="no lines", wanted="one for each input"
        )
    # Behind the first layer the noise has coordinates of its own, of which the data know nothing.
    coordinates = math.prod(dataset.shape) if settings.place == Place.INPUT else settings.dimension
    if settings.levels != dataset.levels or settings.dimension != coordinates:
        raise RunError(
            "the certificates are about other inputs",
            where=str(layout.certificates_json),
            got=f"{settings.dimension} coordinates on {settings.levels} levels",
            wanted=f"{coordinates} on {dataset.levels}",
        )
    for position, one in enumerate(lines):
        known = one.index == position < len(dataset.test) and ABSTAIN <= one.prediction < len(dataset.classes)
        if not (known and 0 <= one.radius < math.inf):
            raise RunError(
                "a certificate makes no sense",
                where=f"{layout.certificates_csv}, line {position + 2}",
                got=",".join(one.row()),
                wanted=f"inputs in order, classes up to {len(dataset.classes) - 1}, finite radii",
            )


@system_faults("run the same command again: it goes on where it stopped")
def audit_run(
    run: Run,
    dataset: Dataset,
    *,
    budget: AttackBudget | None = None,
    limit: int | None = None,
    device: str = "auto",
    key: Key | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> CertificateAudit:
    """Attacks every certificate of the first ``limit`` inputs of the test set (all by default); see docs/formats/run.md.

    An interrupted audit with the same settings goes on where it stopped; one with other settings, or of other certificates,
    is replaced only with ``overwrite``.

    Guarantees
        - True certificates are called refuted with probability at most 0.001 (``certificate_verdict``).
        - Interrupted at any moment and gone on with, on the same machine (with a CPU), it ends with the same findings.
        - The noise that judges is never the certificates': a key that is theirs is refused.
        - Whatever is refused is refused before anything is written. ``run.json`` binds the audit once it is complete, and a
          refuted promise of robustness has the status ``refuted`` there. One that its bound had refuted before is attacked
          like any other, and stays refuted whatever is found.
    """
    budget, progress = budget or AttackBudget(), progress or Silent()
    run.refuse_other_data(dataset)
    found = certificates_of(run, dataset, limit)
    if key is not None and key.secret.hex() == found.settings.key:
        raise ConfigError(
            "the audit would draw the certificates' own noise",
            where="key",
            got="the key of certificates.json",
            wanted="another",
        )
    target = resolve_device(device)
    earlier = read_audit(run.root)
    if overwrite:
        _refuse_to_forget(run.root, earlier, found)
        earlier = None
    smoothed = _smoothed(run, dataset, found, earlier, target)
    wanted = _settings(found, budget, smoothed, target, key or Key.from_system())
    with exclusive(run.root):
        audit = _take_up(run.root, earlier, wanted, own_key=key is not None)
        if audit.verdict is None:
            audit = _attack_all(run, dataset, found, smoothed, budget, audit, progress)
        if AUDIT_JSON not in read_run_json(run.root).get("files", {}):
            _record(run.root, found.settings, audit.verdict)
    return audit


def _refuse_to_forget(root: Path, earlier: CertificateAudit | None, found: AuditedCertificates) -> None:
    """An audit that refuted these very certificates is evidence: a weaker one must not take its place."""
    refuted = earlier is not None and earlier.verdict is not None and earlier.verdict.refuted
    if refuted and earlier is not None and earlier.settings.certificates_sha256 == found.lines_sha256:
        raise RunError(
            "the audit that refuted these certificates is kept",
            where=str(root / AUDIT_JSON),
            got="--overwrite",
            wanted="other certificates",
            fix=f"certify again (twinproof certify {root} --overwrite), or audit a copy of the run",
        )


def _smoothed(
    run: Run, dataset: Dataset, found: AuditedCertificates, earlier: CertificateAudit | None, device: torch.device
) -> SmoothedClassifier:
    """The classifier that the certificates are about, in the form in which earlier work on this kind of device ran it."""
    forms = [record for record in (earlier.settings if earlier else None, found.settings) if record is not None]
    form = next((record.form for record in forms if record.device.partition(":")[0] == device.type), None)
    smoothed = smoothed_for_run(run, dataset, device, sigma=found.settings.sigma, method=judging_method(found.settings))
    base = smoothed.base_for(dataset.test.inputs[:1], Sampling(shared_noise=found.settings.shared_noise), form=form)
    return replace(smoothed, base=base)


def _settings(
    found: AuditedCertificates, budget: AttackBudget, smoothed: SmoothedClassifier, device: torch.device, key: Key
) -> AuditSettings:
    if smoothed.base is None:
        raise ValueError("the smoothed classifier has no base yet")
    return AuditSettings(
        certificates_sha256=found.lines_sha256,
        settings_sha256=found.settings_sha256,
        model_sha256=found.settings.model_sha256,
        norm=found.settings.norm,
        inputs=len(found.lines),
        attackable=len(found.attackable),
        within=WITHIN,
        outward=OUTWARD,
        **asdict(budget),
        false_flips=FALSE_FLIPS,
        key=key.secret.hex(),
        form=smoothed.base.form,
        arithmetic=smoothed.base.arithmetic,
        device=describe_device(device),
        versions=software_versions(),
        created=utc_now(),
        seconds=0.0,
        state=ATTACKING,
    )


def _take_up(root: Path, earlier: CertificateAudit | None, wanted: AuditSettings, *, own_key: bool) -> CertificateAudit:
    """The audit to go on with. Findings and their settings are one file, so that no kill can mix old and new ones."""
    if earlier is None:
        unbind_audit(root)
        fresh = CertificateAudit(wanted, ())
        write_audit(root, fresh)
        return fresh
    free = {"created", "seconds", "state", "device", "versions"} | (set() if own_key else {"key"})
    old, new = asdict(earlier.settings), asdict(wanted)
    different = [name for name in new if name not in free and old[name] != new[name]]
    # The last bits of a search depend on the kind of device: unfinished work goes on only where it began.
    if earlier.verdict is None and old["device"].partition(":")[0] != new["device"].partition(":")[0]:
        different.append("device")
    if different:
        raise RunError(
            "this run has an audit with other settings",
            where=str(root / AUDIT_JSON),
            got=", ".join(f"{name} {old[name]}" for name in different),
            wanted=", ".join(f"{name} {new[name]}" for name in different),
            fix="--overwrite replaces it; or copy the run first",
        )
    return earlier


def _attack_all(
    run: Run,
    dataset: Dataset,
    found: AuditedCertificates,
    smoothed: SmoothedClassifier,
    budget: AttackBudget,
    audit: CertificateAudit,
    progress: Progress,
) -> CertificateAudit:
    claims, began = found.attackable, time.monotonic()
    attacker = CertificateAttacker(
        smoothed,
        found.settings.norm,
        class_means(dataset).to(next(smoothed.model.parameters()).device),
        len(claims),
        budget,
        Key(bytes.fromhex(audit.settings.key)),
        found.settings.shared_noise,
    )
    done = len(audit.attacked)
    progress.start("attacking", len(claims), done)
    step = _BATCH["cuda" if audit.settings.device.startswith("cuda") else "cpu"]
    for first in range(done, len(claims), step):
        batch = claims[first : first + step]
        made = attacker.attack(_inputs_of(dataset, batch), batch)
        audit = replace(audit, attacked=(*audit.attacked, *made))
        write_audit(run.root, audit)
        progress.advance(len(batch))
    verdict = verdict_of(audit.attacked, len(found.lines), found.settings.alpha, shared_noise=found.settings.shared_noise)
    seconds = round(audit.settings.seconds + time.monotonic() - began, 3)
    audit = replace(audit, settings=replace(audit.settings, state=COMPLETE, seconds=seconds), verdict=verdict)
    write_audit(run.root, audit)
    return audit


def class_means(dataset: Dataset) -> Tensor:
    """The mean test input of each class, in [0, 1]: the test set is declared public."""
    test = dataset.test
    means = [test.inputs[test.labels == label].mean(axis=0, dtype=np.float64) for label in range(len(dataset.classes))]
    return torch.from_numpy(np.stack(means) / dataset.levels)


def _inputs_of(dataset: Dataset, certificates: Sequence[Certificate]) -> Tensor:
    rows = [certificate.index for certificate in certificates]
    return torch.from_numpy(dataset.test.inputs[rows].astype(np.int64))


def refuted_promise(settings: CertificateSettings, verdict: Verdict) -> Guarantee:
    """The promise of certificates that attacks refuted; a bound that was refuted before keeps its own reason, too."""
    promise = certified_promise(settings)
    found = (
        f"attacks changed {verdict.flips} certified answers of {verdict.inputs} inputs inside their radii; "
        f"chance explains that with probability below {REFUTED_BELOW:g} (audit.json)"
    )
    reason = f"{promise.reason}; as expected, {found}" if promise.reason else found
    return replace(promise, status=Status.REFUTED, reason=reason)


def _record(root: Path, settings: CertificateSettings, verdict: Verdict | None) -> None:
    """Binds the audit, and with it the promise that it refutes."""
    guarantees = read_run_json(root, GUARANTEES)["guarantees"]
    if verdict is not None and verdict.refuted:
        guarantees = {**guarantees, str(Kind.ROBUSTNESS): refuted_promise(settings, verdict).as_dict()}
    update_run_json(root, files=(AUDIT_JSON,), guarantees=guarantees)
