"""What must hold before a directory is continued, and what ranks and passes agree on.

Steps after the last checkpoint are taken again with the noise that they had. Nobody has seen their first version
(docs/decisions/0001), so that this costs nothing even where the sum comes out a little different. But passes that depend on
the machine would make it more than a little: copies and dropout belong to passes, and a CPU and a GPU draw other records for
the same key. So the kind of device, the records of a pass and the arithmetic are the run's own from its first step on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from twinproof.compute.devices import arithmetic_of, resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.data.record import Dataset, fingerprint
from twinproof.errors import ConfigError, RunError
from twinproof.keys import KEY_BYTES, Key
from twinproof.layers.prior import Prior, prior_sha256
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.run_data import public_config
from twinproof.runs import private_files
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.private_files import WRITTEN_FIRST
from twinproof.training.distributed import SharedLedger
from twinproof.training.loop import GradientSource

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
    """Refuses settings that are not the run's. One that is left open (None) agrees with whatever was decided for it."""
    other = [key for key, value in public_config(given).items() if not _agrees(key, value, stored.get(key, _default(key)))]
    if not find_recipe(given.recipe).private:  # it drops what was said about privacy
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


def clear_stillborn(layout: RunLayout) -> None:
    """Removes what a start that was killed before ``run.json`` left; nothing had been spent on steps or shown to anybody.

    Guarantees
        Only files that such a start writes are removed. One that it does not write, a ledger that announces a step, or a
        ledger that cannot be read ends in an error, and nothing is touched.
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
    _refuse_spent(layout)
    for path in (*inner, *outer):
        path.unlink()
    if layout.private.is_dir():
        layout.private.rmdir()


def _refuse_spent(layout: RunLayout) -> None:
    # A kill may have cut even the first line short; then there is no entry yet.
    begun = layout.ledger.is_file() and b"\n" in layout.ledger.read_bytes()
    entries = Ledger.load(layout.ledger).entries if begun else []
    if any(entry.kind not in _FREE_KINDS for entry in entries):
        raise RunError(
            "the ledger counts steps, but run.json is missing",
            where=str(layout.root),
            got="a ledger of a run that had begun to train",
            wanted="its run.json beside it",
            fix="restore run.json, or start in a new directory and keep this ledger: what it counts was spent",
        )


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


@dataclass(frozen=True)
class Told:
    """What rank 0 tells the others about an unfinished run: ``run.json``, where the data lie, the key, and its passes."""

    record: dict[str, Any]
    source: dict[str, Any] | None
    key: Key
    passes: PassesOfRun | None = None


def tell(ranks: Ranks, root: Path, key: Key, passes: PassesOfRun | None = None) -> None:
    """Rank 0 tells the others what they are to train, the key included (docs/decisions/0013)."""
    if ranks is not ALONE:
        source = private_files.load_source(RunLayout(root).private)
        told: dict[str, Any] = {"record": read_run_json(root), "source": source, "key": key.secret.hex()}
        told["passes"] = None if passes is None else passes.as_dict()
        ranks.from_first(json.dumps(told).encode())


def tell_complete(ranks: Ranks) -> None:
    """Rank 0 tells the others that there is nothing to do."""
    ranks.from_first(b"")


def told(ranks: Ranks) -> Told | None:
    """What rank 0 told; None where the run is complete."""
    message = ranks.from_first(None)
    if not message:
        return None
    record = json.loads(message)
    passes = PassesOfRun.from_dict(record["passes"])
    return Told(record["record"], record["source"], Key(bytes.fromhex(record["key"])), passes)


def agree_on_data(ranks: Ranks, dataset: Dataset, key: Key) -> None:
    """Stops all ranks unless each has loaded the same records in the same order.

    Guarantees
        The digests that travel are keyed with the run's key: they tell nobody else anything about the records.
    """
    if ranks is ALONE:
        return
    secret = key.stream("records of the ranks", length=KEY_BYTES)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        ranks.agree(f"the {name} records", fingerprint(split, secret))


def shared_ledger(ranks: Ranks, ledger: Ledger, path: Path) -> Ledger:
    """The ledger that all ranks keep together; its entries are those of ``ledger``, now and later."""
    return ledger if ranks is ALONE else SharedLedger(path, ledger.entries, ranks)


SECTION = "prior"


def describe_prior(config: ResolvedConfig) -> dict[str, Any]:
    """The section ``prior`` of run.json: name and SHA-256 of the file in the package; nothing for a random start."""
    if config.prior is Prior.NONE:
        return {}
    return {SECTION: {"name": str(config.prior), "sha256": prior_sha256()}}


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
