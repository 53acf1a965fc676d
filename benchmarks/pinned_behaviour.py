"""Seeded runs of every kind, reduced to values that a change of the code's shape must not change.

    python benchmarks/pinned_behaviour.py --out results/pinned-behaviour.json          # pin
    python benchmarks/pinned_behaviour.py --against results/pinned-behaviour.json      # compare, exit 1 on any difference

Weights, ledger events (without digests of settings), certificate lines, attack lines and verdicts are compared value for
value. Bits are promised on one kind of CPU, torch version and thread count, so a comparison is only meaningful against a file
made on the same machine; ``made`` names it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import twinproof as tp
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.federated.local import federate_shares
from twinproof.keys import Key

KEY = Key.from_seed(7)
SMALL = {"steps": 6, "batch_size": 64, "seed": 7, "performance": {"device": "cpu"}}
SAMPLING = tp.Sampling(n0=20, n=200)
LIMIT = 8
RECIPES = (
    "regular",
    "gaussian",
    "dpsgd",
    "psac",
    "dpcert-gaussian",
    "dpcert-smoothadv",
    "dpcert-stability",
    "dpcert-consistency",
    "dpcert-macer",
    "twinproof",
    "pixeldp",
    "hgm-pixeldp",
    "securesgd",
    "securesgd-agm",
    "stobatch",
    "adlm",
)
PUBLISHED = ("pixeldp", "hgm-pixeldp", "securesgd", "securesgd-agm", "stobatch", "adlm")
PLAIN = ("regular", "gaussian")


def settings_of(recipe: str, **more: Any) -> dict[str, Any]:
    """A tiny seeded training on the digits."""
    private = {} if recipe in PLAIN or more.get("variant") == "published" else {"noise_multiplier": 1.0, "delta": 1e-4}
    return {"data": {"source": "digits"}, "recipe": recipe, **SMALL, **private, **more}


def digest(content: bytes) -> str:
    """Short, and long enough."""
    return hashlib.sha256(content).hexdigest()[:16]


def ledger_events(root: Path) -> list[Any]:
    """What was spent, without digests and what depends on words."""
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    left_out = {"config_sha256", "format", "neighbours", "model_sha256"}
    return [[line["kind"], {k: v for k, v in line["body"].items() if k not in left_out}] for line in lines]


def run_values(root: Path) -> dict[str, Any]:
    """Everything of a run that must stay: weights, ledger, accuracy, progress."""
    record = json.loads((root / "run.json").read_text())
    return {
        "weights": digest((root / "model.safetensors").read_bytes()),
        "ledger": ledger_events(root),
        "accuracy": record["accuracy"]["correct"],
        "metrics": digest((root / "metrics.jsonl").read_bytes()),
        "status": record["guarantees"]["privacy"]["status"],
    }


def table(path: Path) -> str:
    """A table's values, independent of how the file is called."""
    with path.open(newline="") as file:
        return digest(json.dumps(list(csv.reader(file))).encode())


def one(root: Path, name: str) -> Path:
    """The only file of that name in a run, wherever the format puts it."""
    found = sorted(root.rglob(name))
    if len(found) != 1:
        raise SystemExit(f"{root}: {len(found)} files named {name}")
    return found[0]


def certified(root: Path, **more: Any) -> dict[str, Any]:
    """Certifies a run (replacing earlier certificates) and gives its lines."""
    run = tp.Run.open(root)
    method = more.pop("method", None)
    sampling = more.pop("sampling", SAMPLING)
    tp.certify(
        run,
        tp.load_run_data(run),
        sampling=sampling,
        method=method,
        limit=LIMIT,
        device="cpu",
        overwrite=True,
        key=KEY,
        name="pinned",
        **more,
    )
    return {"certificates": table(one(root, "certificates.csv")), "problems": len(tp.verify(root).problems)}


