"""The measured part of a report: headline numbers, certified accuracy, radii, progress."""

from __future__ import annotations

from dataclasses import replace

from twinproof.evaluation.certified import answered_correctly, certified_accuracy, certified_curve, radius_name
from twinproof.guarantee import Status
from twinproof.reporting.canvas import BAD, GOOD, INK, SILENT, colour_variable
from twinproof.reporting.facts import RunFacts, table_radii
from twinproof.reporting.markup import Markup, element, join, table
from twinproof.reporting.numbers import (
    epsilon_text,
    probability_text,
    radius_range,
    radius_text,
    share_range,
    share_text,
    share_text_up,
)
from twinproof.reporting.plots import RadiusCounts, claim_colour, curve_plot, histogram_plot, progress_plot
from twinproof.reporting.radius_words import voting_text
from twinproof.runs.certificates import ABSTAIN

BINS = 24
NOT_CERTIFIED = "No test input has been certified yet. `twinproof certify RUN` makes the certificates that belong here."


def section_of(name: str, title: str, *content: object) -> Markup:
    """A section of the page with its heading."""
    return element("section", element("h2", title), *content, id=name)


def missing(text: str) -> Markup:
    """A sentence where a part cannot be shown; words between backticks are set as code."""
    pieces = text.split("`")
    shown = (element("code", piece) if index % 2 else piece for index, piece in enumerate(pieces))
    return element("p", *shown, class_="missing")


def legend(entries: list[tuple[str, str, str]]) -> Markup:
    """What the marks of a plot mean: (shape, colour, words); the shapes are drawn by the style sheet."""
    items = (
        element("li", element("span", class_=f"swatch {shape}", style=f"color: {colour_variable(colour)}"), words)
        for shape, colour, words in entries
    )
    return element("ul", *items, class_="legend")


def figure(drawing: Markup, marks: Markup, caption: str) -> Markup:
    """A plot with the meaning of its marks above and a sentence below."""
    return element("figure", marks, drawing, element("figcaption", caption))


GIVEN_THIS_NOISE = "All inputs shared their noise: the intervals hold given this noise, and other noise may give other numbers."


def headline(facts: RunFacts) -> Markup:
    """The few numbers that people quote, each with the interval it lies in."""
    tiles = [_epsilon_tile(facts)]
    if facts.clean is not None:
        answer = "the network itself, mean over its noise" if facts.own_noise else "the network itself, no noise"
        tiles.append(_tile("Clean accuracy", share_text(facts.clean.value), share_range(facts.clean), answer))
    if facts.summary is not None:
        summary, words = facts.summary, facts.words
        tiles += [
            _tile(
                "Smoothed accuracy",
                share_text(summary.smoothed.value),
                share_range(summary.smoothed),
                voting_text(facts.settings),
            ),
            _tile(
                f"Average {words.certified} {words.norm} radius",
                radius_text(summary.acr.value),
                radius_range(summary.acr),
                words.claim or "wrong and silent count as 0",
            ),
            _certified_tile(facts),
            _tile("Abstained", share_text_up(summary.abstained.value), share_range(summary.abstained), "no answer given"),
        ]
    refused = missing(f"The certificates cannot be summarised: {facts.unusable}.") if facts.unusable else Markup()
    note = (
        "Intervals hold with 95 % over the draw of the test inputs (Clopper-Pearson for shares; empirical Bernstein and "
        f"Hoeffding for the mean radius). {facts.words.second_layer}"
    )
    target = None if facts.settings is None else facts.settings.sampling.target_radius
    if target is not None:
        note += (
            f" Drawing stopped as soon as it was decided whether a radius reaches {radius_name(target)}: "
            "smoothed accuracy, average certified radius and certified accuracy below that radius are lower bounds, the "
            "abstentions an upper bound, and the curve ends there."
        )
    if facts.settings is not None and facts.settings.sampling.shared_noise:
        note += f" {GIVEN_THIS_NOISE}"
    shown = element("div", *tiles, class_="tiles")
    return section_of("numbers", "Headline numbers", shown, refused, element("p", note, class_="note"))


