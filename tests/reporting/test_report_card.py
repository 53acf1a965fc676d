"""The card never shines brighter than the run: the words follow status, certificates and verification."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from report_runs import LABELS, make_certificates, privacy_promise, robustness_promise, run_record, write_run

from twinproof.errors import RunError
from twinproof.guarantee import Status
from twinproof.reporting.card import guarantee_card, privacy_sentence, robustness_sentence
from twinproof.reporting.facts import RunFacts, load_facts, table_radii

CHECKED = {"ok": True, "problems": [], "checks": ["chain"]}
FAILED = {"ok": False, "problems": ["a radius is too large"], "checks": ["chain"]}


def facts(
    root: Path, privacy: Status, robustness: Status = Status.PROVEN, verification: dict[str, Any] | None = None
) -> RunFacts:
    promises = {"privacy": privacy_promise(privacy).as_dict(), "robustness": {"l2": robustness_promise(robustness).as_dict()}}
    return load_facts(write_run(root / "run", run_record(guarantees=promises), make_certificates(LABELS)), verification)


@pytest.mark.parametrize(
    ("status", "words", "epsilon_shown"),
    [
        (Status.PROVEN, "Replacing any one", True),
        (Status.PUBLISHED, "not proven here. Replacing any one", True),
        (Status.ASSUMED, "could not be checked. Replacing any one", True),
        (Status.REFUTED, "shown to be false", False),
        (Status.NONE, "No privacy is promised", False),
    ],
)
def test_privacy_follows_its_status(tmp_path: Path, status: Status, words: str, epsilon_shown: bool) -> None:
    run = facts(tmp_path, status)
    assert words in privacy_sentence(run)
    card = guarantee_card(run)
    assert f"</span>{status}</span>" in card  # the badge says the word, not only a colour
    assert ("≤ 3.000" in card) == epsilon_shown
    assert ("Nobody." in card) == (not epsilon_shown)


@pytest.mark.parametrize(
    ("status", "epsilon", "word", "colour"),
    [
        (Status.PROVEN, 3.0, "proven", "proven"),
        (Status.PROVEN, 9.999, "proven", "proven"),
        (Status.PROVEN, 10.0, "proven, weak", "weak"),
        (Status.PROVEN, 50.0, "proven, weak", "weak"),
        (Status.ASSUMED, 0.1, "assumed", "assumed"),
        (Status.ASSUMED, 50.0, "assumed, weak", "weak"),
        (Status.NONE, 50.0, "none", "none"),
    ],
)
def test_only_a_proof_of_something_is_green(tmp_path: Path, status: Status, epsilon: float, word: str, colour: str) -> None:
    run = with_epsilon(tmp_path, epsilon, status)
    card = guarantee_card(run)
    assert f"</span>{word}</span>" in card
    assert f'class="badge {colour}"' in card
    assert f'class="half {colour}"' in card
    assert ("weak protection" in privacy_sentence(run)) == (epsilon >= 8 and status is not Status.NONE)


@pytest.mark.parametrize(
    ("epsilon", "words"), [(3.0, "95.3 %"), (8.0, "99.97 %"), (9.3, "says nothing"), (50.0, "says nothing")]
)
def test_plain_words_follow_epsilon(tmp_path: Path, epsilon: float, words: str) -> None:
    sentence = privacy_sentence(with_epsilon(tmp_path, epsilon, Status.PROVEN))
    assert words in sentence
    assert "almost the same" not in sentence


@pytest.mark.parametrize("number", [1, 2])
def test_words_that_nobody_compared_are_called_that(tmp_path: Path, number: int) -> None:
    """A run of format 1 could say anything in them; its numbers are checked."""
    card = guarantee_card(
        load_facts(write_run(tmp_path / "run", run_record(format=number), make_certificates(LABELS)), CHECKED)
    )
    assert ("Assuming (words not checked)" in card) == (number == 1)
    assert ("As recorded (words not checked)" in card) == (number == 1)


def with_epsilon(root: Path, epsilon: float, status: Status) -> RunFacts:
    record = run_record(
        guarantees={"privacy": privacy_promise(status).as_dict(), "robustness": {"l2": robustness_promise().as_dict()}}
    )
    record["privacy"] = {**record["privacy"], "epsilon": epsilon}
    return load_facts(write_run(root / "run", record, make_certificates(LABELS)))


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
    run = facts(tmp_path, Status.PROVEN, status)
    assert words in robustness_sentence(run)
    assert ("radius held by 50 %" in guarantee_card(run)) == (status in (Status.PROVEN, Status.PUBLISHED))


def test_a_failed_verification_undoes_every_promise(tmp_path: Path) -> None:
    run = facts(tmp_path, Status.PROVEN, Status.PROVEN, FAILED)
    card = guarantee_card(run)
    assert run.promised_epsilon is None
    assert card.count("check failed") == 2
    assert "proven</span>" not in card
    assert "3.000" not in card
    assert "failed its verification" in privacy_sentence(run)
    assert "failed its verification" in robustness_sentence(run)


def test_a_passed_verification_changes_nothing(tmp_path: Path) -> None:
    assert guarantee_card(facts(tmp_path / "a", Status.PROVEN)) == guarantee_card(
        facts(tmp_path / "b", Status.PROVEN, verification=CHECKED)
    )


def test_both_limits_are_stated(tmp_path: Path) -> None:
    card = guarantee_card(facts(tmp_path, Status.PROVEN))
    for words in ("population as a whole", "outside this run", "l2 norm", "they do not hold jointly", "as declared", "0.001"):
        assert words in card


def test_no_certificates_no_radius(tmp_path: Path) -> None:
    run = load_facts(write_run(tmp_path / "run"))
    assert "No robustness is promised" in robustness_sentence(run)
    assert "radius held" not in guarantee_card(run)


def test_an_unknown_status_is_refused(tmp_path: Path) -> None:
    promises = {"privacy": {**privacy_promise().as_dict(), "status": "certain"}}
    with pytest.raises(RunError, match=r"guarantees.privacy.status[\s\S]*certain[\s\S]*proven"):
        load_facts(write_run(tmp_path / "run", run_record(guarantees=promises)))


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


def test_only_proven_is_green(tmp_path: Path) -> None:
    colours = dict(re.findall(r"--(\w+): (#\w{6})", (files("twinproof.reporting") / "style.css").read_text()))
    green = colours["proven"]
    assert all(colours[str(status)] != green for status in Status if status is not Status.PROVEN)
    card = guarantee_card(facts(tmp_path, Status.ASSUMED))
    assert 'class="badge assumed"' in card
    assert "epsilon, under assumptions" in card
