"""All experiments by name."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof_papers.catalogue.dpcert import DPCERT
from twinproof_papers.catalogue.hgm import HGM, PIXELDP
from twinproof_papers.catalogue.stobatch import STOBATCH
from twinproof_papers.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in (*PIXELDP, *HGM, *STOBATCH, *DPCERT)}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, or an error that suggests one."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    raise ConfigError(
        "there is no such experiment",
        where="name",
        got=name,
        wanted="a name of `twinproof reproduce --list`",
        fix=f"did you mean {near[0]!r}?" if near else "see `twinproof reproduce --list`",
    )
