"""Certificates on disk: the settings they share, and one line per input, written as they are made."""

from __future__ import annotations

import csv
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from twinproof.errors import RunError
from twinproof.files import naming, write_json
from twinproof.rounding import format_down
from twinproof.runs.layout import FORMAT, RunLayout, refuse_unknown_format
from twinproof.runs.reading import CLOSED, NUMBER, WHOLE, Count, Digest, Key, Length, Radius, Share, read_json, read_table

ABSTAIN = -1  # prediction: the votes do not allow an answer
UNKNOWN = -2  # label: nobody said what the truth is
HEADER = ("index", "label", "prediction", "votes", "top", "radius", "correct", "draws")
# Columns of evidence that is more than one number of votes.
MORE = ("squares", "runner_up", "runner_up_squares")
_COLUMNS = dict.fromkeys(HEADER, WHOLE) | {"radius": NUMBER}


@dataclass(frozen=True)
class Certificate:
    """One input's answer: ``prediction`` (or ``ABSTAIN``), the votes behind it, and a radius that is already rounded down.

    ``draws`` is the number of estimation draws that the votes come from; 0 where nobody said. ``votes`` are votes, or the sum
    of the class's scores; ``squares``, and the sums of the strongest other class (``runner_up``), are 0 where the number of
    votes is all the evidence.
    """

    index: int
    label: int
    prediction: int
    votes: int
    top: int
    radius: float
    draws: int = 0
    squares: int = 0
    runner_up: int = 0
    runner_up_squares: int = 0

    @property
    def correct(self) -> bool:
        """Whether the answer is the true label; labels are classes or ``UNKNOWN``, so that an abstention never is."""
        return self.prediction == self.label

    def robust_at(self, size: float) -> bool:
        """Whether no change smaller than ``size`` can change the answer: false for an abstention, even at size 0."""
        return self.prediction != ABSTAIN and self.radius >= size

    def row(self, *, more: bool = False) -> list[str]:
        """The line of ``certificates.csv``; with ``more`` it ends with the columns ``MORE``."""
        numbers = (self.index, self.label, self.prediction, self.votes, self.top)
        line = [*map(str, numbers), format_down(self.radius), str(int(self.correct)), str(self.draws)]
        return line + [str(getattr(self, name)) for name in MORE] if more else line


@dataclass(frozen=True)
class Look:
    """A look at the votes after ``draws`` estimation draws, with a bound that fails with probability at most ``alpha``."""

    __pydantic_config__: ClassVar = CLOSED

    draws: Count
    alpha: Share


@dataclass(frozen=True)
class CertificateSettings:
    """What all certificates of a run share; see docs/formats/run.md for each field.

    Without ``looks`` there is one, at all n draws with all of alpha.
    """

    model_sha256: Digest
    norm: str
    sigma: Length
    grid: Length
    levels: Count
    dimension: Count
    tau: Length
    n0: Count
    n: Count
    alpha: Share
    key: Key
    largest_radius: Radius
    inputs: Count
    state: str
    device: str
    versions: dict[str, str]
    created: str
    seconds: Length
    target_radius: Radius | None = None
    looks: tuple[Look, ...] = ()
    arithmetic: str = "float32"
    form: str = "as given"
    shared_noise: bool = False
    law: str = "gaussian"
    place: str = "input"
    bound: str = "tight"
    statistic: str = "votes"
    confidence: str = "clopper-pearson"
    runner_up: str = "complement"
    classes: Count = 2
    resolution: Count = 1
    operator_norm: Length = 1.0
    operator_norm_method: str = "identity"
    slack: Length = 0.0
    slackless_norm: Length | None = None

    def __post_init__(self) -> None:
        if not self.looks:
            object.__setattr__(self, "looks", (Look(self.n, self.alpha),))

    @property
    def needs_more(self) -> bool:
        """Whether the number of votes is not all the evidence, so that the lines have the columns ``MORE``."""
        return (self.statistic, self.runner_up) != ("votes", "complement")

    @property
    def decided_radius(self) -> float:
        """The largest radius at which certified accuracy means something: with a target, nobody drew for more.

        At the target itself it is decided; below it is a lower bound, as inputs that miss the target were given up early.
        """
        return self.largest_radius if self.target_radius is None else min(self.target_radius, self.largest_radius)

    def as_dict(self) -> dict[str, Any]:
        """The content of ``certificates.json``."""
        return {"format": FORMAT, **asdict(self)}


def write_settings(root: Path, settings: CertificateSettings) -> None:
    """Writes ``certificates.json`` in one step."""
    write_json(RunLayout(root).certificates_json, settings.as_dict())


def read_settings(root: Path) -> CertificateSettings | None:
    """The settings of the run's certificates, or None where nothing was certified yet."""
    path = RunLayout(root).certificates_json
    if not path.is_file():
        return None
    found = read_json(path, fix="restore the file, or certify again with --overwrite")
    refuse_unknown_format(path, found.record.get("format"))
    # Records from before there was noise at two places have no slackless norm.
    return found.typed(CertificateSettings, optional=("slackless_norm",))


def read_certificates(root: Path) -> list[Certificate]:
    """All complete lines of ``certificates.csv``; a last line that a kill cut short is passed over."""
    rows = read_table(RunLayout(root).certificates_csv, (_COLUMNS, _COLUMNS | dict.fromkeys(MORE, WHOLE)), appended=True)
    return [Certificate(**{name: value for name, value in row.items() if name != "correct"}) for row in rows]


class CertificateWriter:
    """Appends certificates and makes each batch durable before it is reported as done."""

    def __init__(self, root: Path, *, keep: int = 0, more: bool = False) -> None:
        """Opens the file behind the first ``keep`` certificates it already holds; whatever follows them is cut off.

        ``more`` writes the columns ``MORE`` (``CertificateSettings.needs_more``).
        """
        self._more = more
        path = RunLayout(root).certificates_csv
        if keep:
            _cut_behind(path, keep + 1)
        self._file: IO[str] = open(path, "a" if keep else "w", newline="", encoding="utf-8")  # noqa: SIM115 (closed in close)
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not keep:
            self._writer.writerow(HEADER + MORE if more else HEADER)

    def append(self, certificates: list[Certificate]) -> None:
        """Adds lines and flushes them to the disk."""
        with naming(Path(self._file.name)):
            self._writer.writerows(certificate.row(more=self._more) for certificate in certificates)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        with naming(Path(self._file.name)):
            self._file.close()


def _cut_behind(path: Path, lines: int) -> None:
    """Leaves the first ``lines`` lines of a file. In bytes: a text file that has read ahead would write behind the cut."""
    with open(path, "r+b") as handle:
        for number in range(lines):
            if not handle.readline().endswith(b"\n"):
                raise RunError(
                    "certificates.csv is shorter than expected", where=str(path), got=f"{number} lines", wanted=f"{lines} lines"
                )
        handle.truncate()
