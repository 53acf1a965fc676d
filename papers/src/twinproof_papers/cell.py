"""Cells, and how they are kept on disk.

A cell is one model, trained once and measured in one way. Figures share the cells whose settings agree.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.files import append_line, canonical_json, write_json
from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_SIZES, PRIOR_WIDTH, Prior, prior_sha256
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.resumption import SECTION
from twinproof.runs.layout import COMPLETE, RunLayout, read_run_json, utc_now
from twinproof.runs.reading import read_json
from twinproof.runs.run import Run

Numbers = dict[str, Any]
"""What was measured, as plain JSON values; docs/papers.md describes each kind."""


class Measurement(Protocol):
    """One kind of measurement with its settings; a frozen dataclass.

    An implementation's ``numbers`` depends on the run, the data, these settings and fresh randomness, and on nothing else,
    and holds ``clean``. Killed at any moment and called again on the same run, it ends as if it had never been killed.
    """

    @property
    def after(self) -> Basis | None:
        """The measurement whose run this one goes on with, and which is made first; None to train a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Every setting that the numbers depend on, as plain JSON values: it becomes a part of the cell's name."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Measures ``run``."""

    def words(self) -> str:
        """What a caption says of it."""


class Basis(Measurement, Protocol):
    """A measurement that others can come after: it leaves more in its run than the weights, and knows what."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the run at ``folder`` is finished and holds all that this measurement leaves there, of one model."""


FIRST_PRIOR = "d67589bc92a269ea452aca5a1d9c88cc736ea792f79b45443b5df1f25caff108"
"""SHA-256 of the weights that all cells started from before names said so: theirs stay as they are."""


def prior_entry(config: TrainConfig) -> dict[str, Any]:
    """What the settings of a cell say of the shipped weights, as run.json says it; nothing where they play no part.

    Two cells that start from different learned weights have different settings, and so different names. Settings do not
    change with the shipped file where a cell starts at random, nor while the file is the first one.
    """
    if not may_start_from_prior(config):
        return {}
    shipped = prior_sha256(config.model or PRIOR_NETWORK)
    return {} if shipped == FIRST_PRIOR else {SECTION: {"name": str(Prior.FIGURES), "sha256": shipped}}


def may_start_from_prior(config: TrainConfig) -> bool:
    """Whether training starts from the shipped weights. What only the shape of the data decides counts as yes.

    A cell that is made twice costs time; one that is reused with other weights behind it is wrong.
    """
    if config.prior is not None:
        return config.prior is Prior.FIGURES
    for_noise = config.model in (None, PRIOR_NETWORK) and config.width == PRIOR_WIDTH
    return find_recipe(config.recipe).start.from_prior and (for_noise or config.model in PRIOR_SIZES)


_FORMER_SHARE = 0.2


