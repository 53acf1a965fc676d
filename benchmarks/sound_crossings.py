"""How often sound certificates are called crossed: simulated certifications and attacks, counted by the library's own rule.

    python benchmarks/sound_crossings.py --out results/sound-crossings.json

The classifier is a half-space, so that an input at distance d from its boundary gets each vote with probability Phi(d /
sigma) and d is its true radius. CERTIFY and its Clopper-Pearson bound are the real ones. The attack is the strongest there
is: it always misleads an input whose true radius is below the size, and each of its k answers errs with the judge's alpha
besides. Most inputs lie just below the size, where every certificate of that size is false. There a count over the inputs
that got such a certificate (``by_covered``, the rule until 2026-11-16) cannot tell chance from a defect. The rule promises a
false alarm in at most one of a million runs. ``power`` is the share of runs in which radii that are really too long are
called so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.evaluation.attack_record import NOBODY, AttackLine
from twinproof.evaluation.certified import CertifiedLine, Crossing, chance_of, held_against
from twinproof.files import write_json
from twinproof.guarantee import round_down
from twinproof.runs.layout import software_versions, utc_now
from twinproof.runs.records import ABSTAIN, Certificate

SIGMA, N0, SEED = 0.5, 100, 19
# Radii that are this much too long, where the power is measured.
TOO_LONG = 1.5
Rule = Callable[[CertifiedLine, list[dict[int, AttackLine]], float, float], Crossing]


@dataclass(frozen=True)
class Setting:
    """``edge`` is the share of inputs whose true radius is just below the size; the others are spread over twice the size.

    The size is the radius that ``votes`` of the n votes give. ``answers`` attacks are judged, each at ``judge_alpha``. With
    ``alike`` all inputs meet the same noise from the same direction; ``shared`` says that the certificates claim shared noise.
    """

    name: str
    inputs: int
    n: int
    alpha: float
    votes: float = 1.0
    edge: float = 1.0
    answers: int = 1
    judge_alpha: float = 0.001
    shared: bool = False
    alike: bool = False


SETTINGS = (
    Setting("few votes, many inputs", 10_000, 100, 0.001),
    Setting("as attack does by default", 500, 1000, 0.001, votes=0.9, answers=6),
    Setting("loose alpha", 2000, 100, 0.01, votes=0.95),
    Setting("half at the edge", 1000, 10_000, 0.001, votes=0.8, edge=0.5),
    Setting("very loose alpha", 1000, 50, 0.05, votes=0.9),
    Setting("most inputs abstain", 2000, 200, 0.001, votes=0.62),
    Setting("true radii spread", 2000, 500, 0.001, votes=0.9, edge=0.0),
    Setting("answers fail more often", 300, 100, 0.0001, answers=12, judge_alpha=0.01),
    Setting("shared noise, alike inputs", 1000, 100, 0.001, shared=True, alike=True),
    Setting("shared noise, small alpha", 20_000, 100, 4e-7, judge_alpha=1e-10, shared=True),
)


def by_covered(line: CertifiedLine, entries: list[dict[int, AttackLine]], reach: float, judge_alpha: float) -> Crossing:
    """The planted bug: chance is counted over the inputs that got a certificate of this size."""
    found = held_against(line, entries, reach, judge_alpha)
    covered = round(found.certified.value * found.inputs)
    chance = min(1.0, line.alpha + len(entries) * judge_alpha)
    return replace(found, probability=chance_of(found.flips, covered, chance, independent=line.independent))


class Simulation:
    """Runs of one setting. ``longer`` multiplies every radius: a defect above 1."""

    def __init__(self, setting: Setting, *, longer: float = 1.0) -> None:
        self.setting = setting
        bounds = clopper_pearson_lower(np.arange(setting.n + 1), setting.n, setting.alpha)
        radii = np.where(bounds > 0.5, SIGMA * ndtri(np.clip(bounds, 0.5, 1 - 1e-16)), 0.0)
        self.size = round_down(float(radii[int(setting.votes * setting.n)]))
        self._radii = [round_down(longer * radius) for radius in radii.tolist()]
        self._made: dict[tuple[int, int], Certificate] = {}
        calm = AttackLine(0, "adaptive", "smoothed", "pgd", self.size, 1, NOBODY, self.size, 1, 1, 1, 900, 1, 0.0, 1000)
        self._answers = (calm, replace(calm, prediction=0, top=0))

    def run(self, generator: np.random.Generator, rule: Rule = held_against) -> Crossing:
        """One certification and its attacks."""
        true = self._true_radii(generator)
        votes, chosen = (self._votes(generator, true, draws) for draws in (self.setting.n, N0))
        # The class of the fewer votes is not the true one, and so covers nothing.
        counts = np.where(chosen > N0 / 2, votes, 0).tolist()
        certificates = [self._certificate(index, count) for index, count in enumerate(counts)]
        entries = [self._attacked(generator, true < self.size) for _ in range(self.setting.answers)]
        line = CertifiedLine(certificates, self.setting.alpha, "simulation", independent=not self.setting.shared)
        return rule(line, entries, self.size, self.setting.judge_alpha)

    def _certificate(self, index: int, votes: int) -> Certificate:
        """Made once for each input and number of votes: the same come again and again."""
        if (index, votes) not in self._made:
            radius = self._radii[votes]
            prediction = 1 if radius > 0 else ABSTAIN
            self._made[index, votes] = Certificate(index, 1, prediction, votes, 1, radius, self.setting.n)
        return self._made[index, votes]

    def _true_radii(self, generator: np.random.Generator) -> NDArray[np.float64]:
        inputs, edge = self.setting.inputs, round(self.setting.edge * self.setting.inputs)
        spread = 2 * self.size * generator.random(inputs - edge)
        return np.concatenate((np.full(edge, self.size * (1 - 1e-9)), spread))

    def _votes(self, generator: np.random.Generator, true: NDArray[np.float64], draws: int) -> NDArray[np.int64]:
        if not self.setting.alike:
            return generator.binomial(draws, ndtr(true / SIGMA))
        noise = np.sort(generator.standard_normal(draws))
        return np.searchsorted(noise, true / SIGMA).astype(np.int64)

    def _attacked(self, generator: np.random.Generator, reached: NDArray[np.bool_]) -> dict[int, AttackLine]:
        misled = reached | (generator.random(len(reached)) < self.setting.judge_alpha)
        return {index: self._answers[found] for index, found in enumerate(misled.tolist())}


def alarms(setting: Setting, runs: int, rule: Rule = held_against, *, longer: float = 1.0) -> int:
    """In how many of ``runs`` runs the line is called crossed."""
    simulation = Simulation(setting, longer=longer)
    generator = np.random.default_rng((SEED, SETTINGS.index(setting)))
    return sum(simulation.run(generator, rule).crossing for _ in range(runs))


def measured(setting: Setting, runs: int, few: int) -> dict[str, Any]:
    """One row of the results: false alarms of ``runs`` sound runs, and of ``few`` by the old rule and by radii too long."""
    return {
        **asdict(setting),
        "size": Simulation(setting).size,
        "runs": runs,
        "false_alarms": alarms(setting, runs),
        "false_alarms_by_covered": alarms(setting, few, by_covered) / few,
        "power": alarms(setting, few, longer=TOO_LONG) / few,
    }


def main() -> None:
    """Runs every setting and writes the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="sound runs of each setting")
    parser.add_argument("--few", type=int, default=200, help="runs of each setting with a planted bug")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    began = time.monotonic()
    rows = [measured(setting, arguments.runs, arguments.few) for setting in SETTINGS]
    record = {
        "command": f"python benchmarks/sound_crossings.py --runs {arguments.runs} --few {arguments.few}",
        "date": utc_now(),
        "device": describe_device(resolve_device("cpu")),
        "versions": software_versions(),
        "seconds": round(time.monotonic() - began, 1),
        "seed": SEED,
        "too_long": TOO_LONG,
        "runs": sum(row["runs"] for row in rows),
        "false_alarms": sum(row["false_alarms"] for row in rows),
        "rows": rows,
    }
    write_json(arguments.out, record)


if __name__ == "__main__":
    main()
