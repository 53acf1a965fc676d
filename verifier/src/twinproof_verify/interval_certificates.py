"""Certificates by interval bounds: their settings and lines, and with the test set every radius from the weights.

Nothing is drawn, so that nothing has to be believed: what decides is the network of run.json with the weights that are there,
bounded by ``interval`` at the input and the radius of each line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from twinproof_verify import models
from twinproof_verify.bounds import Whole
from twinproof_verify.certificate_lines import COUNT, LENGTH, Form, label_problems, read_table, wrong
from twinproof_verify.certificates import FLOAT32, Work, network_problems
from twinproof_verify.evidence import Originals, format_down, raw_tensors, shown
from twinproof_verify.files import MODEL, Evidence
from twinproof_verify.findings import Problem
from twinproof_verify.interval import BOUNDED, Network, network_of
from twinproof_verify.layers import LayerTooLargeError
from twinproof_verify.models import Record, block, read
from twinproof_verify.run_json import PublicData, is_own

if TYPE_CHECKING:
    from twinproof_verify.inspection import Inspection

LARGEST = 1.0
UNGIVEN = "radii of deterministic certificates (the test set was not given)"
_UNBOUNDED = "the network cannot be bounded"
_FORM = Form(b"index,label,prediction,radius,correct", "this is no certificate", (COUNT, COUNT, COUNT, LENGTH, rb"[01]"))


class IntervalMethod(Record):
    """In linf, by interval bounds."""

    norm: Literal["linf"]
    bound: Literal["interval"]


class IntervalSettings(Work):
    """certificates.json of such a certification."""

    format: models.Format
    inputs: models.Count
    method: IntervalMethod
    levels: models.PositiveCount
    step: models.Positive
    largest_radius: models.NotNegative


@dataclass(frozen=True)
class IntervalLines:
    """The lines that could be read, column by column."""

    rows: Whole
    index: Whole
    label: Whole
    prediction: Whole
    correct: Whole
    radius: NDArray[np.float64]
    file: str


@dataclass
class IntervalCertification:
    """One certification by interval bounds: its files, settings and lines."""

    files: Evidence
    record: dict[str, Any]
    settings: IntervalSettings | None = None
    lines: IntervalLines | None = None


def check(seen: Inspection, one: Evidence, record: dict[str, Any]) -> IntervalCertification:
    """Settings and lines by themselves, without the test set."""
    made = IntervalCertification(one, record)
    made.settings, problems = read(IntervalSettings, record, one.json)
    problems += models.format_problems(one.json, record, former=models.is_former(seen.run))
    if made.settings is not None:
        problems += _setting_problems(one.json, made.settings, seen.data)
    seen.findings.check(one.titled("certificate settings"), problems, "levels, norm, arithmetic, largest radius")
    content = seen.content(one.csv, one.titled("certificates"), "lines of deterministic certificates")
    if content is None:
        return made
    table = read_table(content, _FORM, one.csv)
    index, label, prediction, _, correct = table.cells.T
    made.lines = lines = IntervalLines(table.rows, index, label, prediction, correct, table.decimals(3), one.csv)
    found = [*table.problems, *_line_problems(lines, record.get("inputs"), seen.data)]
    seen.findings.check(one.titled("certificates"), found, f"{len(lines.rows)} deterministic lines")
    return made


def _setting_problems(file: str, settings: IntervalSettings, data: PublicData) -> Iterator[Problem]:
    yield from network_problems(file, settings, data.classes)
    if settings.network.arithmetic != FLOAT32:
        yield Problem(file, "interval bounds are proven for float32", settings.network.arithmetic, FLOAT32)
    for name, said, truth in (("levels", settings.levels, data.levels), ("largest_radius", settings.largest_radius, LARGEST)):
        if truth is not None and said != truth:
            yield Problem(file, f"{name} is not the one of the data in run.json", repr(said), repr(truth))
    if data.test_records is not None and settings.inputs > data.test_records:
        what = "inputs is more than the test set has"
        yield Problem(file, what, str(settings.inputs), f"at most {data.test_records}")


def _line_problems(lines: IntervalLines, inputs: object, data: PublicData) -> Iterator[Problem]:
    expected = lines.rows - 2
    yield from wrong(lines, lines.index != expected, "the index is not consecutive", lines.index, lambda at: str(expected[at]))
    if isinstance(inputs, int) and len(lines.rows) != inputs:
        what = "the number of certificates is not the one of certificates.json"
        yield Problem(lines.file, what, str(len(lines.rows)), shown(inputs))
    if data.classes is not None:
        wanted = f"0..{data.classes - 1}"
        for name, column in (("label", lines.label), ("prediction", lines.prediction)):
            yield from wrong(lines, column >= data.classes, f"{name} is no class", column, lambda at: wanted)
    truth = (lines.prediction == lines.label).astype(np.int64)
    what = "correct does not follow from prediction and label"
    yield from wrong(lines, lines.correct != truth, what, lines.correct, lambda at: str(truth[at]))
    long = lines.radius > LARGEST
    yield from wrong(lines, long, "the radius is above the largest one", lines.radius, lambda at: format_down(LARGEST))


def check_radii(seen: Inspection, originals: Originals) -> None:
    """Every radius from weights and inputs, and every label; what cannot be bounded is named."""
    usable = [one for one in seen.bounded.values() if one.settings is not None and one.lines is not None]
    if not usable:
        return
    network = run_network(seen)
    for one in usable:
        if one.lines is None:
            continue
        seen.findings.check(one.files.titled("labels"), label_problems(one.lines, originals), "against the test set")
        about = f"{len(one.lines.rows)} from weights and inputs, by bounds of this verifier's own"
        title = one.files.titled("deterministic radii")
        if isinstance(network, str):
            seen.findings.leave(f"radii of {one.files.csv}: {network}")
        elif isinstance(network, Problem):
            seen.findings.check(title, (network,), about)
        else:
            try:
                found = list(radius_problems(one.lines, network, originals))
            except (ArithmeticError, MemoryError, ValueError) as error:
                found = [Problem(MODEL, _UNBOUNDED, shown(f"{type(error).__name__}: {error}"), "a network that can be bounded")]
            seen.findings.check(title, found, about)


def run_network(seen: Inspection) -> Network | Problem | str:
    """The network of run.json; in words why there is none here, or what is wrong with its weights."""
    config, data, content = block(seen.run, "config"), block(seen.run, "data"), seen.folder.content(MODEL)
    name = config.get("model")
    if is_own(seen.run):
        return "the network is its owner's"
    if not isinstance(name, str) or name not in BOUNDED or config.get("noise_layer") is not None:
        return f"no interval bounds are known here for {shown(name)}"
    if isinstance(content, Problem):
        return content
    tensors, shape = raw_tensors(content), data.get("shape")
    if isinstance(tensors, str) or not isinstance(shape, list) or seen.data.levels is None or seen.data.dimension is None:
        return Problem(MODEL, _UNBOUNDED, "weights or data that are not sound", "a sound run")
    try:
        return network_of(BOUNDED[name], tensors, tuple(shape), seen.data.levels)
    except LayerTooLargeError as error:
        return f"a layer is too large ({error})"
    except (ArithmeticError, MemoryError, ValueError) as error:
        return Problem(
            MODEL, _UNBOUNDED, shown(f"{type(error).__name__}: {error}"), "the weights of the network that run.json names"
        )


def radius_problems(lines: IntervalLines, network: Network, originals: Originals) -> Iterator[Problem]:
    """Lines whose radius is not proven here, and answers that the network cannot have given."""
    known = (lines.index < len(originals.labels)) & (lines.prediction < network.classes)
    stored = originals.inputs.reshape(len(originals.inputs), math.prod(originals.inputs.shape[1:]))[lines.index[known]]
    answers, radii = lines.prediction[known], lines.radius[known]
    bad = np.zeros(len(lines.rows), dtype=np.bool_)
    bad[known] = (radii > 0) & ~network.holds(stored, answers, radii)
    what = "the radius is above what interval bounds of the network show"
    yield from wrong(lines, bad, what, lines.radius, lambda at: "a shorter one, or 0.000000")
    bad[known] = network.excludes(stored, answers)
    yield from wrong(lines, bad, "prediction is not what the network answers", lines.prediction, lambda at: "another class")
