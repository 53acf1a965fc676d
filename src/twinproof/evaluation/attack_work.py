"""Unfinished attacks of a run, and the two classifiers that attacks are made on.

The run itself stays as it was until everything is made, so that a killed attack leaves a run that still verifies.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, Objective, OwnNoise, Plain, Smoothed, without_noise
from twinproof.errors import RunError
from twinproof.evaluation.protocols import Entry, answers_at_random
from twinproof.files import LARGEST_TABLE, make_folder_below, read_bounded, write_atomic, write_json
from twinproof.layers.noise import NoiseLayer
from twinproof.layers.noise_placement import split_at_noise, split_at_two_noises
from twinproof.runs.attacks import (
    ATTACKS_JSON,
    AttackLine,
    AttackSettings,
    format_lines,
    is_complete,
    parse_lines,
    read_attack_settings,
)
from twinproof.runs.layout import RunLayout
from twinproof.runs.private_files import create_private_folder

if TYPE_CHECKING:
    from twinproof.certification.smoothed import SmoothedClassifier


@dataclass(frozen=True)
class AttackedClassifiers:
    """``bare`` is the network by itself, with a noise layer silenced; ``smoothed`` is what the certificates are about.

    ``random`` says whether the bare network still answers at random (by layers that draw and are no noise layer), so that it
    must be attacked in expectation.
    """

    bare: nn.Module
    smoothed: SmoothedClassifier
    random: bool

    @classmethod
    def of(cls, smoothed: SmoothedClassifier, example: Tensor) -> AttackedClassifiers:
        """Both, from the smoothed one; ``example`` is a batch of one input in [0, 1]."""
        bare = without_noise(smoothed.model)
        return cls(bare, smoothed, answers_at_random(bare, example))

    @property
    def blind(self) -> Objective:
        """The network as the papers attack it: through one look, and without its noise."""
        return Plain(self.bare)

    def network(self, draws: int) -> Objective:
        """The network as it answers."""
        return Expectation(self.bare, draws=draws) if self.random else self.blind

    def voting(self, draws: int) -> Objective:
        """The smoothed classifier, through ``draws`` noise draws for each gradient."""
        return smoothed_objective(self.smoothed, draws)


def smoothed_objective(smoothed: SmoothedClassifier, draws: int) -> Objective:
    """A smoothed classifier to attack in expectation over its noise, wherever that is added.

    Guarantees
        The noise of the gradients has the law and the deviation of the noise that is certified (in floats, off its grid).
    """
    if split_at_two_noises(smoothed.model) is not None:
        return OwnNoise(smoothed.model, draws=draws)  # certified with the scales that its layers have, and no others
    split = split_at_noise(smoothed.model) if smoothed.own_noise else None
    if split is None:
        return Smoothed(smoothed.model, smoothed.noise.sigma, draws=draws)
    if float(split.noise.deviation) == smoothed.noise.sigma:
        return OwnNoise(smoothed.model, draws=draws)
    # Certified at another deviation than the layer was trained with: a copy, as the classifier's own network must not change.
    network = copy.deepcopy(smoothed.model)
    for layer in network.modules():
        if isinstance(layer, NoiseLayer):
            layer.set_deviation(smoothed.noise.sigma)
    return OwnNoise(network, draws=draws)


_FOLDER, _PLAN = "attacks", "plan.json"
_ALWAYS_FREE = {"state", "created", "seconds", "form"}


@dataclass(frozen=True)
class AttackWork:
    """The folder of unfinished attacks."""

    root: Path

    @classmethod
    def of(cls, run: Path) -> AttackWork:
        """The one of a run."""
        return cls(RunLayout(run).private / _FOLDER)

    @property
    def plan(self) -> Path:
        """The settings that the work was begun with."""
        return self.root / _PLAN

    def crafted(self, entry: Entry) -> Path:
        """The folder for the attacked inputs of ``entry``, in a folder that is there."""
        make_folder_below(self.root, self.root / entry.name)
        return self.root / entry.name / "inputs"

    def judged(self, entry: Entry, first: int) -> list[AttackLine] | None:
        """The lines of a batch that was judged before, or None."""
        path = self._judged(entry, first)
        return parse_lines(read_bounded(path, LARGEST_TABLE), path) if path.is_file() else None

    def keep_judged(self, entry: Entry, first: int, lines: list[AttackLine]) -> None:
        """Makes the lines of a batch durable."""
        path = self._judged(entry, first)
        make_folder_below(self.root, path.parent)
        write_atomic(path, format_lines(lines).encode())

    def begin(self, settings: AttackSettings) -> None:
        """Makes the folder, with the settings in it."""
        create_private_folder(self.root.parent)
        self.root.mkdir()
        write_json(self.plan, settings.as_dict())

    def remove(self) -> None:
        """Forgets the work; the settings go first, so that a kill leaves nothing that could be gone on with."""
        self.plan.unlink(missing_ok=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def _judged(self, entry: Entry, first: int) -> Path:
        return self.root / entry.name / f"judged-{first:09d}.csv"


def earlier_attacks(run: Path) -> AttackSettings | None:
    """The settings of unfinished attacks of a run, else those of finished ones, else None."""
    for path in (AttackWork.of(run).plan, run / ATTACKS_JSON):
        found = read_attack_settings(path)
        if found is not None:
            return found
    return None


def take_up(run: Path, wanted: AttackSettings, *, own_key: bool, overwrite: bool) -> AttackSettings:
    """The settings to go on with: earlier ones where they are the same, else ``wanted``, with a new folder for its work.

    Guarantees
        Attacks made under other settings are never counted as done. Without ``overwrite`` they are refused and nothing is
        touched; with it, finished ones stay until the new ones are complete.
    """
    work = AttackWork.of(run)
    earlier = None if overwrite else earlier_attacks(run)
    if earlier is not None:
        _refuse_differences(run, earlier, wanted, own_key=own_key)
        return earlier
    work.remove()
    work.begin(wanted)
    return wanted


def _refuse_differences(run: Path, earlier: AttackSettings, wanted: AttackSettings, *, own_key: bool) -> None:
    free = _ALWAYS_FREE | (set() if own_key else {"key"})
    same_kind = earlier.device.partition(":")[0] == wanted.device.partition(":")[0]
    if is_complete(earlier):
        free |= {"device", "versions"}
    elif same_kind:
        free |= {"device"}
    old, new = asdict(earlier), asdict(wanted)
    different = [name for name in old if name not in free and old[name] != new[name]]
    if different:
        raise RunError(
            "this run has attacks with other settings",
            where=str(run),
            got=", ".join(f"{name} {old[name]}" for name in different),
            wanted=", ".join(f"{name} {new[name]}" for name in different),
            fix="--overwrite replaces them; or copy the run first",
        )
