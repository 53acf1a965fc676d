"""How long `verify` takes and how much memory it needs for runs that are large or made to stall it.

    python benchmarks/verify_limits.py --out results/verify-limits.json

Every run goes through the command line in a process of its own, whose address space is limited to 6,000,000 KiB: what ``ulimit
-v 6000000`` does. Limits are held against seconds of the processor, which other work on the machine does not change. Runs are
made from the demo run among the tests' fixtures. ``--quick`` has small sizes, for the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtri

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.files import write_json
from twinproof.runs.layout import software_versions, utc_now
from twinproof_verify.epsilon import MOST_STEPS, SMALLEST_NOISE, Mechanism, account
from twinproof_verify.layers import convolution, linear
from twinproof_verify.operator_norms import least_provable

DEMO = Path(__file__).parents[1] / "tests" / "fixtures" / "format-1" / "demo"
ADDRESS_SPACE = 6_000_000 * 1024
SEED = 19
# The most that a case may take: seconds and MiB; a million certificates, any ledger, anything else.
MILLION, LEDGER, ANY = (15.0, 1500.0), (30.0, 1500.0), (30.0, 4000.0)

Change = Callable[[Path, int], None]


def bind(root: Path, *names: str) -> None:
    """Writes the digests of ``names`` into run.json."""
    record = json.loads((root / "run.json").read_text())
    for name in names:
        record["files"][name] = {"sha256": hashlib.sha256((root / name).read_bytes()).hexdigest()}
    (root / "run.json").write_text(json.dumps(record))


def without_attacks(root: Path) -> None:
    """Attacks speak of the certificates, which are about to change."""
    record = json.loads((root / "run.json").read_text())
    for name in ("attacks/l2/attacks.json", "attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors"):
        (root / name).unlink()
        del record["files"][name]
    (root / "run.json").write_text(json.dumps(record))


def many_certificates(root: Path, size: int) -> None:
    """``size`` honest certificates with all kinds of votes."""
    without_attacks(root)
    settings = json.loads((root / "certificates/l2/certificates.json").read_text())
    record = json.loads((root / "run.json").read_text())
    generator = np.random.default_rng(SEED)
    draws, alpha, noise = settings["sampling"]["n"], settings["sampling"]["alpha"], settings["noise"]
    votes = generator.integers(0, draws + 1, size)
    low = np.where(votes > 0, betaincinv(np.maximum(votes, 1), draws - np.maximum(votes, 1) + 1.0, alpha), 0) - noise["tau"]
    radius = np.where(low > 0.5, np.floor(noise["sigma"] * ndtri(np.maximum(low, 0.5)) * 1e6) / 1e6, 0.0)
    label, top = generator.integers(0, 10, size), generator.integers(0, 10, size)
    answer = np.where(low > 0.5, top, -1)
    lines = zip(*(column.tolist() for column in (label, answer, votes, top, radius)), strict=True)
    rows = [f"{at},{y},{a},{v},{t},{r:.6f},{int(a == y)},{draws}\n" for at, (y, a, v, t, r) in enumerate(lines)]
    (root / "certificates/l2/certificates.csv").write_text(
        "index,label,prediction,votes,top,radius,correct,draws\n" + "".join(rows)
    )
    (root / "certificates/l2/certificates.json").write_text(json.dumps(settings | {"inputs": size}))
    # Of no data set that comes with the package: a million digits are not there to be asked again.
    record["data"] |= {"name": "many", "test_records": max(size, record["data"]["test_records"])}
    (root / "run.json").write_text(json.dumps(record))
    bind(root, "certificates/l2/certificates.csv", "certificates/l2/certificates.json")


def many_attack_lines(root: Path, size: int) -> None:
    """The demo's own lines again and again: more than attacks.json asks for, but each of them sound."""
    lines = (root / "attacks/l2/attacks.csv").read_bytes().split(b"\n")
    body = b"\n".join(lines[1:-1]) + b"\n"
    times = max(1, size // (len(lines) - 2))
    (root / "attacks/l2/attacks.csv").write_bytes(lines[0] + b"\n" + body * times)
    bind(root, "attacks/l2/attacks.csv")


def written(name: str, content: Callable[[int], bytes]) -> Change:
    """A file replaced by ``content`` of so many bytes."""

    def change(root: Path, size: int) -> None:
        (root / name).write_bytes(content(size))
        if name != "run.json":
            bind(root, name)

    return change


def hollow_weights(root: Path, size: int) -> None:
    """A file of zeros that takes no room on the disk."""
    with (root / "model.safetensors").open("r+b") as file:
        file.truncate(size)


HEADER = b"index,label,prediction,votes,top,radius,correct,draws\n"
MIB = 2**20
# Name: what is changed, its size, its size where it has to be quick, and what it may take.
RUNS: dict[str, tuple[Change | None, int, int, tuple[float, float]]] = {
    "the demo run": (None, 0, 0, ANY),
    "certificates": (many_certificates, 10**6, 10**4, MILLION),
    "attack lines": (many_attack_lines, 10**6, 10**4, MILLION),
    "run.json of brackets": (written("run.json", lambda size: b'{"a": ' + b"[" * size), 16 * MIB - 10, MIB, ANY),
    "run.json of one number": (written("run.json", lambda size: b'{"a": ' + b"9" * size + b"}"), 16 * MIB - 10, MIB, ANY),
    "run.json of keys": (
        written("run.json", lambda size: b"{" + b",".join(b'"k%d":0' % at for at in range(size // 12)) + b"}"),
        15 * MIB,
        MIB // 8,
        ANY,
    ),
    "certificates.json of lists": (
        written("certificates/l2/certificates.json", lambda size: b'{"looks": [' + b"[]," * (size // 3) + b"0]}"),
        15 * MIB,
        MIB // 8,
        ANY,
    ),
    "ledger of empty objects": (written("ledger.jsonl", lambda size: b"{}\n" * (size // 3)), 16 * MIB - 10, MIB // 8, ANY),
    "ledger of line ends": (written("ledger.jsonl", lambda size: b"\n" * size), 16 * MIB - 10, MIB // 8, ANY),
    "metrics of empty objects": (written("metrics.jsonl", lambda size: b"{}\n" * (size // 3)), 16 * MIB - 10, MIB // 8, ANY),
    "metrics of numbers": (
        written("metrics.jsonl", lambda size: b'{"step": 1}\n' * (size // 12)),
        16 * MIB - 10,
        MIB // 8,
        ANY,
    ),
    "certificates of line ends": (
        written("certificates/l2/certificates.csv", lambda size: HEADER + b"\n" * size),
        250 * MIB,
        MIB,
        ANY,
    ),
    "certificates of one line": (
        written("certificates/l2/certificates.csv", lambda size: HEADER + b"1" * size + b"\n"),
        250 * MIB,
        MIB,
        ANY,
    ),
    "certificates of commas": (
        written("certificates/l2/certificates.csv", lambda size: HEADER + b"1," * (size // 2)),
        250 * MIB,
        MIB,
        ANY,
    ),
    "attacks of commas": (written("attacks/l2/attacks.csv", lambda size: b"a,a,a,1" * (size // 7)), 250 * MIB, MIB, ANY),
    "weights beyond the limit": (hollow_weights, 2**35, 2**35, ANY),
    "weights of no bytes": (hollow_weights, 2**29, 2**24, ANY),
}


def verify(root: Path, *, limited: bool = True) -> dict[str, Any]:
    """One call of the command line: seconds (processor, clock), MiB at most, exit status, problems and the first of them."""
    started = time.monotonic()
    output = root.parent / "answer.json"
    child = os.fork()
    if child == 0:
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.execv(sys.executable, [sys.executable, "-m", "twinproof", "verify", str(root), "--json"])
    _, status, usage = os.wait4(child, 0)
    answer = json.loads(output.read_text() or "{}")
    problems = answer.get("problems", [])
    return {
        "seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_seconds": round(time.monotonic() - started, 2),
        "mebibytes": round(usage.ru_maxrss / 1024),
        "status": os.waitstatus_to_exitcode(status),
        "problems": len(problems),
        "first": problems[0]["what"] if problems else "",
    }


def measured_runs(*, quick: bool, only: list[str]) -> list[dict[str, Any]]:
    """All runs, one after the other."""
    rows = []
    for name, (change, size, small, limits) in RUNS.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = Path(shutil.copytree(DEMO, Path(folder) / "run"))
            if change is not None:
                change(root, small if quick else size)
            rows.append({"run": name, "size": small if quick else size, **verify(root), "limits": limits})
    return rows


def ledgers(count: int) -> dict[str, dict[Mechanism, int]]:
    """Ledgers that took long before there was a limit, and random ones at the edges of what is counted."""
    made = {
        "a usual one": {Mechanism(0.0042, 1.1): 10_000, Mechanism(1.0, 20.0): 1},
        "16 mechanisms at noise 0.3": {Mechanism(1.0, 0.3 + at / 100): 1 for at in range(16)},
        "16 samples at noise 0.3": {Mechanism(0.5, 0.3 + at / 100): 1 for at in range(16)},
        "16 samples at noise 0.1": {Mechanism(1e-6, SMALLEST_NOISE + at / 1000): 1 for at in range(16)},
        "16 Laplace mechanisms and samples": {
            Mechanism(1.0 if at % 2 else 0.01, 0.2 + at / 100, bool(at % 2)): 2 for at in range(16)
        },
        "ten million steps": {Mechanism(1e-12, 0.5): MOST_STEPS},
    }
    generator = np.random.default_rng(SEED)
    for number in range(count):
        mechanisms = {}
        for _ in range(int(generator.integers(1, 17))):
            laplace = bool(generator.random() < 0.2)
            rate = 1.0 if laplace or generator.random() < 0.3 else float(10 ** generator.uniform(-7, 0))
            noise = float(SMALLEST_NOISE * 10 ** generator.uniform(0, 2) * (1 if generator.random() < 0.9 else 1e6))
            mechanisms[Mechanism(rate, noise, laplace)] = int(10 ** generator.uniform(0, 5 if rate < 1 else 1))
        made[f"random {number}"] = mechanisms
    return made


def measured_ledgers(count: int) -> list[dict[str, Any]]:
    """Seconds of one thread for the epsilons of each."""
    rows = []
    logging.getLogger("absl").setLevel(logging.ERROR)
    for name, mechanisms in ledgers(count).items():
        started = time.thread_time()
        spent = account(mechanisms, 1e-5)
        seconds = round(time.thread_time() - started, 2)
        facts = {"epsilon": None if np.isinf(spent.epsilon) else spent.epsilon, "error": spent.error}
        rows.append({"ledger": name, "mechanisms": len(mechanisms), "seconds": seconds, **facts, "limits": LEDGER[:1]})
    return rows


def measured_norms() -> list[dict[str, Any]]:
    """Seconds of one thread to prove the certifier's norm of first layers, and to refuse one that is 4 % smaller."""
    import torch
    from torch import nn

    from twinproof.privacy.operator_norm import operator_norm

    torch.manual_seed(SEED)
    layers: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "28x28, 32 maps of 5x5, 24x24 outputs": (nn.Conv2d(1, 32, 5), (1, 28, 28)),
        "28x28, 32 maps of 5x5, 14x14 outputs": (nn.Conv2d(1, 32, 5, stride=2, padding=2), (1, 28, 28)),
        "784 inputs, 256 units": (nn.Linear(784, 256), (784,)),
        "3x32x32, 16 maps of 3x3": (nn.Conv2d(3, 16, 3, padding=1), (3, 32, 32)),
    }
    rows = []
    for name, (layer, shape) in layers.items():
        weight = layer.get_parameter("weight").detach().double().numpy()
        if isinstance(layer, nn.Conv2d):
            padding = (int(layer.padding[0]), int(layer.padding[1]))
            read = convolution(weight, shape, tuple(layer.stride), padding)
        else:
            read = linear(weight, shape[0])
        matrix = read.matrix(np.ones(read.outputs))
        for source, target in (("l2", "l2"), ("l2", "l1"), ("linf", "l2"), ("linf", "l1")):
            honest = operator_norm(layer, shape, source=source, target=target).value
            times = []
            for claimed in (honest, 0.96 * honest):
                started = time.thread_time()
                proven = least_provable(matrix, source, target, claimed) == claimed
                times.append(round(time.thread_time() - started, 2))
                if proven != (claimed == honest):
                    raise SystemExit(f"{name}, {source} to {target}: {claimed} is {'' if proven else 'not '}proven")
            rows.append({"layer": name, "norm": f"{source} to {target}", "proven_s": times[0], "refused_s": times[1]})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measures and writes; ends with 1 if a limit was passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ledgers", type=int, default=20, help="random ledgers")
    parser.add_argument("--only", nargs="*", default=[], help="names of runs; nothing else is measured")
    options = parser.parse_args(arguments)
    found = {"runs": measured_runs(quick=options.quick, only=options.only)}
    if not options.only and not options.quick:
        found |= {"ledgers": measured_ledgers(options.ledgers), "norms": measured_norms()}
    for row in [row for rows in found.values() for row in rows]:
        sys.stdout.write(json.dumps(row) + "\n")
    if options.out is not None:
        origin = {"command": "python benchmarks/verify_limits.py", "created": utc_now(), "versions": software_versions()}
        write_json(options.out, origin | {"device": describe_device(resolve_device("cpu")), "seed": SEED, **found})
    late = [row for row in found["runs"] if row["seconds"] > row["limits"][0] or row["mebibytes"] > row["limits"][1]]
    late += [row for row in found.get("ledgers", []) if row["seconds"] > LEDGER[0]]
    # 0: all is right; 1: a check failed. Anything else is a crash.
    late += [row for row in found["runs"] if row["status"] not in (0, 1)]
    if late:
        raise SystemExit(f"beyond the limits: {late}")


if __name__ == "__main__":
    main()