class Pins:
    """The values by the name of their case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[str, Any] = {}

    def case(self, name: str, work: Callable[[Path], Any]) -> None:
        """Runs one case in a folder of its own."""
        began = time.monotonic()
        self.values[name] = work(self.folder / name.replace(" ", "-"))
        print(f"{time.monotonic() - began:6.1f} s  {name}", file=sys.stderr, flush=True)

    def recipes(self) -> None:
        """Every recipe, certified in its own norm."""
        for recipe in RECIPES:
            for variant in ("sound", "published") if recipe in PUBLISHED else ("sound",):

                def work(root: Path, recipe: str = recipe, variant: str = variant) -> Any:
                    tp.train(settings_of(recipe, variant=variant), root)
                    return {**run_values(root), **certified(root)}

                self.case(f"{recipe} {variant}", work)

    def methods(self) -> None:
        """Norms, bounds, statistics, laws and places on the runs that the recipes left."""
        plain, layer, both = (self.folder / f"{name}-sound" for name in ("dpcert-gaussian", "hgm-pixeldp", "stobatch"))
        laplace = self.folder / "adlm-sound"
        for norm in ("l1", "linf"):
            for root in (plain, layer, laplace, both):
                self.again(f"{norm} {root.name}", root, method=tp.Method(norm=norm))
        for bound in ("hgm", "pixeldp", "published"):
            self.again(f"bound {bound}", layer, method=tp.Method(norm="linf", bound=bound))
        self.again("composition", both, method=tp.Method(norm="linf", bound="composition"))
        scores = tp.Method(statistic="scores", confidence="empirical-bernstein", runner_up="union")
        self.again("scores and union", plain, method=scores)
        self.again("shared noise", plain, sampling=tp.Sampling(n0=20, n=200, shared_noise=True))
        self.again("target radius", plain, sampling=tp.Sampling(n0=20, n=2000, target_radius=0.2))

    def again(self, name: str, root: Path, **more: Any) -> None:
        """Certifies a run once more, in another way."""
        self.case(name, lambda _: certified(root, **more))

    def attacks(self) -> None:
        """Attacks and the audit of certificates, at the input and behind a layer."""
        plan = tp.AttackPlan(sizes=(0.5,), steps=3, draws=2)
        for name in ("dpcert-gaussian-sound", "hgm-pixeldp-sound"):

            def work(_: Path, root: Path = self.folder / name) -> Any:
                certified(root)
                run = tp.Run.open(root)
                data = tp.load_run_data(run)
                tp.attack(run, data, plan=plan, sampling=SAMPLING, limit=4, device="cpu", key=KEY)
                lines = table(one(root, "attacks.csv"))
                budget = AttackBudget(steps=3, draws=4, restarts=1, directions=2, rounds=1, screen=50, votes=500)
                tp.audit(run, data, budget=budget, limit=4, device="cpu", key=Key.from_seed(8))
                audits = [path for path in root.rglob("*.json") if path.name == "audit.json" or path.parent.name == "audits"]
                entries = json.loads(audits[0].read_text())["certificates"]["attacked"]
                return {"attacks": lines, "audit": entries, "problems": len(tp.verify(root).problems)}

            self.case(f"attacked {name}", work)

    def other_ways(self) -> None:
        """Two ranks, a kill and a resumption, a federation: each ends with values of its own that must stay."""
        command = [sys.executable, "-m", "twinproof", "train", "--data", "digits", "--recipe", "dpcert-gaussian"]
        choices = [
            "--seed",
            "7",
            "--set",
            "steps=40",
            "--set",
            "batch_size=64",
            "--set",
            "noise_multiplier=1",
            "--delta",
            "1e-4",
        ]
        choices += ["--device", "cpu", "--set", "performance.checkpoint_every=5"]

        def two_ranks(root: Path) -> Any:
            ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", *command[2:]]
            subprocess.run([*ranks, *choices, "--out", str(root)], check=True, capture_output=True)
            return run_values(root)

        def killed(root: Path) -> Any:
            child = subprocess.Popen([*command, *choices, "--out", str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            checkpoint = root / "private" / "checkpoint.safetensors"
            while child.poll() is None and not checkpoint.exists():
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
            child.wait()
            subprocess.run([*command[:4], "--out", str(root), "--resume"], check=True, capture_output=True)
            return run_values(root)

        def federation(root: Path) -> Any:
            federate_shares(settings_of("dpsgd"), tp.data.load("digits"), root, parties=3)
            return run_values(root)

        self.case("two ranks", two_ranks)
        self.case("killed and resumed", killed)
        self.case("federated", federation)


def pinned() -> dict[str, Any]:
    """All values; about two minutes on one core."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pins = Pins(Path(folder))
        pins.recipes()
        pins.methods()
        pins.attacks()
        pins.other_ways()
        return pins.values


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--out", type=Path, help="file to write the values to")
    which.add_argument("--against", type=Path, help="file to compare the values with")
    arguments = parser.parse_args()
    values = pinned()
    if arguments.out is not None:
        made = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "torch": torch.__version__, "machine": platform.machine()}
        made["cpu"] = torch.backends.cpu.get_cpu_capability()
        arguments.out.write_text(json.dumps({"made": made, "values": values}, indent=1) + "\n")
        return
    before = json.loads(arguments.against.read_text())["values"]
    values = json.loads(json.dumps(values))
    changed = [name for name in sorted({*before, *values}) if before.get(name) != values.get(name)]
    for name in changed:
        print(f"changed: {name}\n  before {json.dumps(before.get(name))}\n  now    {json.dumps(values.get(name))}")
    print(f"{len(values) - len(changed)} of {len(values)} cases are the same")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
