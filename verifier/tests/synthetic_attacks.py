"""Attacks and an audit for the synthetic run, written from docs/formats/run.md with nothing but numpy and scipy.stats."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from scipy import stats

from synthetic_run import (
    ALPHA,
    CLASSES,
    DRAWS,
    GRID,
    INPUTS,
    LEVELS,
    OPERATOR_NORMS,
    SHAPE,
    SIGMA,
    bind,
    radius,
    sha256,
    tau,
    write_run,
)

NORM, SIZES, ATTACKED, RECORDS = "l2", (0.25, 0.5), 40, 60
HEADER = "index,protocol,target,attack,size,label,aim,length,network,network_unrounded,prediction,votes,top,radius,draws"
KINDS = (("paper", "network"), ("adaptive", "network"), ("adaptive", "smoothed"))
VOTES, OUTWARD, FALSE_FLIPS = 3000, 3.0, 1e-6
# How long a change of length 1 in l2, the norm of the attacks, can be in that of the certificates: inputs have 16 coordinates.
REACH = {"l1": 4.0, "l2": 1.0, "linf": 1.0}
SHARES = ("smoothed", "network", "abstained", "certified")
Row = dict[str, Any]
Change = Callable[[Any], Any]


def stored_inputs() -> NDArray[Any]:
    return np.random.default_rng(8).integers(20, 236, (RECORDS, *SHAPE)).astype(np.uint8)


def stored_labels() -> NDArray[Any]:
    return np.arange(RECORDS) % CLASSES


def certificates(root: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((root / "certificates.csv").read_text().splitlines()))


def certificate_norm(root: Path) -> str:
    return str(json.loads((root / "certificates.json").read_text())["norm"])


def certify_some(root: Path) -> None:
    """Sure and true certificates for every fifth input, so that there is something to contradict."""
    lines, sure = (root / "certificates.csv").read_text().splitlines(), radius(DRAWS, certificate_norm(root))
    for index in range(0, INPUTS, 5):
        label = index % CLASSES
        lines[index + 1] = f"{index},{label},{label},{DRAWS},{label},{sure:.6f},1,{DRAWS}"
    (root / "certificates.csv").write_text("\n".join(lines) + "\n")
    bind(root)


def write_attacked_run(root: Path, *, flips: int = 1, shared: bool = False, norm: str = "l2") -> None:
    """An honest run with certificates, attacks and an audit; ``norm`` is that of the certificates."""
    write_run(root, norm=norm)
    certify_some(root)
    if shared:
        forge_json("certificates.json", lambda settings: settings.update(shared_noise=True))(root)
    write_attacks(root, shared=shared)
    write_audit(root, flips=flips, shared=shared)


def answer(label: int, votes: int, top: int, norm: str) -> Row:
    size = radius(votes, norm)
    return {"prediction": top if size > 0 else -1, "votes": votes, "top": top, "radius": size, "draws": DRAWS, "label": label}


def moved(draws: np.random.Generator, size: float) -> NDArray[np.int64]:
    """A move of a little less than ``size``, in whole levels, in l2."""
    direction = draws.standard_normal((ATTACKED, math.prod(SHAPE)))
    unit = direction / np.linalg.norm(direction, axis=1, keepdims=True)
    whole: NDArray[np.int64] = np.trunc(unit * size * LEVELS * 0.95).astype(np.int64)
    return whole


def attack_lines(root: Path) -> tuple[list[Row], dict[str, NDArray[Any]]]:
    """Lines and tensors; every input that is certified for the first size is misled there, which no chance explains."""
    draws, originals = np.random.default_rng(3), stored_inputs()[:ATTACKED].reshape(ATTACKED, -1).astype(np.int64)
    norm = certificate_norm(root)
    covered = {
        int(row["index"])
        for row in certificates(root)
        if row["correct"] == "1" and float(row["radius"]) >= SIZES[0] * REACH[norm]
    }
    lines, tensors = [], {}
    entries = [("clean", "none", "none", 0.0)]
    entries += [(protocol, target, "fgsm", size) for size in SIZES for protocol, target in KINDS]
    for protocol, target, attack, size in entries:
        points = np.clip(originals + moved(draws, size), 0, LEVELS)
        lengths = np.sqrt(((points - originals) ** 2).sum(axis=1)) / LEVELS
        if size:
            tensors[f"{protocol}/{target}/{attack}/{size:g}"] = points.astype(np.uint8).reshape(ATTACKED, *SHAPE)
        for index in range(ATTACKED):
            label = index % CLASSES
            top = (label + int(draws.integers(2))) % CLASSES
            hit = index in covered and (target, size) == ("smoothed", SIZES[0])
            said = answer(
                label, DRAWS if hit else int(draws.integers(500, DRAWS + 1)), (label + 1) % CLASSES if hit else top, norm
            )
            network = [(label + int(draws.integers(4) == 0)) % CLASSES for _ in range(2)]
            lines.append(
                {
                    "index": index,
                    "protocol": protocol,
                    "target": target,
                    "attack": attack,
                    "size": size,
                    "aim": -1,
                    "length": math.ceil(round(lengths[index] * 1e6, 6)) / 1e6,
                    "network": network[0],
                    "network_unrounded": network[1],
                    **said,
                }
            )
    return lines, tensors


def share(count: int, total: int) -> dict[str, float]:
    low = float(stats.beta.ppf(0.025, count, total - count + 1)) if count else 0.0
    high = float(stats.beta.ppf(0.975, count + 1, total - count)) if count < total else 1.0
    return {
        "value": count / total,
        "low": math.floor(low * 1e6) / 1e6,
        "high": min(1.0, math.ceil(high * 1e6) / 1e6),
        "confidence": 0.95,
    }


def scores(groups: list[list[Row]], reach: float, *, paper: bool = False) -> Row:
    """Over inputs, each with all its versions."""
    counts = dict.fromkeys(SHARES, 0)
    for versions in groups:
        right = [row["prediction"] == row["label"] for row in versions]
        seen = ("network_unrounded",) if paper else ("network", "network_unrounded")
        counts["smoothed"] += all(right)
        counts["network"] += all(row[name] == row["label"] for row in versions for name in seen)
        counts["abstained"] += not all(right) and all(row["prediction"] in (-1, row["label"]) for row in versions)
        counts["certified"] += all(right) and all(row["radius"] >= reach for row in versions)
    return {**{name: share(count, len(groups)) for name, count in counts.items()}, "inputs": len(groups)}


def results(root: Path, lines: list[Row], *, shared: bool = False) -> Row:
    certified = certificates(root)
    settings = json.loads((root / "certificates.json").read_text()) if (root / "certificates.json").is_file() else {}
    reach = REACH[settings.get("norm", "l2")]
    sizes = [at_size(size, size * reach, lines, certified, shared=shared) for size in SIZES]
    clean = [[row] for row in lines if row["protocol"] == "clean"]
    warnings = [f"warning at {one['size']}" for one in sizes for name in ("crossing", "weaker") if one[name]]
    return {
        "clean": scores(clean, 0.0),
        "sizes": sizes,
        "certified_by": {"source": "certificates.csv", "inputs": INPUTS, "alpha": ALPHA},
        "crossing": any(one["crossing"] for one in sizes),
        "rounding": "towards the original",
        "warnings": warnings,
    }


def at_size(size: float, reach: float, lines: list[Row], certified: list[dict[str, str]], *, shared: bool) -> Row:
    def versions(most: float, least: float, kinds: tuple[tuple[str, str], ...]) -> list[list[Row]]:
        """For each input its lines of these kinds with sizes from ``least`` to ``most``."""
        some = [row for row in lines if least <= row["size"] <= most and (row["protocol"], row["target"]) in kinds]
        return [[row for row in some if row["index"] == index] for index in range(ATTACKED)]

    paper = scores(versions(size, size, KINDS[:1]), reach, paper=True)
    targets = ("network", "smoothed")
    each = {f"fgsm on {target}": scores(versions(size, size, (("adaptive", target),)), reach) for target in targets}
    worst = scores(versions(size, 0.0, (("clean", "none"), *KINDS[1:])), reach)
    covered = {int(row["index"]) for row in certified[:ATTACKED] if row["correct"] == "1" and float(row["radius"]) >= reach}
    misled = {row["index"] for row in lines if row["size"] == size and row["prediction"] not in (-1, row["label"])}
    flips = len(covered & misled)
    each_fails = ALPHA + 3 * ALPHA
    tail = ATTACKED * each_fails / max(1, flips) if shared else float(stats.binom.sf(flips - 1, ATTACKED, each_fails))
    chance = tail if flips else 1.0
    lowest = {name: paper[name]["value"] for name in ("network", "smoothed", "certified")}
    difference = {name: lowest[name] - worst[name]["value"] for name in targets}
    return {
        "size": size,
        "reach": reach,
        "certified": {**share(len(covered), ATTACKED), "inputs": ATTACKED},
        "paper": {"attacks": {"fgsm": paper}, "lowest": lowest},
        "adaptive": {"attacks": each, "worst": worst},
        "difference": difference,
        "weaker": min(difference.values()) < 0,
        "flips": flips,
        "flips_probability": chance,
        "crossing": flips > 0 and chance < 1e-6,
    }


def attack_settings(root: Path) -> Row:
    return {
        "format": 2,
        "state": "complete",
        "model_sha256": sha256((root / "model.safetensors").read_bytes()),
        "norm": NORM,
        "sizes": list(SIZES),
        "attacks": ["fgsm"],
        "protocols": ["paper", "adaptive"],
        "steps": 20,
        "step_size": None,
        "restarts": 1,
        "draws": 8,
        "paper_steps": 10,
        "aim": None,
        "inputs": ATTACKED,
        "certificate_norm": certificate_norm(root),
        "sigma": SIGMA,
        "grid": GRID,
        "tau": tau(),
        "law": "gaussian",
        "place": "input",
        "bound": "tight",
        "operator_norm": OPERATOR_NORMS[certificate_norm(root)],
        "slack": 0.0,
        "levels": LEVELS,
        "dimension": math.prod(SHAPE),
        "noise_dimension": math.prod(SHAPE),
        "n0": 100,
        "n": DRAWS,
        "alpha": ALPHA,
        "key": "cd" * 32,
        "random_network": False,
        "form": "as given",
        "device": "cpu",
        "versions": {"numpy": "2"},
        "created": "2026-01-01T00:03:00Z",
        "seconds": 2.5,
    }


def write_attacks(root: Path, *, shared: bool = False) -> None:
    lines, tensors = attack_lines(root)
    text = [
        ",".join(
            format(row[name], ".6f")
            if name in ("length", "radius")
            else format(row[name], "g")
            if name == "size"
            else str(row[name])
            for name in HEADER.split(",")
        )
        for row in lines
    ]
    (root / "attacks.csv").write_text("\n".join([HEADER, *text]) + "\n")
    (root / "attacks.safetensors").write_bytes(save(tensors))
    (root / "attacks.json").write_text(json.dumps({**attack_settings(root), "results": results(root, lines, shared=shared)}))
    bind(root)


def audit_entries(root: Path, flips: int) -> list[Row]:
    """Every claim: the first ``flips`` of the wide ones contradicted, others with a flip beyond the radius, some with none."""
    inputs, entries, left = stored_inputs().reshape(RECORDS, -1), [], flips
    power = 2 if certificate_norm(root) == "l2" else 1
    for row in certificates(root):
        index, prediction, size = int(row["index"]), int(row["prediction"]), float(row["radius"])
        if prediction < 0 or size <= 0:
            continue
        inside = left > 0 and size > 0.1
        left -= inside
        # Whole levels, or in l2 the root of a whole number of squares; one coordinate's ten levels are as long in every norm.
        levels = 10.0 if inside else math.floor((size * LEVELS * 1.5) ** power) ** (1 / power)
        distance = levels / LEVELS
        stored = inputs[index].astype(int).tolist()
        stored[0] += 10
        flip: Row = {
            "distance": distance,
            "ratio": math.floor(distance / size * 1e6) / 1e6,
            "prediction": (prediction + 1) % CLASSES,
            "votes": 2500,
            "draws": VOTES,
            "found_by": "walk",
            "stored": stored if inside else None,
        }
        beyond = not inside and (index % 4 == 0 or distance <= size)
        verdict = "flipped" if inside else "undecided" if index % 5 == 0 else "held"
        entries.append(
            {"index": index, "prediction": prediction, "radius": size, "verdict": verdict, "flip": None if beyond else flip}
        )
    return entries


def verdict_of(entries: list[Row], *, shared: bool = False) -> Row:
    flips = sum(one["verdict"] == "flipped" for one in entries)
    ratios = [one["flip"]["ratio"] for one in entries if one["flip"]]
    tail = min(1.0, INPUTS * ALPHA / max(1, flips)) if shared else float(stats.binom.sf(flips - 1, INPUTS, ALPHA))
    probability = tail if flips else 1.0
    refuted = probability + FALSE_FLIPS < 0.001
    return {
        "inputs": INPUTS,
        "attacked": len(entries),
        "flips": flips,
        "undecided": sum(one["verdict"] == "undecided" for one in entries),
        "alpha": ALPHA,
        "expected": INPUTS * ALPHA,
        "bound": "markov" if shared else "binomial",
        "probability": probability,
        "refuted": refuted,
        "closest": min(ratios),
        "median": math.floor(round(statistics.median(ratios) * 1e6, 3)) / 1e6,
        "beyond_reach": len(entries) - len(ratios),
        "verdict": "refuted" if refuted else "not refuted",
    }


def write_audit(root: Path, *, flips: int = 1, shared: bool = False) -> None:
    entries = audit_entries(root, flips)
    digests = {
        name: sha256((root / file).read_bytes())
        for name, file in (
            ("certificates_sha256", "certificates.csv"),
            ("settings_sha256", "certificates.json"),
            ("model_sha256", "model.safetensors"),
        )
    }
    section: Row = {
        **digests,
        "state": "complete",
        "norm": certificate_norm(root),
        "inputs": INPUTS,
        "attackable": len(entries),
        "within": 0.99,
        "outward": OUTWARD,
        "steps": 40,
        "draws": 32,
        "restarts": 2,
        "directions": 16,
        "rounds": 20,
        "screen": 200,
        "votes": VOTES,
        "false_flips": FALSE_FLIPS,
        "key": "ef" * 32,
        "form": "as given",
        "arithmetic": "float32",
        "attacked": entries,
        "verdict": verdict_of(entries, shared=shared),
        "device": "cpu",
        "versions": {"numpy": "2"},
        "created": "2026-01-01T00:04:00Z",
        "seconds": 3.5,
    }
    (root / "audit.json").write_text(json.dumps({"format": 1, "certificates": section}))
    if section["verdict"]["refuted"]:
        forge_json("run.json", lambda run: run["guarantees"]["robustness"].update(status="refuted"))(root)
    bind(root)


def forge_json(name: str, change: Change) -> Callable[[Path], None]:
    """A lie told in one JSON file, with its digest put right."""

    def apply(root: Path) -> None:
        record = json.loads((root / name).read_text())
        change(record)
        (root / name).write_text(json.dumps(record))
        bind(root)

    return apply


def forge_tensor(name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[Path], None]:
    """A lie told in one tensor of the attacked inputs."""

    def apply(root: Path) -> None:
        tensors = dict(load_file(root / "attacks.safetensors"))
        tensors[name] = np.ascontiguousarray(change(tensors[name]))
        (root / "attacks.safetensors").write_bytes(save(tensors))
        bind(root)

    return apply
