"""Test inputs and attacked inputs on the page: which are shown, by rules fixed beforehand, and how."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from twinproof.data.record import Dataset, InputKind
from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.certified import answered_correctly
from twinproof.runs.records import ABSTAIN, Certificate

if TYPE_CHECKING:
    from twinproof.reporting.attacks import AttackedExample, AttackFacts

CHANGES_SHOWN = 5
FEATURES_SHOWN = 10


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


def misfit(dataset: Dataset, records: Iterable[Certificate | AttackLine]) -> str:
    """Why ``dataset`` cannot be the one that was certified or attacked; empty if its test labels agree with all records."""
    for record in records:
        if not 0 <= record.index < len(dataset.test):
            return f"the data set {dataset.name!r} has no test record {record.index}"
        if int(dataset.test.labels[record.index]) != record.label:
            return f"test record {record.index} of the data set {dataset.name!r} has another label than its certificate"
    return ""


def attacked_misfit(attacks: AttackFacts, dataset: Dataset) -> str:
    """Why the chosen attacked inputs cannot be shown beside the test records of ``dataset``; empty if they can."""
    if problem := misfit(dataset, [example.clean for example in attacks.examples]):
        return problem
    if any(example.stored is None for example in attacks.examples):
        return "attacks.safetensors does not hold them"
    same = all(example.stored is not None and example.stored.shape == dataset.shape for example in attacks.examples)
    return "" if same and attacks.settings.noise.levels == dataset.levels else "they have another form than the test records"


def drawable(dataset: Dataset) -> bool:
    return dataset.kind is InputKind.IMAGE and len(dataset.shape) == 3


def image_uri(stored: NDArray[Any], levels: int) -> str:
    """One image (channels, height, width) as a PNG inside a data URI; one channel is grey, three are colours."""
    pixels = np.rint(stored.astype(np.float64) * (255 / levels)).astype(np.uint8)
    picture = Image.fromarray(pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels[0])
    target = io.BytesIO()
    picture.save(target, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(target.getvalue()).decode()}"


def in_user_units(dataset: Dataset, stored: NDArray[Any]) -> list[float]:
    """All features of one input, given in stored levels, in the units the user knows; in [0, 1] without a scaling."""
    unit = stored.reshape(-1).astype(np.float64) / dataset.levels
    if dataset.scaling is not None:
        low, high = np.array(dataset.scaling.low), np.array(dataset.scaling.high)
        unit = low + unit * (high - low)
    return [float(value) for value in unit]


def amplification(examples: Sequence[AttackedExample], dataset: Dataset) -> int:
    """The factor by which differences are multiplied, the same for all: the largest one becomes black or white."""
    largest = max((int(np.abs(_moves(example, dataset)).max(initial=0)) for example in examples), default=0)
    return max(1, dataset.levels // (2 * largest)) if largest else 1


def attacked_pictures(example: AttackedExample, dataset: Dataset, gain: int) -> list[tuple[str, str]]:
    """The original, the attacked input and their difference: what each is, and the picture."""
    original, moves = dataset.test.inputs[example.line.index], _moves(example, dataset)
    difference = np.clip(dataset.levels / 2 + gain * moves, 0, dataset.levels)
    arrays = {"original": original, "attacked": original + moves, "difference": difference}
    return [(kind, image_uri(array, dataset.levels)) for kind, array in arrays.items()]


def attacked_features(example: AttackedExample, dataset: Dataset) -> list[str]:
    """The features that the attack changed most, from what to what."""
    original, moves = dataset.test.inputs[example.line.index], _moves(example, dataset)
    before, after = in_user_units(dataset, original), in_user_units(dataset, original + moves)
    sizes = np.abs(moves).ravel()
    most = [int(place) for place in np.argsort(-sizes, kind="stable")[:CHANGES_SHOWN] if sizes[place]]
    names = dataset.feature_names or tuple(f"feature {place}" for place in range(len(sizes)))
    return [f"{names[place]} {before[place]:.4g} → {after[place]:.4g}" for place in most]


def _moves(example: AttackedExample, dataset: Dataset) -> NDArray[np.int64]:
    if example.stored is None:
        raise ValueError("an input that is not there cannot be shown")
    original = dataset.test.inputs[example.line.index].astype(np.int64)
    return np.asarray(example.stored.astype(np.int64) - original, dtype=np.int64)
