"""What a run keeps in ``private/``: it depends on the training records, is readable by the owner alone and never released."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from twinproof.data.record import Split, fingerprint
from twinproof.errors import RunError
from twinproof.files import append_line, read_bounded, write_atomic, write_json
from twinproof.keys import Key
from twinproof.runs.reading import Digest, Length, StepLine, read_json, read_lines

_KEY, _FINGERPRINT, _SOURCE, _DIAGNOSTICS = "key", "fingerprint.json", "source.json", "diagnostics.jsonl"
_TIMES, PASSES = "times.json", "passes.json"
# What a start writes before ``run.json`` is there, in this order.
WRITTEN_FIRST = (_SOURCE, _FINGERPRINT, _KEY)
_LARGEST_KEY = 4096


class _Fingerprint(BaseModel):
    key: Digest
    hmac_sha256: Digest


class _Times(BaseModel):
    seconds: Length


def save_key(folder: Path, key: Key) -> None:
    """Keeps the noise key for as long as training lasts."""
    write_atomic(folder / _KEY, key.secret.hex().encode())
    (folder / _KEY).chmod(0o600)


def load_key(folder: Path) -> Key:
    """The noise key of an unfinished run."""
    path = folder / _KEY
    try:
        if not path.is_file():
            raise ValueError("no such file")
        return Key(bytes.fromhex(read_bounded(path, _LARGEST_KEY).decode("ascii")))
    except ValueError as error:
        raise RunError(
            "the noise key of this run cannot be read",
            where=str(path),
            got=error,
            wanted="the key that the run was started with",
            fix="start a new run; this one cannot be continued without its key",
        ) from error


def save_fingerprint(folder: Path, training: Split) -> None:
    """Keeps a keyed digest of the training records, with its key: it lets the owner recognise them, and nobody else."""
    key = secrets.token_bytes(32)
    write_json(folder / _FINGERPRINT, {"key": key.hex(), "hmac_sha256": fingerprint(training, key)})


def check_fingerprint(folder: Path, training: Split) -> None:
    """Refuses to go on with other records: the same noise on two data sets would let one subtract it."""
    path = folder / _FINGERPRINT
    if not path.is_file():
        raise RunError("the fingerprint of the training records is missing", where=str(path), got="no such file")
    kept = read_json(path).typed(_Fingerprint)
    same = hmac.compare_digest(fingerprint(training, bytes.fromhex(kept.key)), kept.hmac_sha256)
    if not same:
        raise RunError(
            "the training records are not the ones this run was started with",
            where=str(folder / _FINGERPRINT),
            got="another fingerprint",
            wanted="the same records in the same order",
            fix="restore the data, or start a new run: reusing noise on other records would reveal both",
        )


def save_source(folder: Path, settings: Mapping[str, Any]) -> None:
    """Keeps where the data lie on the owner's machine, so that later commands find them."""
    write_json(folder / _SOURCE, dict(settings))


def load_source(folder: Path) -> dict[str, Any] | None:
    """Where the data lay, or None where the run came without its private folder."""
    path = folder / _SOURCE
    return read_json(path).record if path.is_file() else None


def save_passes(folder: Path, passes: Mapping[str, Any]) -> None:
    """Keeps how the passes of a run's steps are computed, for as long as training lasts."""
    write_json(folder / PASSES, dict(passes))


def save_times(folder: Path, *, finished: str, seconds: float) -> None:
    """Keeps when training ended and how long it took: that tells how many records the steps drew."""
    write_json(folder / _TIMES, {"finished": finished, "seconds": round(seconds, 3)})


def load_seconds(folder: Path) -> float | None:
    """The seconds that ``save_times`` kept; None where the run came without its private folder."""
    path = folder / _TIMES
    return read_json(path).typed(_Times).seconds if path.is_file() else None


def append_diagnostics(folder: Path, line: Mapping[str, Any]) -> None:
    """Adds a line of sensitive numbers (batch sizes, clipping, broken gradients)."""
    append_line(folder / _DIAGNOSTICS, json.dumps(dict(line)))


def rewind_diagnostics(folder: Path, steps: int) -> None:
    """Forgets lines of steps that will be taken again."""
    path = folder / _DIAGNOSTICS
    if path.is_file():
        kept = [line for line in read_lines(path, StepLine) if line["step"] < steps]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept).encode())


def forget_training_secrets(folder: Path, checkpoint: str) -> None:
    """Removes the noise key (whoever had it could subtract the noise), the checkpoint and what else only a resume needs."""
    for name in (_KEY, PASSES, checkpoint):
        (folder / name).unlink(missing_ok=True)
