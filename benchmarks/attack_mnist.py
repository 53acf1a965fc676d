"""Attacking DP-Gaussian (DP-CERT) on MNIST: what is left under attack, what draws of the noise buy, what long attacks cost.

    TWINPROOF_DATA=... python benchmarks/attack_mnist.py --out results/attack-mnist.json
    TWINPROOF_DATA=... python benchmarks/attack_mnist.py --quick --out quick.json      (tries the script out)

Trains one run (sigma 0.5, the paper's settings, seed 0), or copies the one that ``--run`` names, and measures:

curves   accuracy against l2 size under FGSM and PGD by both protocols, with the certified line of the first 1,000 test images;
         the record's ``results`` as ``attack`` wrote them (docs/formats/run.md). The status is 1 if the lines cross.
draws    PGD on the smoothed classifier and on the same weights behind a noise layer, with 1, 8 and 32 draws for each gradient
         and with a gradient that sees no noise; ``drop`` is what the draws buy, image by image, beside the latter.
long     PGD with thousands of steps on the network in linf, l2 and l1: accuracy, and the time of a step (a whole attack divided
         by its steps) as a ratio to one plain gradient of the same batch, by turns.

The file holds the parts of one call, each written as soon as it is there.
"""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpcert_mnist import SETTINGS
from speed.timing import Times, take_turns
from twinproof.attacks.objective import Expectation, Objective, Plain, Smoothed, untouched
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import AttackResult, global_seed, pgd
from twinproof.attacks.threat import Threat
from twinproof.certification.method import Sampling
from twinproof.certification.run import certify
from twinproof.certification.smoothed import SmoothedClassifier, smooth
from twinproof.compute.devices import Captured, describe_device, resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, UserError
from twinproof.evaluation.accuracy import Interval, binomial_interval, mean_interval
from twinproof.evaluation.attack_results import stored_inside
from twinproof.evaluation.protocols import AttackPlan
from twinproof.evaluation.under_attack import JUDGING, attack
from twinproof.files import write_json
from twinproof.keys import Key
from twinproof.recipes.train import train
from twinproof.runs.layout import software_versions, utc_now
from twinproof.runs.records import ABSTAIN
from twinproof.runs.run import Run, load_run_data

SIGMA = 0.5
PLAN = AttackPlan("l2", (0.25, 0.5, 0.75, 1.0, 1.5), ("fgsm", "pgd"), steps=20, draws=8)
DRAWS = (1, 8, 32)
DRAWS_THREAT = Threat("l2", 1.0)
LONG_THREATS = (Threat("linf", 0.1), Threat("l2", 1.5), Threat("l1", 8.0))
CERTIFYING, ATTACKING, ANSWERING = (Key.from_seed(seed) for seed in (0, 1, 2))
# Calls after which a gradient has surely been recorded as a CUDA graph, if it can be.
_UNTIL_RECORDED = 4


@dataclass(frozen=True)
class Effort:
    """How much of everything; ``answers`` is how often a random network is asked about one input."""

    training_steps: int | None = None
    certified: int = 1000
    n: int = 10_000
    images: int = 500
    answers: int = 100
    long_images: int = 1000
    short_steps: int = 20
    long_steps: int = 2000
    turns: int = 3


QUICK = Effort(30, certified=10, n=500, images=10, long_images=10, short_steps=5, long_steps=20, turns=1)


@dataclass(frozen=True)
class Subject:
    """A trained run with its data, and the device that everything happens on."""

    run: Run
    dataset: Dataset
    device: torch.device

    @property
    def sigma(self) -> float:
        """The noise that the run was trained for."""
        return float(self.run.record["config"]["sigma"])

    def network(self) -> nn.Module:
        """The trained network, read from the run."""
        return self.run.model(self.device)

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """The first test images in stored levels, and their labels."""
        stored = torch.as_tensor(self.dataset.test.inputs[:count].astype("int32"), device=self.device)
        return stored, torch.as_tensor(self.dataset.test.labels[:count], device=self.device)


class NoiseLayer(nn.Module):
    """Fresh Gaussian noise on every coordinate of every row."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs with noise."""
        return inputs + self.sigma * torch.randn_like(inputs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=None, help="a finished run instead of training one; it is copied")
    parser.add_argument("--part", choices=tuple(PARTS), nargs="+", default=list(PARTS), help="all by default")
    parser.add_argument("--images", type=int, default=None, help="images of the curves and the draws, 500 by default")
    parser.add_argument("--quick", action="store_true", help="a few images and steps, to try the script out")
    chosen = parser.parse_args(words)
    effort = QUICK if chosen.quick else Effort()
    effort = effort if chosen.images is None else replace(effort, images=chosen.images)
    command = shlex.join(["python", "benchmarks/attack_mnist.py", *words])
    try:
        result = measure(chosen.out, chosen.run, chosen.part, effort, command)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return 2
    return 1 if crossed(result) else 0


