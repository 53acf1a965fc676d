"""The section "Attacks on certificates": the audit's own numbers, a refutation that nobody overlooks, work that is not done."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from report_attacks import add_audit, attacked_certificate
from report_page import check_page
from report_runs import LABELS, make_certificates, make_metrics, run_record, write_run

from twinproof.auditing.certificate_verdict import HELD, AttackedCertificate, CertificateAudit
from twinproof.errors import RunError
from twinproof.reporting import write_report
from twinproof.reporting.attack_twin import audit_twin
from twinproof.reporting.audit_facts import BINS_PER_RADIUS
from twinproof.reporting.audit_section import audit_section
from twinproof.reporting.card import robustness_sentence
from twinproof.reporting.facts import load_facts

SOUND = [
    *(attacked_certificate(index, ratio) for index, ratio in enumerate((1.0, 1.199999, 1.25, 2.9))),
    attacked_certificate(4, None),
    attacked_certificate(5, 1.5, doubt=True),
]
BROKEN = [*SOUND, *(attacked_certificate(index, 0.51, inside=True) for index in range(10, 22))]


def audited(root: Path, attacked: list[AttackedCertificate], **changes: object) -> tuple[Path, CertificateAudit]:
    write_run(root / "run", run_record(), make_certificates(LABELS), metrics=make_metrics())
    return root / "run", add_audit(root / "run", attacked, **changes)  # type: ignore[arg-type]


def page_of(root: Path) -> str:
    """The section alone."""
    made = audit_section(load_facts(root))
    check_page(made)
    return made


def test_certificates_that_nothing_could_contradict_are_counted(tmp_path: Path) -> None:
    tiny = AttackedCertificate(9, 1, 1 / 255, HELD)
    root, _ = audited(tmp_path / "some", [*SOUND, tiny])
    assert "1 have a radius of one level or less" in page_of(root)
    root, _ = audited(tmp_path / "none", SOUND)
    assert "one level or less" not in page_of(root)


def test_the_page_shows_the_audits_numbers(tmp_path: Path) -> None:
    root, audit = audited(tmp_path, SOUND)
    page = page_of(root)
    assert audit.verdict is not None
    for words in (
        "Not refuted: no attack changed an answer inside its radius.",
        f"{audit.verdict.attacked} certificates of {audit.verdict.inputs} inputs",
        "5; too close to call 1",
        "at most 0.060 failures in the mean (alpha 0.001)",
        "1.000 radii away; median 1.250; none within 3 radii for 1",
        "10,000 fresh draws",
        "<strong>not refuted</strong>",
        "beyond the radius (5)",
        "inside the radius (0)",
        "no change found (1)",
    ):
        assert words in page, words
    assert 'class="defect"' not in page
    assert "✓" not in page, "not being refuted is not a proof"


def test_a_refutation_cannot_be_overlooked(tmp_path: Path) -> None:
    root, audit = audited(tmp_path, BROKEN)
    assert audit.verdict is not None
    assert audit.verdict.refuted
    page = page_of(root)
    assert 'class="defect" role="alert"' in page
    assert "12 of 18 attacked certificates are contradicted" in page
    assert "<strong>refuted</strong>" in page
    assert "And 2 more in audit.json." in page
    assert "0.510" in page
    facts = load_facts(root)
    assert facts.contradicted
    assert "contradicts the certificates" in robustness_sentence(facts)
    files = write_report(root)
    assert json.loads(files.json.read_text())["audit"]["verdict"]["refuted"] is True
    page = files.html.read_text(encoding="utf-8")
    assert "DEFECT" in page
    assert check_page(page).sections[4:6] == ["audit", "progress"]


def test_flips_that_alpha_explains_are_no_defect(tmp_path: Path) -> None:
    root, audit = audited(tmp_path, [*SOUND, attacked_certificate(9, 0.9, inside=True)])
    assert audit.verdict is not None
    assert not audit.verdict.refuted
    page = page_of(root)
    assert "1 answer changed inside its radius, which alpha explains" in page
    assert 'class="defect"' not in page


def test_shared_noise_is_said(tmp_path: Path) -> None:
    root, _ = audited(tmp_path, BROKEN, shared_noise=True)
    page = page_of(root)
    assert "only their mean number is bounded" in page
    assert 'class="defect"' not in page, "with shared noise so many flips may be one event"


@pytest.mark.parametrize(
    ("ratio", "inside", "place"), [(0.999999, True, 7), (1.0, False, 8), (2.999, False, 23), (3.2, False, 23)]
)
def test_the_radius_is_an_edge_of_the_histogram(tmp_path: Path, ratio: float, inside: bool, place: int) -> None:
    root, _ = audited(tmp_path, [attacked_certificate(0, ratio, inside=inside)])
    facts = load_facts(root)
    assert facts.audit is not None
    counts = facts.audit.ratios()
    assert counts.edges[BINS_PER_RADIUS] == 1.0
    assert (counts.inside if inside else counts.beyond)[place] == 1
    assert sum(counts.inside) + sum(counts.beyond) + counts.not_found == 1


def test_the_twin_holds_the_same_numbers(tmp_path: Path) -> None:
    root, audit = audited(tmp_path, BROKEN)
    twin = json.loads(json.dumps(audit_twin(load_facts(root).audit)))
    assert audit.verdict is not None
    assert twin["verdict"] == {**asdict(audit.verdict), "verdict": "refuted"}
    assert twin["current"] is True
    assert (sum(twin["histogram"]["inside"]), sum(twin["histogram"]["beyond"]), twin["histogram"]["not_found"]) == (12, 5, 1)
    assert [one["index"] for one in twin["flipped"]] == list(range(10, 22))


def test_an_unfinished_audit_has_no_verdict(tmp_path: Path) -> None:
    root, _ = audited(tmp_path, SOUND, complete=False, state="attacking")
    page = page_of(root)
    assert "not finished: 6 of 50 certificates" in page
    assert "Not refuted" not in page
    twin = audit_twin(load_facts(root).audit)
    assert twin is not None
    assert twin["verdict"] is None


def test_an_audit_of_other_certificates_is_called_that_and_refutes_nothing(tmp_path: Path) -> None:
    root, _ = audited(tmp_path, BROKEN, certificates_sha256="cd" * 32)
    assert "no longer holds" in page_of(root)
    assert not load_facts(root).contradicted


def test_nothing_to_attack(tmp_path: Path) -> None:
    root, _ = audited(tmp_path, [])
    page = page_of(root)
    assert "nothing to attack" in page
    assert "<svg" not in page


def test_a_broken_audit_writes_nothing(tmp_path: Path) -> None:
    root, _ = audited(tmp_path, SOUND)
    (root / "audits/l2.json").write_text('{"format": 9}')
    with pytest.raises(RunError, match=r"l2.json was made by a newer version"):
        write_report(root)
    assert not (root / "report.html").exists()


def test_without_an_audit_there_is_no_section(tmp_path: Path) -> None:
    assert audit_section(load_facts(write_run(tmp_path / "run", run_record(), make_certificates(LABELS)))) == ""
