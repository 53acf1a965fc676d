"""Writes a small, honest run from docs/formats/run.md, and forges one: the author that the verifier is tested against."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from scipy import stats

CLASSES, SHAPE, LEVELS, INPUTS = 3, (1, 4, 4), 255, 50
NOISE, RATE, BLOCKS, DELTA, RANGE_NOISE = 4.0, 0.05, (12, 12, 6), 1e-5, 20.0
SIGMA, GRID, DRAWS, ALPHA = 0.25, 0.0625, 1000, 0.001
CORE_FILES = ("run.json", "model.safetensors", "ledger.jsonl", "metrics.jsonl", "certificates.json", "certificates.csv")
ATTACK_FILES = ("attacks.json", "attacks.csv", "attacks.safetensors", "audit.json")
EVERY_FILE = CORE_FILES + ATTACK_FILES

HEADER = ["index", "label", "prediction", "votes", "top", "radius", "correct", "draws"]

Event = tuple[str, dict[str, Any]]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def up(value: float) -> float:
    return math.ceil(value * 1e6) / 1e6


@cache
def epsilons(steps: int) -> tuple[float, float]:
    """Both epsilons, rounded up, of the honest run after ``steps`` steps."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    sampled = dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(NOISE))
    whole = dp.ComposedDpEvent([dp.GaussianDpEvent(RANGE_NOISE), dp.SelfComposedDpEvent(sampled, steps)])
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    pld = PLDAccountant(relation, value_discretization_interval=1e-4).compose(whole)
    rdp = RdpAccountant(neighboring_relation=relation).compose(whole)
    return up(pld.get_epsilon(DELTA)), up(rdp.get_epsilon(DELTA))


def chain(events: list[Event]) -> str:
    """The ledger's text for these events, with every index, link and hash right."""
    previous, text = "0" * 64, ""
    for index, (kind, body) in enumerate(events):
        line = {"index": index, "kind": kind, "body": body, "previous": previous}
        previous = sha256(canonical(line).encode())
        text += json.dumps({**line, "hash": previous}) + "\n"
    return text


def config() -> dict[str, Any]:
    own: dict[str, Any] = {
        "model": "own:Synthetic",
        "noise_layer": None,
        "data": {"source": "naïve"},
    }  # no such network is asked
    return {"recipe": "dp-sgd", "seed": None, "steps": sum(BLOCKS), "delta": DELTA, "noise_multiplier": NOISE, **own}


def events(model: str, *, private: bool = True) -> list[Event]:
    neighbours = "add-or-remove-one"
    opening = {"format": 1, "config_sha256": sha256(canonical(config()).encode()), "delta": DELTA, "neighbours": neighbours}
    blocks: list[Event] = []
    for at, steps in enumerate(BLOCKS):
        body = {"sample_rate": RATE, "noise_multiplier": NOISE, "first_step": sum(BLOCKS[:at]), "steps": steps}
        blocks.append(("poisson-gaussian", body))
    ranges: Event = ("gaussian", {"noise_multiplier": RANGE_NOISE, "purpose": "feature ranges"})
    pld, rdp = epsilons(sum(BLOCKS))
    closing = {"steps": sum(BLOCKS), "model_sha256": model, "epsilon": pld, "epsilon_rdp": rdp}
    if not private:
        return [("open", opening), ("close", {**closing, "steps": 0, "epsilon": None, "epsilon_rdp": None})]
    return [("open", opening), ranges, *blocks, ("close", closing)]


def guarantee(kind: str, values: dict[str, float]) -> dict[str, Any]:
    words = {"promise": "as stated", "theorem": "a theorem", "assumptions": ["one"], "reason": ""}
    return {"kind": kind, "status": "proven", "values": values, **words}


