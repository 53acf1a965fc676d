"""Runs by the norm of their radii: only within one norm can radii be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinproof.reporting.facts import RunFacts
from twinproof.reporting.radius_words import RadiusWords

Named = tuple[str, RunFacts]


@dataclass(frozen=True)
class NormGroup:
    """Runs whose radii are in one norm, by name; runs without certificates stand with the first group."""

    norm: str
    members: tuple[Named, ...]

    @property
    def certified(self) -> list[Named]:
        """Those with certificates; the names of runs whose radii are only claims say so."""
        return [(name + run.words.suffix, run) for name, run in self.members if run.certificates]

    @property
    def axis(self) -> str:
        """The label for their radii; neither certified nor claimed where some are one and some the other."""
        kinds = self._kinds
        return kinds[0].axis if len(kinds) == 1 else f"{self.norm} radius"

    @property
    def accuracy(self) -> str:
        """The heading for their shares of inputs."""
        kinds = self._kinds
        if len(kinds) == 1:
            return kinds[0].accuracy
        return "Certified and claimed accuracy" if RadiusWords(self.norm) in kinds else "Claimed accuracy"

    @property
    def second_layer(self) -> str:
        """How often single radii are wrong."""
        return " ".join(kind.second_layer for kind in self._kinds)

    @property
    def _kinds(self) -> list[RadiusWords]:
        """The different ways in which their radii must be named, the certified ones first; those of nobody are certified."""
        claims = sorted({run.words.claim for _, run in self.certified})
        return [RadiusWords(self.norm, claim) for claim in claims or [""]]


def by_norm(runs: Sequence[RunFacts], names: Sequence[str]) -> list[NormGroup]:
    """The runs by the norm of their radii, in the order of first appearance; at least one group."""
    members: dict[str, list[Named]] = {}
    bare: list[Named] = []
    for name, run in zip(names, runs, strict=True):
        place = bare if run.settings is None or not run.certificates else members.setdefault(run.settings.method.norm, [])
        place.append((name, run))
    first = next(iter(members), "l2")
    members[first] = [*members.get(first, []), *bare]
    return [NormGroup(norm, tuple(found)) for norm, found in members.items()]
