"""Auditing the certificates of a run: attacks on each of them, and what alpha explains of the findings."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack, overload

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from twinproof.auditing.certificate_attacks import OUTWARD, WITHIN, CertificateAttacker
from twinproof.auditing.certificate_judge import FALSE_FLIPS, judging_method
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import (
    REFUTED_BELOW,
    AttackedCertificate,
    AuditSettings,
    CertificateAudit,
    Verdict,
    read_audit,
    verdict_of,
)
from twinproof.auditing.interval_verdict import IntervalAudit, IntervalBudget, is_interval_audit, read_interval_audit
from twinproof.certification.interval_run import is_about_intervals
from twinproof.certification.method import CertificateSettings, Certification, Sampling, find_certification
from twinproof.certification.promise import certified_promise
from twinproof.certification.run import norm_of_run, smoothed_for_run
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError, system_faults
from twinproof.files import sha256_file
from twinproof.guarantee import Guarantee, Status
from twinproof.keys import Key
from twinproof.layers.noise import Place as NoisePlace
from twinproof.runs import work
from twinproof.runs.layout import COMPLETE, read_run_json
from twinproof.runs.records import ABSTAIN, AUDITS, Certificate, Made, NetworkRecord, check_name
from twinproof.runs.run import Run, load_run_data
from twinproof.runs.work import How, Options, Place, Work

# Certificates attacked and made durable together: a kill loses at most these.
_BATCH = {"cpu": 16, "cuda": 128}
_ATTACKED: TypeAdapter[list[AttackedCertificate]] = TypeAdapter(list[AttackedCertificate])


@overload
def audit(
    run: Run,
    dataset: Dataset | None = None,
    *,
    budget: AttackBudget,
    limit: int | None = None,
    certificates: str | None = None,
    **options: Unpack[Options],
) -> CertificateAudit: ...


@overload
def audit(
    run: Run,
    dataset: Dataset | None = None,
    *,
    budget: AttackBudget | IntervalBudget | None = None,
    limit: int | None = None,
    certificates: str | None = None,
    **options: Unpack[Options],
) -> CertificateAudit | IntervalAudit: ...


@system_faults("run the same command again: it goes on where it stopped")
def audit(
    run: Run,
    dataset: Dataset | None = None,
    *,
    budget: AttackBudget | IntervalBudget | None = None,
    limit: int | None = None,
    certificates: str | None = None,
    **options: Unpack[Options],
) -> CertificateAudit | IntervalAudit:
    """Attacks every certificate of the first ``limit`` inputs of the test set (all by default); see docs/formats/run.md.

    ``certificates`` names the certification: by default that in the run's norm, or the only one. The ``options`` are those of
    ``certify``; the default name is that of the certification. Certificates by interval bounds, and they alone, take an
    ``IntervalBudget``; attacks on them have guarantees of their own (``interval_audit.audit_intervals``).

    Guarantees
        - True certificates are called refuted with probability at most 0.001 (``certificate_verdict``).
        - Interrupted at any moment and resumed on the same machine (with a CPU), it ends with the same findings.
        - The noise that judges is never the certificates': a key that is theirs is refused.
        - Whatever is refused is refused before anything is written. ``run.json`` binds the audit once it is complete, and a
          refuted promise of robustness has the status ``refuted`` there. One that its bound had refuted before is attacked
          like any other, and stays refuted whatever is found.
    """
    if not isinstance(budget, AttackBudget) and is_about_intervals(run.root, certificates):
        from twinproof.auditing.interval_audit import audit_intervals  # it rests on this module

        return audit_intervals(run, dataset, budget=budget, limit=limit, certificates=certificates, **options)
    how, budget, began = How(**options), _of_draws(budget), time.monotonic()
    dataset = dataset or load_run_data(run)
    run.refuse_other_data(dataset)
    found = certificates_of(run, dataset, limit, certificates)
    certified = found.certification.settings
    if how.key is not None and how.key.secret.hex() == certified.key:
        raise ConfigError(
            "the audit would draw the certificates' own noise",
            where="key",
            got="the key of certificates.json",
            wanted="another",
        )
    device = resolve_device(how.device)
    place = Place(run.root, AUDITS, check_name(how.name or found.certification.name))
    if how.overwrite and place.bound():
        refuse_to_forget(place, found.lines_sha256)
    classifier: list[SmoothedClassifier] = []

    def prepare(earlier: AuditSettings | None, key: Key) -> AuditSettings:
        """In the form of the network in which earlier work on this kind of device ran it."""
        forms = [one.form_on(device.type) for one in (earlier, certified) if one is not None]
        form = next((form for form in forms if form is not None), None)
        smoothed = smoothed_for_run(run, dataset, device, sigma=certified.noise.sigma, method=judging_method(certified))
        shared = Sampling(shared_noise=certified.sampling.shared_noise)
        base = smoothed.base_for(dataset.test.inputs[:1], shared, form=form)
        classifier[:] = [replace(smoothed, base=base)]
        return AuditSettings(
            network=NetworkRecord(run.model_sha256, base.form, base.arithmetic, base.classes),
            inputs=len(found.lines),
            key=key.secret.hex(),
            made=Made.now(describe_device(device)),
            of=found.certification.name,
            certificates_sha256=found.lines_sha256,
            settings_sha256=found.settings_sha256,
            norm=certified.method.norm,
            attackable=len(found.attackable),
            within=WITHIN,
            outward=OUTWARD,
            budget=budget,
            false_flips=FALSE_FLIPS,
        )

    def finished(path: Path) -> AuditSettings:
        return read_audit(path, place.name).settings

    with work.begun(place, AuditSettings, prepare, finished, records=dataset.test, how=how) as begun:
        if not begun.complete:
            _make(found, dataset, classifier[0], begun, began)
    return read_audit(place.settings, place.name)


def _of_draws(budget: AttackBudget | IntervalBudget | None) -> AttackBudget:
    """The budget of attacks on a smoothed classifier; one that is for the network alone is refused."""
    if isinstance(budget, IntervalBudget):
        raise ConfigError(
            "these certificates are not ones of interval bounds",
            where="budget",
            got=budget,
            wanted="an AttackBudget, which says how often to draw",
            fix="leave the budget out, or name certificates by interval bounds",
        )
    return budget or AttackBudget()


@dataclass(frozen=True)
class AuditedCertificates:
    """A complete certification, with the digests of its two files.

    ``lines`` are those of the first inputs of the test set, abstentions among them; ``attackable`` those with an answer and a
    radius.
    """

    certification: Certification
    lines: tuple[Certificate, ...]
    settings_sha256: str
    lines_sha256: str

    @property
    def attackable(self) -> tuple[Certificate, ...]:
        """Certificates that claim something: an answer within a radius above zero."""
        return tuple(one for one in self.lines if one.prediction != ABSTAIN and one.radius > 0)


def certificates_of(run: Run, dataset: Dataset, limit: int | None, name: str | None = None) -> AuditedCertificates:
    """The certificates of the first ``limit`` inputs (all by default), as ``run.json`` binds them.

    Refused where attacking them would say nothing about this run.
    """
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to attack", where="limit", got=limit, wanted="at least 1 input")
    found = find_certification(run.root, name=name, norm=norm_of_run(run))
    if found is None or found.settings.state != COMPLETE:
        raise RunError(
            "this run has no certificates to attack",
            where=str(run.root if found is None else found.path),
            got="nothing" if found is None else f"a certification in state {found.settings.state!r}",
            wanted="a complete certification",
            fix=f"twinproof certify {run.root}",
        )
    digests = [bound_digest(run, path) for path in (found.path, found.csv)]
    if not found.is_of(run):
        raise RunError(
            "the certificates are about other weights",
            where=str(found.path),
            got=found.settings.network.model_sha256[:12],
            wanted=f"{run.model_sha256[:12]}, the digest of {run.layout.model.name}",
            fix="certify the run again with --overwrite",
        )
    lines = found.certificates[:limit]
    _refuse_impossible(found, lines, dataset)
    return AuditedCertificates(found, tuple(lines), *digests)


def bound_digest(run: Run, path: Path) -> str:
    """The digest of a file, which must be the one that the run recorded: otherwise it is nobody's claim."""
    name = path.relative_to(run.root).as_posix()
    bound = str(read_run_json(run.root).get("files", {}).get(name, {}).get("sha256", "no digest"))
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


