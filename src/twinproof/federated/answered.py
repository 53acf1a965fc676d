"""What a party has answered already: one set of weights for each step, also after it was started anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinproof.errors import RunError
from twinproof.files import make_folder, write_json
from twinproof.runs.lock import exclusive
from twinproof.runs.private_files import create_private_folder
from twinproof.runs.reading import Count, read_json


@dataclass(frozen=True)
class Answer:
    """The last step that was answered, and the digest of the weights that it was answered for."""

    step: Count
    weights_sha256: str


@dataclass(frozen=True)
class _Stored(Answer):
    """The file: whose records, and their answer."""

    records: str


class AnsweredSteps:
    """The memory of one party in one agreement; in ``folder`` it outlives the party's process.

    ``records`` is a keyed digest of the party's records: the numbers that belong to a key and a step are drawn for them alone.

    Guarantees
        When ``take`` returns, the step is on the disk (with a folder), and no party with that memory, in this process or in
        another one, takes the same step for other weights, an earlier step, or any step with other records or another key.
    """

    def __init__(self, party: str, agreement: str, records: str, folder: Path | None) -> None:
        self._party = party
        self._records = records
        self._path = None if folder is None else folder / f"answered-{agreement}.json"
        self._last: Answer | None = None
        if folder is not None:
            make_folder(folder, "what the party has answered")
            create_private_folder(folder)
            self._read()  # who cannot answer hears of it now

    def take(self, step: int, weights_sha256: str) -> None:
        """Remembers that ``step`` is about to be answered; RunError where it must not be."""
        taken = Answer(step, weights_sha256)
        if self._path is None:
            self._refuse(taken, self._last)
            self._last = taken
            return
        try:
            # Another process of the same party may have answered since this one looked.
            with exclusive(self._path.parent, waits=True):
                last = self._read()
                self._refuse(taken, last)
                if taken != last:
                    write_json(self._path, {"records": self._records, "step": step, "weights_sha256": weights_sha256})
        except OSError as error:
            raise self._refused("the party cannot write down what it answers", error, "a folder to write to") from error

    def _refuse(self, taken: Answer, last: Answer | None) -> None:
        if last is None or taken.step > last.step or taken == last:
            return
        raise self._refused(
            "a step is asked for again with other weights",
            f"step {taken.step}",
            f"step {last.step} with the same weights, or a later one",
        )

    def _read(self) -> Answer | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            stored = read_json(self._path).typed(_Stored)
        except (OSError, RunError) as error:
            raise self._refused("what this party has answered cannot be read", error, "the file that it wrote") from error
        if stored.records != self._records:
            raise self._refused(
                "the party has answered with other records or another key",
                "another fingerprint",
                "the records and the key that it began with; or a new agreement",
            )
        return Answer(stored.step, stored.weights_sha256)

    def _refused(self, what: str, got: object, wanted: str) -> RunError:
        return RunError(what, where=f"party {self._party}", got=got, wanted=wanted)