def measure(out: Path, trained: Path | None, parts: Sequence[str], effort: Effort, command: str) -> dict[str, Any]:
    """Runs the parts in order; prints and writes each when it is there."""
    device = resolve_device("auto")
    if not out.parent.is_dir():  # found out before the long work
        raise ConfigError("the result cannot be written", where="--out", got=out, wanted="a file in a folder that exists")
    result: dict[str, Any] = {
        "effort": asdict(effort),
        "command": command,
        "device": describe_device(device),
        "versions": software_versions(),
        "date": utc_now(),
    }
    with opened(trained, effort, device) as subject:
        record = subject.run.record
        result |= {"recipe": record["config"]["recipe"], "sigma": subject.sigma, "accuracy": record["accuracy"]}
        for name in PARTS:
            if name in parts:
                began = time.monotonic()
                made, text = PARTS[name](subject, effort)
                result[name] = {**made, "seconds": round(time.monotonic() - began, 3)}
                print(f"{name}, {result[name]['seconds']:.1f} s\n{text}\n", flush=True)
                write_json(out, result)
    return result


@contextmanager
def opened(trained: Path | None, effort: Effort, device: torch.device) -> Iterator[Subject]:
    """The run under attack, in a folder of its own that goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        if trained is not None:
            Run.open(trained)
            shutil.copytree(trained, root)
        else:
            changes = {} if effort.training_steps is None else {"steps": effort.training_steps}
            train({**SETTINGS, "sigma": SIGMA, "seed": 0, **changes}, root)
        run = Run.open(root)
        yield Subject(run, load_run_data(run), device)


def curves(subject: Subject, effort: Effort) -> tuple[dict[str, Any], str]:
    """Certifies and attacks the run; the results are the record's own."""
    sampling = Sampling(100, effort.n, 0.001)
    certified = certify(subject.run, subject.dataset, sampling=sampling, limit=effort.certified, key=CERTIFYING, overwrite=True)
    attacked = attack(
        subject.run, subject.dataset, plan=PLAN, sampling=JUDGING, limit=effort.images, key=ATTACKING, overwrite=True
    )
    rows = curve_rows(attacked.results)
    made = {
        "plan": asdict(PLAN),
        "inputs": attacked.settings.inputs,
        "certificates": _asked(sampling) | {"seconds": certified.settings.made.seconds},
        "answers": _asked(JUDGING),
        "rows": rows,
        "results": attacked.results,
    }
    shown = [[f"{row['size']:g}", *(_percent(row[name]) for name in CURVES.values()), f"{row['flips']}"] for row in rows]
    return made, table(("l2 size", *CURVES, "flips"), shown)


CURVES = {
    "certified": "certified",
    "paper network": "paper_network",
    "paper smoothed": "paper_smoothed",
    "ours network": "network",
    "ours smoothed": "smoothed",
    "abstained": "abstained",
    "margin": "margin",
}
"""Columns of the table of curves, and the keys of their values."""


