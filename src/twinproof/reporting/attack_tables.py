"""The numbers under attack as tables: both protocols at every size with their difference, and every attack by itself."""

from __future__ import annotations

from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.attack_results import Scores
from twinproof.evaluation.protocols import Protocol, size_name
from twinproof.reporting.attack_facts import AttackFacts, SizeFacts
from twinproof.reporting.attack_marks import PROTOCOL_NAMES
from twinproof.reporting.markup import Markup, element, table, two_lines
from twinproof.reporting.numbers import points_text, share_range, share_text, share_text_up
from twinproof.reporting.radius_words import RadiusWords

_NOTHING = "–"


def protocol_table(attacks: AttackFacts, words: RadiusWords) -> Markup:
    """One row for each size: the certified share, the worst case of ours, the lowest of the papers', and the difference."""
    ours, papers = (protocol in attacks.settings.plan.protocols for protocol in (Protocol.ADAPTIVE, Protocol.PAPER))
    groups: list[tuple[object, int]] = [("", 1), ("", 1)]
    head = [f"{attacks.settings.plan.norm} size", words.claim or words.certified]
    if ours:
        groups.append(("adaptive, worst case", 3))
        head += ["smoothed", "abstained", "network"]
    if papers:
        groups.append(("papers', lowest", 3))
        head += ["smoothed", f"{words.certified} there", "network"]
    if ours and papers:
        groups.append(("difference in points", 2))
        head += ["smoothed", "network"]
    rows = [_clean_row(attacks, ours=ours, papers=papers)]
    rows += [_size_row(one, ours=ours, papers=papers) for one in attacks.sizes]
    caption = "Accuracy under attack by both protocols." if ours and papers else "Accuracy under attack."
    return table(head, rows, caption, groups)


def entry_table(attacks: AttackFacts, words: RadiusWords) -> Markup:
    """Every attack by itself, folded away."""
    head = ("attack", "protocol", "smoothed", "abstained", f"{words.certified} there", "network")
    rows = [
        (
            f"{entry.attack} on {entry.target}, {size_name(one.size)}",
            PROTOCOL_NAMES[Protocol(entry.protocol)],
            _share(entry.scores.smoothed),
            _silent(entry.scores),
            _share(entry.scores.certified),
            _share(entry.scores.network),
        )
        for one in attacks.sizes
        for entry in one.entries
    ]
    summary = element("summary", f"Every attack by itself ({len(rows)})")
    return element("details", summary, table(head, rows), class_="entries")


def _clean_row(attacks: AttackFacts, *, ours: bool, papers: bool) -> list[object]:
    clean = attacks.clean
    row: list[object] = ["0, no attack", _NOTHING]
    row += [_share(clean.smoothed), _silent(clean), _share(clean.network)] if ours else []
    row += [_share(clean.smoothed), _NOTHING, _share(clean.network)] if papers else []
    return row + ([_NOTHING] * 2 if ours and papers else [])


def _size_row(one: SizeFacts, *, ours: bool, papers: bool) -> list[object]:
    row: list[object] = [size_name(one.size), _share(one.certified)]
    if ours and one.worst is not None:
        row += [_share(one.worst.smoothed), _silent(one.worst), _share(one.worst.network)]
    if papers:
        row += [_share(one.lowest(Protocol.PAPER, measure)) for measure in ("smoothed", "certified", "network")]
    if one.difference is not None:
        row += [points_text(one.difference[measure]) for measure in ("smoothed", "network")]
    return row


def _share(share: Interval | None) -> object:
    return _NOTHING if share is None else two_lines(share_text(share.value), share_range(share))


def _silent(scores: Scores) -> Markup:
    return two_lines(share_text_up(scores.abstained.value), share_range(scores.abstained))