def _refuse_impossible(found: Certification, lines: list[Certificate], dataset: Dataset) -> None:
    """Lines that cannot be about these inputs would be attacked at the wrong ones."""
    if not lines:
        raise RunError("there is not a single certificate", where=str(found.csv), got="no lines", wanted="one for each input")
    noise = found.settings.noise
    # Behind the first layer the noise has coordinates of its own, of which the data know nothing.
    coordinates = math.prod(dataset.shape) if noise.place == NoisePlace.INPUT else noise.dimension
    if noise.levels != dataset.levels or noise.dimension != coordinates:
        raise RunError(
            "the certificates are about other inputs",
            where=str(found.path),
            got=f"{noise.dimension} coordinates on {noise.levels} levels",
            wanted=f"{coordinates} on {dataset.levels}",
        )
    for position, one in enumerate(lines):
        known = one.index == position < len(dataset.test) and ABSTAIN <= one.prediction < len(dataset.classes)
        if not (known and 0 <= one.radius < math.inf):
            raise RunError(
                "a certificate makes no sense",
                where=f"{found.csv}, line {position + 2}",
                got=",".join(one.row()),
                wanted=f"inputs in order, classes up to {len(dataset.classes) - 1}, finite radii",
            )


def _refuted_by(path: Path, name: str) -> str | None:
    """The digest of the certificates that an earlier audit refuted."""
    if not path.is_file():
        return None
    if is_interval_audit(path):
        found = read_interval_audit(path, name)
        return found.settings.certificates_sha256 if found.verdict.refuted else None
    earlier = read_audit(path, name)
    return earlier.settings.certificates_sha256 if earlier.verdict is not None and earlier.verdict.refuted else None


