"""What a run was made with: software versions and the time."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from twinproof import __version__

_PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "safetensors")


def software_versions() -> dict[str, str]:
    """Versions of everything a result may depend on."""
    found = {"twinproof": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def utc_now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
