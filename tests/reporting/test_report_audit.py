"""The section "Attacks on certificates": the audit's numbers, refutations for all to see, work that is not done."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from report_runs import add_audit, attacked_certificate, certified_run, check_page, report, section, text_of
from report_runs import each_plot_once as each_plot_once

from twinproof.auditing.certificate_verdict import HELD, AttackedCertificate
from twinproof.errors import RunError
from twinproof.guarantee import Status
from twinproof.reporting import write_report
from twinproof.reporting.attacks import BINS_PER_RADIUS
from twinproof.reporting.facts import load_facts

SOUND = [
    *(attacked_certificate(index, ratio) for index, ratio in enumerate((1.0, 1.199999, 1.25, 2.9))),
    attacked_certificate(4, None),
    attacked_certificate(5, 1.5, doubt=True),
]
BROKEN = [*SOUND, *(attacked_certificate(index, 0.51, inside=True) for index in range(10, 22))]
TINY = AttackedCertificate(9, 1, 1 / 255, HELD)
BOX = 'class="defect" role="alert"'


@pytest.mark.parametrize(
    ("attacked", "changes", "words", "absent"),
    [
        (
            SOUND,
            {},
            (
                "Not refuted: no attack changed an answer inside its radius.",
                "6 certificates of 60 inputs",
                "5; too close to call 1",
                "at most 0.060 failures on average (alpha 0.001)",
                "1.000 radii away; median 1.250; none within 3 radii for 1",
                "10,000 fresh draws",
                "Verdict not refuted",
                "beyond the radius (5)",
                "inside the radius (0)",
                "no change found (1)",
            ),
            ("✗", "✓", "one level or less"),  # not being refuted is not a proof
        ),
        ([*SOUND, TINY], {}, ("1 have a radius of one level or less",), ()),
        (
            BROKEN,
            {},
            (
                "✗ Refuted: certificates of this run do not hold",
                "12 of 18 attacked certificates are contradicted",
                "Verdict refuted",
                "And 2 more in audit.json.",
                "0.510",
            ),
            ("no longer holds",),
        ),
        # with shared noise so many flips may be one event
        (BROKEN, {"shared_noise": True}, ("only their mean number is bounded",), ("✗",)),
        (
            [*SOUND, attacked_certificate(9, 0.9, inside=True)],
            {},
            ("1 answer changed inside its radius, which alpha explains",),
            ("✗",),
        ),
        (
            SOUND,
            {"complete": False, "state": "attacking"},
            ("not finished: 6 of 50 certificates",),
            ("Not refuted", "Verdict"),
        ),
        (BROKEN, {"certificates_sha256": "cd" * 32}, ("no longer holds",), ("one level",)),
        ([], {}, ("nothing to attack",), ()),
    ],
    ids=["sound", "tiny", "broken", "shared", "chance", "unfinished", "stale", "empty"],
)
def test_the_page_shows_the_audit(
    tmp_path: Path,
    attacked: list[AttackedCertificate],
    changes: dict[str, Any],
    words: tuple[str, ...],
    absent: tuple[str, ...],
) -> None:
    root = certified_run(tmp_path / "run")
    audit = add_audit(root, attacked, **changes)
    page, copy = report(root)
    part = section(page, "audit")
    for one in words:
        assert one in text_of(part), one
    for one in absent:
        assert one not in text_of(part), one
    assert ("<svg" in part) == bool(attacked)
    assert check_page(page).sections[4:6] == ["audit", "progress"]
    refuted = audit.verdict is not None and audit.verdict.refuted
    current = "certificates_sha256" not in changes
    assert (BOX in part) == refuted
    assert bool(load_facts(root).refuting) == ("DEFECT" in page) == (refuted and current)
    (record,) = copy["audits"]
    verdict = None if audit.verdict is None else {**asdict(audit.verdict), "verdict": audit.verdict.words}
    assert (record["verdict"], record["current"]) == (verdict, current)
    counts = record["histogram"]
    assert sum(counts["inside"]) + sum(counts["beyond"]) + counts["not_found"] == len(attacked)
    assert [one["index"] for one in record["flipped"]] == [one.index for one in attacked if one.verdict == "flipped"]


def test_a_refutation_of_a_false_bound_is_expected(tmp_path: Path) -> None:
    root = certified_run(tmp_path / "run", Status.REFUTED, bound="published")
    add_audit(root, BROKEN)
    page, _ = report(root)
    assert "Refuted, as expected: the bound of these radii is known to be false" in page
    assert "DEFECT" not in page


@pytest.mark.parametrize(
    ("ratio", "inside", "place"), [(0.999999, True, 7), (1.0, False, 8), (2.999, False, 23), (3.2, False, 23)]
)
def test_the_radius_is_an_edge_of_the_histogram(tmp_path: Path, ratio: float, inside: bool, place: int) -> None:
    root = certified_run(tmp_path / "run")
    add_audit(root, [attacked_certificate(0, ratio, inside=inside)])
    counts = load_facts(root).audits[0].ratios()
    assert counts.edges[BINS_PER_RADIUS] == 1.0
    assert (counts.inside if inside else counts.beyond)[place] == 1
    assert sum(counts.inside) + sum(counts.beyond) + counts.not_found == 1


def test_a_broken_audit_writes_nothing(tmp_path: Path) -> None:
    root = certified_run(tmp_path / "run")
    add_audit(root, SOUND)
    (root / "audits/l2.json").write_text('{"format": 9}')
    with pytest.raises(RunError, match=r"l2.json was made by a newer version"):
        write_report(root)
    assert not (root / "report.html").exists()
