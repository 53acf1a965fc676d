"""Several runs in one page: their guarantees side by side, and their numbers and curves with those of the same norm.

Radii in different norms are different things: 0.3 in linf is far more than 0.3 in l2. They never share a table or a plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.certified import certified_curve
from twinproof.reporting.evidence import Certification, Curve, table_radii
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.page import render
from twinproof.reporting.words import RadiusWords

_COMPARABLE = (
    ("method.norm", "the norm of the radii"),
    ("method.bound", "the bound"),
    ("noise.law", "the law of the noise"),
    ("noise.place", "the place of the noise"),
    ("method.statistic", "the statistic"),
    ("sampling.alpha", "alpha"),
    ("sampling.n", "the number of draws"),
    ("sampling.target_radius", "the target radius at which drawing stopped"),
    ("sampling.shared_noise", "whether inputs shared their noise"),
)


@dataclass(frozen=True)
class Member:
    """One certification of one run; ``name`` is what the page calls it."""

    name: str
    run: RunFacts
    certification: Certification

    @property
    def label(self) -> str:
        return self.name + (self.certification.words.suffix if self.certification.certificates else "")

    def at(self, radii: Sequence[float]) -> list[Interval | None]:
        """Certified accuracy at each of ``radii``; None beyond a radius at which drawing stopped."""
        one = self.certification
        return [interval if one.decides(radius) else None for radius, interval in certified_curve(one.certificates, radii)]


@dataclass(frozen=True)
class NormGroup:
    """Certifications whose radii are in one norm; runs without certificates stand with the first group."""

    norm: str
    members: tuple[Member, ...]

    @property
    def certified(self) -> list[Member]:
        return [member for member in self.members if member.certification.certificates]

    @property
    def kinds(self) -> list[RadiusWords]:
        """The different ways in which their radii are called, the certified ones first."""
        claims = sorted({member.certification.words.claim for member in self.certified})
        return [RadiusWords(self.norm, claim) for claim in claims or [""]]

    @property
    def axis(self) -> str:
        """The label for their radii; neither certified nor claimed where some are one and some the other."""
        return self.kinds[0].axis if len(self.kinds) == 1 else f"{self.norm} radius"

    @property
    def accuracy(self) -> str:
        if len(self.kinds) == 1:
            return self.kinds[0].accuracy
        return "Certified and claimed accuracy" if RadiusWords(self.norm) in self.kinds else "Claimed accuracy"

    @property
    def radii(self) -> list[float]:
        return table_radii(max(member.certification.decided_end for member in self.certified))

    @property
    def curves(self) -> list[Curve]:
        """Certified accuracy against radius, one for each certified member."""
        return [member.certification.curve() for member in self.certified]

    @property
    def differences(self) -> list[str]:
        """What makes their numbers hard to compare."""
        return _differences([member.run for member in self.members], [member.certification for member in self.members])


def comparison_page(runs: Sequence[RunFacts]) -> str:
    names = distinct_names(runs)
    members = [_member(name, run, one) for name, run in zip(names, runs, strict=True) for one in run.certifications]
    return render("comparison.html.j2", names=names, members=members, groups=norm_groups(members))


def distinct_names(runs: Sequence[RunFacts]) -> list[str]:
    """Folder names, numbered where two runs in different places have the same one."""
    seen: dict[str, int] = {}
    names = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        names.append(run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})")
    return names


def differences(runs: Sequence[RunFacts]) -> list[str]:
    """What must be equal for the numbers of runs to be comparable, and is not."""
    return _differences(runs, [one for run in runs for one in run.certifications])


def norm_groups(members: Sequence[Member]) -> list[NormGroup]:
    """The certifications by norm, in the order of first appearance; at least one group."""
    groups: dict[str, list[Member]] = {}
    bare: list[Member] = []
    for member in members:
        certification = member.certification
        usable = certification.made is not None and certification.certificates
        (groups.setdefault(certification.words.norm, []) if usable else bare).append(member)
    groups.setdefault(next(iter(groups), "l2"), []).extend(bare)
    return [NormGroup(norm, tuple(found)) for norm, found in groups.items()]


def _member(name: str, run: RunFacts, certification: Certification) -> Member:
    several = len(run.certifications) > 1
    return Member(f"{name}: {certification.name}" if several else name, run, certification)


def _differences(runs: Sequence[RunFacts], certifications: Sequence[Certification]) -> list[str]:
    settings = [one.settings for one in certifications if one.settings is not None]
    values = {words: {attrgetter(field)(one) for one in settings} for field, words in _COMPARABLE}
    values["the data set"] = {str(run.data.get("name")) for run in runs}
    values["the number of certified inputs"] = {len(one.certificates) for one in certifications}
    values["delta"] = {run.privacy.delta for run in runs if run.privacy.delta is not None}
    return [words for words, found in values.items() if len(found) > 1]
