"""Choosing the settings of the house recipe, on training records only: the last 10,000 of a data set are held out for it.

    TWINPROOF_DATA=... python benchmarks/tune_house.py --out results/tune-house.json --processes 4
    TWINPROOF_DATA=... python benchmarks/tune_house.py --out results/tune-house-2.json --base '{"copies": 4}'
    TWINPROOF_DATA=... python benchmarks/tune_house.py --out results/seeds.json --seeds 3 --changes '[{}, {"prior": "none"}]'

The grid is the recipe's defaults and one change of them at a time, for each data set and sigma; ``--base`` moves its middle, so
that a second round starts from what the first one found, and ``--changes`` names other changes than the grid's own. Each line
is trained once for each seed and certified on held-out records. Every finished line is written, one that failed too; a second
call goes on where the first one stopped.

The test set is never looked at. What a choice among settings costs in privacy is not charged: these runs use the training
records of MNIST and Fashion-MNIST, which are public here. Whoever tunes on private records has to charge for it, or tune on
public ones and carry the settings over.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from twinproof.certification.method import Sampling
from twinproof.certification.run import certify
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset, Split
from twinproof.errors import UserError
from twinproof.evaluation.certified import summarize
from twinproof.files import canonical_json, write_json
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now
from twinproof.training.passes import free_device_memory

HELD_OUT = 10_000
_AT_THE_END = 10**9  # one report for each training
RADII = (0.0, 0.25, 0.5, 1.0)
PRIVACY: dict[str, Any] = {"recipe": "twinproof", "epsilon": 3.0, "delta": 1e-5}
MIDDLE: dict[str, Any] = {"batch_size": 2048}
CHANGES: tuple[dict[str, Any], ...] = (
    {},  # gelu-cnn of width 2, from the learned weights
    {"prior": "none"},
    {"model": "tramer-boneh-cnn"},
    {"model": "scatter-cnn"},
    {"width": 1},  # like every other width without learned weights
    {"width": 4},
    {"copies": 2},
    {"copies": 4},
    {"copies": 16},
    {"originals": False},
    {"learning_rate": 1.0},
    {"learning_rate": 4.0},
    {"epochs": 20},
    {"epochs": 80},
    {"batch_size": 4096, "learning_rate": 4.0},
    {"schedule": "cosine"},
    {"schedule": "linear", "learning_rate": 4.0},
    {"averaging": 0.0},
    {"averaging": 0.95},
    {"averaging": 0.995},
    {"regulariser": {"weight": 1.0, "eta": 0.0}},
    {"regulariser": {"weight": 1.0, "eta": 0.5}},
    {"regulariser": {"weight": 5.0, "eta": 0.5}},
)

Line = dict[str, Any]


class Named(Protocol):
    """A task of a grid: a dataclass whose fields begin its line, and one text for them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """One text for one task."""


@dataclass(frozen=True)
class Task:
    """One training of the grid, and how it is measured."""

    data: str
    sigma: float
    seed: int
    settings: dict[str, Any]
    inputs: int
    draws: int
    steps: int | None = None

    def as_dict(self) -> Line:
        """What a finished line begins with, and is known by."""
        named = {"data": self.data, "sigma": self.sigma, "seed": self.seed, "settings": self.settings}
        return {**named, "inputs": self.inputs, "draws": self.draws, "steps": self.steps}

    @property
    def name(self) -> str:
        """One text for one task."""
        return canonical_json(self.as_dict())


def grid(
    data: Iterable[str],
    sigmas: Iterable[float],
    seeds: int,
    base: dict[str, Any],
    measured: dict[str, Any],
    changes: Iterable[dict[str, Any]] = CHANGES,
) -> Iterator[Task]:
    """All tasks, each once: one change of the middle after another, each for every data set and sigma."""
    seen = set()
    for change in changes:
        for source in data:
            for sigma in sigmas:
                for seed in range(seeds):
                    task = Task(source, sigma, seed, {**MIDDLE, **base, **change}, **measured)
                    if task.name not in seen:
                        seen.add(task.name)
                        yield task


def changes_of(text: str) -> tuple[dict[str, Any], ...]:
    """The value of ``--changes``: a list of settings in JSON."""
    changes = json.loads(text)
    if not (isinstance(changes, list) and all(isinstance(change, dict) for change in changes)):
        raise argparse.ArgumentTypeError(f'{text} is not a list of settings, like [{{}}, {{"copies": 8}}]')
    return tuple(changes)


def held_out(dataset: Dataset, number: int) -> Dataset:
    """``dataset`` with its last ``number`` training records in the place of the test set, which is left behind."""
    records = dataset.train
    kept, held = slice(None, len(records) - number), slice(len(records) - number, None)
    return replace(
        dataset,
        train=Split(records.inputs[kept], records.labels[kept]),
        test=Split(records.inputs[held], records.labels[held]),
    )