@dataclass(frozen=True)
class Cell:
    """One repetition of one model. ``training`` is what ``train`` is given, apart from what only changes speed.

    A measurement that comes after another one is made on the other cell's run, so that no model is trained twice.
    """

    method: str
    repetition: int
    training: dict[str, Any] = field(hash=False)
    measurement: Measurement

    @property
    def base(self) -> Cell | None:
        """The cell whose run this one goes on with; None where it has its own."""
        earlier = self.measurement.after
        return None if earlier is None else replace(self, measurement=earlier)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as plain JSON values; what the recipe decides is written out."""
        config = parse_train_config(self.training)
        training = config.model_dump(mode="json", exclude={"performance"})
        # Kept results name cells by settings in which the public share had another name and a default.
        share = training["data"].pop("public_fraction")
        training["data"]["test_fraction"] = _FORMER_SHARE if share is None else share
        return {
            "method": self.method,
            "repetition": self.repetition,
            "training": training,
            "measurement": self.measurement.as_dict(),
            **prior_entry(config),
        }

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(canonical_json(self.settings).encode()).hexdigest()

    @property
    def name(self) -> str:
        known = {name: self.training.get(name) for name in ("epsilon", "sigma")}
        middle = "".join(f"-{name}-{value:g}" for name, value in known.items() if value is not None)
        return f"{self.method}{middle}-{self.repetition}-{self.digest[:12]}"


FORMAT = 1
CELLS = "cells"
"""The folder of them, beside those of the experiments."""
RUN_AGAIN = "run"
"""The entry of ``made`` that is there only where the run was made again, and says how."""
_FILE, _RUN, _AGAIN = "cell.json", "run", "run-again.json"


@dataclass(frozen=True)
class Measured:
    """A finished cell: its settings, and what was measured; ``numbers`` is described in docs/papers.md."""

    cell: Cell
    numbers: dict[str, Any]
    made: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.cell.name, **self.cell.settings, "numbers": self.numbers, "made": self.made}


@dataclass(frozen=True)
class CellStore:
    """A folder of cells.

    A cell counts as finished only if its file was written whole and holds the very settings that are asked for now: a
    result is never reused under other settings, whatever its folder is called.
    """

    root: Path

    def run_folder(self, cell: Cell) -> Path:
        """Where the trained run lies: with the cell that it was trained for."""
        return self.root / (cell.base or cell).name / _RUN

    def note_run_again(self, cell: Cell) -> None:
        """Writes down, before it is done, that the run of a finished cell is made again: its numbers come from another one."""
        write_json(self.root / cell.name / _AGAIN, {"format": FORMAT, "date": utc_now()})

    def has_run_again(self, cell: Cell) -> bool:
        """Whether the run that ``cell`` goes on with was made again after the numbers of its base were kept."""
        return cell.base is not None and (self.root / cell.base.name / _AGAIN).is_file()

    def finished(self, cell: Cell) -> Measured | None:
        """What was measured earlier, or None; RunError where the folder holds something else."""
        path = self.root / cell.name / _FILE
        if not path.is_file():
            return None
        try:
            record = read_json(path).record
            format_, settings, numbers, made = (record[key] for key in ("format", "settings", "numbers", "made"))
        except (RunError, KeyError) as error:
            raise _refused(path, error, "a cell of this program") from error
        wanted = json.loads(json.dumps(cell.settings))
        if (format_, settings) != (FORMAT, wanted):
            raise _refused(path, "a cell made under other settings", f"the settings with digest {cell.digest[:12]}")
        return Measured(cell, numbers, made)

    def entry(self, name: str) -> dict[str, Any] | None:
        """A finished cell as a results file has it (``Measured.as_dict``), whatever its settings; None where there is none."""
        path = self.root / name / _FILE
        if not path.is_file():
            return None
        record = read_json(path).record
        return {"name": name, **record["settings"], "numbers": record["numbers"], "made": record["made"]}

    def keep(self, measured: Measured) -> None:
        """Writes a finished cell, in one step: from now on its numbers are those of the run beside them."""
        folder = self.root / measured.cell.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _AGAIN).unlink(missing_ok=True)  # first: what is not finished is measured again
        record = {"settings": measured.cell.settings, "numbers": measured.numbers, "made": measured.made}
        write_json(folder / _FILE, {"format": FORMAT, **record})

    def forget(self, cell: Cell) -> None:
        """Removes a cell with its run, and the cell that the run was trained for."""
        if cell.base is not None:
            self.forget(cell.base)
        folder = self.root / cell.name
        (folder / _FILE).unlink(missing_ok=True)  # first, so that a kill leaves nothing that looks finished
        shutil.rmtree(folder, ignore_errors=True)


def is_trained(folder: Path) -> bool:
    """Whether a finished run lies there; RunError where its record is broken."""
    return RunLayout(folder).run_json.is_file() and read_run_json(folder).get("state") == COMPLETE


def _refused(path: Path, got: object, wanted: str) -> RunError:
    return RunError(
        "a cell on the disk is not the one that is asked for",
        where=str(path),
        got=got,
        wanted=wanted,
        fix="--overwrite makes it again; or choose another --out",
    )


@dataclass(frozen=True)
class Failure:
    """A cell that could not be made, and why. Words only: an exception would keep the memory of its model."""

    cell: Cell
    why: str


Outcome = Measured | Failure


FILE = "timings.jsonl"


class Call:
    """One call that makes cells of ``experiment`` in ``root``, ``processes`` at a time; its clock runs from now on."""

    def __init__(self, root: Path, experiment: str, processes: int) -> None:
        self._path = root / FILE
        self._known = {"call": secrets.token_hex(8), "experiment": experiment, "began": utc_now(), "processes": processes}
        self._start = time.monotonic()

    def made(self, cell: Cell) -> None:
        line = canonical_json({**self._known, "cell": cell.name, "after": round(time.monotonic() - self._start, 1)})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, line)


def made_in(root: Path, cells: Collection[Cell]) -> list[dict[str, Any]]:
    """The calls that made ``cells``, in order: wall-clock seconds up to the last cell of each, and how many it made.

    Each cell counts in ``cells_here`` of one call at most: the last that made it. Calls that made none of them are not
    listed. ``seconds`` and ``cells`` speak of the whole call, other experiments' cells included.
    """
    lines = list(_lines(root / FILE))
    last = {line["cell"]: line["call"] for line in lines}
    here = [last[cell.name] for cell in cells if cell.name in last]
    calls: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = calls.setdefault(line["call"], {key: line[key] for key in ("experiment", "began", "processes")})
        entry["seconds"] = max(entry.get("seconds", 0.0), line["after"])
        entry["cells"] = entry.get("cells", 0) + 1
    return [{**entry, "cells_here": here.count(call)} for call, entry in calls.items() if call in here]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            continue  # cut off by a kill: a time that is not known is left out
