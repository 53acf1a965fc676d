"""How a run computes its passes: decided when it begins, and kept to by whoever resumes it, wherever.

Steps after the last checkpoint are taken again with the noise that they had. Nobody has seen their first version
(docs/decisions/0001), so that this costs nothing even where the sum comes out a little different. But passes that depend on
the machine would make it more than a little: copies and dropout belong to passes, and a CPU and a GPU draw other records for
the same key. So the kind of device, the records of a pass and the arithmetic are the run's own from its first step on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from twinproof.errors import ConfigError, RunError
from twinproof.layers.precision import arithmetic_of
from twinproof.recipes.config import ResolvedConfig
from twinproof.runs import private_files
from twinproof.training.device import resolve_device
from twinproof.training.gradient_source import GradientSource

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class PassesOfRun:
    """The records of one pass, and the arithmetic of its products (``float32`` or ``tf32``)."""

    records: int
    arithmetic: str

    def as_dict(self) -> dict[str, Any]:
        """For ``private/`` and for the other ranks."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> PassesOfRun | None:
        """Reads ``as_dict`` back; None for None."""
        if stored is None:
            return None
        try:
            found = cls(**stored)
        except TypeError as error:
            raise _unreadable(error) from error
        if type(found.records) is not int or found.records < 1 or type(found.arithmetic) is not str:
            raise _unreadable(stored)
        return found


def _unreadable(got: object) -> RunError:
    return RunError(
        "how this run computes its passes cannot be read",
        where="private/passes.json",
        got=got,
        wanted="records, a whole number from 1, and arithmetic",
        fix="restore the file, or start a new run",
    )


def passes_of(private: Path) -> PassesOfRun | None:
    """How the run with this private folder computes its passes; None where it has not begun to draw."""
    return PassesOfRun.from_dict(private_files.load_passes(private))


def kept_to(config: ResolvedConfig, device: str, passes: PassesOfRun | None) -> ResolvedConfig:
    """The settings with which a begun run goes on: on its kind of device (``device`` of run.json), with passes of its size.

    Refuses to go on where there is no such device.
    """
    kind = device.partition(":")[0]
    if kind not in _KINDS:
        raise RunError(
            "the device of this run is not known", where="run.json, device", got=device, wanted=" or ".join(_KINDS) + ": ..."
        )
    try:
        resolve_device(kind)
    except ConfigError as error:
        raise RunError(
            "the run was begun on another kind of device",
            where="device",
            got="no GPU that torch can use",
            wanted=f"{device}, or one of its kind",
            fix="resume where there is one, or start a new run: a CPU draws other records for the same key",
        ) from error
    changes: dict[str, Any] = {"device": kind} | ({} if passes is None else {"physical_batch": passes.records})
    return config.model_copy(update={"performance": config.performance.model_copy(update=changes)})


def found_passes(source: GradientSource, model: nn.Module, device: torch.device) -> PassesOfRun | None:
    """How ``source`` computes; None for one whose passes say nothing about a record's privacy."""
    return None if source.pass_size is None else PassesOfRun(source.pass_size, arithmetic_of(model, device))


def refuse_other_passes(kept: PassesOfRun | None, found: PassesOfRun | None) -> None:
    """Refuses to go on in another way than the run was begun in, and names what differs."""
    if kept is None or found is None or kept == found:
        return
    names = [name for name, value in found.as_dict().items() if value != kept.as_dict()[name]]
    raise RunError(
        "the run would go on with other passes than it was begun with",
        where=", ".join(names),
        got=", ".join(f"{name} {found.as_dict()[name]}" for name in names),
        wanted=", ".join(f"{name} {kept.as_dict()[name]}" for name in names),
        fix="set torch's arithmetic (allow_tf32) as it was, or start a new run",
    )
