"""Several runs in one page: their guarantees side by side, and their numbers and curves with those of the same norm.

Radii in different norms are different things: 0.3 in linf is far more than 0.3 in l2. Such runs never share a table or a plot.
"""

from __future__ import annotations

from collections.abc import Sequence

from twinproof.evaluation.certified import certified_accuracy, radius_name
from twinproof.reporting.canvas import SERIES, colour_variable
from twinproof.reporting.card import badge
from twinproof.reporting.facts import RunFacts, table_radii
from twinproof.reporting.markup import Markup, element, join, table, two_lines
from twinproof.reporting.norm_groups import NormGroup, by_norm
from twinproof.reporting.numbers import (
    epsilon_text,
    probability_text,
    radius_range,
    radius_text,
    setting_text,
    share_range,
    share_text,
    share_text_up,
)
from twinproof.reporting.page import document
from twinproof.reporting.plots import DASHES, comparison_plot
from twinproof.reporting.radius_words import noise_text
from twinproof.reporting.sections import figure, missing, section_of

_NOTHING = "–"
_APART = (
    "The radii of these runs are in different norms, in which the same number means different things: each run is compared "
    "only with those of its own norm."
)


def comparison_page(runs: Sequence[RunFacts]) -> str:
    """The comparison as a complete HTML document."""
    names = distinct_names(runs)
    title = element(
        "header",
        element("p", "Twinproof comparison", class_="kicker"),
        element("h1", f"{len(runs)} runs" if len(runs) > 1 else names[0]),
        class_="masthead",
    )
    groups = by_norm(runs, names)
    parts = [section for group in groups for section in _sections(group, alone=len(groups) == 1)]
    return document("twinproof comparison", join([title, _guarantees(runs, names, norms=len(groups)), *parts]))


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
        ("the norm of the radii", {setting.method.norm for setting in settings}),
        ("the bound", {setting.method.bound for setting in settings}),
        ("the law of the noise", {setting.noise.law for setting in settings}),
        ("the place of the noise", {setting.noise.place for setting in settings}),
        ("the statistic", {setting.method.statistic for setting in settings}),
        ("the data set", {str(run.data.get("name")) for run in runs}),
        ("the number of certified inputs", {len(run.certificates) for run in runs}),
        ("delta", {run.delta for run in runs if run.delta is not None}),
        ("alpha", {setting.sampling.alpha for setting in settings}),
        ("the number of draws", {setting.sampling.n for setting in settings}),
        ("the target radius at which drawing stopped", {setting.sampling.target_radius for setting in settings}),
        ("whether inputs shared their noise", {setting.sampling.shared_noise for setting in settings}),
    )
    return [name for name, values in aspects if len(values) > 1]


def _sections(group: NormGroup, *, alone: bool) -> tuple[Markup, ...]:
    """Numbers, curves and table of one norm; with several norms each part names its own."""
    end, within = ("", "") if alone else (f"-{group.norm}", f" in {group.norm}")
    return _numbers(group, end, within), _curves(group, end, within), _accuracies(group, end, within)


def _guarantees(runs: Sequence[RunFacts], names: Sequence[str], *, norms: int) -> Markup:
    rows = [
        (
            name,
            setting_text(run.run.get("recipe")),
            setting_text(run.data.get("name")),
            badge(run.privacy.status, refused=run.refused, weak=run.says_little),
            epsilon_text(run.promised_epsilon),
            probability_text(run.delta if run.promised_epsilon is not None else None),
            badge(run.robustness.status, refused=run.refused),
            _method(run),
            setting_text(run.settings.noise.sigma if run.settings else None),
        )
        for name, run in zip(names, runs, strict=True)
    ]
    head = ("run", "recipe", "data", "private", "epsilon", "delta", "robust", "radii by", "sigma")
    note = (
        "Epsilon is shown only where it is a promise; “published” means that a paper claims it and nobody here has proven it, "
        "“assumed” that it holds if the assumptions named in the run do."
    )
    apart = missing(_APART) if norms > 1 else Markup()
    return section_of("guarantees", "Guarantees", table(head, rows), apart, element("p", note, class_="note"))


def _method(run: RunFacts) -> object:
    settings = run.settings
    if settings is None:
        return _NOTHING
    return two_lines(f"{settings.method.norm}, {settings.method.bound} bound", noise_text(settings))


def _numbers(group: NormGroup, end: str, within: str) -> Markup:
    radius = f"average {group.axis}" if group.certified else "average certified radius"
    head = ("run", "clean accuracy", "smoothed accuracy", radius, "abstained", "inputs")
    rows = [(name + (run.words.suffix if run.certificates else ""), *_measured(run)) for name, run in group.members]
    parts = [table(head, rows)]
    unequal = differences([run for _, run in group.members])
    if unequal:
        parts.append(missing(f"Compare with care: the runs differ in {', '.join(unequal)}."))
    note = f"Second lines are 95 % intervals over the draw of the test inputs. {group.second_layer}"
    if any(run.settings is not None and run.settings.sampling.shared_noise for _, run in group.members):
        note += " Where inputs shared their noise, the intervals hold given that noise, and other noise may give other numbers."
    return section_of(f"numbers{end}", f"Numbers{within}", *parts, element("p", note, class_="note"))


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


def _curves(group: NormGroup, end: str, within: str) -> Markup:
    drawn, title = group.certified, f"{group.accuracy}{within}"
    if not drawn:
        return section_of("certified", title, missing("None of these runs has been certified yet."))
    marks = element("ul", *(_mark(index, name) for index, (name, _) in enumerate(drawn)), class_="legend")
    caption = f"Share of test inputs answered correctly with at least that {group.axis}."
    plot = comparison_plot(f"comparison{end}", [run.curve() for _, run in drawn], group.axis)
    left_out = [name for name, run in group.members if not run.certificates]
    note = missing(f"Not certified yet: {', '.join(left_out)}.") if left_out else Markup()
    return section_of(f"certified{end}", title, figure(plot, marks, caption), note)


def _mark(index: int, name: str) -> Markup:
    """A short line in the curve's colour and dashes, and the run's name."""
    dashes = " ".join(str(2 * length) for length in DASHES[index % len(DASHES)])
    colour = colour_variable(SERIES[index % len(SERIES)])
    line = element("line", x1=0, y1=5, x2=34, y2=5, stroke_dasharray=dashes or None, style=f"stroke: {colour}; stroke-width: 3")
    return element("li", element("svg", line, viewBox="0 0 34 10", class_="stroke", aria_hidden="true"), name)


def _accuracies(group: NormGroup, end: str, within: str) -> Markup:
    certified = group.certified
    if not certified:
        return Markup()
    radii = table_radii(max(run.decided_shown for _, run in certified))
    rows = [
        (
            name,
            *(
                share_text(certified_accuracy(run.certificates, radius).value) if _decided(run, radius) else _NOTHING
                for radius in radii
            ),
        )
        for name, run in certified
    ]
    title = f"{group.accuracy} at round radii{within}"
    return section_of(f"table{end}", title, table(("run", *map(radius_name, radii)), rows))


def _decided(run: RunFacts, radius: float) -> bool:
    """Whether the run's certificates say how many inputs reach ``radius``."""
    target = run.settings.sampling.target_radius if run.settings else None
    return bool(run.certificates) and (target is None or radius <= target)