def run_json() -> dict[str, Any]:
    pld, rdp = epsilons(sum(BLOCKS))
    low, high = (float(stats.beta.ppf(tail, *shape)) for tail, shape in ((0.025, (40, 21)), (0.975, (41, 20))))
    return {
        "format": 1,
        "state": "complete",
        "created": "2026-01-01T00:00:00Z",
        "config": config(),
        "recipe": "dp-sgd",
        "data": {
            "name": "tiny",
            "kind": "image",
            "shape": list(SHAPE),
            "classes": ["a", "b", "c"],
            "levels": LEVELS,
            "test_records": 60,
            "records": 600,
            "feature_names": [],
            "scaling": {"low": [0.0], "high": [1.0], "source": "private", "noise_multiplier": RANGE_NOISE},
        },
        "guarantees": {
            "privacy": guarantee("privacy", {"epsilon": pld, "delta": DELTA}),
            "robustness": guarantee("robustness", {"sigma": SIGMA, "alpha": ALPHA}),
        },
        "privacy": {
            "epsilon": pld,
            "epsilon_rdp": rdp,
            "delta": DELTA,
            "noise_multiplier": NOISE,
            "sample_rate": RATE,
            "steps": sum(BLOCKS),
            "clip_norm": 0.1,
            "divisor": 30,
        },
        "accuracy": {"value": 40 / 60, "low": low, "high": high, "confidence": 0.95, "correct": 40, "total": 60},
        "versions": {"twinproof": "0.1.0"},
        "device": "cpu",
        "files": {},
    }


# How long a change of length 1 can be in l2, for inputs of 16 coordinates.
OPERATOR_NORMS = {"l1": 1.0, "l2": 1.0, "linf": 4.0}


def radius(votes: int, norm: str = "l2") -> float:
    """The radius of the format document, by scipy.stats, rounded down."""
    bound = float(stats.beta.ppf(ALPHA, votes, DRAWS - votes + 1)) if votes else 0.0
    p = bound - tau()
    return math.floor(SIGMA * float(stats.norm.ppf(p)) / OPERATOR_NORMS[norm] * 1e6) / 1e6 if p > 0.5 else 0.0


def tau() -> float:
    return math.prod(SHAPE) * (17 * SIGMA * LEVELS / GRID * 2**-64 + 2**-49) + 2**-36


def certificate_settings(model: str, norm: str = "l2") -> dict[str, Any]:
    return {
        "format": 1,
        "model_sha256": model,
        "norm": norm,
        "sigma": SIGMA,
        "grid": GRID,
        "levels": LEVELS,
        "dimension": math.prod(SHAPE),
        "tau": tau(),
        "n0": 100,
        "n": DRAWS,
        "alpha": ALPHA,
        "key": "ab" * 32,
        "largest_radius": radius(DRAWS, norm),
        "inputs": INPUTS,
        "state": "complete",
        "device": "cpu",
        "versions": {"numpy": "2"},
        "created": "2026-01-01T00:02:00Z",
        "seconds": 1.5,
        "target_radius": None,
        "looks": [{"draws": DRAWS, "alpha": ALPHA}],
        "arithmetic": "float32",
        "form": "as given",
        "shared_noise": False,
        "law": "gaussian",
        "place": "input",
        "bound": "tight",
        "statistic": "votes",
        "confidence": "clopper-pearson",
        "runner_up": "complement",
        "classes": CLASSES,
        "resolution": 1,
        "operator_norm": OPERATOR_NORMS[norm],
        "operator_norm_method": "identity",
        "slack": 0.0,
    }


def certificate_rows(inputs: int = INPUTS, norm: str = "l2") -> list[list[str]]:
    draws = np.random.default_rng(5)
    rows = []
    for index in range(inputs):
        votes = DRAWS if index == 0 else int(draws.integers(400, DRAWS + 1))
        label, top, size = index % CLASSES, int(draws.integers(CLASSES)), radius(votes, norm)
        prediction = top if size > 0 else -1
        rows.append(
            [str(cell) for cell in (index, label, prediction, votes, top, f"{size:.6f}", int(prediction == label), DRAWS)]
        )
    return rows


