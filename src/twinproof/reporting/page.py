"""The page of one run, and how templates are rendered: everything is escaped, and what a template misnames is an error."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import jinja2

from twinproof.data.record import Dataset
from twinproof.evaluation.certified import radius_name
from twinproof.evaluation.protocols import size_name
from twinproof.guarantee import format_up
from twinproof.reporting import canvas, card, examples, numbers, plots, words
from twinproof.reporting.facts import Progress, RunFacts
from twinproof.runs.records import ABSTAIN

# A browser that obeys this loads nothing from anywhere and runs nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def run_page(facts: RunFacts, dataset: Dataset | None) -> str:
    """The report of one run as a complete HTML document; only the test part of ``dataset`` is shown."""
    shown = progress_shown(facts)
    spent = [line.epsilon for line in shown if line.epsilon is not None]
    return render(
        "run.html.j2",
        facts=facts,
        halves=card.guarantee_card(facts),
        dataset=dataset,
        withheld=dataset is not None and not (dataset.public or facts.examples),
        several=len(facts.certifications) > 1,
        progress=shown,
        spent=spent[-1] if spent else None,
        command=f"twinproof verify {shlex.quote(facts.name)}",
        digests=_digests(facts),
        **{key: verification_lines(facts, key) for key in ("problems", "checks", "not_checked")},
    )


def progress_shown(facts: RunFacts) -> list[Progress]:
    """Progress on the test set, without an epsilon that is no promise; empty where accuracy was never measured."""
    if all(line.accuracy is None for line in facts.progress):
        return []
    promised = facts.privacy.epsilon is not None
    return [line if promised else replace(line, epsilon=None) for line in facts.progress]


def render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(policy=_POLICY, **values)


def verification_lines(facts: RunFacts, key: str) -> list[str]:
    """Problems, checks or what was not checked, as text: the verifier gives words or records."""
    found = facts.verification.get(key) if facts.verification is not None else None
    return [_line(item) for item in found] if isinstance(found, (list, tuple)) else []


def _line(item: object) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    text = ": ".join(str(item[key]) for key in ("file", "name", "what", "detail") if item.get(key))
    ends = ", ".join(f"{key} {item[key]}" for key in ("got", "wanted") if item.get(key))
    sign = "✗ " if item.get("passed") is False else ""
    return f"{sign}{text} ({ends})" if ends else f"{sign}{text}"


def _digests(facts: RunFacts) -> list[tuple[str, str]]:
    files = facts.run.get("files")
    named = files.items() if isinstance(files, Mapping) else ()
    digests = {name: str(entry.get("sha256", "–")) if isinstance(entry, Mapping) else str(entry) for name, entry in named}
    return sorted({**digests, "run.json": facts.run_sha256}.items())


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("twinproof.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        plots=plots, examples=examples, palette=canvas, badges=card, words_of=words, ABSTAIN=ABSTAIN, format_up=format_up
    )
    filters = (
        "down",
        "up",
        "percent_down",
        "percent_up",
        "percent_range",
        "radius_range",
        "probability",
        "setting",
        "duration",
    )
    environment.filters.update({name: getattr(numbers, name) for name in filters})
    environment.filters.update(
        css=canvas.colour_variable,
        radius=radius_name,
        size=size_name,
        moment=lambda value: str(value).replace("T", " ").replace("Z", " UTC") if value else "–",
        unbroken=lambda text: text.replace("e-", "e\u2060-\u2060"),  # no line break inside 1e-5
    )
    return environment
