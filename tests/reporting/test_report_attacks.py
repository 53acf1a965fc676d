"""The section "Under attack": the record's numbers, certificates contradicted for all to see, and which inputs are shown."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from report_runs import (
    IMAGES,
    LABELS,
    SIZES,
    add_attacks,
    attack_line,
    attacked_run,
    certified_run,
    change_results,
    check_page,
    crossing,
    feature_data,
    image_data,
    make_certificates,
    make_metrics,
    moved,
    report,
    run_record,
    section,
    text_of,
    write_run,
)
from report_runs import each_plot_once as each_plot_once

import twinproof as tp
from twinproof.certification.method import Sampling
from twinproof.data.record import Dataset, Split
from twinproof.errors import RunError
from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Entry
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.reporting import write_report
from twinproof.reporting.attacks import SHOWN, AttackFacts, Culprit, choose_attacked, contradicting, with_inputs
from twinproof.reporting.examples import amplification
from twinproof.reporting.facts import load_facts
from twinproof.reporting.page import run_page
from twinproof.runs.records import ABSTAIN, Certificate
from twinproof.runs.run import Run

PAPER, ADAPTIVE = Entry("paper", "network", "pgd", 0.25), Entry("adaptive", "smoothed", "pgd", 0.25)
LARGER = replace(ADAPTIVE, size=0.5)
RIGHT, WRONG = 0, 1


def shown(root: Path, dataset: Dataset | None = IMAGES) -> str:
    """The section alone, of a checked page."""
    page = run_page(load_facts(root), dataset)
    check_page(page)
    return section(page, "attacks")


def attacks_of(root: Path) -> AttackFacts:
    (attacks,) = load_facts(root).attacks
    return attacks


def table_rows(page: str, caption: str) -> list[list[str]]:
    """The cells of a table as text; an interval follows its value after a bar."""
    body = page.split(f"{caption}</caption>")[1].split("</table>")[0].split("<tbody>")[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body, flags=re.DOTALL)
    return [[_text(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def _text(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", cell.replace("<br/>", "|")))


def down(share: float) -> str:
    """Percent with one place, rounded down, by arithmetic of its own."""
    return f"{math.floor(1000 * share + 1e-6) / 10:.1f} %"


def up(share: float) -> str:
    return f"{math.ceil(1000 * share - 1e-6) / 10:.1f} %"


def results_of(root: Path, name: str = "l2") -> dict[str, Any]:
    return dict(json.loads((root / f"attacks/{name}/attacks.json").read_text())["results"])


def test_page_and_json_copy_have_the_numbers_of_the_record(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    page, copy = report(root)
    assert check_page(page).sections[4] == "attacks"
    results = results_of(root)
    first, *rows = table_rows(page, "by both protocols.")
    assert [row[0] for row in rows] == ["0.25", "0.5", "1"]
    assert first[2].split("|")[0] == down(results["clean"]["smoothed"]["value"])
    for row, one in zip(rows, results["sizes"], strict=True):
        worst, lowest = one["adaptive"]["worst"], one["paper"]["lowest"]
        wanted = [down(one["certified"]["value"]), down(worst["smoothed"]["value"]), up(worst["abstained"]["value"])]
        wanted += [down(worst["network"]["value"]), *(down(lowest[name]) for name in ("smoothed", "certified", "network"))]
        wanted += [f"{100 * one['difference'][name]:+.1f}" for name in ("smoothed", "network")]
        assert [cell.split("|")[0] for cell in row[1:]] == wanted
        assert row[2].split("|")[1] == f"{down(worst['smoothed']['low'])[:-2]} – {up(worst['smoothed']['high'])}"
    assert len({cell for row in rows for cell in row}) > 12, "numbers that are all alike would show nothing"
    (attacks,) = copy["attacks"]
    assert attacks["results"] == results
    assert (attacks["follows"], attacks["crossing"], attacks["crossing_evidence"]) == (True, False, None)
    at_size = {round(point["size"], 9): point["value"] for point in attacks["certified_line"]}
    for one in results["sizes"]:
        assert at_size[one["size"]] == one["certified"]["value"], "the drawn line goes through the recorded points"
    assert len(attacks["examples"]) == 9


def test_every_attack_stands_by_itself_too(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    found = re.findall(
        r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td><strong>(.*?)</strong>', shown(root).split("<details")[1]
    )
    wanted = []
    for one in results_of(root)["sizes"]:
        size = format(one["size"], "g")
        for name, scores in one["paper"]["attacks"].items():
            wanted.append((f"{name} on network, {size}", "papers&#39;", down(scores["smoothed"]["value"])))
        for name, scores in one["adaptive"]["attacks"].items():
            wanted.append((f"{name}, {size}", "adaptive", down(scores["smoothed"]["value"])))
    assert found == wanted
    assert len(found) == 3 * 2 * 3


def test_a_number_changed_in_the_record_is_shown_and_called_stale(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    assert "do not follow" not in shown(root)
    change_results(root, lambda results: results["sizes"][1]["certified"].update(value=0.123456))
    page = shown(root)
    assert table_rows(page, "by both protocols.")[2][1].startswith("12.3 %")
    assert "do not follow from the certificates" in page


def test_a_new_certification_makes_the_results_stale(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record(), make_certificates(LABELS, seed=2))
    add_attacks(root, IMAGES, make_certificates(LABELS))
    assert not attacks_of(root).follows
    assert attacks_of(root).certified_line() == []
    assert "do not follow" in shown(root)


def test_without_attacks_there_is_no_section(tmp_path: Path) -> None:
    """Taken away, every byte is that of the run before it was attacked."""
    root = attacked_run(tmp_path / "run", IMAGES)
    attacked = load_facts(root)
    for name in ("attacks/l2/attacks.json", "attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors"):
        (root / name).unlink()
    page = run_page(load_facts(root), IMAGES)
    assert page == run_page(replace(attacked, attacks=()), IMAGES)
    assert "Under attack" not in page
    assert report(root)[1]["attacks"] == report(root)[1]["audits"] == []


def test_a_contradiction_cannot_be_overlooked(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, crossing)
    page, copy = report(root)
    box = text_of(section(page, "attacks").split('class="defect" role="alert"')[1].split("</div>")[0])
    for one in results_of(root)["sizes"]:
        assert one["crossing"]
        assert f"At l2 size {one['size']:g}, {one['flips']} inputs got another answer" in box
    assert page.index("DEFECT: an attack contradicts") < page.index('id="guarantee"')
    assert copy["attacks"][0]["crossing"] is True
    assert copy["attacks"][0]["crossing_evidence"]["culprit"] == "certificates"


def test_a_contradiction_that_the_record_hides_is_shown(tmp_path: Path) -> None:
    """What the lines and certificates say goes before what somebody wrote about them."""
    root = attacked_run(tmp_path / "run", IMAGES, crossing)
    change_results(root, lambda results: [one.update(crossing=False, flips=0) for one in results["sizes"]])
    assert load_facts(root).refuting
    assert 'class="defect"' in shown(root)


def test_certificates_that_are_gone_are_not_held_against_new_ones(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record(), make_certificates(LABELS, strength=0.01))
    add_attacks(root, IMAGES, make_certificates(LABELS), crossing)
    assert results_of(root)["crossing"] is True
    assert not load_facts(root).refuting
    assert "do not follow" in shown(root)


def test_attacks_on_radii_that_are_known_to_be_false_are_expected(tmp_path: Path) -> None:
    """The same attacks on a proven bound are a defect."""
    for name, status, bound in (("printed", Status.REFUTED, "published"), ("sound", Status.PROVEN, "tight")):
        root = certified_run(tmp_path / name, status, bound=bound)
        add_attacks(root, IMAGES, make_certificates(LABELS), crossing, bound=bound)
        words = text_of(report(root)[0])
        expected = name == "printed"
        assert ("REFUTED, as expected: attacks contradict the radii of this run" in words) == expected
        assert ("As expected: an attack crosses the claimed line" in words) == expected
        assert ("share claimed, refuted" in words) == expected
        assert ("DEFECT: an attack contradicts" in words) != expected


@pytest.mark.parametrize(
    ("factor", "dataset", "culprit", "words"),
    [
        (0.9, IMAGES, Culprit.CERTIFICATES, "The certificates must be wrong."),
        (1.2, IMAGES, Culprit.ATTACK, "The attack must be wrong."),
        (0.9, None, Culprit.UNKNOWN, "One of the two must be wrong"),
        (0.9, image_data(LABELS[::-1]), Culprit.UNKNOWN, "One of the two must be wrong"),
        (0.9, image_data(LABELS, channels=3), Culprit.UNKNOWN, "One of the two must be wrong"),
    ],
)
def test_the_box_says_which_of_the_two_is_wrong(
    tmp_path: Path, factor: float, dataset: Dataset | None, culprit: Culprit, words: str
) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, crossing, factor=factor)
    assert attacks_of(root).evidence(dataset).culprit is culprit
    assert words in shown(root, dataset)


@pytest.mark.parametrize(("norm", "room"), [("l2", math.isqrt(255**2 - 2 * 90**2)), ("l1", 255 - 2 * 90)])
def test_one_input_outside_is_enough(tmp_path: Path, norm: str, room: int) -> None:
    """The original moved by one level more than the ball allows: the measure is exact, not up to rounding."""
    attacks = attacks_of(attacked_run(tmp_path / "run", IMAGES, crossing, sizes=(1.0,), factor=0.5, norm=norm))
    index = attacks.contradictions[0].line.index
    for further, outside in ((room, 0), (room + 1, 1)):
        inputs = IMAGES.test.inputs.copy()
        inputs[index, 0, 0, 4] += further  # a dark pixel that no attack moved
        data = replace(IMAGES, test=Split(inputs, IMAGES.test.labels))
        versions = sum(one.line.index == index for one in attacks.contradictions)
        assert attacks.evidence(data).outside == outside * versions


def test_the_note_on_abstentions_has_the_records_numbers(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    worst = results_of(root)["sizes"][1]["adaptive"]["worst"]
    correct, silent = worst["smoothed"]["value"], worst["abstained"]["value"]
    assert silent > 0
    words = (
        f"At l2 size 0.5 the worst case leaves {down(correct)} correct, {up(silent)} without an answer, and "
        f"{up(1 - correct - silent)} misled."
    )
    assert words in text_of(shown(root, None))


@pytest.mark.parametrize(("protocol", "absent"), [("paper", "adaptive, worst case"), ("adaptive", "papers', lowest")])
def test_one_protocol_alone(tmp_path: Path, protocol: str, absent: str) -> None:
    page = shown(attacked_run(tmp_path / "run", IMAGES, protocols=(protocol,)))
    assert absent not in page
    assert "difference in points" not in page
    assert len(table_rows(page, "Accuracy under attack.")) == 1 + len(SIZES)


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_other_norms(tmp_path: Path, norm: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, lambda one, entry: one.prediction, norm=norm)
    attacks = attacks_of(root)
    assert attacks.follows
    for one in attacks.results.sizes:
        recorded = {round(size, 9): share for size, share in attacks.certified_line()}[one.size]
        assert recorded == one.certified, "an l2 radius is not read as one of another norm"
    assert f"{norm} size" in shown(root)


def test_attacks_in_another_norm_say_what_a_radius_must_cover(tmp_path: Path) -> None:
    root = certified_run(tmp_path / "run", config={"noise_layer": {"place": "first-layer"}}, norm="l1")
    add_attacks(root, IMAGES, make_certificates(LABELS), norm="linf", certificate_norm="l1")
    assert [one["reach"] for one in results_of(root, "linf")["sizes"]] == [16.0, 32.0, 64.0], "64 coordinates"
    same = certified_run(tmp_path / "same")
    add_attacks(same, IMAGES, make_certificates(LABELS))
    for words in ("Radii are in l1: an attack of linf size 1 can be 64.000 long there", "This network has a noise layer"):
        assert words in text_of(shown(root))
        assert words not in text_of(shown(same))


def test_why_the_line_may_lie_above_a_curve(tmp_path: Path) -> None:
    def silent(one: Any, entry: Any) -> int:
        return ABSTAIN if entry.protocol != "clean" else int(one.prediction)

    page = shown(attacked_run(tmp_path / "silent", IMAGES, silent))
    assert "although no certificate is contradicted" in page
    assert "Defect" not in page
    assert "although no certificate is contradicted" not in shown(attacked_run(tmp_path / "sound", IMAGES))


def test_attacks_without_certificates_have_a_line_of_their_own(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record(), metrics=make_metrics())
    add_attacks(root, IMAGES, make_certificates(LABELS))
    assert len(attacks_of(root).certificates) == len(LABELS)
    assert "share claimed, evidence missing" in shown(root)


@pytest.mark.parametrize("lost", ["clean", "sizes"])
def test_a_broken_record_writes_nothing(tmp_path: Path, lost: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    change_results(root, lambda results: results.pop(lost))
    with pytest.raises(RunError, match=rf"attacks.json is broken[\s\S]*{lost}"):
        write_report(root, dataset=IMAGES)
    assert not (root / "report.html").exists()


def test_a_real_run_end_to_end(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    tp.certify(Run.open(root), dataset, sampling=Sampling(20, 200), limit=30, device="cpu", key=Key.from_seed(1))
    plan = AttackPlan(sizes=(0.25, 0.5), steps=3, draws=2)
    made = tp.attack(
        Run.open(root), dataset, plan=plan, sampling=Sampling(20, 100), limit=30, device="cpu", key=Key.from_seed(2)
    )
    page, copy = report(root, dataset)
    assert "do not follow" not in page
    for row, one in zip(table_rows(page, "by both protocols.")[1:], made.results["sizes"], strict=True):
        assert row[1].split("|")[0] == down(one["certified"]["value"])
        assert row[2].split("|")[0] == down(one["adaptive"]["worst"]["smoothed"]["value"])
    assert copy["attacks"][0]["results"] == made.results


def line(index: int, entry: Entry, answer: int) -> AttackLine:
    return attack_line(Certificate(index, RIGHT, RIGHT, 900, RIGHT, 0.1), entry, answer)


def chosen(lines: list[AttackLine], count: int = SHOWN) -> list[tuple[int, str]]:
    return [(one.index, one.entry) for one in choose_attacked(lines, count)]


def test_the_smallest_size_first_then_the_order_of_the_test_set() -> None:
    lines = [line(index, CLEAN, RIGHT) for index in range(4)]
    lines += [line(index, ADAPTIVE, answer) for index, answer in enumerate((RIGHT, RIGHT, WRONG, WRONG))]
    lines += [line(index, LARGER, answer) for index, answer in enumerate((WRONG, ABSTAIN, WRONG, WRONG))]
    assert chosen(lines) == [(2, ADAPTIVE.name), (3, ADAPTIVE.name), (0, LARGER.name)]
    assert chosen(lines, 2) == [(2, ADAPTIVE.name), (3, ADAPTIVE.name)]


def test_adaptive_attacks_go_before_the_papers_and_no_input_comes_twice() -> None:
    lines = [line(0, CLEAN, RIGHT), line(1, CLEAN, RIGHT), line(0, PAPER, WRONG), line(1, PAPER, WRONG)]
    assert chosen([*lines, line(0, ADAPTIVE, WRONG), line(1, ADAPTIVE, RIGHT)]) == [(0, ADAPTIVE.name), (1, PAPER.name)]


@pytest.mark.parametrize(("before", "after"), [(WRONG, WRONG), (ABSTAIN, WRONG), (RIGHT, ABSTAIN)])
def test_what_was_not_right_before_or_not_wrong_after_is_no_success(before: int, after: int) -> None:
    assert chosen([line(0, CLEAN, before), line(0, ADAPTIVE, after)]) == []


def test_only_covered_inputs_that_were_misled_contradict() -> None:
    answers = enumerate((WRONG, WRONG, ABSTAIN, RIGHT))
    lines = [line(index, entry, answer) for index, answer in answers for entry in (ADAPTIVE, LARGER)]
    assert [(one.index, one.size) for one in contradicting(lines, 0.5, {1, 2, 3})] == [(1, 0.5)]


def test_inputs_are_found_by_the_order_of_their_lines() -> None:
    """The planted mistake, taking the number of the record for the row, would show another input."""
    lines = [line(index, entry, WRONG) for entry in (CLEAN, ADAPTIVE) for index in (7, 3)]
    found = with_inputs(lines[2:], lines, {ADAPTIVE.name: np.array([[70], [30]])})
    assert [(one.line.index, None if one.stored is None else int(one.stored[0])) for one in found] == [(7, 70), (3, 30)]
    for arrays in ({}, {ADAPTIVE.name: np.array([[70]])}):
        assert all(one.stored is None for one in with_inputs(lines[2:], lines, arrays))
    twice = [*lines, *lines]
    assert all(one.stored is None for one in with_inputs(twice, twice, {ADAPTIVE.name: np.zeros((4, 1))}))


def test_pictures_are_the_original_the_attacked_and_the_difference(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, sizes=(0.25, 0.3))
    attacks, page = attacks_of(root), shown(root)
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    pictures: list[NDArray[Any]] = [np.asarray(Image.open(io.BytesIO(base64.b64decode(one)))).astype(int) for one in found]
    assert len(pictures) == 3 * len(attacks.examples) >= 9
    gain = int(re.findall(r"drawn (\d+) times", page)[0])
    largest = max(int(np.abs(after - before).max()) for before, after in zip(pictures[::3], pictures[1::3], strict=True))
    assert gain == amplification(attacks.examples, IMAGES) == 255 // (2 * largest), "as far as the range allows"
    for example, original, attacked, difference in zip(
        attacks.examples, pictures[::3], pictures[1::3], pictures[2::3], strict=True
    ):
        one = example.line
        entry = Entry(one.protocol, one.target, one.attack, one.size)
        assert np.array_equal(original, IMAGES.test.inputs[one.index][0])
        assert np.array_equal(attacked, moved(IMAGES, entry)[one.index][0])
        assert np.abs(difference - (127.5 + gain * (attacked - original))).max() <= 1
        assert f"no. {one.index}<" in page
        assert f"l2 {math.ceil(1000 * one.length - 1e-6) / 1000:.3f} (size {one.size:g})" in page
        names = ("zero", "one", "two", "three")
        assert f"{names[one.label]} → {names[one.prediction]}" in page


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (None, "data set was not at hand"),
        (image_data(LABELS[::-1]), "another label"),
        (image_data(LABELS, channels=3), "another form than the test records"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, dataset: Any, words: str) -> None:
    page = shown(attacked_run(tmp_path / "run", IMAGES), dataset)
    assert words in page
    assert "<img" not in page


@pytest.mark.parametrize(("lost", "words"), [("attacks.csv", "do not follow"), ("attacks.safetensors", "does not hold them")])
def test_lost_files_are_said(tmp_path: Path, lost: str, words: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    (root / "attacks/l2" / lost).unlink()
    assert words in shown(root)


def test_no_success_is_said(tmp_path: Path) -> None:
    page = shown(attacked_run(tmp_path / "run", IMAGES, lambda one, entry: one.prediction))
    assert "No attack misled the smoothed classifier" in page


def test_features_are_shown_from_what_to_what_in_the_units_of_the_user(tmp_path: Path) -> None:
    data = feature_data(LABELS)
    root = attacked_run(tmp_path / "run", data)
    page, one = shown(root, data), attacks_of(root).examples[0].line
    before = data.test.inputs[one.index] / 65535 * 10
    after = moved(data, Entry(one.protocol, one.target, one.attack, one.size))[one.index] / 65535 * 10
    for place in (0, 11):
        assert f"&lt;b&gt;feature {place} {before[place]:.4g} → {after[place]:.4g}" in page
    assert "<img" not in page
    assert "feature 5 " not in page, "features that did not change are not listed"
