"""Several runs in one page: their guarantees and numbers side by side, their curves in one plot."""

from __future__ import annotations

from collections.abc import Sequence

from twinproof.evaluate.certified import certified_accuracy, radius_name
from twinproof.report.canvas import SERIES, colour_variable
from twinproof.report.card import badge
from twinproof.report.facts import RunFacts, table_radii
from twinproof.report.markup import Markup, element, join, table, two_lines
from twinproof.report.numbers import (
    epsilon_text,
    probability_text,
    radius_range,
    radius_text,
    setting_text,
    share_range,
    share_text,
    share_text_up,
)
from twinproof.report.page import document
from twinproof.report.plots import DASHES, comparison_plot
from twinproof.report.sections import figure, missing, section_of

_NOTHING = "–"


def comparison_page(runs: Sequence[RunFacts]) -> str:
    """The comparison as a complete HTML document."""
    names = distinct_names(runs)
    title = element(
        "header",
        element("p", "Twinproof comparison", class_="kicker"),
        element("h1", f"{len(runs)} runs" if len(runs) > 1 else names[0]),
        class_="masthead",
    )
    content = join([title, _guarantees(runs, names), _numbers(runs, names), _curves(runs, names), _accuracies(runs, names)])
    return document("twinproof comparison", content)


def distinct_names(runs: Sequence[RunFacts]) -> list[str]:
    """Folder names, numbered where two runs in different places bear the same one."""
    seen: dict[str, int] = {}
    names = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        names.append(run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})")
    return names


def differences(runs: Sequence[RunFacts]) -> list[str]:
    """What must be equal for the numbers to be comparable, and is not."""
    settings = [run.settings for run in runs if run.settings is not None]
    aspects = (
        ("the data set", {str(run.data.get("name")) for run in runs}),
        ("the number of certified inputs", {len(run.certificates) for run in runs}),
        ("delta", {run.delta for run in runs if run.delta is not None}),
        ("alpha", {setting.alpha for setting in settings}),
        ("the number of draws", {setting.n for setting in settings}),
        ("the target radius at which drawing stopped", {setting.target_radius for setting in settings}),
        ("whether inputs shared their noise", {setting.shared_noise for setting in settings}),
    )
    return [name for name, values in aspects if len(values) > 1]


def _guarantees(runs: Sequence[RunFacts], names: Sequence[str]) -> Markup:
    rows = [
        (
            name,
            setting_text(run.run.get("recipe")),
            setting_text(run.data.get("name")),
            badge(run.privacy.status, refused=run.refused),
            epsilon_text(run.promised_epsilon),
            probability_text(run.delta if run.promised_epsilon is not None else None),
            badge(run.robustness.status, refused=run.refused),
            setting_text(run.settings.sigma if run.settings else None),
        )
        for name, run in zip(names, runs, strict=True)
    ]
    head = ("run", "recipe", "data", "private", "epsilon", "delta", "robust", "sigma")
    note = (
        "Epsilon is shown only where it is a promise; “published” means that a paper claims it and nobody here has proven it."
    )
    return section_of("guarantees", "Guarantees", table(head, rows), element("p", note, class_="note"))


def _numbers(runs: Sequence[RunFacts], names: Sequence[str]) -> Markup:
    head = ("run", "clean accuracy", "smoothed accuracy", "average certified radius", "abstained", "inputs")
    rows = [(name, *_measured(run)) for name, run in zip(names, runs, strict=True)]
    parts = [table(head, rows)]
    unequal = differences(runs)
    if unequal:
        parts.append(missing(f"Compare with care: the runs differ in {', '.join(unequal)}."))
    note = (
        "Second lines are 95 % intervals over the draw of the test inputs. Below them lies a second layer of confidence: each "
        "certificate is wrong with probability at most alpha."
    )
    return section_of("numbers", "Numbers", *parts, element("p", note, class_="note"))


def _measured(run: RunFacts) -> tuple[object, ...]:
    clean = two_lines(share_text(run.clean.value), share_range(run.clean)) if run.clean else _NOTHING
    if run.summary is None:
        return (clean, _NOTHING, _NOTHING, _NOTHING, "0")
    summary = run.summary
    return (
        clean,
        two_lines(share_text(summary.smoothed.value), share_range(summary.smoothed)),
        two_lines(radius_text(summary.acr.value), radius_range(summary.acr)),
        two_lines(share_text_up(summary.abstained.value), share_range(summary.abstained)),
        f"{len(run.certificates):,}",
    )


def _curves(runs: Sequence[RunFacts], names: Sequence[str]) -> Markup:
    drawn = [(name, run) for name, run in zip(names, runs, strict=True) if run.certificates]
    if not drawn:
        return section_of("certified", "Certified accuracy", missing("None of these runs has been certified yet."))
    marks = element("ul", *(_mark(index, name) for index, (name, _) in enumerate(drawn)), class_="legend")
    caption = "Share of test inputs answered correctly with at least that certified radius."
    plot = comparison_plot("comparison", [run.curve() for _, run in drawn])
    left_out = [name for name, run in zip(names, runs, strict=True) if not run.certificates]
    note = missing(f"Not certified yet: {', '.join(left_out)}.") if left_out else Markup()
    return section_of("certified", "Certified accuracy", figure(plot, marks, caption), note)


def _mark(index: int, name: str) -> Markup:
    """A short line in the curve's colour and dashes, and the run's name."""
    dashes = " ".join(str(2 * length) for length in DASHES[index % len(DASHES)])
    colour = colour_variable(SERIES[index % len(SERIES)])
    line = element("line", x1=0, y1=5, x2=34, y2=5, stroke_dasharray=dashes or None, style=f"stroke: {colour}; stroke-width: 3")
    return element("li", element("svg", line, viewBox="0 0 34 10", class_="stroke", aria_hidden="true"), name)


def _accuracies(runs: Sequence[RunFacts], names: Sequence[str]) -> Markup:
    certified = [run for run in runs if run.certificates]
    if not certified:
        return Markup()
    radii = table_radii(max(run.decided_shown for run in certified))
    rows = [
        (
            name,
            *(
                share_text(certified_accuracy(run.certificates, radius).value) if _decided(run, radius) else _NOTHING
                for radius in radii
            ),
        )
        for name, run in zip(names, runs, strict=True)
    ]
    return section_of("table", "Certified accuracy at round radii", table(("run", *map(radius_name, radii)), rows))


def _decided(run: RunFacts, radius: float) -> bool:
    """Whether the run's certificates say how many inputs reach ``radius``."""
    target = run.settings.target_radius if run.settings else None
    return bool(run.certificates) and (target is None or radius <= target)
