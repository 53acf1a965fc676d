"""What is checked before a run is started or resumed, and what all ranks know of it.

Steps after the last checkpoint are taken again with the same noise. Nobody has seen their first version (docs/decisions/0001),
so a sum that differs by rounding costs nothing. Passes that depend on the machine would change it by more: copies and dropout
belong to passes, and a CPU and a GPU draw other records for the same key. So a run keeps its kind of device, its records per
pass and its arithmetic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from twinproof.compute.devices import arithmetic_of, resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset, fingerprint
from twinproof.errors import ConfigError, RunError
from twinproof.keys import KEY_BYTES, Key
from twinproof.layers.networks import Prior, prior_sha256
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig, TrainConfig, public_config
from twinproof.runs import private_files
from twinproof.runs.layout import STARTED, RunLayout, read_run_json
from twinproof.runs.private_files import WRITTEN_FIRST
from twinproof.runs.reading import read_json
from twinproof.training.sources import GradientSource

_PART = ".part"  # what a killed writer leaves (twinproof.files.write_atomic)
_FREE_KINDS = ("open", "gaussian")


def refuse_started(root: Path) -> None:
    """Refuses to start in a directory that holds a run, or anything else."""
    if RunLayout(root).run_json.is_file():
        raise RunError(
            "there is a run in this directory already",
            where=str(root),
            got=f"state {read_run_json(root).get('state')!r}",
            wanted="a new or empty directory",
            fix="choose another directory, or continue this run with --resume",
        )
    if root.is_dir() and any(root.iterdir()):
        raise RunError("the directory is not empty", where=str(root), got="files in it", wanted="a new or empty directory")


def refuse_other_settings(root: Path, given: TrainConfig, stored: dict[str, Any]) -> None:
    """Refuses settings that are not the run's. One that is left open (None) agrees with any value."""
    other = [key for key, value in public_config(given).items() if not _agrees(key, value, stored.get(key, _default(key)))]
    if not given.spec.private:  # it drops what was said about privacy
        other = [key for key in other if key not in ("epsilon", "noise_multiplier")]
    if other:
        raise RunError(
            "these are not the settings the run was started with",
            where=str(root),
            got=f"other settings: {', '.join(other)}",
            wanted="the settings in run.json",
            fix="resume without settings (they are read from the run), or start a new run",
        )


def _default(key: str) -> Any:
    """What a run means that was started before there was such a setting."""
    field = ResolvedConfig.model_fields.get(key)
    return None if field is None or field.is_required() else field.default


def _agrees(key: str, given: Any, stored: Any) -> bool:
    if key == "noise_layer" and isinstance(given, dict) and isinstance(stored, dict):
        return all(_agrees(f"{key}.{name}", value, stored.get(name)) for name, value in given.items())
    return given is None or given == stored


def load_ledger(layout: RunLayout, config_sha256: str) -> Ledger:
    """The run's ledger; refused where it is empty, was changed, or was opened for other settings."""
    ledger = Ledger.load(layout.ledger)
    first = ledger.entries[0] if ledger.entries else None
    if first is None or first.kind != "open" or first.body.get("config_sha256") != config_sha256:
        raise RunError(
            "the ledger was not opened for the settings in run.json",
            where=str(layout.ledger),
            got="no opening line" if first is None or first.kind != "open" else "a ledger of other settings",
            wanted="the ledger that the run was started with",
            fix="restore ledger.jsonl and run.json; a run whose records were changed cannot be continued",
        )
    return ledger


def refuse_older_ledger(ledger: Ledger, taken: int) -> None:
    """Refuses a ledger that announces fewer steps than the checkpoint has taken: going on would hide what was spent."""
    if ledger.reserved_steps < taken:
        raise RunError(
            "the ledger is older than the checkpoint",
            where="ledger.jsonl",
            got=f"{ledger.reserved_steps} steps announced",
            wanted=f"at least {taken}, which the checkpoint has taken",
            fix="restore the ledger; a run whose ledger was changed cannot be continued",
        )


def clear_abandoned_start(layout: RunLayout) -> None:
    """Removes what a start left that was killed before it wrote ``run.json``.

    Any other file, and a ledger that announces a step or cannot be read, is an error, and nothing is removed.
    """
    ours = {layout.ledger.name, layout.run_json.name + _PART}
    private = {name + ending for name in WRITTEN_FIRST for ending in ("", _PART)}
    inner = list(layout.private.iterdir()) if layout.private.is_dir() else []
    outer = [path for path in layout.root.iterdir() if path != layout.private or not path.is_dir()]
    strangers = [path for path in outer if path.name not in ours or not path.is_file()]
    strangers += [path for path in inner if path.name not in private or not path.is_file()]
    if strangers:
        raise RunError(
            "the directory holds files that are not a run's",
            where=str(layout.root),
            got=", ".join(sorted(str(path.relative_to(layout.root)) for path in strangers)[:5]),
            wanted="an interrupted run, or a new or empty directory",
        )
    # A kill may have cut even the first line short; then there is no entry yet.
    begun = layout.ledger.is_file() and b"\n" in layout.ledger.read_bytes()
    if begun and any(entry.kind not in _FREE_KINDS for entry in Ledger.load(layout.ledger).entries):
        raise RunError(
            "the ledger counts steps, but run.json is missing",
            where=str(layout.root),
            got="a ledger of a run that had begun to train",
            wanted="its run.json beside it",
            fix="restore run.json, or start in a new directory and keep this ledger: what it counts was spent",
        )
    for path in (*inner, *outer):
        path.unlink()
    if layout.private.is_dir():
        layout.private.rmdir()