def curve_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each size, from the results of ``attack``: the lowest of the papers' attacks, the worst case of ours.

    ``margin`` is how far the lowest accuracy of the smoothed classifier lies above the certified line. Below zero without flips
    it shows abstentions: an answer under attack has fewer draws than a certificate.
    """
    rows = []
    for one in results["sizes"]:
        lowest, worst, certified = one["paper"]["lowest"], one["adaptive"]["worst"], one["certified"]["value"]
        rows.append(
            {
                "size": one["size"],
                "certified": certified,
                "paper_network": lowest["network"],
                "paper_smoothed": lowest["smoothed"],
                **{name: worst[name]["value"] for name in ("network", "smoothed", "abstained")},
                "margin": round(min(lowest["smoothed"], worst["smoothed"]["value"]) - certified, 6),
                "flips": one["flips"],
            }
        )
    return rows


def crossed(result: dict[str, Any]) -> bool:
    """Whether an attack got under the certified line further than chance explains."""
    return "curves" in result and bool(result["curves"]["results"]["crossing"])


def draws(subject: Subject, effort: Effort) -> tuple[dict[str, Any], str]:
    """PGD with more and more draws for each gradient, on both kinds of random classifier; answers use the same fresh noise."""
    stored, labels = subject.first(effort.images)
    rows = [
        *draws_rows(_smoothed_victim(subject, stored[:1]), stored, labels, subject.dataset.levels),
        *draws_rows(_noise_layer_victim(subject, effort.answers), stored, labels, subject.dataset.levels),
    ]
    made = {
        "attack": f"pgd, {PLAN.steps} steps",
        "norm": DRAWS_THREAT.norm,
        "size": DRAWS_THREAT.size,
        "inputs": len(labels),
        "answers": {"smoothed": _asked(JUDGING), "noise layer": effort.answers},
        "rows": rows,
    }
    shown = [
        [
            row["classifier"],
            row["attack"],
            _with_interval(row["accuracy"]),
            _percent(row["abstained"]),
            _with_error(row["drop"]),
        ]
        for row in rows
    ]
    return made, table(("classifier", "attack", "accuracy", "abstained", "drop"), shown)


@dataclass(frozen=True)
class Answers:
    """For each input the chance of a correct answer; their mean and its interval; the share of abstentions, if any."""

    chances: tuple[float, ...]
    accuracy: Interval
    abstained: float | None = None


@dataclass(frozen=True)
class Victim:
    """A random classifier: the network without its noise, how an attack with so many draws sees it, and how it answers.

    ``answer`` takes stored inputs and labels.
    """

    name: str
    bare: nn.Module
    objective: Callable[[int], Objective]
    answer: Callable[[Tensor, Tensor], Answers]


def draws_rows(victim: Victim, stored: Tensor, labels: Tensor, levels: int) -> list[dict[str, Any]]:
    """The accuracy without attack, under one that sees no noise (0 draws), and under those that do."""
    rows, given = [], {}
    for count in (None, 0, *DRAWS):
        began, points = time.monotonic(), stored
        if count is not None:
            objective = Plain(victim.bare) if count == 0 else victim.objective(count)
            inputs = stored.to(torch.float32) / levels
            found = run_attack(pgd(PLAN.steps), objective, inputs, labels, DRAWS_THREAT, key=ATTACKING)
            points = stored_inside(found.inputs, stored, levels, DRAWS_THREAT.norm, DRAWS_THREAT.size)
        given[count] = victim.answer(points, labels)
        rows.append(
            {
                "classifier": victim.name,
                "attack": attack_words(count),
                "draws": count,
                "accuracy": given[count].accuracy.as_dict(),
                "abstained": given[count].abstained,
                "drop": drop(given[0].chances, given[count].chances) if count else None,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    return rows


def drop(before: Sequence[float], after: Sequence[float]) -> dict[str, float | None]:
    """How much lower the second mean is, and the standard error of that, from pairs of the same input."""
    pairs = [one - other for one, other in zip(before, after, strict=True)]
    error = None if len(pairs) < 2 else round(statistics.stdev(pairs) / math.sqrt(len(pairs)), 6)
    return {"value": round(statistics.fmean(pairs), 6), "standard_error": error}


def attack_words(count: int | None) -> str:
    """What an attack with so many draws is called in the table."""
    if count is None:
        return "none"
    return "sees no noise" if count == 0 else f"{count} draw{'s' if count > 1 else ''} a gradient"


def _smoothed_victim(subject: Subject, example: Tensor) -> Victim:
    model, sigma = subject.network(), subject.sigma
    smoothed = smooth(model, sigma, levels=subject.dataset.levels)
    smoothed = replace(smoothed, base=smoothed.base_for(example, JUDGING))
    return Victim(
        "smoothed",
        model,
        lambda count: Smoothed(model, sigma, draws=count),
        lambda stored, labels: smoothed_answers(smoothed, stored, labels),
    )


def _noise_layer_victim(subject: Subject, answers: int) -> Victim:
    model, levels = subject.network(), subject.dataset.levels
    noisy = nn.Sequential(NoiseLayer(subject.sigma), model).eval()
    return Victim(
        "noise layer",
        model,
        lambda count: Expectation(noisy, draws=count),
        lambda stored, labels: noisy_answers(noisy, stored.to(torch.float32) / levels, labels, answers),
    )


def smoothed_answers(smoothed: SmoothedClassifier, stored: Tensor, labels: Tensor) -> Answers:
    """Answers by votes; an abstention is no correct one."""
    made = smoothed.certify(stored, labels.tolist(), sampling=JUDGING, key=ANSWERING)
    chances = tuple(float(one.prediction == one.label) for one in made)
    abstained = sum(one.prediction == ABSTAIN for one in made) / len(made)
    return Answers(chances, binomial_interval(int(sum(chances)), len(made)), abstained)


def noisy_answers(network: nn.Module, inputs: Tensor, labels: Tensor, answers: int) -> Answers:
    """The chance that one answer of a random network is right: for each input the share of fresh answers that are."""
    hits = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    with global_seed(ANSWERING.seed("noise-layer"), inputs.device), torch.no_grad():
        for _ in range(answers):
            hits += network(inputs).argmax(dim=1) == labels
    chances = tuple((hits / answers).tolist())
    return Answers(chances, mean_interval(chances, 1.0))


def long_attacks(subject: Subject, effort: Effort) -> tuple[dict[str, Any], str]:
    """Thousands of steps on the network in each norm, timed in turns with plain gradients of the same batch."""
    stored, labels = subject.first(effort.long_images)
    inputs, model = stored.to(torch.float32) / subject.dataset.levels, subject.network()
    rows = [long_row(model, inputs, labels, threat, effort) for threat in LONG_THREATS]
    made = {"attack": "pgd", "steps": effort.long_steps, "inputs": len(labels), "turns": effort.turns, "rows": rows}
    header = ("norm", "size", "clean", f"{effort.short_steps} steps", f"{effort.long_steps} steps", "ms a step", *RATIOS)
    shown = [
        [
            row["norm"],
            f"{row['size']:g}",
            *(_percent(row["accuracy"][name]["value"]) for name in ("clean", "short", "long")),
            f"{1000 * row['seconds_per_step']:.3f}",
            *(_ratio(row["ratio_to"].get(name)) for name in RATIOS.values()),
        ]
        for row in rows
    ]
    return made, table(header, shown)


RATIOS = {"x gradient": "gradient", "x gradient in a graph": "gradient in a graph"}


def long_row(model: nn.Module, inputs: Tensor, labels: Tensor, threat: Threat, effort: Effort) -> dict[str, Any]:
    """One norm: the whole attack is timed, its judging and checking and recording included, all inputs in one batch."""

    def attacked(steps: int) -> AttackResult:
        return run_attack(pgd(steps), model, inputs, labels, threat, key=ATTACKING, batch=len(inputs))

    short, found = attacked(effort.short_steps), []
    with untouched(model):
        methods = gradients(model, inputs, labels)
        times = take_turns(
            {"attack": lambda: found.append(attacked(effort.long_steps)), **methods}, effort.turns, inputs.device
        )
    accuracy = {"clean": short.starting_predictions, "short": short.predictions, "long": found[-1].predictions}
    return {
        "norm": threat.norm,
        "size": threat.size,
        "accuracy": {name: _accuracy(predictions, labels).as_dict() for name, predictions in accuracy.items()},
        **step_times(times.pop("attack"), effort.long_steps, times),
    }


def gradients(model: nn.Module, inputs: Tensor, labels: Tensor) -> dict[str, Callable[[], None]]:
    """One plain gradient of the loss at the inputs, forward and backward, none of the weights; on a GPU as a graph too."""

    def gradient() -> None:
        points = inputs.detach().requires_grad_()
        torch.autograd.grad(F.cross_entropy(model(points), labels, reduction="sum"), points)

    recorded = Captured(gradient, inputs.device)
    for _ in range(_UNTIL_RECORDED):
        recorded()
    return {"gradient": gradient, **({"gradient in a graph": recorded} if recorded.is_recorded else {})}


def step_times(attack: Times, steps: int, others: dict[str, Times]) -> dict[str, Any]:
    """Seconds of one of the ``steps`` of an attack, and its ratio to one call of each other method, taken inside each turn."""
    step = Times(tuple(seconds / steps for seconds in attack.seconds))
    return {
        "seconds_per_step": step.median,
        "seconds_per": {name: other.median for name, other in others.items()},
        "ratio_to": {name: round(other.speed_over(step), 3) for name, other in others.items()},
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text in columns, numbers to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _accuracy(predictions: Tensor, labels: Tensor) -> Interval:
    return binomial_interval(int((predictions == labels).sum()), len(labels))


def _asked(sampling: Sampling) -> dict[str, Any]:
    return {"n0": sampling.n0, "n": sampling.n, "alpha": sampling.alpha}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _with_interval(interval: dict[str, float]) -> str:
    return f"{_percent(interval['value'])} ({_percent(interval['low'])}..{_percent(interval['high'])})"


def _with_error(difference: dict[str, float | None] | None) -> str:
    if difference is None:
        return "-"
    return f"{_percent(difference['value'])} +- {_percent(difference['standard_error'])}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


PARTS: dict[str, Callable[[Subject, Effort], tuple[dict[str, Any], str]]] = {
    "curves": curves,
    "draws": draws,
    "long": long_attacks,
}


if __name__ == "__main__":
    sys.exit(main())
