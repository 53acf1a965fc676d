"""The certificates of a run, read for an audit: refused where attacking them would say nothing about this run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from twinproof.attacks.threat import BALLS
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.files import sha256_file
from twinproof.layers.noise import Place
from twinproof.runs.certificates import ABSTAIN, Certificate, CertificateSettings, read_certificates, read_settings
from twinproof.runs.layout import RunLayout
from twinproof.runs.run import Run


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
