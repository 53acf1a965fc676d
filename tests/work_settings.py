"""Settings of certificates and attacks for tests, and changes of them by the names that they have in the files."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from twinproof.certification.method import CertificateSettings, Method, NoiseRecord, Sampling
from twinproof.runs.records import Made, NetworkRecord

Settings = TypeVar("Settings")

MADE = Made("cpu: x86_64, 1 threads", {"torch": "2.13.0"}, "2026-01-01T00:00:00Z")
NETWORK = NetworkRecord("0" * 64, "as given", "float32", 3)
NOISE = NoiseRecord("gaussian", "input", 0.25, 0.125, 255, 4, 1e-9, 1.0, "identity", 0.0, None)
SAMPLING = Sampling(10, 100, 0.001)
CERTIFICATES = CertificateSettings(
    network=NETWORK,
    inputs=5,
    key="ab" * 32,
    made=MADE,
    state="complete",
    method=Method(bound="tight"),
    sampling=SAMPLING,
    looks=SAMPLING.schedule.looks,
    noise=NOISE,
    resolution=1,
    largest_radius=0.37,
)


def changed(settings: Settings, **changes: Any) -> Settings:
    """``settings`` with other values; a name may stand in one of its sections (the first that has it)."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if hasattr(settings, name):
            settings = replace(settings, **{name: value})  # type: ignore[type-var]
            continue
        section = next(part for part, inner in vars(settings).items() if is_dataclass(inner) and hasattr(inner, name))
        sections.setdefault(section, {})[name] = value
    new = {section: replace(getattr(settings, section), **values) for section, values in sections.items()}
    return replace(settings, **new)  # type: ignore[type-var]
