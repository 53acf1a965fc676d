"""What a report says of a run: words, badges and numbers follow status, certificates, attacks and verification."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from report_runs import (
    HOSTILE,
    IMAGES,
    LABELS,
    add_audit,
    attacked_certificate,
    attacked_run,
    certified_run,
    crossing,
    make_certificates,
    report,
    run_record,
    section,
    text_of,
    write_run,
)
from report_runs import each_plot_once as each_plot_once

from twinproof.certification.method import find_certification
from twinproof.errors import RunError
from twinproof.evaluation.certified import certified_accuracy, radius_at_accuracy, summarize
from twinproof.guarantee import Status
from twinproof.reporting.card import guarantee_card, privacy_sentence, robustness_sentence
from twinproof.reporting.evidence import table_radii
from twinproof.reporting.facts import load_facts
from twinproof.reporting.words import RadiusWords, Undone
from twinproof.runs.records import Certificate

CHECKED = {"ok": True, "problems": [], "checks": ["chain"]}
FAILED = {"ok": False, "problems": ["a radius is too large"], "checks": ["chain"]}


@pytest.mark.parametrize(
    ("status", "epsilon", "words", "badge", "colour"),
    [
        (Status.PROVEN, 3.0, "Replacing any one", "proven", "proven"),
        (Status.PROVEN, 3.0, "95.3 %", "proven", "proven"),
        (Status.PROVEN, 8.0, "99.97 %", "proven", "proven"),
        (Status.PROVEN, 9.3, "says nothing", "proven", "proven"),
        (Status.PROVEN, 9.999, "weak protection", "proven", "proven"),
        (Status.PROVEN, 10.0, "weak protection", "proven, weak", "weak"),
        (Status.PROVEN, 50.0, "says nothing", "proven, weak", "weak"),
        (Status.PUBLISHED, 3.0, "not proven here. Replacing any one", "published", "published"),
        (Status.ASSUMED, 0.1, "could not be checked. Replacing any one", "assumed", "assumed"),
        (Status.ASSUMED, 50.0, "weak protection", "assumed, weak", "weak"),
        (Status.REFUTED, 3.0, "shown to be false", "refuted", "refuted"),
        (Status.NONE, 50.0, "No privacy is promised", "none", "none"),
    ],
)
def test_privacy_follows_status_and_epsilon(
    tmp_path: Path, status: Status, epsilon: float, words: str, badge: str, colour: str
) -> None:
    """Only a proof of something is green, and epsilon is shown only where it is a promise."""
    record = run_record(status)
    record["privacy"]["epsilon"] = epsilon
    private, _ = guarantee_card(load_facts(write_run(tmp_path / "run", record, make_certificates(LABELS))))
    assert words in private.sentence
    assert "almost the same" not in private.sentence
    assert ("weak protection" in private.sentence) == (epsilon >= 8 and status is not Status.NONE)
    assert (private.badge.word, private.badge.colour) == (badge, colour)
    assert any(term.startswith("epsilon") for term, _ in private.numbers) == private.promised
    assert private.promised == (status not in (Status.REFUTED, Status.NONE))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.PROVEN, "For each certified input"),
        (Status.PUBLISHED, "not proven here. For each"),
        (Status.REFUTED, "shown to be false"),
        (Status.NONE, "No robustness is promised"),
    ],
)
def test_robustness_follows_its_status(tmp_path: Path, status: Status, words: str) -> None:
    root = certified_run(tmp_path / "run", status)
    _, robust = guarantee_card(load_facts(root))
    assert words in robust.sentence
    assert robust.promised == (status in (Status.PROVEN, Status.PUBLISHED))
    page, _ = report(root)
    assert ("radius held by 50 %" in page) == robust.promised
    assert "does not say" in section(page, "guarantee")


def test_what_the_card_says_it_does_not_say(tmp_path: Path) -> None:
    page, _ = report(certified_run(tmp_path / "run"))
    shown = text_of(section(page, "guarantee"))
    for words in ("population as a whole", "outside this run", "l2 norm", "they do not hold jointly", "as declared", "0.001"):
        assert words in shown


@pytest.mark.parametrize("number", [1, 2, 3])
def test_words_of_format_1_are_not_checked(tmp_path: Path, number: int) -> None:
    """A run of format 1 could say anything in them; its numbers are checked."""
    page, _ = report(write_run(tmp_path / "run", run_record(format=number), make_certificates(LABELS)), verification=CHECKED)
    assert ("Assuming (words not checked)" in page) == ("As recorded (words not checked)" in page) == (number == 1)


def test_a_failed_verification_undoes_every_promise(tmp_path: Path) -> None:
    root = certified_run(tmp_path / "run")
    page, copy = report(root, verification=FAILED)
    assert [half.badge.word for half in guarantee_card(load_facts(root, FAILED))] == ["check failed"] * 2
    assert load_facts(root, FAILED).privacy.epsilon is None
    assert "3.000" not in text_of(page)
    assert section(page, "guarantee").count("failed its verification:") == 2
    assert copy["certifications"][0]["claim"] == "claimed, check failed"
    assert guarantee_card(load_facts(root, CHECKED)) == guarantee_card(load_facts(root)), "a passed one adds nothing"


def test_a_promise_whose_certificates_are_gone_is_not_shown(tmp_path: Path) -> None:
    """run.json alone proves nothing of robustness, whatever it records."""
    root = certified_run(tmp_path / "run")
    for name in ("certificates.csv", "certificates.json"):
        (root / "certificates/l2" / name).unlink()
        page, copy = report(root)
        shown = copy["guarantees"]["robustness"].popitem()[1]
        assert (shown["status"], shown["shown"]) == ("proven", "evidence missing")
        assert "The evidence is missing" in shown["sentence"]
        assert section(page, "guarantee").count('class="badge proven"') == 1, "privacy is not touched"
        assert "radius held by" not in page
        for name in ("certified", "radii", "examples"):
            assert "The certificates of this run are missing" in section(page, name)


def test_before_certification_nothing_is_missing(tmp_path: Path) -> None:
    page, copy = report(write_run(tmp_path / "run", run_record(robust=None)))
    assert copy["guarantees"]["robustness"]["uncertified"]["shown"] == "none"
    assert "No test input has been certified yet" in section(page, "certified")
    assert copy["certifications"] == []


def test_attacks_take_the_promise_of_radii_away(tmp_path: Path) -> None:
    """Each by itself; privacy is not touched, and what was refuted before stays refuted."""
    attacked = attacked_run(tmp_path / "attacked", IMAGES, crossing)
    audited, refuted = certified_run(tmp_path / "audited"), certified_run(tmp_path / "refuted", Status.REFUTED)
    for root in (audited, refuted):
        add_audit(root, [attacked_certificate(index, 0.5, inside=True) for index in range(20)])
    for root, word in ((attacked, "contradicted"), (audited, "contradicted"), (refuted, "refuted")):
        facts = load_facts(root)
        private, robust = guarantee_card(facts)
        assert (private.badge.word, robust.badge.word, robust.promised) == ("proven", word, False)
        assert facts.certifications[0].words.claim == f"claimed, {word}"
    assert "contradicts the certificates" in robustness_sentence(load_facts(attacked).certifications[0])


@pytest.mark.parametrize(
    ("status", "undone", "claim"),
    [
        (Status.PROVEN, None, ""),
        (Status.NONE, None, ""),
        (Status.PUBLISHED, None, "claimed, not proven"),
        (Status.ASSUMED, None, "claimed, not proven"),
        (Status.REFUTED, None, "claimed, refuted"),
        (Status.REFUTED, Undone.CONTRADICTED, "claimed, refuted"),
        (Status.PROVEN, Undone.CONTRADICTED, "claimed, contradicted"),
        (Status.PUBLISHED, Undone.CHECK_FAILED, "claimed, check failed"),
    ],
)
def test_radii_are_certified_only_where_their_promise_holds(status: Status, undone: Undone | None, claim: str) -> None:
    words = RadiusWords.of("l2", status, undone)
    assert words.claim == claim
    assert ("certified" in f"{words.axis} {words.accuracy} {words.certified}".lower()) == (claim == "")


def test_an_unknown_status_is_refused(tmp_path: Path) -> None:
    record = run_record()
    record["guarantees"]["privacy"]["status"] = "certain"
    with pytest.raises(RunError, match=r"guarantees.privacy.status[\s\S]*certain[\s\S]*proven"):
        load_facts(write_run(tmp_path / "run", record))


@pytest.mark.parametrize("line", ['{"no": "step"}\n', "[]\n", "not json\n"])
def test_broken_metrics_are_named(tmp_path: Path, line: str) -> None:
    root = write_run(tmp_path / "run", metrics=[])
    (root / "metrics.jsonl").write_text(line)
    with pytest.raises(RunError, match=r"metrics.jsonl is broken"):
        load_facts(root)


@pytest.mark.parametrize(
    ("largest", "count"), [(0.003, 4), (0.16, 9), (0.6, 7), (1.0, 5), (1.42, 6), (2.4, 10), (3.8, 8), (20.0, 5)]
)
def test_tables_have_a_handful_of_rows(largest: float, count: int) -> None:
    radii = table_radii(largest)
    assert len(radii) == count
    assert radii[0] == 0.0
    assert radii[-1] <= largest


def test_no_other_status_has_the_colour_of_proofs() -> None:
    style = (files("twinproof.reporting") / "templates" / "style.css").read_text()
    colours = dict(re.findall(r"--(\w+): (#\w{6})", style))
    assert all(colours[str(status)] != colours["proven"] for status in Status if status is not Status.PROVEN)


def test_the_json_copy_agrees_with_evaluate(tmp_path: Path) -> None:
    root = certified_run(tmp_path / "run")
    _, copy = report(root, verification=CHECKED)
    found = find_certification(root)
    assert found is not None
    certificates, settings = found.certificates, found.settings
    (record,) = copy["certifications"]
    assert record["certified"] == summarize(certificates, settings).as_dict()
    assert (record["name"], record["certified_inputs"], record["claim"]) == ("l2", len(LABELS), "")
    for point in record["curve"]:
        radius = point.pop("radius")
        assert point == certified_accuracy(certificates, radius).as_dict()
    assert record["radius_at_accuracy"]["0.5"] == radius_at_accuracy(certificates, 0.5)
    counts = record["histogram"]
    assert sum(counts["correct"]) + sum(counts["wrong"]) + counts["abstained"] == len(LABELS)
    assert len(record["examples"]) >= 8
    assert copy["verification"] == {**CHECKED, "not_checked": None}


def test_numbers_are_rounded_in_the_safe_direction(tmp_path: Path) -> None:
    """Epsilon 2.99990001 may become 3.000; a radius of 0.99996 may not become 1.000."""
    certificates = [Certificate(index, label, label, 9000, label, 0.99996) for index, label in enumerate(LABELS)]
    privacy = {**run_record()["privacy"], "epsilon": 2.99990001}
    page, copy = report(write_run(tmp_path / "run", run_record(privacy=privacy), certificates))
    assert "≤ 3.000" in page
    assert "2.999 " not in page
    assert "radius 0.999" in page
    assert "1.000" not in page
    assert copy["privacy"]["epsilon"] == 2.999901  # rounding to nearest would say 2.9999, less than was spent
    (record,) = copy["certifications"]
    assert record["certified"]["acr"] <= 0.99996
    assert record["radius_at_accuracy"]["0.9"] <= 0.99996
    assert max(point["radius"] for point in record["curve"] if point["value"] > 0) <= 0.99996


def test_bound_law_place_and_norm_are_named(tmp_path: Path) -> None:
    layer: dict[str, Any] = {"norm": "linf", "law": "laplace", "place": "first-layer", "statistic": "scores"}
    how: dict[str, Any] = {"confidence": "empirical-bernstein", "runner_up": "union"}
    page, copy = report(certified_run(tmp_path / "run", **layer, **how, dimension=500))
    shown = text_of(page)
    for words in (
        "Laplace, after the first layer",
        "tight (Neyman and Pearson); scores, empirical-bernstein, union",
        "certified linf radius",
        "Only changes measured in the linf norm",
        "averages its scores over noisy copies",
    ):
        assert words in shown, words
    assert "l2" not in re.sub(r"Cohen.*?grid|within the certified l2 radius", "", shown), "nothing is left of the usual norm"
    made = copy["certifications"][0]["settings"]
    assert {name: made[name] for name in (*layer, *how)} == {**layer, **how}


def test_a_promise_without_numbers_is_quoted(tmp_path: Path) -> None:
    facts = load_facts(write_run(tmp_path / "run", run_record(privacy=None)))
    assert privacy_sentence(facts.privacy) == facts.privacy.guarantee.promise


def test_class_names_are_never_trusted(tmp_path: Path) -> None:
    record = run_record()
    record["data"]["classes"] = [HOSTILE]
    facts = load_facts(write_run(tmp_path / "run", record))
    assert (facts.class_name(0), facts.class_name(1), facts.class_name(-1)) == (HOSTILE, "1", "-1")
    json.dumps(facts.data)
