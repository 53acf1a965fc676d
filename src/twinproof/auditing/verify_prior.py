"""The weights that a run started from: the digest that it states is that of the file in this package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_run_json import FILE

NONE = "none"


@cache
def shipped_sha256() -> str:
    """The digest of the weights in the package."""
    return hashlib.sha256((files("twinproof.layers") / "prior.safetensors").read_bytes()).hexdigest()


def prior_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """Name and digest against config and package; a run from before there were such weights has neither."""
    config, stated = run.get("config"), run.get("prior")
    name = config.get("prior", NONE) if isinstance(config, dict) else NONE
    if name == NONE:
        if "prior" in run:
            yield Problem(FILE, "prior is stated for a run that started at random", shown(stated), "no prior")
        return
    if not isinstance(stated, dict) or stated.get("name") != name or len(stated) != 2:
        yield Problem(FILE, "prior is not the one of config", shown(stated), f"name {shown(name)}, and a digest")
        return
    if stated.get("sha256") != shipped_sha256():
        wanted = f"{shipped_sha256()}; the version that the run names may have had another file"
        yield Problem(
            FILE, "the run started from weights that are not those of this version", shown(stated.get("sha256")), wanted
        )
