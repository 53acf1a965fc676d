"""The last section of a report: how anybody checks the run without trusting the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from twinproof.reporting.facts import RunFacts, section
from twinproof.reporting.markup import Markup, definitions, element, join, listing, table
from twinproof.reporting.numbers import duration_text, setting_text
from twinproof.reporting.sections import section_of


def check_line(facts: RunFacts) -> Markup:
    """One line on whether the run was verified when the report was written, with a sign beside the colour."""
    if facts.verification is None:
        return _line("open", "○", "Not verified when this report was written.")
    if facts.verification.get("ok") is True:
        count = len(_texts(facts.verification.get("checks")))
        return _line(
            "passed", "✓", f"Verified: {count} checks passed." if count else "Verified: all checks passed.", _left(facts)
        )
    count = len(_texts(facts.verification.get("problems")))
    return _line(
        "failed", "✗", f"Verification FAILED with {count} {'problem' if count == 1 else 'problems'}: do not rely on this run."
    )


def defect_line(facts: RunFacts) -> Markup:
    """One line at the top of the page where an attack stands against the certificates; nothing otherwise."""
    if not facts.contradicted:
        return Markup()
    text = "DEFECT: an attack contradicts the certificates of this run; see below before relying on any radius."
    if facts.expected:
        text = "REFUTED, as expected: attacks contradict the radii of this run, whose bound is known to be false."
    return _line("failed", "✗", text)


def evidence_section(facts: RunFacts) -> Markup:
    """The command, its last outcome, the digests, and where and when the run was made."""
    command = f"twinproof verify {shlex.quote(facts.name)}"
    intro = (
        "The report is not the evidence, the run is. This command, beside the run's folder, recomputes epsilon from the ledger "
        "with two accountants and every radius from its votes, rebuilds both promises from the settings, and checks all "
        "digests. It ends with code 1 if anything is wrong, and names what it did not check."
    )
    return section_of(
        "check",
        "Check it yourself",
        element("p", intro),
        element("pre", element("code", command)),
        check_line(facts),
        _outcome(facts),
        _digests(facts),
        element("h3", "Where and when"),
        definitions(_circumstances(facts), "facts"),
    )


def _line(kind: str, sign: str, text: str, more: str = "") -> Markup:
    line = element("p", element("span", sign, aria_hidden="true", class_="sign"), text, class_=f"checked {kind}")
    return join([line, element("p", more, class_="note")]) if more else line


def _left(facts: RunFacts) -> str:
    """One line on what the verification did not look at."""
    left = _texts(facts.verification.get("not_checked")) if facts.verification is not None else []
    return f"Not checked: {'; '.join(left)}." if left else ""


def _outcome(facts: RunFacts) -> Markup:
    if facts.verification is None:
        return Markup()
    problems, checks = (_texts(facts.verification.get(key)) for key in ("problems", "checks"))
    parts = []
    if problems:
        parts += [element("h3", "Problems found"), listing(problems)]
    if checks:
        parts.append(element("details", element("summary", f"What was checked ({len(checks)})"), listing(checks)))
    return element("div", *parts)


def _texts(items: object) -> list[str]:
    """Problems and checks as lines of text, whether the verifier gives words or records."""
    if not isinstance(items, (list, tuple)):
        return []
    return [_text(item) for item in items]


def _text(item: object) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    words = ": ".join(str(item[key]) for key in ("file", "name", "what", "detail") if item.get(key))
    ends = ", ".join(f"{key} {item[key]}" for key in ("got", "wanted") if item.get(key))
    sign = "✗ " if item.get("passed") is False else ""
    return f"{sign}{words} ({ends})" if ends else f"{sign}{words}"


def _digests(facts: RunFacts) -> Markup:
    files = {name: _digest(entry) for name, entry in section(facts.run, "files").items()}
    rows = [(name, element("code", digest)) for name, digest in sorted({**files, "run.json": facts.run_sha256}.items())]
    return element("div", element("h3", "Digests (SHA-256)"), table(("file", "digest"), rows), class_="digests")


def _digest(entry: Any) -> str:
    return str(entry.get("sha256", "–")) if isinstance(entry, Mapping) else str(entry)


def _circumstances(facts: RunFacts) -> list[tuple[object, object]]:
    run = facts.run
    rows: list[tuple[object, object]] = [
        ("Training", f"begun {_time(run.get('created'))}"),  # how long it took tells how many records were drawn
        ("Device", setting_text(run.get("device"))),
    ]
    if facts.settings is not None:
        settings = facts.settings
        rows.append(
            ("Certification", f"{_time(settings.made.created)}, {duration_text(settings.made.seconds)}, {settings.made.device}")
        )
        rows.append(("Network as run", f"{settings.network.form}; {settings.network.arithmetic}"))
        rows.append(("Noise", "shared by all inputs" if settings.sampling.shared_noise else "drawn for each input by itself"))
    if facts.attacks is not None:
        made = facts.attacks.settings.made
        rows.append(("Attacks", f"{_time(made.created)}, {duration_text(made.seconds)}, {made.device}"))
    if facts.audit is not None:
        audited = facts.audit.audit.settings.made
        rows.append(("Audit", f"{_time(audited.created)}, {duration_text(audited.seconds)}, {audited.device}"))
    versions = [f"{name} {version}" for name, version in sorted(section(run, "versions").items())]
    rows.append(("Versions", ", ".join(versions) or "–"))
    return rows


def _time(value: object) -> str:
    return str(value).replace("T", " ").replace("Z", " UTC") if value else "–"
