"""Which test inputs the report shows, by a rule fixed beforehand, and how an image becomes part of the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinproof.data.record import Dataset
from twinproof.evaluation.certified import answered_correctly
from twinproof.reporting.facts import RunFacts
from twinproof.runs.certificates import ABSTAIN, Certificate

RULE = (
    "Chosen by a rule that was fixed before anything was seen: among the correct answers the largest, the middle and the "
    "smallest radii; among the wrong answers the largest radii; the first abstentions. Ties go to the earlier test record."
)


WITHHELD = (
    "Records of your own data are shown only if you ask for it: `twinproof report RUN --examples`. Whoever gets the report "
    "then sees raw test records."
)


class LabelledRecord(Protocol):
    """Anything that names a test record by its number and its true class: a certificate, the line of an attack."""

    @property
    def index(self) -> int:
        """Its number in the test set."""

    @property
    def label(self) -> int:
        """Its true class."""


@dataclass(frozen=True)
class ExampleGroup:
    """Certificates that were chosen for the same reason."""

    title: str
    certificates: tuple[Certificate, ...]


def choose_examples(certificates: Sequence[Certificate], each: int = 2) -> list[ExampleGroup]:
    """At most ``each`` examples for every reason, none twice; a reason without examples is left out."""
    right = sorted(filter(answered_correctly, certificates), key=lambda c: (-c.radius, c.index))
    wrong = sorted((c for c in certificates if c.prediction != ABSTAIN and not c.correct), key=lambda c: (-c.radius, c.index))
    silent = sorted((c for c in certificates if c.prediction == ABSTAIN), key=lambda c: c.index)
    middle = max(0, len(right) // 2 - each // 2)
    groups = (
        ("Largest radii", right[:each]),
        ("Smallest radii", right[len(right) - each :] if len(right) > each else []),
        ("Middle radii", right[middle : middle + each]),
        ("Wrong, largest radii", wrong[:each]),
        ("Abstained", silent[:each]),
    )
    chosen: dict[str, tuple[Certificate, ...]] = {}
    seen: set[int] = set()
    for title, members in groups:  # the extremes first, so that a short list loses its middle and not its ends
        chosen[title] = tuple(member for member in members if member.index not in seen)
        seen.update(member.index for member in members)
    order = ("Largest radii", "Middle radii", "Smallest radii", "Wrong, largest radii", "Abstained")
    return [ExampleGroup(title, chosen[title]) for title in order if chosen[title]]


def misfit(dataset: Dataset, records: Sequence[LabelledRecord]) -> str | None:
    """Why ``dataset`` cannot be the one that was certified or attacked, or None if its test labels agree with all records."""
    for record in records:
        if not 0 <= record.index < len(dataset.test):
            return f"the data set {dataset.name!r} has no test record {record.index}"
        if int(dataset.test.labels[record.index]) != record.label:
            return f"test record {record.index} of the data set {dataset.name!r} has another label than its certificate"
    return None


def withheld(facts: RunFacts, dataset: Dataset) -> bool:
    """Whether the records of ``dataset`` stay out of the report: a user's own, where nobody asked for examples."""
    return not (dataset.public or facts.examples)


def image_uri(stored: NDArray[Any], levels: int) -> str:
    """One image (channels, height, width) as a PNG inside a data URI; one channel is grey, three are colours."""
    from PIL import Image

    pixels = np.rint(stored.astype(np.float64) * (255 / levels)).astype(np.uint8)
    picture = Image.fromarray(pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels[0])
    target = io.BytesIO()
    picture.save(target, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}"


def feature_values(dataset: Dataset, index: int, count: int) -> list[float]:
    """The first ``count`` features of a test record in the units the user knows, or as levels in [0, 1] without a scaling."""
    return in_user_units(dataset, dataset.test.inputs[index])[:count]


def in_user_units(dataset: Dataset, stored: NDArray[Any]) -> list[float]:
    """All features of one input, given in stored levels, in the units the user knows."""
    unit = stored.reshape(-1).astype(np.float64) / dataset.levels
    if dataset.scaling is not None:
        low, high = np.array(dataset.scaling.low), np.array(dataset.scaling.high)
        unit = low + unit * (high - low)
    return [float(value) for value in unit]
