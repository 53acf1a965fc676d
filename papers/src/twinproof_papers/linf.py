"""Certified accuracy in linf at the papers' own sizes: what three papers claim, and what private interval bounds prove.

The papers' claims are void (docs/papers.md): no certificate of their noise reaches these sizes. The models here are trained by
the recipe ``interval`` for one size each, and their certificates are deterministic, for every attack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twinproof.certification.interval_run import certify_intervals
from twinproof.data.record import Dataset
from twinproof.runs.run import Run
from twinproof_papers.cell import Cell, Measured, Numbers
from twinproof_papers.comparison import SIZE_AXIS, estimate_text, published_text
from twinproof_papers.experiment import Options, in_paper_scale
from twinproof_papers.findings import Findings, Line, Panel, Table, over_repetitions

KIND = "interval"
_PLACES = 81  # of the certified line, every 0.005 up to 0.4: all sizes of the papers are among them


@dataclass(frozen=True)
class IntervalLine:
    """Deterministic linf certificates of the first ``limit`` test inputs (None: all), read at sizes from 0 to ``largest``."""

    largest: float = 0.4
    limit: int | None = None

    @property
    def after(self) -> None:
        """It has a run of its own."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """Where the certified line is read, in input units."""
        return tuple(self.largest * place / (_PLACES - 1) for place in range(_PLACES))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``kind`` tells them from other measurements."""
        return {"kind": KIND, **asdict(self)}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Certifies ``run`` and reads the line."""
        made = certify_intervals(run, dataset, limit=self.limit, device=device)
        right = [one.radius for one in made.certificates if one.prediction == one.label]
        count = len(made.certificates)
        return {
            "clean": len(right) / count,
            "certified": [sum(radius >= size for radius in right) / count for size in self.sizes],
            "mean_radius": math.fsum(right) / count,
            "certify_seconds": made.settings.made.seconds,
        }

    def words(self) -> str:
        """Images and kind of certificate."""
        images = "all test images" if self.limit is None else f"{self.limit} test images"
        return f"{images}, deterministic certificates (linf)"


@dataclass(frozen=True)
class Task:
    """One trained model: its data, budget, network, and the size (input units) that it is judged at.

    ``trained_for`` is the size of the ball in training, a little larger. ``share`` is the weight of the worst case.
    """

    data: str
    epsilon: float
    size: float
    model: str
    trained_for: float
    share: float = 0.9

    @property
    def method(self) -> str:
        """The name of its cells."""
        return f"{self.model}-{self.data}-{self.size:g}"

    def training(self, options: Options) -> dict[str, Any]:
        """What ``train`` is given; all else is the recipe's."""
        chosen: dict[str, Any] = {
            "data": {"source": "digits" if options.quick else self.data},
            "recipe": "interval",
            "model": self.model,
            "epsilon": self.epsilon,
            "delta": 1e-4 if options.quick else 1e-5,
            "interval": {"size": self.trained_for, "share": self.share},
        }
        if options.quick:
            chosen |= {"model": "relu-mlp", "epochs": 40}
        return chosen | ({} if options.epochs is None else {"epochs": options.epochs})


PLAIN, CONTRAST = "interval-cnn", "contrast-cnn"
_MNIST, _FASHION = "mnist", "fashion-mnist"
TASKS = (
    Task(_MNIST, 1.0, 0.025, CONTRAST, 0.05),
    Task(_MNIST, 1.0, 0.1, CONTRAST, 0.11),
    Task(_MNIST, 3.0, 0.1, CONTRAST, 0.11),
    Task(_MNIST, 1.0, 0.3, CONTRAST, 0.33, share=0.7),
    Task(_MNIST, 3.0, 0.3, CONTRAST, 0.33, share=0.7),
    Task(_MNIST, 1.0, 0.1, PLAIN, 0.11),
    Task(_MNIST, 3.0, 0.1, PLAIN, 0.11),
    Task(_MNIST, 3.0, 0.3, PLAIN, 0.33),
    Task(_FASHION, 3.0, 0.1, PLAIN, 0.11),
)
CLAIMS: Mapping[tuple[str, float, float], str] = {
    (_MNIST, 1.0, 0.025): "86.74 (Secure-SGD), 84.29 (StoBatch)",
    (_MNIST, 1.0, 0.3): "7.99 (Secure-SGD), 72.41 (StoBatch)",
}
"""What the papers print at this data, epsilon and size; none of it is a certificate (docs/papers.md)."""
_NOTES = (
    "sizes are those of the papers, inputs in [-1, 1]; certified against every attack: deterministic interval bounds of the "
    "network as it runs in float32, no confidence level",
    "published claims are void: no certificate of their noise reaches these sizes",
    "contrast-cnn has a fixed steep ramp around 1/2 before its first layer: knowledge of the kind of data (figures that are "
    "nearly black and white), none of the records; interval-cnn has none",
    "settings were chosen on held-out training records, which the epsilon does not count",
)


