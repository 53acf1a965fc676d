"""Choosing the settings of StoBatch (and AdLM) on MNIST, on training records only: the last 10,000 are held out for it.

    TWINPROOF_DATA=... python benchmarks/tune_stobatch.py --out results/tune-stobatch-mnist.json --processes 6 --minutes 3.5
    TWINPROOF_DATA=... python benchmarks/tune_stobatch.py --out results/tune-2.json --base '{"learning_rate": 2.0}'
    TWINPROOF_DATA=... python benchmarks/tune_stobatch.py --out results/tune-adlm.json --recipe adlm --changes '[{}]'

The grid is the recipe's defaults, with fewer attack steps, and one change of them at a time, for each epsilon; ``--base``
moves its middle and ``--changes`` names other changes. What is recorded of a line: accuracy of the majority of draws, without
attack, under the papers' four attacks at linf 0.1 and under PGD that sees the noise, and the share certified at three small
sizes by the sound bound. Lines come in the order of the grid; none is begun after ``--minutes``. Every finished one is
written, one that failed too, and a second call goes on where the first one stopped.

The test set is never looked at. What a choice among settings costs in privacy is not charged: MNIST is public here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tune_house import HELD_OUT, changes_of, held_out, tune_lines
from tune_under_attack import ATTACK_SIZE, UNDER_ATTACK, Measure, measured
from twinproof.attacks.search import Attack, Keep, attack_named
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.errors import UserError
from twinproof.files import canonical_json, write_json
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now
from twinproof.training.passes import free_device_memory
from twinproof_papers.results_file import merged as merged_settings
from twinproof_papers.under_attack import ATTACKS

Line = dict[str, Any]
Settings = dict[str, Any]

DATA, DELTA, ATTACK_STEPS = "mnist", 1e-5, 10
# Rates of Laplace noise in linf grow with the number of pixels: nothing is certified beyond a hundredth.
SIZES = {"stobatch": (0.001, 0.0025, 0.005), "adlm": (0.0001, 0.0005, 0.001)}
# Attacks in training cost most of the time: fewer and longer steps, the recipe's default since; the paper's are a line too.
MIDDLE: dict[str, Settings] = {"stobatch": {"regulariser": {"attack_steps": 3, "attack_stride": 2.0}}, "adlm": {}}
_LITTLE = 0.5
CHANGES: tuple[Settings, ...] = (
    {},
    {"learning_rate": 2.0},
    {"noise_layer": {"epsilon_r": 4.0}},
    {"regulariser": {"attack_size": 0.5}},
    {"regulariser": {"xi": 0.0}},
    {"noise_layer": {"hidden_share": 0.1}},
    {"learning_rate": 0.5},
    {"noise_layer": {"epsilon_r": 16.0}},
    {"regulariser": {"attack_size": 0.15}},
    {"copies": 1},
    {"learning_rate": 2.0, "schedule": "linear"},
    {"learning_rate": 4.0},
    {"regulariser": {"weight": 30.0}},
    {"noise_layer": {"weights": "measure"}},
    {"regulariser": {"attack_steps": 10, "attack_stride": 1.0}},
    {"copies": 6},
    {"epochs": 40},
    {"epochs": 40, "batch_size": 8192},
    {"schedule": "linear"},
    {"regulariser": {"weight": 0.1}},
    {"model": "gelu-cnn"},
)


@dataclass(frozen=True)
class Task:
    """One training of the grid, and how it is measured."""

    recipe: str
    epsilon: float
    seed: int
    settings: Settings
    inputs: int
    steps: int | None = None

    @property
    def name(self) -> str:
        """One text for one task."""
        return canonical_json(asdict(self))


def merged(*layers: Mapping[str, Any]) -> Settings:
    """Settings over settings; sections are merged, not replaced."""
    return reduce(merged_settings, layers, {})


def effort(epsilon: float) -> Settings:
    """Half of the epochs of a figure; with little budget larger batches, in which the noise is small beside more gradients."""
    return {"epochs": 20, "batch_size": 4096 if epsilon < _LITTLE else 2048}


def grid(
    recipe: str,
    epsilons: Iterable[float],
    seeds: int,
    base: Settings,
    measured_by: Mapping[str, Any],
    changes: Iterable[Settings] = CHANGES,
) -> Iterator[Task]:
    """All tasks, each once: one change of the middle after another, each for every epsilon."""
    seen, budgets = set(), list(epsilons)
    for change in changes:
        for epsilon in budgets:
            for seed in range(seeds):
                settings = merged(effort(epsilon), MIDDLE[recipe], base, change)
                task = Task(recipe, epsilon, seed, settings, **measured_by)
                if task.name not in seen:
                    seen.add(task.name)
                    yield task


def paper_attacks() -> dict[str, Attack]:
    """The four attacks of the papers: steps of size / steps, the last point kept."""
    iterated = {"steps": ATTACK_STEPS, "step_size": ATTACK_SIZE / ATTACK_STEPS}
    return {name: attack_named(name, **({} if name == "fgsm" else iterated), keep=Keep.LAST) for name in ATTACKS}


def one(task: Task) -> Line:
    """Trains and measures one line; what the settings forbid, or a training that diverges, is a line that says so."""
    torch.set_num_threads(1)
    began = time.monotonic()
    dataset = held_out(load(DataConfig(source=DATA)), HELD_OUT)
    steps = {} if task.steps is None else {"steps": task.steps}
    named = {"recipe": task.recipe, "epsilon": task.epsilon, "delta": DELTA, "seed": task.seed}
    quiet = {"performance": {"report_every": 10**9}}
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = train(merged(named, quiet, task.settings, steps), Path(folder) / "run", dataset=dataset)
            trained = time.monotonic() - began
            found = measured(run, dataset, Measure(task.inputs, SIZES[task.recipe], paper_attacks()))
    except UserError as error:
        return {**asdict(task), "error": error.as_dict()}
    finally:
        free_device_memory()
    seconds = {"train_seconds": round(trained, 1), "seconds": round(time.monotonic() - began, 1)}
    return {**asdict(task), **found, "sigma": run.record["config"]["sigma"], **seconds}


def best_lines(lines: Iterable[Line]) -> list[Line]:
    """For each recipe and epsilon the settings of the highest mean accuracy under the papers' attacks over their seeds."""
    groups: dict[tuple[str, float], dict[str, list[Line]]] = {}
    for line in lines:
        if UNDER_ATTACK in line:
            by_settings = groups.setdefault((line["recipe"], line["epsilon"]), {})
            by_settings.setdefault(canonical_json(line["settings"]), []).append(line)
    best = []
    for (recipe, epsilon), by_settings in sorted(groups.items()):
        found = max(by_settings.values(), key=lambda group: fmean(line[UNDER_ATTACK] for line in group))
        chosen = {"recipe": recipe, "epsilon": epsilon, "settings": found[0]["settings"], "seeds": len(found)}
        best.append({**chosen, UNDER_ATTACK: round(fmean(line[UNDER_ATTACK] for line in found), 6)})
    return best


