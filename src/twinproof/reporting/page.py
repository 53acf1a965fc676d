"""The whole page: head, style, sections in their order, foot."""

from __future__ import annotations

from importlib.resources import files

from twinproof.data.record import Dataset
from twinproof.reporting.attack_section import attack_section
from twinproof.reporting.audit_section import audit_section
from twinproof.reporting.card import guarantee_card
from twinproof.reporting.evidence import check_line, defect_line, evidence_section
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.gallery import example_section
from twinproof.reporting.markup import Markup, element, join, trusted
from twinproof.reporting.sections import certified_section, headline, progress_section, radius_section

# A browser that obeys this loads nothing from anywhere and runs nothing: the file is all there is.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def run_page(facts: RunFacts, dataset: Dataset | None) -> str:
    """The report of one run as a complete HTML document."""
    recipe, data = facts.run.get("recipe", "unknown recipe"), facts.data.get("name", "unknown data")
    state = "" if facts.run.get("state") == "complete" else " · training is not complete"
    title = element(
        "header",
        element("p", "Twinproof report", class_="kicker"),
        element("h1", facts.name),
        element("p", f"{recipe} on {data}{state}", class_="subtitle"),
        check_line(facts),
        defect_line(facts),
        class_="masthead",
    )
    content = (
        guarantee_card(facts),
        headline(facts),
        certified_section(facts),
        radius_section(facts),
        attack_section(facts, dataset),
        audit_section(facts),
        progress_section(facts),
        example_section(facts, dataset),
        evidence_section(facts),
    )
    return document(f"{facts.name}: twinproof report", join([title, *content]))


def document(title: str, content: Markup) -> str:
    """A self-contained HTML document around ``content``."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        trusted(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", trusted(_style())),
    )
    foot = element(
        "footer",
        "Radii and accuracies are rounded down, epsilons up. This file is complete: it loads nothing and runs nothing.",
    )
    body = element("body", element("main", content, foot))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _style() -> str:
    return files("twinproof.reporting").joinpath("style.css").read_text(encoding="utf-8")
