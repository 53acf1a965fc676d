"""The section "Attacks on certificates": what was searched, what was found, and what alpha explains of it."""

from __future__ import annotations

from twinproof.auditing.certificate_verdict import AuditSettings, Verdict, nothing_inside
from twinproof.reporting.audit_facts import AuditFacts
from twinproof.reporting.audit_plot import ratio_plot
from twinproof.reporting.canvas import BAD, GOOD, INK, SILENT
from twinproof.reporting.crossing_box import defect_box
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.markup import Markup, definitions, element, join, table
from twinproof.reporting.numbers import epsilon_text, probability_text, radius_text, setting_text
from twinproof.reporting.radius_words import RadiusWords
from twinproof.reporting.sections import figure, legend, missing, section_of

_TITLE = "Attacks on certificates"
_STALE = "This audit is about certificates that the run no longer holds: `twinproof audit RUN --certificates` makes a new one."
_FLIPS_SHOWN = 10
_MARKOV = "with shared noise certificates may fail together, so that only their mean number is bounded"


def audit_section(facts: RunFacts) -> Markup:
    """The section, or nothing where no certificate was attacked."""
    if facts.audit is None:
        return Markup()
    found, audit = facts.audit, facts.audit.audit
    parts: list[Markup] = [] if found.current else [missing(_STALE)]
    if audit.verdict is None:
        done, wanted = len(audit.attacked), audit.settings.attackable
        parts.append(missing(f"The audit is not finished: {done:,} of {wanted:,} certificates so far, and no verdict yet."))
    elif audit.verdict.refuted:
        parts.append(_refuted(audit.verdict, expected=facts.expected))
    else:
        parts.append(_standing(audit.verdict))
    parts.append(element("p", _search(audit.settings)))
    if audit.verdict is not None:
        parts.append(definitions(_numbers(audit.verdict, audit.settings) + _empty(facts), "facts"))
    if audit.attacked:
        parts.append(_histogram(found, facts.words))
    if found.flipped:
        parts.append(_flips(facts, found))
    return section_of("audit", _TITLE, *parts)


def _refuted(verdict: Verdict, *, expected: bool) -> Markup:
    text = (
        f"{verdict.flips} of {verdict.attacked} attacked certificates are contradicted by an input inside their radius; chance "
        f"explains that with probability at most {probability_text(verdict.probability)}. The certificates are wrong: do not "
        "rely on any radius of this run."
    )
    title = "Refuted: certificates of this run do not hold"
    if expected:
        title = "Refuted, as expected: the bound of these radii is known to be false"
    return defect_box(title, element("p", element("strong", text)))


def _standing(verdict: Verdict) -> Markup:
    """The verdict as a line; not being refuted is no proof, and is not drawn as one."""
    if not verdict.attacked:
        return missing("There was nothing to attack: no input has an answer and a radius.")
    words = "Not refuted: no attack changed an answer inside its radius."
    if verdict.flips:
        changed = "1 answer changed inside its" if verdict.flips == 1 else f"{verdict.flips:,} answers changed inside their"
        words = f"Not refuted: {changed} radius, which alpha explains."
    return element("p", element("span", "○", aria_hidden="true", class_="sign"), words, class_="checked standing")


def _search(settings: AuditSettings) -> str:
    steps, draws, votes = (
        setting_text(value) for value in (settings.budget.steps, settings.budget.draws, settings.budget.votes)
    )
    return (
        f"Every certificate was attacked in its own norm ({settings.norm}) within {settings.within:g} of its radius, and the "
        f"closest change was looked for up to {settings.outward:g} radii away: gradient ascents on the smoothed classifier "
        f"({steps} steps, {draws} draws each), random directions, and a walk along the boundary. A change counts only if "
        f"{votes} fresh draws prove another class there; all of these proofs together fail with probability at most "
        f"{probability_text(settings.false_flips)}."
    )


def _numbers(verdict: Verdict, settings: AuditSettings) -> list[tuple[object, object]]:
    held = verdict.attacked - verdict.flips - verdict.undecided
    alpha = f"at most {epsilon_text(verdict.expected)} failures in the mean (alpha {probability_text(verdict.alpha)})"
    if verdict.flips:
        alpha += f"; {verdict.flips} or more with probability at most {probability_text(verdict.probability)}"
    if verdict.bound == "markov":
        alpha += f"; {_MARKOV}"
    closest = f"none found within {settings.outward:g} radii"
    if verdict.closest is not None and verdict.median is not None:
        closest = (
            f"{radius_text(verdict.closest)} radii away; median {radius_text(verdict.median)}; none within "
            f"{settings.outward:g} radii for {verdict.beyond_reach:,}"
        )
    return [
        ("Attacked", f"{verdict.attacked:,} certificates of {verdict.inputs:,} inputs"),
        ("Changed inside", f"{verdict.flips:,}"),
        ("Held", f"{held:,}; too close to call {verdict.undecided:,}"),
        ("Alpha explains", alpha),
        ("Closest change", closest),
        ("Verdict", element("strong", verdict.words)),
    ]


def _empty(facts: RunFacts) -> list[tuple[object, object]]:
    """Certificates that nothing could contradict are no evidence; how many of these there are."""
    if facts.audit is None or facts.settings is None:
        return []
    count = nothing_inside(facts.audit.audit.attacked, facts.settings.noise.levels)
    return (
        [("Nothing inside", f"{count:,} have a radius of one level or less, which no other input fits into")] if count else []
    )


def _histogram(found: AuditFacts, words: RadiusWords) -> Markup:
    counts = found.ratios()
    marks = [
        ("bar", GOOD, f"beyond the radius ({sum(counts.beyond):,})"),
        ("hatched", BAD, f"inside the radius ({sum(counts.inside):,})"),
        ("bar", SILENT, f"no change found ({counts.not_found:,})"),
        ("dashes", INK, f"the {words.certified} radius"),
    ]
    caption = (
        "Distance of the closest input that was proven to get another answer. Bars close behind the line show that radii are "
        "not much smaller than they could be; a bar before it contradicts a certificate."
    )
    return figure(ratio_plot("ratios", counts, words), legend(marks), caption)


def _flips(facts: RunFacts, found: AuditFacts) -> Markup:
    rows = [
        (
            f"no. {one.index}",
            facts.class_name(one.prediction),
            facts.class_name(one.flip.prediction),
            radius_text(one.radius),
            radius_text(one.flip.ratio),
            one.flip.found_by,
            f"{one.flip.votes:,} of {one.flip.draws:,}",
        )
        for one in found.flipped[:_FLIPS_SHOWN]
        if one.flip is not None
    ]
    head = ("test record", "certified answer", "answer found", "radius", "at this share of it", "found by", "votes for it")
    more = len(found.flipped) - len(rows)
    note = element("p", f"And {more:,} more in audit.json.", class_="note") if more > 0 else Markup()
    return join([table(head, rows, "Certificates that an input inside their radius contradicts."), note])