def tune(tasks: Iterable[Task], out: Path, processes: int, minutes: float | None = None) -> None:
    """Works on what ``out`` does not hold yet, and writes it anew after every line."""
    tune_lines(tasks, out, one, write, processes=processes, minutes=minutes)


def write(out: Path, lines: list[Line]) -> None:
    """All lines so far, and the best of them."""
    made = {"device": describe_device(resolve_device("auto")), "versions": software_versions(), "date": utc_now()}
    write_json(out, {"lines": lines, "best": best_lines(lines), "held_out": HELD_OUT, "delta": DELTA, **made})


def main() -> None:
    """Runs the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", choices=sorted(MIDDLE), default="stobatch")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.2, 2.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--base", type=json.loads, default={}, help="settings in JSON that move the middle of the grid")
    parser.add_argument("--changes", type=changes_of, default=CHANGES, help="a list in JSON in the place of the grid's own")
    parser.add_argument("--inputs", type=int, default=500, help="held-out records that are attacked and certified")
    parser.add_argument("--processes", type=int, default=1, help="lines at a time on the one device")
    parser.add_argument("--minutes", type=float, default=None, help="no line is begun after them")
    parser.add_argument("--steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--only", type=int, default=None, help="so many lines of the grid, to try the script out")
    asked = parser.parse_args()
    measured_by = {"inputs": asked.inputs, "steps": asked.steps}
    tasks = list(grid(asked.recipe, asked.epsilon, asked.seeds, asked.base, measured_by, asked.changes))[: asked.only]
    tune(tasks, asked.out, asked.processes, asked.minutes)


if __name__ == "__main__":
    main()