def one(task: Task) -> Line:
    """Trains and measures one line; what the settings forbid, or a training that diverges, is a line that says so."""
    torch.set_num_threads(1)
    began = time.monotonic()
    dataset = held_out(load(DataConfig(source=task.data)), HELD_OUT)
    steps = {} if task.steps is None else {"steps": task.steps}
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = {**PRIVACY, **task.settings, **steps, "sigma": task.sigma, "seed": task.seed}
            settings["performance"] = {**settings.get("performance", {}), "report_every": _AT_THE_END}
            run = train(settings, Path(folder) / "run", dataset=dataset)
            sampling = Sampling(100, task.draws, 0.001)
            certified = certify(run, dataset, sampling=sampling, limit=task.inputs, key=Key.from_seed(task.seed))
            summary = summarize(certified.certificates, certified.settings, radii=RADII).as_dict()
    except UserError as error:
        return {**task.as_dict(), "error": error.as_dict()}
    finally:
        free_device_memory()
    return {
        **task.as_dict(),
        "accuracy": run.record["accuracy"]["value"],
        **{key: summary[key] for key in ("acr", "certified_accuracy", "smoothed_accuracy", "abstained")},
        "acr_interval": [summary["intervals"]["acr"]["low"], summary["intervals"]["acr"]["high"]],
        "epsilon_of_the_plan": run.epsilon,
        "train_seconds": run.training_seconds,
        "certify_seconds": certified.settings.made.seconds,
        "seconds": round(time.monotonic() - began, 1),
    }


def best_lines(lines: list[Line]) -> list[Line]:
    """For each data set and sigma the settings of the highest mean ACR over their seeds."""
    groups: dict[tuple[str, float], dict[str, list[Line]]] = {}
    for line in lines:
        if "acr" in line:
            by_settings = groups.setdefault((line["data"], line["sigma"]), {})
            by_settings.setdefault(canonical_json(line["settings"]), []).append(line)
    best = []
    for (data, sigma), by_settings in sorted(groups.items()):
        mean, found = max(
            ((sum(line["acr"] for line in group) / len(group), group) for group in by_settings.values()),
            key=lambda pair: pair[0],
        )
        chosen = {"data": data, "sigma": sigma, "settings": found[0]["settings"]}
        best.append({**chosen, "acr": round(mean, 6), "seeds": len(found)})
    return best


def finished(out: Path) -> list[Line]:
    """The lines that an earlier call wrote."""
    return list(json.loads(out.read_text())["lines"]) if out.is_file() else []


def tune(tasks: Iterable[Task], out: Path, processes: int) -> None:
    """Works on what ``out`` does not hold yet, and writes it anew after every line."""
    tune_lines(tasks, out, one, write, processes=processes)


def tune_lines(
    tasks: Iterable[Named],
    out: Path,
    one: Callable[[Any], Line],
    write: Callable[[Path, list[Line]], None],
    *,
    processes: int,
    minutes: float | None = None,
) -> None:
    """Makes the lines that ``out`` does not hold yet, and writes it anew after each; none is begun after ``minutes``."""
    lines, waiting = finished(out), list(tasks)
    fields = type(waiting[0]).__dataclass_fields__ if waiting else ()
    done = {canonical_json({key: line[key] for key in fields}) for line in lines}
    left = [task for task in waiting if task.name not in done]
    until = None if minutes is None else time.time() + 60 * minutes
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for job in as_completed([pool.submit(_in_time, one, task, until) for task in left]):
            line = job.result()
            if line is not None:
                lines.append(line)
                write(out, lines)


def _in_time(one: Callable[[Any], Line], task: Named, until: float | None) -> Line | None:
    """The line, or nothing where the time is over: the task was waiting until then."""
    return None if until is not None and time.time() >= until else one(task)


def write(out: Path, lines: list[Line]) -> None:
    """All lines so far, and the best of them."""
    made = {"device": describe_device(resolve_device("auto")), "versions": software_versions(), "date": utc_now()}
    write_json(out, {"lines": lines, "best": best_lines(lines), "held_out": HELD_OUT, "privacy": PRIVACY, **made})


def main() -> None:
    """Runs the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--base", type=json.loads, default={}, help="settings in JSON that move the middle of the grid")
    parser.add_argument("--changes", type=changes_of, default=CHANGES, help="a list in JSON in the place of the grid's own")
    parser.add_argument("--inputs", type=int, default=1000, help="held-out records that are certified")
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=1, help="lines at a time on the one device")
    parser.add_argument("--steps", type=int, default=None, help="fewer steps, to try the script out")
    parser.add_argument("--only", type=int, default=None, help="so many lines of the grid, to try the script out")
    asked = parser.parse_args()
    measured = {"inputs": asked.inputs, "draws": asked.draws, "steps": asked.steps}
    tasks = list(grid(asked.data, asked.sigma, asked.seeds, asked.base, measured, asked.changes))[: asked.only]
    tune(tasks, asked.out, asked.processes)


if __name__ == "__main__":
    main()
