"""A small certified run to attack, its certificates rewritten consistently, and a classifier whose boundary is known."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import twinproof as tp
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.certification.method import Method, Sampling
from twinproof.data.record import Dataset
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.layout import update_run_json
from twinproof.runs.run import Run, load_run_data

CERTIFY_KEY, AUDIT_KEY = Key.from_seed(3), Key.from_seed(5)
LIMIT = 12
CSV, SETTINGS = "certificates/l2/certificates.csv", "certificates/l2/certificates.json"
QUICK = AttackBudget(steps=12, draws=16, restarts=1, directions=4, rounds=6, screen=100, votes=3000)
Row = dict[str, str]


def certified_run(root: Path, **sampling: Any) -> tuple[Path, Dataset]:
    """A network that has learned the digits, and certificates of its first test inputs."""
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 150, "seed": 1}
    run = train({**settings, "performance": {"device": "cpu"}}, root)
    dataset = load_run_data(run)
    certify(root, dataset, **sampling)
    return root, dataset


def certify(root: Path, dataset: Dataset, *, method: Method | None = None, name: str = "l2", **sampling: Any) -> None:
    asked = Sampling(**{"n0": 50, "n": 2000, "alpha": 0.001, **sampling})
    options: dict[str, Any] = {"limit": LIMIT, "device": "cpu", "key": CERTIFY_KEY, "overwrite": True, "name": name}
    tp.certify(Run.open(root), dataset, sampling=asked, method=method, **options)


def rewrite_lines(root: Path, change: Callable[[Row], Row | None]) -> None:
    """Changes or drops lines of ``certificates.csv`` and binds the new file, as a consistent liar would."""
    path = root / CSV
    with open(path, newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        names, rows = list(reader.fieldnames or ()), [change(dict(row)) for row in reader]
    with open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in rows if row is not None)
    update_run_json(root, files=(CSV,))


def rewrite_settings(root: Path, **changes: Any) -> None:
    """Other values of settings, wherever they stand in ``certificates.json``."""
    record = json.loads((root / SETTINGS).read_text())
    for name, value in changes.items():
        sections = (inner for inner in (record, *record.values()) if isinstance(inner, dict) and name in inner)
        next(sections)[name] = value
    (root / SETTINGS).write_text(json.dumps(record))
    update_run_json(root, files=(SETTINGS,))


def times_radius(factor: float) -> Callable[[Row], Row]:
    """The planted bug: radii that are too large."""
    return lambda row: {**row, "radius": f"{float(row['radius']) * factor:.6f}"}


def abstention(row: Row) -> Row:
    return {**row, "prediction": "-1", "radius": "0.000000", "correct": "0"}


def half_space(direction: torch.Tensor, offset: float) -> nn.Module:
    """Class 1 where direction . x > offset: smoothing moves no boundary, so that every distance to it is known exactly."""
    layer = nn.Linear(len(direction), 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack((-direction, direction)))
        layer.bias.copy_(torch.tensor([offset, -offset]))
    return nn.Sequential(layer, nn.Identity())