class LinfMnist:
    """One model for each task; nothing is shared with other experiments."""

    def cells(self, options: Options) -> list[Cell]:
        """The repetitions of every task."""
        limit = 100 if options.quick else options.limit
        return [
            Cell(task.method, repetition, task.training(options), IntervalLine(limit=limit))
            for task in TASKS
            for repetition in range(options.seeds)
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each data set with the certified lines, and the table."""
        rows = tuple(_row(task, _of(done, task)) for task in TASKS)
        header = ("data", "size", "epsilon", "network", "certified (%)", "without attack (%)", "published claim (%)")
        panels = tuple(
            Panel(data, SIZE_AXIS, tuple(_line(done, task) for task in TASKS if task.data == data))
            for data in (_MNIST, _FASHION)
        )
        ours = {
            f"{method} certified size {in_paper_scale(task.size):g}": _shares(task, _of(done, task))
            for task in TASKS
            for method in ("securesgd", "stobatch")
            if (task.data, task.epsilon, task.size) in CLAIMS
        }
        table = Table("Certified in linf under differential privacy", header, rows)
        return Findings(panels=panels, ours=ours, notes=_NOTES, tables=(table,), columns=2, names="below")


def _of(done: Sequence[Measured], task: Task) -> list[Measured]:
    found = [one for one in done if (one.cell.method, one.cell.training["epsilon"]) == (task.method, task.epsilon)]
    return sorted(found, key=lambda one: one.cell.repetition)


def _line_of(one: Measured) -> IntervalLine:
    measurement = one.cell.measurement
    if not isinstance(measurement, IntervalLine):
        raise TypeError(f"a cell of another kind: {type(measurement).__name__}")
    return measurement


def _shares(task: Task, done: Sequence[Measured]) -> list[float]:
    """Per cent certified at the task's size; the line is read at the next of its sizes that is not smaller."""

    def share(one: Measured) -> float:
        sizes = _line_of(one).sizes
        place = next(number for number, size in enumerate(sizes) if size >= task.size * (1 - 1e-12))
        return 100 * float(one.numbers["certified"][place])

    return [share(one) for one in done]


def _row(task: Task, done: Sequence[Measured]) -> tuple[str, ...]:
    clean = over_repetitions([100 * float(one.numbers["clean"]) for one in done])
    certified = over_repetitions(_shares(task, done))
    claim = CLAIMS.get((task.data, task.epsilon, task.size), "-")
    size, budget = published_text(in_paper_scale(task.size)), f"{task.epsilon:g}"
    return (task.data, size, budget, task.model, estimate_text(certified), estimate_text(clean), claim)


def _line(done: Sequence[Measured], task: Task) -> Line:
    """The certified line, in the papers' scale."""
    mine = _of(done, task)
    places = tuple(in_paper_scale(size) for size in _line_of(mine[0]).sizes)
    samples = tuple(tuple(100 * float(one.numbers["certified"][place]) for one in mine) for place in range(len(places)))
    label = f"epsilon {task.epsilon:g}, {task.model}, trained for {in_paper_scale(task.trained_for):g}"
    alike = [other for other in TASKS if other.data == task.data]
    kind = "sound" if task.model == CONTRAST else "weaker"
    return Line(label, kind, alike.index(task), places, samples, marked=False)
