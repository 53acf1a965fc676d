"""A piece of work on a run: certificates, attacks or an audit, under its name.

All three begin, resume, share their batches among ranks and finish in the same way (docs/formats/run.md). Until the last batch
is there the work lies in ``private/work/`` and the run stays as it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from twinproof.compute.ranks import ALONE, Ranks, in_rounds
from twinproof.data.record import Split, fingerprint
from twinproof.errors import RunError
from twinproof.extensions import Plugin
from twinproof.files import LARGEST_TABLE, canonical_json, make_folder_below, read_bounded, write_atomic, write_json
from twinproof.guarantee import Guarantee
from twinproof.keys import Key
from twinproof.progress import Progress, Silent
from twinproof.runs.layout import (
    COMPLETE,
    FORMAT,
    GUARANTEES,
    RunLayout,
    create_private_folder,
    exclusive,
    file_digests,
    plugins_entry,
    read_run_json,
    write_run_json,
)
from twinproof.runs.reading import parse_json, read_json
from twinproof.runs.records import AUDITS, CERTIFICATES, FORMER, WORKING, Made, WorkSettings

_FORMER_FILES = (*FORMER.values(), "certificates.csv", "attacks.csv", "attacks.safetensors")
_SETTINGS = "settings.json"
S = TypeVar("S", bound=WorkSettings)


class Options(TypedDict, total=False):
    """Options that certificates, attacks and audits take alike; ``How`` has their defaults."""

    name: str | None
    overwrite: bool
    key: Key | None
    device: str
    progress: Progress | None
    ranks: Ranks


@dataclass(frozen=True)
class How:
    """Under which ``name`` a piece of work is done, and how.

    ``overwrite`` replaces earlier work of that name with other settings. Work with a ``key`` of the caller's own is resumed
    with the same one only. Several ``ranks`` share the inputs; all call alike, and rank 0 writes.
    """

    name: str | None = None
    overwrite: bool = False
    key: Key | None = None
    device: str = "auto"
    progress: Progress | None = None
    ranks: Ranks = ALONE

    @property
    def bars(self) -> Progress:
        """The progress of rank 0; the others are silent."""
        return self.progress if self.progress is not None and self.ranks.is_first else Silent()


@dataclass(frozen=True)
class Place:
    """Where a piece of work of a ``kind`` and ``name`` lies in the run at ``root``."""

    root: Path
    kind: str
    name: str

    @property
    def settings(self) -> Path:
        """The file that its settings come to lie in."""
        return self.path(f"{self.kind}.json")

    @property
    def aside(self) -> Path:
        """The folder in which it lies until it is complete."""
        return RunLayout(self.root).private / "work" / self.kind / self.name

    def path(self, file: str) -> Path:
        """The place of one of its files; an audit has one file and no folder."""
        folder = self.root / self.kind
        return folder / f"{self.name}.json" if self.kind == AUDITS else folder / self.name / file

    def relative(self, path: Path) -> str:
        """The name under which ``run.json`` binds a file."""
        return path.relative_to(self.root).as_posix()

    def bound(self) -> dict[str, Any]:
        """The digests of this work in ``run.json``; none before it is complete."""
        prefix = self.relative(self.settings) if self.kind == AUDITS else f"{self.kind}/{self.name}/"
        files = read_run_json(self.root).get("files", {})
        return {name: entry for name, entry in files.items() if name.startswith(prefix)}

    def rebind(
        self, files: Mapping[str, bytes], promises: Mapping[str, Guarantee | None], plugins: Iterable[Plugin | None] = ()
    ) -> None:
        """Replaces in one step what ``run.json`` says of this work; a promise that is None is taken back."""
        record, old = read_run_json(self.root, GUARANTEES), self.bound()
        robustness = {**record["guarantees"]["robustness"]}
        for name, promise in promises.items():
            robustness.pop(name, None)
            if promise is not None:
                robustness[name] = promise.as_dict()
        kept = {name: entry for name, entry in record.get("files", {}).items() if name not in old}
        digests = file_digests(self.root, [self.relative(self.path(file)) for file in files])
        guarantees = {**record["guarantees"], "robustness": robustness}
        outside = plugins_entry(record, plugins)
        write_run_json(self.root, {**record, **outside, "guarantees": guarantees, "files": {**kept, **digests}})


@dataclass
class Work(Generic[S]):
    """A piece of work that ``begun`` took up: its ``settings``, and on how many inputs it worked (``made``)."""

    place: Place
    settings: S
    ranks: Ranks
    progress: Progress
    made: int = 0

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.settings.state == COMPLETE

    def batches(self, stage: str, sizes: Mapping[str, int], make: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
        """Each batch of ``sizes`` (its name, how many inputs it holds) with its content, in order, on all ranks.

        Those that were made earlier are read; each of the others is made by one rank and durable before it is handed out.
        """
        kept = self._kept(sizes)
        self.progress.start(stage, sum(sizes.values()), sum(sizes[name] for name in kept))
        made = in_rounds(self.ranks, [name for name in sizes if name not in kept], make)
        for name, size in sizes.items():
            path = self.place.aside / name
            if name in kept:
                yield name, read_bounded(path, LARGEST_TABLE)
                continue
            _, content = next(made)
            if self.ranks.is_first:
                make_folder_below(self.place.aside, path.parent)
                write_atomic(path, content)
            self.made += size
            yield name, content
            self.progress.advance(size)

    def _kept(self, sizes: Mapping[str, int]) -> set[str]:
        found = [name for name in sizes if (self.place.aside / name).is_file()] if self.ranks.is_first else []
        return set(json.loads(self.ranks.from_first(json.dumps(found).encode())))

    def completed(self, settings: S, seconds: float) -> S:
        """The settings as they are released."""
        return replace(settings, state=COMPLETE, made=replace(settings.made, seconds=round(seconds, 3)))

    def finish(
        self,
        files: Mapping[str, bytes],
        promises: Mapping[str, Guarantee | None] | None = None,
        plugins: Iterable[Plugin | None] = (),
    ) -> None:
        """Writes the released ``files``, the one with the settings last, and binds them and what they promise in ``run.json``.

        ``plugins`` is what the work used of other packages. Rank 0 writes; the others do nothing. A run never binds files of
        two certifications under one name: earlier ones are unbound first.
        """
        if not self.ranks.is_first:
            return
        promises = promises or {}
        if self.place.bound():
            self.place.rebind({}, dict.fromkeys(promises if self.place.kind == CERTIFICATES else ()))
        for file, content in files.items():
            path = self.place.path(file)
            make_folder_below(self.place.root, path.parent)
            write_atomic(path, content)
        self.place.rebind(files, promises, plugins)
        _remove(self.place.aside)


@contextmanager
def begun(
    place: Place,
    kind: type[S],
    prepare: Callable[[S | None, Key], S],
    finished: Callable[[Path], S],
    *,
    records: Split,
    how: How,
) -> Iterator[Work[S]]:
    """Begins a piece of work under its name, or takes up earlier work with the same settings; holds the run meanwhile.

    ``prepare`` checks everything and gives the settings, in the form of the earlier work where there is any; ``finished``
    reads those of complete work. All ranks call this alike.

    Batches of other settings or other test records are never taken for this work's, and what is refused is refused before
    anything in the run is touched.
    """
    ranks = how.ranks
    if not ranks.is_first:
        told = parse_json(ranks.from_first(None), place.settings).typed(kind)
        _agree(ranks, place, prepare(told, told.secret), told, records)
        yield Work(place, told, ranks, how.bars)
        ranks.wait()
        return
    with exclusive(place.root):
        former = _former_format(place, overwrite=how.overwrite)
        earlier = None if how.overwrite or former else _earlier(place, kind, finished, records)
        wanted = prepare(earlier, how.key or Key.from_system())
        if earlier is not None:
            _refuse_differences(place, earlier, wanted, own_key=how.key is not None)
        settings = earlier or wanted
        ranks.from_first(canonical_json(settings.as_dict()).encode())
        _agree(ranks, place, wanted, settings, records)
        if earlier is None:
            _begin(place, settings, records, former=former)
        yield Work(place, settings, ranks, how.bars)
        ranks.wait()


def _begin(place: Place, settings: WorkSettings, records: Split, *, former: bool) -> None:
    if former:
        _raise_format(place.root)
    _remove(place.aside)
    create_private_folder(RunLayout(place.root).private)
    make_folder_below(RunLayout(place.root).private, place.aside)
    write_json(place.aside / _SETTINGS, {**settings.as_dict(), "records": _of_records(settings, records)})


def _of_records(settings: WorkSettings, records: Split) -> str:
    return fingerprint(records, bytes.fromhex(settings.network.model_sha256))


def _remove(aside: Path) -> None:
    """Forgets work; its settings go first, so that a kill leaves nothing that could be resumed."""
    (aside / _SETTINGS).unlink(missing_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    for folder in (aside.parent, aside.parent.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _earlier(place: Place, kind: type[S], finished: Callable[[Path], S], records: Split) -> S | None:
    """The settings of unfinished work under this name, else of what ``run.json`` binds under it, else None."""
    done = finished(place.settings) if place.bound() and place.settings.is_file() else None
    path = place.aside / _SETTINGS
    if not path.is_file():
        return done
    found = read_json(path, fix="--overwrite starts again")
    settings = found.typed(kind)
    if done is not None and not _different(done, settings, {"state", "made.seconds", *settings.FREE}):
        _remove(place.aside)  # a kill came between the last two steps
        return done
    if found.record.get("records") != _of_records(settings, records):
        raise RunError(
            "the test records are not the ones that this work was begun with",
            where=str(path),
            got="another fingerprint",
            wanted="the same records in the same order",
            fix="restore the data; --overwrite starts again",
        )
    return settings


def _agree(ranks: Ranks, place: Place, mine: WorkSettings, first: WorkSettings, records: Split) -> None:
    """Stops all ranks unless they were asked for the same, about the same inputs."""
    if ranks is ALONE:
        return
    same = replace(mine, state=WORKING, key=first.key, made=Made(mine.made.kind, {}, ""))
    ranks.agree(f"the settings of the {place.kind}", hashlib.sha256(canonical_json(same.as_dict()).encode()).hexdigest())
    ranks.agree("the test records", _of_records(mine, records))


def _refuse_differences(place: Place, earlier: WorkSettings, wanted: WorkSettings, *, own_key: bool) -> None:
    """Where batches are still to be made, what they are made with must be the same, too."""
    free = {"state", "made.created", "made.seconds", *earlier.FREE} | (set() if own_key else {"key"})
    if earlier.state == COMPLETE:
        free |= {"made.device", "made.versions", "network.form", "network.arithmetic"}
    elif earlier.made.kind == wanted.made.kind:
        free |= {"made.device"}
    different = _different(earlier, wanted, free)
    # The looks follow from the other settings: named only where nothing else explains them.
    if different := {name: values for name, values in different.items() if name != "looks"} or different:
        raise RunError(
            f"this run has {place.kind} {place.name!r} with other settings",
            where=str(place.settings),
            got=", ".join(f"{name} {old}" for name, (old, _) in different.items()),
            wanted=", ".join(f"{name} {new}" for name, (_, new) in different.items()),
            fix="--overwrite replaces them; --name keeps both",
        )


def _different(one: WorkSettings, other: WorkSettings, free: set[str]) -> dict[str, tuple[Any, Any]]:
    """Both values of each setting that differs and is not ``free``, which are named by their place in the record."""
    flat = dict(_flat(one))
    pairs = {name: (flat[name], value) for name, value in _flat(other) if name not in free}
    return {name: values for name, values in pairs.items() if values[0] != values[1]}


def _flat(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in vars(record).items():
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _former_format(place: Place, *, overwrite: bool) -> bool:
    """Whether the run is one of format 2 that may become one of today's (docs/decisions/0016-named-work.md)."""
    number = read_run_json(place.root).get("format")
    if number not in (1, 2):
        return False
    held = [name for name in _FORMER_FILES if (place.root / name).is_file()]
    if number == 2 and (not held or (overwrite and place.kind == CERTIFICATES)):
        return True
    raise RunError(
        "nothing can be added to this run of an earlier format",
        where=str(place.root),
        got=f"format {number}" + (f" with {', '.join(held)}" if held else ""),
        wanted=f"a run of format {FORMAT}",
        fix="train again" if number == 1 else "`twinproof certify --overwrite` removes these files; copy the run to keep them",
    )


def _raise_format(root: Path) -> None:
    for name in _FORMER_FILES:
        (root / name).unlink(missing_ok=True)
    record = read_run_json(root, GUARANTEES)
    files = {name: entry for name, entry in record.get("files", {}).items() if name not in _FORMER_FILES}
    guarantees = {**record["guarantees"], "robustness": {}}
    write_run_json(root, {**record, "format": FORMAT, "guarantees": guarantees, "files": files})
