"""Attacked inputs are chosen by the stated rule, found in their tensors, and drawn beside what they were."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from report_attacks import attack_line, attacked_run, moved
from report_runs import LABELS, feature_data, image_data

from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.protocols import CLEAN, Entry
from twinproof.reporting.attack_examples import SHOWN, choose_attacked, contradicting, with_inputs
from twinproof.reporting.attack_gallery import amplification, attacked_gallery
from twinproof.reporting.facts import RunFacts, load_facts
from twinproof.runs.certificates import ABSTAIN, Certificate

IMAGES = image_data(LABELS)
PAPER, OURS = Entry("paper", "network", "pgd", 0.25), Entry("adaptive", "smoothed", "pgd", 0.25)
LARGER = replace(OURS, size=0.5)
RIGHT, WRONG = 0, 1


def line(index: int, entry: Entry, answer: int) -> AttackLine:
    return attack_line(Certificate(index, RIGHT, RIGHT, 900, RIGHT, 0.1), entry, answer)


def chosen(lines: list[AttackLine], count: int = SHOWN) -> list[tuple[int, str]]:
    return [(one.index, one.entry) for one in choose_attacked(lines, count)]


def test_the_smallest_size_first_then_the_order_of_the_test_set() -> None:
    lines = [line(index, CLEAN, RIGHT) for index in range(4)]
    lines += [line(index, OURS, answer) for index, answer in enumerate((RIGHT, RIGHT, WRONG, WRONG))]
    lines += [line(index, LARGER, answer) for index, answer in enumerate((WRONG, ABSTAIN, WRONG, WRONG))]
    assert chosen(lines) == [(2, OURS.name), (3, OURS.name), (0, LARGER.name)]
    assert chosen(lines, 2) == [(2, OURS.name), (3, OURS.name)]


def test_adaptive_attacks_go_before_the_papers_and_no_input_comes_twice() -> None:
    lines = [line(0, CLEAN, RIGHT), line(1, CLEAN, RIGHT), line(0, PAPER, WRONG), line(1, PAPER, WRONG)]
    assert chosen([*lines, line(0, OURS, WRONG), line(1, OURS, RIGHT)]) == [(0, OURS.name), (1, PAPER.name)]


@pytest.mark.parametrize("before", [WRONG, ABSTAIN])
def test_what_was_not_right_before_is_no_success(before: int) -> None:
    assert chosen([line(0, CLEAN, before), line(0, OURS, WRONG)]) == []


def test_silence_is_no_success() -> None:
    assert chosen([line(0, CLEAN, RIGHT), line(0, OURS, ABSTAIN)]) == []


def test_only_covered_inputs_that_were_misled_contradict() -> None:
    lines = [
        line(index, entry, answer) for entry in (OURS, LARGER) for index, answer in enumerate((WRONG, WRONG, ABSTAIN, RIGHT))
    ]
    assert [(one.index, one.size) for one in contradicting(lines, 0.5, {1, 2, 3})] == [(1, 0.5)]


def test_inputs_are_found_by_the_order_of_their_lines() -> None:
    """The planted mistake, taking the number of the record for the row, would show another input."""
    lines = [line(index, entry, WRONG) for entry in (CLEAN, OURS) for index in (7, 3)]
    arrays = {OURS.name: np.array([[70], [30]])}
    found = with_inputs(lines[2:], lines, arrays)
    assert [(one.line.index, None if one.stored is None else int(one.stored[0])) for one in found] == [(7, 70), (3, 30)]
    assert all(one.stored is None for one in with_inputs(lines[2:], lines, {}))
    assert all(one.stored is None for one in with_inputs(lines[2:], lines, {OURS.name: np.array([[70]])}))


@pytest.mark.parametrize(("largest", "levels", "gain"), [(10, 255, 12), (200, 255, 1), (1, 16, 8), (0, 255, 1)])
def test_differences_are_amplified_as_far_as_the_range_allows(largest: int, levels: int, gain: int) -> None:
    moves = [np.array([0, 1 if largest else 0]), np.array([-largest, 0])]
    assert amplification(moves, levels) == gain
    assert gain * largest <= levels / 2 or gain == 1


def gallery(tmp_path: Path, data: Any, dataset: Any, **changes: Any) -> tuple[RunFacts, str]:
    facts = load_facts(attacked_run(tmp_path / "run", data, **changes))
    assert facts.attacks is not None
    return facts, attacked_gallery(facts, facts.attacks, dataset)


def pictures(page: str) -> list[NDArray[Any]]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))).astype(int) for one in found]


def test_pictures_are_the_original_the_attacked_and_the_difference(tmp_path: Path) -> None:
    facts, page = gallery(tmp_path, IMAGES, IMAGES, sizes=(0.25, 0.3))
    assert facts.attacks is not None
    shown = pictures(page)
    assert len(shown) == 3 * len(facts.attacks.examples) >= 9
    gain = int(re.findall(r"drawn (\d+) times", page)[0])
    for example, original, attacked, difference in zip(
        facts.attacks.examples, shown[::3], shown[1::3], shown[2::3], strict=True
    ):
        index = example.line.index
        entry = Entry(example.line.protocol, example.line.target, example.line.attack, example.line.size)
        assert np.array_equal(original, IMAGES.test.inputs[index][0])
        assert np.array_equal(attacked, moved(IMAGES, entry)[index][0])
        assert np.abs(difference - (127.5 + gain * (attacked - original))).max() <= 1
        assert f"no. {index}<" in page
        assert f"l2 {math.ceil(1000 * example.line.length - 1e-6) / 1000:.3f} (size {example.line.size:g})" in page


def test_answers_and_truth_are_named(tmp_path: Path) -> None:
    facts, page = gallery(tmp_path, IMAGES, IMAGES)
    assert facts.attacks is not None
    names = ("zero", "one", "two", "three")
    for example in facts.attacks.examples:
        assert f"{names[example.line.label]} → {names[example.line.prediction]}" in page


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (None, "data set was not at hand"),
        (image_data(LABELS[::-1]), "another label"),
        (image_data(LABELS, channels=3), "another form than the test records"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, dataset: Any, words: str) -> None:
    _, page = gallery(tmp_path, IMAGES, dataset)
    assert words in page
    assert "<img" not in page


def test_lost_tensors_are_said(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    (root / "attacks/l2/attacks.safetensors").unlink()
    facts = load_facts(root)
    assert facts.attacks is not None
    assert "does not hold them" in attacked_gallery(facts, facts.attacks, IMAGES)


def test_nobody_misled_is_said(tmp_path: Path) -> None:
    _, page = gallery(tmp_path, IMAGES, IMAGES, answer=lambda one, entry: one.prediction)
    assert "No attack misled the smoothed classifier" in page


def test_features_are_shown_from_what_to_what_in_the_units_of_the_user(tmp_path: Path) -> None:
    data = feature_data(LABELS)
    facts, page = gallery(tmp_path, data, data)
    assert facts.attacks is not None
    example = facts.attacks.examples[0]
    before = data.test.inputs[example.line.index] / 65535 * 10
    entry = Entry(example.line.protocol, example.line.target, example.line.attack, example.line.size)
    after = moved(data, entry)[example.line.index] / 65535 * 10
    for place in (0, 11):
        assert f"&lt;b&gt;feature {place} {before[place]:.4g} → {after[place]:.4g}" in page
    assert "feature 5 " not in page, "features that did not change are not listed"