def certified_section(facts: RunFacts) -> Markup:
    """Certified accuracy against radius, drawn and as a table."""
    words = facts.words
    title = words.accuracy
    if not facts.certificates or facts.settings is None:
        return section_of("certified", title, missing(NOT_CERTIFIED))
    colour = claim_colour(words)
    marks = [("line", colour, title.lower()), ("band", colour, "95 % interval at each radius")]
    if facts.clean is not None:
        marks.append(("dashes", INK, f"clean accuracy {share_text(facts.clean.value)}"))
    cannot = "is claimed to be safe from" if words.claim else "cannot be changed by"
    caption = (
        f"Share of test inputs that are answered correctly and whose answer {cannot} any perturbation smaller than the radius "
        f"({words.norm} norm{words.claim and ': ' + words.claim}). The band holds at each radius by itself, not for the whole "
        "curve at once."
    )
    drawing = curve_plot("certified-curve", facts.curve(), facts.clean, words)
    rows = [
        (radius_name(radius), share_text(interval.value), share_range(interval))
        for radius, interval in certified_curve(facts.certificates, table_radii(facts.decided_shown))
    ]
    given = " given this noise" if facts.settings.sampling.shared_noise else ""
    numbers = table((f"{words.norm} radius", words.accuracy.lower(), f"95 % interval{given}"), rows)
    return section_of("certified", title, _unfinished(facts), figure(drawing, legend(marks), caption), numbers)


def radius_section(facts: RunFacts) -> Markup:
    """How the radii are spread over correct and wrong answers."""
    title = f"Radii of the test inputs{facts.words.suffix}"
    if not facts.certificates:
        return section_of("radii", title, missing(NOT_CERTIFIED))
    counts = radius_counts(facts)
    marks = [
        ("bar", GOOD, f"correct ({sum(counts.correct):,})"),
        ("hatched", BAD, f"wrong ({sum(counts.wrong):,})"),
        ("bar", SILENT, f"abstained ({counts.abstained:,}), without a radius"),
    ]
    caption = "A wrong answer with a radius is certified, too: no small change can turn it into the right one."
    if facts.words.claim:
        caption = f"Each radius is only {facts.words.claim}: smaller changes may turn the answer."
    return section_of("radii", title, figure(histogram_plot("radius-histogram", counts, facts.words), legend(marks), caption))


def radius_counts(facts: RunFacts) -> RadiusCounts:
    """The histogram's numbers; the last bin includes its right edge."""
    width = facts.largest_shown / BINS
    correct, wrong = [0] * BINS, [0] * BINS
    silent = 0
    for certificate in facts.certificates:
        if certificate.prediction == ABSTAIN:
            silent += 1
            continue
        place = min(int(certificate.radius / width), BINS - 1)
        (correct if answered_correctly(certificate) else wrong)[place] += 1
    return RadiusCounts(tuple(width * edge for edge in range(BINS + 1)), tuple(correct), tuple(wrong), silent)


def progress_section(facts: RunFacts) -> Markup:
    """What training showed on the test set while it ran."""
    title = "Progress"
    if not any(line.accuracy is not None for line in facts.progress):
        return section_of(
            "progress", title, missing("The run kept no progress on the test set (`metrics.jsonl` is absent or empty).")
        )
    progress = facts.progress
    if facts.promised_epsilon is None:
        progress = tuple(replace(line, epsilon=None) for line in progress)  # what is no promise is not drawn as one
    spent = [line.epsilon for line in progress if line.epsilon is not None]
    end = f" At the last report {epsilon_text(spent[-1])} of epsilon had been spent." if spent else ""
    caption = f"Measured on the public test set while training; what training itself saw stays private.{end}"
    return section_of("progress", title, figure(progress_plot("progress", progress), Markup(), caption))


def _epsilon_tile(facts: RunFacts) -> Markup:
    epsilon = facts.promised_epsilon
    if epsilon is None:
        return _tile("Epsilon", "none", "", "no privacy is promised")
    note = {Status.PROVEN: "proven", Status.ASSUMED: "if its assumptions hold"}.get(
        facts.privacy.status, "as a paper claims, not proven"
    )
    return _tile("Epsilon", epsilon_text(epsilon), f"at delta {probability_text(facts.delta)}", note)


def _certified_tile(facts: RunFacts) -> Markup:
    """Certified accuracy at the middle one of the radii that the table below shows."""
    radii = table_radii(facts.decided_shown)
    radius = radii[len(radii) // 2]
    interval = certified_accuracy(facts.certificates, radius)
    words = facts.words
    label = f"{words.certified.capitalize()} at {words.norm} radius {radius_name(radius)}"
    note = words.claim or "correct, and no smaller change matters"
    return _tile(label, share_text(interval.value), share_range(interval), note)


def _tile(label: str, value: str, interval: str, note: str) -> Markup:
    return element(
        "div",
        element("div", label, class_="label"),
        element("div", value, class_="value"),
        element("div", interval, class_="interval"),
        element("div", note, class_="aside"),
        class_="tile",
    )


def _unfinished(facts: RunFacts) -> Markup:
    done, wanted = len(facts.certificates), facts.settings.inputs if facts.settings else 0
    if done >= wanted:
        return Markup()
    text = f"The certification is not finished: {done:,} of {wanted:,} inputs so far. All numbers here speak of these only."
    return join([missing(text)])