_KINDS = ("cpu", "cuda")


class PassesOfRun(BaseModel):
    """How passes are computed: their records, and the arithmetic of their products (``float32`` or ``tf32``)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    records: int = Field(ge=1)
    arithmetic: str

    @classmethod
    def of(cls, source: GradientSource, model: nn.Module, device: torch.device) -> PassesOfRun | None:
        """Those of ``source``; None for one whose passes say nothing about a record's privacy."""
        return None if source.pass_size is None else cls(records=source.pass_size, arithmetic=arithmetic_of(model, device))


def kept_to(config: ResolvedConfig, device: str, passes: PassesOfRun | None) -> ResolvedConfig:
    """The settings with which a run is resumed: on its kind of device (``device`` of run.json), with passes of its size."""
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
    changes = {"device": kind} | ({} if passes is None else {"physical_batch": passes.records})
    return config.model_copy(update={"performance": config.performance.model_copy(update=changes)})


def refuse_other_passes(kept: PassesOfRun | None, found: PassesOfRun | None) -> None:
    """Refuses to resume with other passes than the run was begun with, and names what differs."""
    if kept is None or found is None or kept == found:
        return
    names = [name for name, value in found if value != getattr(kept, name)]
    raise RunError(
        "the run would go on with other passes than it was begun with",
        where=", ".join(names),
        got=", ".join(f"{name} {getattr(found, name)}" for name in names),
        wanted=", ".join(f"{name} {getattr(kept, name)}" for name in names),
        fix="set torch's arithmetic (allow_tf32) as it was, or start a new run",
    )


@dataclass(frozen=True)
class RunState:
    """An unfinished run as its files hold it. Rank 0 broadcasts it, the key included (docs/decisions/0013)."""

    record: dict[str, Any]
    source: dict[str, Any] | None
    key: Key
    passes: PassesOfRun | None = None

    @classmethod
    def read(cls, root: Path) -> RunState:
        """From ``run.json`` and the private folder."""
        record, private = read_run_json(root, STARTED), RunLayout(root).private
        passes = private / private_files.PASSES
        return cls(
            record,
            private_files.load_source(private),
            private_files.load_key(private),
            read_json(passes).typed(PassesOfRun) if passes.is_file() else None,
        )

    def broadcast(self, ranks: Ranks) -> None:
        """To the other ranks."""
        passes = None if self.passes is None else self.passes.model_dump()
        message = {"record": self.record, "source": self.source, "key": self.key.secret.hex(), "passes": passes}
        ranks.from_first(json.dumps(message).encode())

    @staticmethod
    def broadcast_complete(ranks: Ranks) -> None:
        """Says that there is nothing to do."""
        ranks.from_first(b"")

    @classmethod
    def received(cls, ranks: Ranks) -> RunState | None:
        """What rank 0 has broadcast; None where the run is complete."""
        content = ranks.from_first(None)
        if not content:
            return None
        message = json.loads(content)
        passes = None if message["passes"] is None else PassesOfRun(**message["passes"])
        return cls(message["record"], message["source"], Key(bytes.fromhex(message["key"])), passes)


def agree_on_data(ranks: Ranks, dataset: Dataset, key: Key) -> None:
    """Stops all ranks unless each has loaded the same records in the same order; their digests are keyed with the run's key."""
    if ranks is ALONE:
        return
    secret = key.stream("records of the ranks", length=KEY_BYTES)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        ranks.agree(f"the {name} records", fingerprint(split, secret))


SECTION = "prior"


def describe_prior(config: ResolvedConfig) -> dict[str, Any]:
    """The section ``prior`` of run.json: name and SHA-256 of the file in the package; nothing for a random start."""
    if config.prior is Prior.NONE:
        return {}
    return {SECTION: {"name": str(config.prior), "sha256": prior_sha256(config.model)}}


def refuse_other_prior(config: ResolvedConfig, record: dict[str, Any]) -> None:
    """Refuses to go on with a run that started from other weights than are in this package; older runs do not say."""
    stored, shipped = record.get(SECTION), describe_prior(config).get(SECTION)
    if stored is not None and stored != shipped:
        raise RunError(
            "the run started from other weights than this version has",
            where=f"run.json, {SECTION}",
            got=str(shipped),
            wanted=str(stored),
            fix="resume with the version of twinproof that the run was started with, or start a new run",
        )
