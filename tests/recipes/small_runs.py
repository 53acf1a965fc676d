"""Tiny runs for the tests of this folder: data that the tests write themselves, settings, and readers that share no code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

RECORDS, FEATURES, CLASSES = 90, 4, 3
TIME_FIELDS = ("created",)
STAYS_PRIVATE = {"diagnostics.jsonl", "fingerprint.json", "source.json", "times.json"}


def blobs() -> dict[str, NDArray[Any]]:
    """Three clusters in the unit cube, with a test part of their own."""
    generator = np.random.default_rng(5)
    arrays: dict[str, NDArray[Any]] = {}
    for part, count in (("train", RECORDS), ("test", 30)):
        labels = np.arange(count) % CLASSES
        centres = 0.2 + 0.3 * labels[:, None]
        arrays[f"x_{part}"] = np.clip(centres + 0.08 * generator.standard_normal((count, FEATURES)), 0, 1)
        arrays[f"y_{part}"] = labels.astype(np.int64)
    return arrays


def write_blobs(folder: Path, arrays: Mapping[str, NDArray[Any]] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "blobs.npz"
    np.savez(path, **dict[str, Any](blobs() if arrays is None else arrays))
    return path


def without_record(index: int) -> dict[str, NDArray[Any]]:
    arrays = blobs()
    return arrays | {name: np.delete(arrays[name], index, axis=0) for name in ("x_train", "y_train")}


def with_other_record(index: int) -> dict[str, NDArray[Any]]:
    """The record at ``index`` becomes another one, of another class."""
    arrays = blobs()
    arrays["x_train"][index] = 1 - arrays["x_train"][index]
    arrays["y_train"][index] = (arrays["y_train"][index] + 1) % CLASSES
    return arrays


def tiny(source: Path | str, **changes: Any) -> dict[str, Any]:
    """Six private steps on the clusters with much noise, which the accountants count in milliseconds."""
    data = {"source": str(source)} | ({"ranges": {"*": [0.0, 1.0]}} if str(source).endswith(("npz", "csv")) else {})
    settings: dict[str, Any] = {
        "data": data,
        "recipe": "dpsgd",
        "noise_multiplier": 20.0,
        "delta": 1e-4,
        "steps": 6,
        "batch_size": 20,
        "seed": 3,
        "performance": {"device": "cpu", "checkpoint_every": 2, "report_every": 3},
    }
    return settings | changes


def ledger_lines(root: Path) -> list[dict[str, Any]]:
    """All complete lines of the ledger as they lie on the disk."""
    path = root / "ledger.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def announced_steps(root: Path) -> int:
    return sum(line["body"]["steps"] for line in ledger_lines(root) if line["kind"] == "poisson-gaussian")


def run_json(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / "run.json").read_text()))


def model_bytes(root: Path) -> bytes:
    return (root / "model.safetensors").read_bytes()


def released(root: Path) -> dict[str, str]:
    """Every file outside ``private/``, without the time fields that docs/formats/run.md names; digests of times are checked."""
    contents: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() or name.startswith("private/"):
            continue
        contents[name] = _without_times(root, name, path.read_bytes())
    return contents


def _without_times(root: Path, name: str, content: bytes) -> str:
    if name == "run.json":
        record = json.loads(content)
        return json.dumps({key: value for key, value in record.items() if key not in TIME_FIELDS}, sort_keys=True, indent=1)
    return content.hex()


class Stopped(Exception):
    """Stands for whatever ends a run early."""


class StopAfter:
    """A progress display that ends training after some steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def start(self, stage: str, total: int, done: int = 0) -> None:
        pass

    def advance(self, units: int = 1) -> None:
        self._left -= 1
        if self._left < 0:
            raise Stopped

    def say(self, text: str) -> None:
        pass


@contextmanager
def one_thread() -> Iterator[None]:
    """Bits are promised for one number of threads; and a forked child must not wait for the parent's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