def csv_text(rows: list[list[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in [HEADER, *rows])


def metrics(*, private: bool = True) -> str:
    text = ""
    for step in (6, 12, 30):
        line = {"step": step, "epoch": step * RATE, "test_accuracy": 0.5, "test_loss": 1.25, "rate": 10.0}
        text += json.dumps({**line, "epsilon": epsilons(step)[0] if private else None}) + "\n"
    return text


def write_run(root: Path, *, private: bool = True, certified: bool = True, norm: str = "l2") -> None:
    """An honest run; ``private`` False makes that of a recipe without privacy. ``norm`` is that of the radii."""
    root.mkdir()
    (root / "private").mkdir(mode=0o700)
    (root / "private" / "fingerprint.json").write_text("{}")
    weights: dict[str, Any] = {
        "weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "bias": np.zeros(3, dtype=np.float64),
    }
    model = save(weights)
    (root / "model.safetensors").write_bytes(model)
    (root / "ledger.jsonl").write_text(chain(events(sha256(model), private=private)))
    (root / "metrics.jsonl").write_text(metrics(private=private))
    (root / "report.html").write_text("<html></html>")
    if certified:
        (root / "certificates.json").write_text(json.dumps(certificate_settings(sha256(model), norm)))
        (root / "certificates.csv").write_text(csv_text(certificate_rows(norm=norm)))
    run = run_json()
    if not certified:
        run["guarantees"]["robustness"]["status"] = "none"
    if not private:
        run["privacy"] = None
        run["guarantees"]["privacy"] |= {"status": "none", "values": {}}
    (root / "run.json").write_text(json.dumps(run))
    bind(root)


def bind(root: Path) -> None:
    """Writes the digests of all files into run.json, as the writer does and as a forger would."""
    inside = [path for folder in ("certificates", "attacks", "audits") for path in sorted((root / folder).rglob("*"))]
    names = [name for name in EVERY_FILE if name != "run.json" and (root / name).is_file()]
    names += [path.relative_to(root).as_posix() for path in inside if path.is_file()]
    run = json.loads((root / "run.json").read_text())
    run["files"] = {name: {"sha256": sha256((root / name).read_bytes())} for name in names}
    (root / "run.json").write_text(json.dumps(run))


def forge_run(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A lie told in run.json alone."""

    def apply(root: Path) -> None:
        run = json.loads((root / "run.json").read_text())
        change(run)
        (root / "run.json").write_text(json.dumps(run))

    return apply


def forge_settings(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A lie told in certificates.json, with its digest put right."""

    def apply(root: Path) -> None:
        settings = json.loads((root / "certificates.json").read_text())
        change(settings)
        (root / "certificates.json").write_text(json.dumps(settings))
        bind(root)

    return apply


def forge_ledger(change: Callable[[list[Event]], Any]) -> Callable[[Path], None]:
    """A lie told in the ledger's events, with a fresh chain and a fresh digest."""

    def apply(root: Path) -> None:
        lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
        story = [(line["kind"], line["body"]) for line in lines]
        change(story)
        (root / "ledger.jsonl").write_text(chain(story))
        bind(root)

    return apply


def forge_lines(name: str, change: Callable[[list[str]], Any]) -> Callable[[Path], None]:
    """A lie told in the lines of a text file, with its digest put right."""

    def apply(root: Path) -> None:
        lines = (root / name).read_text().splitlines(keepends=True)
        change(lines)
        (root / name).write_text("".join(lines))
        bind(root)

    return apply


def forge_cell(row: int, column: int, value: str) -> Callable[[Path], None]:
    """A lie told in one cell of certificates.csv (rows from 0, without the header)."""

    def change(lines: list[str]) -> None:
        cells = lines[row + 1].rstrip("\n").split(",")
        cells[column] = value
        lines[row + 1] = ",".join(cells) + "\n"

    return forge_lines("certificates.csv", change)
