"""What a certification was asked for and what it rests on: the content of ``certificates.json`` (docs/formats/run.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinproof.certification.method import Method, Sampling
from twinproof.certification.noise_site import Movement
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.errors import ConfigError, RunError
from twinproof.runs.layout import COMPLETE
from twinproof.runs.reading import Count, Length, Radius
from twinproof.runs.records import (
    CERTIFICATES,
    Certificate,
    Look,
    WorkSettings,
    evidence,
    read_certificates,
    read_settings,
    same_names,
)
from twinproof.runs.run import Run

CSV = "certificates.csv"
METHOD = same_names("norm", "bound", "statistic", "confidence", "runner_up")
SAMPLING = same_names("n0", "n", "alpha", "target_radius", "shared_noise")
NOISE = same_names("law", "place", "sigma", "grid", "levels", "dimension", "tau", "operator_norm", "operator_norm_method") | (
    same_names("slack", "slackless_norm", "in_l2")
)
NETWORK = same_names("model_sha256", "form", "arithmetic", "classes")
MADE = same_names("device", "versions", "created", "seconds")


@dataclass(frozen=True)
class NoiseRecord:
    """The noise that was drawn, and how far the layer that gets it moves when the input does."""

    law: str
    place: str
    sigma: Length
    grid: Length
    levels: Count
    dimension: Count
    tau: Length
    operator_norm: Length
    operator_norm_method: str
    slack: Length
    slackless_norm: Length | None
    in_l2: Movement | None = None  # with the bound ``best`` of Laplace noise

    @classmethod
    def of(cls, smoothed: SmoothedClassifier, shape: tuple[int, ...], classes: int) -> NoiseRecord:
        """That of a classifier over inputs of ``shape``."""
        noise, rule = smoothed.noise, smoothed.radius_rule(shape, classes)
        return cls(
            law=str(noise.law),
            place=str(smoothed.site.place),
            sigma=noise.sigma,
            grid=noise.grid,
            levels=smoothed.levels,
            dimension=smoothed.site.dimension(shape),
            tau=rule.tau,
            operator_norm=rule.operator_norm,
            operator_norm_method=smoothed.operator_norm(shape).method,
            slack=rule.slack,
            slackless_norm=rule.slackless_norm,
            in_l2=rule.others[0][1] if rule.others else None,
        )


@dataclass(frozen=True, kw_only=True)
class CertificateSettings(WorkSettings):
    """What all certificates of one certification share."""

    method: Method
    sampling: Sampling
    looks: tuple[Look, ...]
    noise: NoiseRecord
    resolution: Count
    largest_radius: Radius

    @property
    def needs_more(self) -> bool:
        """Whether the number of votes is not all the evidence, so that the lines have more columns."""
        return (self.method.statistic, self.method.runner_up) != ("votes", "complement")

    @property
    def decided_radius(self) -> float:
        """The largest radius at which certified accuracy means something: with a target, nobody drew for more.

        At the target itself it is decided; below it is a lower bound, as inputs that miss the target were given up early.
        """
        target = self.sampling.target_radius
        return self.largest_radius if target is None else min(target, self.largest_radius)


def read_certificate_settings(path: Path) -> CertificateSettings:
    """The content of a ``certificates.json`` of any format."""
    nested = {"method": METHOD, "sampling": SAMPLING, "noise": NOISE, "network": NETWORK, "made": MADE}
    fix = "restore the file, or certify again with --overwrite"
    return read_settings(path, CertificateSettings, nested, fix=fix, slackless_norm=None, in_l2=None)[0]


@dataclass(frozen=True)
class Certification:
    """A certification of a run, by its name; ``path`` is its ``certificates.json``."""

    name: str
    path: Path
    settings: CertificateSettings

    @property
    def csv(self) -> Path:
        """The file with its lines."""
        return self.path.with_name(CSV)

    @property
    def certificates(self) -> list[Certificate]:
        """Its lines, read from the disk."""
        return read_certificates(self.csv)

    def is_of(self, run: Run) -> bool:
        """Whether it is complete and about the weights that the run has now."""
        return self.settings.state == COMPLETE and self.settings.network.model_sha256 == run.model_sha256


def certifications(root: str | Path) -> dict[str, Certification]:
    """All certifications of a run, by name."""
    found = evidence(Path(root), CERTIFICATES)
    return {name: Certification(name, path, read_certificate_settings(path)) for name, path in found.items()}


def find_certification(root: str | Path, *, name: str | None = None, norm: str | None = None) -> Certification | None:
    """The certification called ``name``; without one that of ``norm``, or the only one there is; None where there is none."""
    found = certifications(root)
    if name is not None:
        if name not in found:
            raise RunError(
                "this run has no certificates of that name",
                where=str(root),
                got=name,
                wanted=", ".join(found) or "a certified run",
                fix=f"twinproof certify {root} --name {name}",
            )
        return found[name]
    fitting = {key: one for key, one in found.items() if one.settings.method.norm == norm} or found
    if len(fitting) > 1 and norm not in fitting:
        names = ", ".join(fitting)
        raise ConfigError(
            "this run has several certifications",
            where="certificates",
            got="no name",
            wanted=f"one of: {names}",
            fix="name one",
        )
    return fitting.get(norm or "") or next(iter(fitting.values()), None)
