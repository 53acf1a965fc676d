"""The section "Under attack": what attacks leave of the accuracy, above the line that certificates prove."""

from __future__ import annotations

from twinproof.data.record import Dataset
from twinproof.evaluation.certified import radius_name
from twinproof.evaluation.protocols import Protocol
from twinproof.reporting.attack_facts import AttackFacts, needed_radius
from twinproof.reporting.attack_gallery import attacked_gallery
from twinproof.reporting.attack_marks import legend_entry
from twinproof.reporting.attack_plot import attack_curves, attack_plot
from twinproof.reporting.attack_tables import entry_table, protocol_table
from twinproof.reporting.canvas import colour_variable
from twinproof.reporting.crossing_box import crossing_box
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.markup import Markup, element, join, listing
from twinproof.reporting.numbers import probability_text, setting_text, share_text, share_text_up
from twinproof.reporting.plots import claim_colour
from twinproof.reporting.radius_words import RadiusWords
from twinproof.reporting.sections import figure, missing, section_of
from twinproof.rounding import format_up

_CAPTION = (
    "Share of the attacked inputs that are still answered correctly; an abstention is not correct. Bars are 95 % intervals "
    "over test inputs, point by point; marks of one size stand a little apart. "
)
_EXCLUDED = (
    "The shaded area is what certificates exclude: no attack of that size, known or not, may push the smoothed classifier into "
    "it. It says nothing about the network itself."
)
_CLAIMED = "The shaded area is what was claimed to be out of reach ({claim}): it is no promise, and attacks may get into it."
_PROTOCOLS = (
    "Papers' protocol: inputs are crafted on the network without its noise, the last point is kept, and “{certified} there” "
    "speaks of the attacked input, which says nothing about the original. Adaptive: gradients of the network and of the "
    "smoothed classifier, in expectation over the noise; the worst case counts an input as correct only if it is answered "
    "correctly as it is and at every adaptive point of this or a smaller size. The difference is what the papers' protocol "
    "leaves standing and ours does not."
)
_OWN_NOISE = (
    " This network has a noise layer: “the network” is the network with that layer silent, and the smoothed classifier votes "
    "over the layer's own noise."
)
_STALE = (
    "These results do not follow from the certificates and lines that the run holds now (certified anew since?). "
    "`twinproof attack RUN` with the same settings renews them."
)


def attack_section(facts: RunFacts, dataset: Dataset | None) -> Markup:
    """The section, or nothing where the run was not attacked."""
    attacks = facts.attacks
    if attacks is None:
        return Markup()
    words = facts.words
    caption = _CAPTION + (_CLAIMED.format(claim=words.claim) if words.claim else _EXCLUDED)
    marks = element(
        "ul",
        _certified_mark(words),
        *(legend_entry(curve.mark, curve.name) for curve in attack_curves(attacks)),
        class_="legend",
    )
    return section_of(
        "attacks",
        "Under attack",
        crossing_box(attacks, dataset, expected=facts.expected),
        element("p", _setting(attacks)),
        Markup() if attacks.follows else missing(_STALE),
        figure(attack_plot("attacks", attacks, words), marks, caption),
        protocol_table(attacks, words),
        entry_table(attacks, words),
        element("p", abstention_note(attacks) + _line_above(attacks), class_="note"),
        element(
            "p",
            _PROTOCOLS.format(certified=words.certified) + (_OWN_NOISE if facts.own_noise else "") + _target(facts),
            class_="note",
        ),
        _warnings(attacks),
        attacked_gallery(facts, attacks, dataset),
    )


def abstention_note(attacks: AttackFacts) -> str:
    """What abstentions do to the numbers, with the middle size as the example."""
    text = (
        "Abstentions: under attack the smoothed classifier may decline to answer. That counts as not correct in every number "
        "here, and is also counted apart; it misleads nobody, and contradicts no certificate, because a certificate excludes "
        "another answer and not an even vote."
    )
    one = attacks.sizes[(len(attacks.sizes) - 1) // 2]
    if one.worst is None:
        return text
    correct, silent = one.worst.smoothed.value, one.worst.abstained.value
    return (
        f"{text} At {attacks.where(one.size)} the worst case leaves {share_text(correct)} correct, {share_text_up(silent)} "
        f"without an answer, and {share_text_up(max(0.0, 1 - correct - silent))} misled."
    )


def _line_above(attacks: AttackFacts) -> str:
    """Why the certified line may lie above a curve without anything being wrong; empty where it does not."""
    line = attacks.certified_line()
    above = bool(line) and line[0][1].value > attacks.clean.smoothed.value
    above |= any(one.worst is not None and one.certified.value > one.worst.smoothed.value for one in attacks.sizes)
    if not above or attacks.crossing:
        return ""
    return (
        " That is also why the certified line may lie a little above a curve although no certificate is contradicted: where "
        "votes are close, an answer is an abstention, the more often the fewer draws it rests on."
    )


def _setting(attacks: AttackFacts) -> str:
    settings, plan, asked = attacks.settings, attacks.settings.plan, attacks.settings.sampling
    aim = "" if plan.aim is None else f", aimed ({plan.aim})"
    tried = f"The first {setting_text(settings.inputs)} test inputs were attacked with {', '.join(plan.attacks)}{aim}"
    hard = ""
    if Protocol.ADAPTIVE in plan.protocols:
        starts = "1 start" if plan.restarts == 1 else f"{setting_text(plan.restarts)} starts"
        hard = (
            f" Adaptive attacks took {setting_text(plan.steps)} steps from {starts}, with {setting_text(plan.draws)} "
            "noise draws for each gradient."
        )
    return (
        f"{tried} in the {plan.norm} norm; sizes are in input units (0 to 1).{hard} At every attacked input the smoothed "
        f"classifier (sigma {setting_text(settings.noise.sigma)}) was asked anew, with {setting_text(asked.n)} draws and alpha "
        f"{probability_text(asked.alpha)}.{_covering(attacks)}"
    )


def _covering(attacks: AttackFacts) -> str:
    """What a radius in another norm must be to speak of an attack; nothing where the two norms are one."""
    settings = attacks.settings
    if settings.plan.norm == settings.method.norm:
        return ""
    largest = settings.plan.sizes[-1]
    needed = format_up(needed_radius(settings, largest), 3)
    return (
        f" Radii are in {settings.method.norm}: an attack of {attacks.where(largest)} can be {needed} long there, and "
        "only a radius of at least that covers it."
    )


def _target(facts: RunFacts) -> str:
    target = facts.settings.sampling.target_radius if facts.settings else None
    if target is None:
        return ""
    return f" Drawing for certificates stopped at radius {radius_name(target)}: beyond it the line is only a lower bound."


def _certified_mark(words: RadiusWords) -> Markup:
    swatch = element("span", class_="swatch area", style=f"color: {colour_variable(claim_colour(words))}")
    meaning = f"share {words.claim}" if words.claim else "certified share: no attack may get below it"
    return element("li", swatch, meaning)


def _warnings(attacks: AttackFacts) -> Markup:
    if not attacks.warnings:
        return Markup()
    return element("div", join([element("strong", "Warnings of the evaluation"), listing(attacks.warnings)]), class_="missing")
