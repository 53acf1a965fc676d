"""The section "Under attack": the record's numbers, a crossing that nobody overlooks, and nothing where nobody attacked."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_attacks import SIZES, add_attacks, attacked_run, change_results, crossing, plausible, shared_noise_run
from report_page import check_page
from report_runs import LABELS, feature_data, image_data, make_certificates, make_metrics, run_record, write_run

import twinproof as tp
from twinproof.certification.method import Sampling
from twinproof.data.record import Dataset, Split
from twinproof.errors import RunError
from twinproof.evaluation.protocols import AttackPlan
from twinproof.keys import Key
from twinproof.reporting import write_report
from twinproof.reporting.attack_section import attack_section
from twinproof.reporting.card import guarantee_card, robustness_sentence
from twinproof.reporting.crossing_box import Culprit, crossing_box, crossing_evidence
from twinproof.reporting.facts import load_facts
from twinproof.reporting.page import run_page
from twinproof.runs.certificates import ABSTAIN
from twinproof.runs.run import Run

IMAGES = image_data(LABELS)


def section(page: str, name: str) -> str:
    return page.split(f'id="{name}">')[1].split("</section>")[0]


def shown(root: Path, dataset: Dataset | None = IMAGES) -> str:
    """The section alone: its plots are a quarter of the page's."""
    made = attack_section(load_facts(root), dataset)
    check_page(made)
    return made


