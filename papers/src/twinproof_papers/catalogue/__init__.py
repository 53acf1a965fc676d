"""The tables and figures of the papers, with the numbers that are printed in them: all experiments by name."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof.extensions import Group, find, names
from twinproof_papers.catalogue.dpcert import DPCERT
from twinproof_papers.catalogue.hgm import HGM, PIXELDP
from twinproof_papers.catalogue.stobatch import STOBATCH
from twinproof_papers.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*PIXELDP, *HGM, *STOBATCH, *DPCERT)}


def all_experiments() -> dict[str, Experiment]:
    """Ours, and those that other packages register."""
    outside = {name: find(Group.EXPERIMENTS, name, Experiment) for name in names(Group.EXPERIMENTS) if name not in EXPERIMENTS}
    return EXPERIMENTS | {name: found for name, found in outside.items() if found is not None}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that suggests one."""
    found: Experiment | None = EXPERIMENTS.get(name) or find(Group.EXPERIMENTS, name, Experiment)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, [*EXPERIMENTS, *names(Group.EXPERIMENTS)], n=1)
    raise ConfigError(
        "there is no such experiment",
        where="name",
        got=name,
        wanted="a name of `twinproof reproduce --list`",
        fix=f"did you mean {near[0]!r}?" if near else "see `twinproof reproduce --list`",
    )