def refuse_to_forget(place: Place, certificates_sha256: str) -> None:
    """An audit that refuted these very certificates is evidence: a weaker one must not take its place."""
    if _refuted_by(place.settings, place.name) == certificates_sha256:
        raise RunError(
            "the audit that refuted these certificates is kept",
            where=str(place.settings),
            got="--overwrite",
            wanted="other certificates",
            fix=f"certify again (twinproof certify {place.root} --overwrite), or audit under another --name",
        )


def _make(
    found: AuditedCertificates, dataset: Dataset, smoothed: SmoothedClassifier, begun: Work[AuditSettings], began: float
) -> None:
    """Attacks what was not attacked yet, and finishes."""
    claims, certified, settings = found.attackable, found.certification.settings, begun.settings
    shared_noise = certified.sampling.shared_noise
    attacker = CertificateAttacker(
        smoothed,
        settings.norm,
        class_means(dataset).to(next(smoothed.model.parameters()).device),
        len(claims),
        settings.budget,
        settings.secret,
        shared_noise,
    )
    step = _BATCH[settings.made.kind]
    batches = {f"{first:09d}.json": claims[first : first + step] for first in range(0, len(claims), step)}

    def batch(name: str) -> bytes:
        made = attacker.attack(_inputs_of(dataset, batches[name]), batches[name])
        return json.dumps([asdict(one) for one in made]).encode()

    sizes = {name: len(claimed) for name, claimed in batches.items()}
    attacked = [one for _, made in begun.batches("attacking", sizes, batch) for one in _ATTACKED.validate_json(made)]
    verdict = verdict_of(attacked, len(found.lines), certified.sampling.alpha, shared_noise=shared_noise)
    done = begun.completed(settings, time.monotonic() - began)
    audited = CertificateAudit(begun.place.name, done, tuple(attacked), verdict)
    refuted = {settings.of: refuted_promise(certified, verdict, begun.place)} if verdict.refuted else {}
    begun.finish({begun.place.settings.name: audited.content()}, refuted)


def class_means(dataset: Dataset) -> Tensor:
    """The mean test input of each class, in [0, 1]: the test set is declared public."""
    test = dataset.test
    means = [test.inputs[test.labels == label].mean(axis=0, dtype=np.float64) for label in range(len(dataset.classes))]
    return torch.from_numpy(np.stack(means) / dataset.levels)


def _inputs_of(dataset: Dataset, certificates: Sequence[Certificate]) -> Tensor:
    rows = [certificate.index for certificate in certificates]
    return torch.from_numpy(dataset.test.inputs[rows].astype(np.int64))


def refuted_promise(settings: CertificateSettings, verdict: Verdict, place: Place) -> Guarantee:
    """The promise of certificates that attacks refuted; a bound that was refuted before keeps its own reason, too."""
    promise = certified_promise(settings)
    found = (
        f"attacks changed {verdict.flips} certified answers of {verdict.inputs} inputs inside their radii; "
        f"chance explains that with probability below {REFUTED_BELOW:g} ({place.relative(place.settings)})"
    )
    reason = f"{promise.reason}; as expected, {found}" if promise.reason else found
    return replace(promise, status=Status.REFUTED, reason=reason)