def table_rows(page: str, caption: str) -> list[list[str]]:
    """The cells of a table as text; an interval follows its value after a bar."""
    body = page.split(f"{caption}</caption>")[1].split("</table>")[0].split("<tbody>")[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return [[_text(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def _text(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", cell.replace("<br/>", "|")))


def down(share: float) -> str:
    """Percent with one place, rounded down, by arithmetic of its own."""
    return f"{math.floor(1000 * share + 1e-6) / 10:.1f} %"


def up(share: float) -> str:
    return f"{math.ceil(1000 * share - 1e-6) / 10:.1f} %"


def results_of(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / "attacks/l2/attacks.json").read_text())["results"])


def test_the_page_shows_the_numbers_of_the_record(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    files = write_report(root, dataset=IMAGES)
    page, results = files.html.read_text(encoding="utf-8"), results_of(root)
    check_page(page)
    first, *rows = table_rows(page, "by both protocols.")
    assert [row[0] for row in rows] == ["0.25", "0.5", "1"]
    assert first[2].split("|")[0] == down(results["clean"]["smoothed"]["value"])
    for row, one in zip(rows, results["sizes"], strict=True):
        worst, lowest = one["adaptive"]["worst"], one["paper"]["lowest"]
        shown = [cell.split("|")[0] for cell in row[1:]]
        wanted = [down(one["certified"]["value"]), down(worst["smoothed"]["value"]), up(worst["abstained"]["value"])]
        wanted += [
            down(worst["network"]["value"]),
            down(lowest["smoothed"]),
            down(lowest["certified"]),
            down(lowest["network"]),
        ]
        wanted += [f"{100 * one['difference'][name]:+.1f}" for name in ("smoothed", "network")]
        assert shown == wanted
        assert row[2].split("|")[1] == f"{down(worst['smoothed']['low'])[:-2]} – {up(worst['smoothed']['high'])}"
    assert len({cell for row in rows for cell in row}) > 12, "numbers that are all alike would show nothing"
    assert "do not follow" not in section(page, "attacks")


def test_every_attack_stands_by_itself_too(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    page = shown(root)
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td><strong>(.*?)</strong>', page.split("<details")[1])
    wanted = []
    for one in results_of(root)["sizes"]:
        size = format(one["size"], "g")
        for name, found in one["paper"]["attacks"].items():
            wanted.append((f"{name} on network, {size}", "papers&#x27;", down(found["smoothed"]["value"])))
        for name, found in one["adaptive"]["attacks"].items():
            wanted.append((f"{name}, {size}", "adaptive", down(found["smoothed"]["value"])))
    assert rows == wanted
    assert len(rows) == 3 * 2 * 3


def test_a_number_changed_in_the_record_changes_the_page_and_is_called_stale(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    change_results(root, lambda results: results["sizes"][1]["certified"].update(value=0.123456))
    page = shown(root)
    assert table_rows(page, "by both protocols.")[2][1].startswith("12.3 %")
    assert "do not follow from the certificates" in page


def test_a_new_certification_makes_the_results_stale(tmp_path: Path) -> None:
    certificates = make_certificates(LABELS)
    root = write_run(tmp_path / "run", run_record(), make_certificates(LABELS, seed=2))
    add_attacks(root, IMAGES, certificates)
    facts = load_facts(root)
    assert facts.attacks is not None
    assert not facts.attacks.follows
    assert facts.attacks.certified_line() == []
    assert "do not follow" in shown(root)


def test_lost_lines_are_noticed(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    (root / "attacks/l2/attacks.csv").unlink()
    page = shown(root)
    assert "do not follow" in page
    assert "No attack misled" in page


def test_the_twin_holds_the_same_numbers(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    attacks = json.loads(write_report(root, dataset=IMAGES).json.read_text())["attacks"]
    assert attacks["results"] == results_of(root)
    assert (attacks["follows"], attacks["crossing"], attacks["crossing_evidence"]) == (True, False, None)
    at_size = {round(point["size"], 9): point["value"] for point in attacks["certified_line"]}
    for one in results_of(root)["sizes"]:
        assert at_size[one["size"]] == one["certified"]["value"], "the drawn line goes through the recorded points"
    assert len(attacks["examples"]) == 9


def test_the_order_of_the_page(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    balance = check_page(write_report(root, dataset=IMAGES).html.read_text(encoding="utf-8"))
    assert balance.sections == ["guarantee", "numbers", "certified", "radii", "attacks", "progress", "examples", "check"]


def test_without_attacks_the_page_is_what_it_was(tmp_path: Path) -> None:
    """The section is all that attacks add: taken away, every byte is that of the run before it was attacked."""
    root = attacked_run(tmp_path / "run", IMAGES)
    attacked = load_facts(root)
    for name in ("attacks/l2/attacks.json", "attacks/l2/attacks.csv", "attacks/l2/attacks.safetensors"):
        (root / name).unlink()
    plain = load_facts(root)
    page = run_page(plain, IMAGES)
    assert page == run_page(replace(attacked, attacks=None), IMAGES)
    assert 'id="attacks"' not in page
    assert "Under attack" not in page
    assert page != run_page(attacked, IMAGES)
    twin = json.loads(write_report(root).json.read_text())
    assert (twin["attacks"], twin["audit"]) == (None, None)


def test_a_crossing_cannot_be_overlooked(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, crossing)
    files = write_report(root, dataset=IMAGES)
    page = files.html.read_text(encoding="utf-8")
    check_page(page)
    box = section(page, "attacks").split("<p>")[0]
    assert 'class="defect" role="alert"' in box
    for one in results_of(root)["sizes"]:
        assert one["crossing"]
        assert f"At l2 size {one['size']:g}, {one['flips']} inputs got another answer" in box
    assert page.index("DEFECT: an attack contradicts") < page.index('id="guarantee"')
    twin = json.loads(files.json.read_text())["attacks"]
    assert twin["crossing"] is True
    assert twin["crossing_evidence"]["culprit"] == "certificates"


def test_a_crossing_that_the_record_hides_is_shown(tmp_path: Path) -> None:
    """What the lines and certificates say goes before what somebody wrote about them."""
    root = attacked_run(tmp_path / "run", IMAGES, crossing)

    def hide(results: dict[str, Any]) -> None:
        for one in results["sizes"]:
            one.update(crossing=False, flips=0)

    change_results(root, hide)
    assert load_facts(root).contradicted
    assert 'class="defect"' in shown(root)


def test_a_crossing_of_certificates_that_are_gone_is_not_held_against_the_new_ones(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record(), make_certificates(LABELS, strength=0.01))
    add_attacks(root, IMAGES, make_certificates(LABELS), crossing)
    assert results_of(root)["crossing"] is True
    assert not load_facts(root).contradicted
    assert "do not follow" in shown(root)


def test_a_crossing_takes_the_promise_away(tmp_path: Path) -> None:
    sound, broken = (load_facts(attacked_run(tmp_path / answer.__name__, IMAGES, answer)) for answer in (plausible, crossing))
    assert "radius held by 50 %" in guarantee_card(sound)
    assert "contradicted" not in guarantee_card(sound)
    card = guarantee_card(broken)
    assert "contradicts the certificates" in robustness_sentence(broken)
    assert "radius held by" not in card
    assert "</span>contradicted</span>" in card
    assert card.count("</span>proven</span>") == 1, "privacy is not touched"


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
    facts = load_facts(root)
    assert facts.attacks is not None
    assert crossing_evidence(facts.attacks, dataset).culprit is culprit
    assert words in crossing_box(facts.attacks, dataset)


@pytest.mark.parametrize(("norm", "room"), [("l2", math.isqrt(255**2 - 2 * 90**2)), ("l1", 255 - 2 * 90)])
def test_one_input_outside_is_enough(tmp_path: Path, norm: str, room: int) -> None:
    """The original moved by one level more than the ball allows: the measure is exact, not up to rounding."""
    root = attacked_run(tmp_path / "run", IMAGES, crossing, sizes=(1.0,), factor=0.5, norm=norm)
    facts = load_facts(root)
    assert facts.attacks is not None
    index = facts.attacks.contradictions[0].line.index
    for further, outside in ((room, 0), (room + 1, 1)):
        inputs = IMAGES.test.inputs.copy()
        inputs[index, 0, 0, 4] += further  # a dark pixel that no attack moved
        data = replace(IMAGES, test=Split(inputs, IMAGES.test.labels))
        versions = sum(one.line.index == index for one in facts.attacks.contradictions)
        assert crossing_evidence(facts.attacks, data).outside == outside * versions


def test_the_note_on_abstentions_has_the_records_numbers(tmp_path: Path) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    worst = results_of(root)["sizes"][1]["adaptive"]["worst"]
    correct, silent = worst["smoothed"]["value"], worst["abstained"]["value"]
    assert silent > 0
    page = shown(root, None)
    assert (
        f"At l2 size 0.5 the worst case leaves {down(correct)} correct, {up(silent)} without an answer, and "
        f"{up(1 - correct - silent)} misled." in page
    )


@pytest.mark.parametrize(("protocol", "absent"), [("paper", "adaptive, worst case"), ("adaptive", "papers&#x27;, lowest")])
def test_one_protocol_alone(tmp_path: Path, protocol: str, absent: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, protocols=(protocol,))
    page = shown(root)
    assert absent not in page
    assert "difference in points" not in page
    assert len(table_rows(page, "Accuracy under attack.")) == 1 + len(SIZES)


@pytest.mark.parametrize("norm", ["linf", "l1"])
def test_other_norms(tmp_path: Path, norm: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES, lambda one, entry: one.prediction, norm=norm)
    facts = load_facts(root)
    assert facts.attacks is not None
    assert facts.attacks.follows
    for one in facts.attacks.sizes:
        recorded = {round(size, 9): share for size, share in facts.attacks.certified_line()}[one.size]
        assert recorded == one.certified, "an l2 radius is not read as one of another norm"
    assert f"{norm} size" in shown(root)


def test_what_silence_does_is_said_where_the_line_lies_above_a_curve(tmp_path: Path) -> None:
    def silent(one: Any, entry: Any) -> int:
        return ABSTAIN if entry.protocol != "clean" else int(one.prediction)

    page = shown(attacked_run(tmp_path / "silent", IMAGES, silent))
    assert "although no certificate is contradicted" in page
    assert "Defect" not in page
    page = shown(attacked_run(tmp_path / "sound", IMAGES))
    assert "although no certificate is contradicted" not in page


def test_attacks_without_certificates_have_a_line_of_their_own(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", run_record(), metrics=make_metrics())
    add_attacks(root, IMAGES, make_certificates(LABELS))
    facts = load_facts(root)
    assert facts.attacks is not None
    assert len(facts.attacks.certificates) == len(LABELS)
    assert "certified share" in shown(root)


def test_what_an_attack_record_says_is_escaped(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    root = attacked_run(tmp_path / "run", IMAGES, device=hostile)
    change_results(root, lambda results: results.update(warnings=[hostile]))
    page = write_report(root, dataset=IMAGES).html.read_text(encoding="utf-8")
    check_page(page)
    assert page.count("&lt;script&gt;") == 2


@pytest.mark.parametrize("lost", ["clean", "sizes"])
def test_a_broken_record_writes_nothing(tmp_path: Path, lost: str) -> None:
    root = attacked_run(tmp_path / "run", IMAGES)
    change_results(root, lambda results: results.pop(lost))
    with pytest.raises(RunError, match=rf"attacks.json is broken[\s\S]*{lost}"):
        write_report(root, dataset=IMAGES)
    assert not (root / "report.html").exists()


def test_shared_noise_is_said_wherever_certificates_speak(tmp_path: Path) -> None:
    shared = shared_noise_run(tmp_path / "shared")
    own = write_run(tmp_path / "own", run_record(), make_certificates(LABELS), metrics=make_metrics())
    files = write_report(shared)
    page, plain = (files.html.read_text(encoding="utf-8"), run_page(load_facts(own), None))
    for words in ("shared by all inputs", "certificates may fail together", "the intervals hold given this noise"):
        assert words in page
        assert words not in plain
    assert "exact first layer; tf32" in page
    made = json.loads(files.json.read_text())["certification"]
    assert (made["shared_noise"], made["form"], made["arithmetic"]) == (True, "exact first layer", "tf32")


def test_a_real_run_end_to_end(trained: Path, dataset: Dataset, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    tp.certify(Run.open(root), dataset, sampling=Sampling(20, 200), limit=30, device="cpu", key=Key.from_seed(1))
    plan = AttackPlan(sizes=(0.25, 0.5), steps=3, draws=2)
    made = tp.attack(
        Run.open(root), dataset, plan=plan, sampling=Sampling(20, 100), limit=30, device="cpu", key=Key.from_seed(2)
    )
    files = write_report(root, dataset=dataset)
    page = files.html.read_text(encoding="utf-8")
    check_page(page)
    assert "do not follow" not in page
    rows = table_rows(page, "by both protocols.")[1:]
    for row, one in zip(rows, made.results["sizes"], strict=True):
        assert row[1].split("|")[0] == down(one["certified"]["value"])
        assert row[2].split("|")[0] == down(one["adaptive"]["worst"]["smoothed"]["value"])
    assert json.loads(files.json.read_text())["attacks"]["results"] == made.results


def _report(root: Path, data: Dataset, *, examples: bool) -> tuple[str, dict[str, Any]]:
    files = write_report(root, dataset=data, examples=examples)
    return files.html.read_text(encoding="utf-8"), json.loads(files.json.read_text())


@pytest.mark.parametrize("known", [image_data(LABELS), feature_data(LABELS)], ids=["images", "features"])
def test_own_records_are_shown_only_on_request(tmp_path: Path, known: Dataset) -> None:
    """Without the request a report is the same for any test inputs; with it, it is that of a known set."""
    root = attacked_run(tmp_path / "run", known)
    own = replace(known, public=False)
    other = replace(own, test=Split(own.test.inputs ^ 1, own.test.labels))
    page, twin = hidden = _report(root, own, examples=False)
    check_page(page)
    assert page.count("twinproof report RUN --examples") == 2, "test inputs and attacked inputs"
    assert (twin["examples"], twin["attacks"]["examples"]) == ([], [])
    assert _report(root, other, examples=False) == hidden
    shown = _report(root, own, examples=True)
    assert shown == _report(root, known, examples=False)
    assert shown != _report(root, other, examples=True), "the comparison can fail"
    assert shown[1]["examples"]
    assert shown[1]["attacks"]["examples"]


def test_features_get_a_table(tmp_path: Path) -> None:
    data = feature_data(LABELS)
    root = attacked_run(tmp_path / "run", data)
    page = shown(root, data)
    assert "<img" not in page
    assert "features that changed most" in page
    assert "&lt;b&gt;feature 0" in page
