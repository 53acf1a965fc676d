"""The section with example test inputs: pictures, or a small table of features."""

from __future__ import annotations

from collections.abc import Sequence

from twinproof.data.record import Dataset, InputKind
from twinproof.reporting.examples import (
    RULE,
    WITHHELD,
    ExampleGroup,
    choose_examples,
    feature_values,
    image_uri,
    misfit,
    withheld,
)
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.markup import Markup, element, table
from twinproof.reporting.numbers import radius_text
from twinproof.reporting.sections import NOT_CERTIFIED, missing, section_of
from twinproof.runs.certificates import ABSTAIN, Certificate

FEATURES_SHOWN = 10
WITHOUT_DATA = (
    "The data set was not at hand when this report was written, so no test input can be shown. Training inputs never appear "
    "in a report."
)


def example_section(facts: RunFacts, dataset: Dataset | None) -> Markup:
    """Example test inputs with answer, truth and radius; only the test part of ``dataset`` is touched."""
    title = "Examples from the test set"
    if not facts.certificates:
        return section_of("examples", title, missing(NOT_CERTIFIED))
    if dataset is None:
        return section_of("examples", title, missing(WITHOUT_DATA))
    if withheld(facts, dataset):
        return section_of("examples", title, missing(WITHHELD))
    problem = misfit(dataset, facts.certificates)
    if problem is not None:
        return section_of("examples", title, missing(f"No examples are shown, because {problem}."))
    groups = choose_examples(facts.certificates)
    shown = _pictures(facts, dataset, groups) if drawable(dataset) else _features(facts, dataset, groups)
    return section_of("examples", title, shown, element("p", RULE, class_="note"))


def drawable(dataset: Dataset) -> bool:
    """Whether its inputs are pictures that a page can show."""
    return dataset.kind is InputKind.IMAGE and len(dataset.shape) == 3


def _pictures(facts: RunFacts, dataset: Dataset, groups: list[ExampleGroup]) -> Markup:
    columns = (
        element(
            "div",
            element("h3", group.title),
            element("div", *(_picture(facts, dataset, member) for member in group.certificates), class_="pair"),
            class_="group",
        )
        for group in groups
    )
    return element("div", *columns, class_="gallery")


def _picture(facts: RunFacts, dataset: Dataset, certificate: Certificate) -> Markup:
    height, width = dataset.shape[1:]
    uri = image_uri(dataset.test.inputs[certificate.index], dataset.levels)
    name = f"Test record {certificate.index}, {facts.class_name(certificate.label)}"
    picture = element("img", src=uri, alt=name, width=width, height=height)
    answer = element("strong", _answer(facts, certificate))
    truth = "" if certificate.correct else f"true: {facts.class_name(certificate.label)}"
    radius = "" if certificate.prediction == ABSTAIN else f"radius {radius_text(certificate.radius)}{facts.words.suffix}"
    lines = [element("span", line) for line in (truth, radius, f"no. {certificate.index}") if line]
    return element("figure", picture, element("figcaption", answer, *lines), class_="example")


def _features(facts: RunFacts, dataset: Dataset, groups: list[ExampleGroup]) -> Markup:
    members = [(group.title, member) for group in groups for member in group.certificates]
    count = min(FEATURES_SHOWN, int(dataset.test.inputs[0].size))
    names = dataset.feature_names or tuple(f"feature {index}" for index in range(count))
    values = [feature_values(dataset, member.index, count) for _, member in members]
    rows: list[Sequence[object]] = [
        ["chosen as", *(title for title, _ in members)],
        ["answer", *(element("strong", _answer(facts, member)) for _, member in members)],
        ["true class", *(facts.class_name(member.label) for _, member in members)],
        [
            f"radius{facts.words.suffix}",
            *("–" if member.prediction == ABSTAIN else radius_text(member.radius) for _, member in members),
        ],
        *([names[index], *(f"{column[index]:.4g}" for column in values)] for index in range(count)),
    ]
    size = int(dataset.test.inputs[0].size)
    caption = f"The first {count} of {size} features." if size > count else None
    return table(("test record", *(f"no. {member.index}" for _, member in members)), rows, caption)


def _answer(facts: RunFacts, certificate: Certificate) -> str:
    return "no answer" if certificate.prediction == ABSTAIN else facts.class_name(certificate.prediction)
