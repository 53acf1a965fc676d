"""Hostile run files end in one error that names file and key; sound ones are read as they were, and quickly."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from twinproof.auditing.certificate_verdict import audits_of
from twinproof.certification.method import certifications
from twinproof.errors import RunError
from twinproof.evaluation.attack_record import attacks_of
from twinproof.files import read_bounded, strict_json
from twinproof.reporting.facts import load_facts
from twinproof.runs import private_files
from twinproof.runs.layout import file_digests, read_run_json, write_run_json
from twinproof.runs.reading import MetricsLine, read_json, read_lines
from twinproof.runs.records import FORMER, HEADER, json_file, read_certificates
from twinproof.runs.run import Run

KEPT = Path(__file__).parents[1] / "fixtures" / "format-1"


def in_format_3(root: Path) -> Path:
    """The same run, with its certificates, attacks and audit under the name ``linf``."""
    (certified,), (attacked,), (audit,) = certifications(root).values(), attacks_of(root).values(), audits_of(root).values()
    record = read_run_json(root)
    for kind, content in (
        ("certificates", certified.settings.as_dict()),
        ("attacks", {**attacked.settings.as_dict(), "results": attacked.results}),
    ):
        folder = root / kind / "linf"
        folder.mkdir(parents=True)
        for path in root.glob(f"{kind}.*"):
            path.replace(folder / path.name)
        (folder / f"{kind}.json").write_bytes(json_file(content))
    (root / "audits").mkdir()
    (root / "audits" / "linf.json").write_bytes(audit.content())
    (root / "audit.json").unlink()
    guarantees = {**record["guarantees"], "robustness": {"linf": record["guarantees"]["robustness"]}}
    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.name != "run.json"]
    write_run_json(root, {**record, "format": 3, "guarantees": guarantees, "files": file_digests(root, names)})
    return root


PLACES = {name: f"{kind}/linf/{name}" for kind, name in FORMER.items()} | {"audit.json": "audits/linf.json"}


@pytest.fixture(params=[1, 3])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Where the files of a run with certificates, attacks and an audit lie, in an old format and in today's."""
    root = Path(shutil.copytree(KEPT / "hgm-pixeldp", tmp_path / "run"))
    names = {} if request.param == 1 else PLACES
    if names:
        in_format_3(root)
    return lambda name: root / names.get(name, name)


def test_formats_are_read_alike(tmp_path: Path) -> None:
    old = KEPT / "hgm-pixeldp"
    new = in_format_3(Path(shutil.copytree(old, tmp_path / "run")))
    for found in (certifications, attacks_of, audits_of):
        (one,), (other,) = found(old).values(), found(new).values()
        assert one.settings == other.settings
    assert Run.open(old).robustness == Run.open(new).robustness


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": {"b": NaN}}', "NaN"),
        (b'{"a": {"b": 1e999}}', r"a\.b: a number that is not finite"),
        (b'{"a": {"b": [1, 9223372036854775808]}}', r"a\.b\.1: an integer of more than 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "nested"),
        (b"[" * 200_000, "nested"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b'{"a": "\xff"}', "utf-8"),
        (b"", "Expecting value"),
        (b'{"a": 1} x', "Extra data"),
    ],
)
def test_json_is_read_strictly(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        strict_json(text)


def test_sound_json_is_read_as_it_is() -> None:
    value: dict[str, Any] = {"a": [1, -(2**63) + 1, 0.5, None, True, "ü", {"b": []}], "": {}}
    assert strict_json(json.dumps(value).encode()) == value
    assert strict_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    assert read_bounded(tmp_path / "file", 3) == b"123"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, words in (("file", "too large"), ("pipe", "regular"), ("zero", "regular"), (".", "regular")):
        with pytest.raises(RunError, match=words):
            read_bounded(tmp_path / name, 2)


# File, key that is changed, the value it gets, and who reads it.
HOSTILE: list[tuple[str, str, Any, Callable[[Path], Any]]] = [
    ("run.json", "state", 1, read_run_json),
    ("run.json", "config", [], read_run_json),
    ("run.json", "config.model", None, read_run_json),
    ("run.json", "config.width", 10**6, read_run_json),
    ("run.json", "config.sigma", "0.5", read_run_json),
    ("run.json", "data.shape", [1, 2**30, 2**30], read_run_json),
    ("run.json", "data.shape", [2**12, 2**12], read_run_json),
    ("run.json", "data.shape", [1.0, 8, 8], read_run_json),
    ("run.json", "data.shape", [], read_run_json),
    ("run.json", "data.classes", 7, read_run_json),
    ("run.json", "guarantees.privacy.status", "certain", read_run_json),
    ("run.json", "guarantees.privacy.assumptions", "none", read_run_json),
    ("run.json", "files.model.safetensors", "x", read_run_json),
    ("run.json", "accuracy.value", True, read_run_json),
    ("run.json", "privacy", 3.0, read_run_json),
    ("certificates.json", "sigma", "0.25", certifications),
    ("certificates.json", "key", "zz", certifications),
    ("certificates.json", "inputs", -1, certifications),
    ("certificates.json", "looks", [{"draws": 1}], certifications),
    ("attacks.json", "sizes", [None], attacks_of),
    ("attacks.json", "results.clean", {}, attacks_of),
    ("attacks.json", "results.sizes", {"x": 1}, attacks_of),
    ("audit.json", "certificates.attacked", [{"index": "0"}], audits_of),
    ("audit.json", "certificates.outward", 1e300, audits_of),
    ("audit.json", "certificates.verdict", "held", audits_of),
]
IDS = [f"{name} {key} {value}"[:60] for name, key, value, _ in HOSTILE]


def _changed(path: Path, key: str, value: Any) -> None:
    record = json.loads(path.read_text())
    holder, parts = record, key.split(".", 1) if key.startswith("files.") else key.split(".")
    for part in parts[:-1]:
        holder = holder[part]
    sections = [inner for inner in holder.values() if isinstance(inner, dict) and parts[-1] in inner]
    (holder if parts[-1] in holder else sections[0])[parts[-1]] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(("name", "key", "value", "read"), HOSTILE, ids=IDS)
def test_a_hostile_value_is_named(
    place: Callable[[str], Path], name: str, key: str, value: Any, read: Callable[[Path], Any]
) -> None:
    root, path = place("run.json").parent, place(name)
    read(root)
    _changed(path, key, value)
    with pytest.raises(RunError) as refused:
        read(root)
    error = refused.value
    assert str(path) in error.where
    assert all(part in error.where for part in key.removesuffix(".safetensors").split("."))
    assert all((error.got, error.wanted, error.fix))
    assert len(error.message()) < 1500
    assert error.message().replace("\n", " ").isprintable()


def _keys(record: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place] if place else []
    inner = record.items() if isinstance(record, dict) else enumerate(record[:2]) if isinstance(record, list) else ()
    for key, value in inner:
        found += _keys(value, (*place, key))
    return found


@pytest.mark.parametrize("name", ["run.json", "certificates.json", "attacks.json", "audit.json"])
def test_any_value_in_the_wrong_place_is_one_error_or_none(place: Callable[[str], Path], name: str) -> None:
    """Each key of each file in turn is lost or replaced by junk: readers answer, or raise a RunError."""
    root, path = place("run.json").parent, place(name)
    whole = path.read_text()
    refused = 0
    for number, keys in enumerate(_keys(json.loads(whole))):
        record = json.loads(whole)
        holder = record
        for part in keys[:-1]:
            holder = holder[part]
        if number % 6 == 0:
            del holder[keys[-1]]
        else:
            holder[keys[-1]] = (None, -1, 10**18, "x", [{}])[number % 6 - 1]
        path.write_text(json.dumps(record))
        try:
            load_facts(root)
            Run.open(root)
        except RunError:
            refused += 1
    assert refused > 20


@dataclass(frozen=True)
class Thing:
    x: int
    y: int = 3
    inner: Thing | None = None


def test_what_a_record_does_not_say_is_no_default(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    for text, missing in (('{"x": 1}', "y, inner"), ('{"x": 1, "y": 2, "inner": {"x": 1, "inner": null}}', r"inner\.y")):
        path.write_text(text)
        with pytest.raises(RunError, match=f"key {missing}"):
            read_json(path).typed(Thing)


def test_a_reader_that_indexes_is_caught(tmp_path: Path) -> None:
    """The planted bug: the reader before, which took what it found."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1e999}\n')
    with pytest.raises(OverflowError):
        int(json.loads((tmp_path / "metrics.jsonl").read_text())["step"])
    with pytest.raises(RunError, match="line 1"):
        read_lines(tmp_path / "metrics.jsonl", MetricsLine)


@pytest.mark.parametrize(
    ("cell", "words"),
    [("x", "votes"), ("1_0", "votes"), (" 1", "votes"), ("١", "votes"), ("9" * 30, "votes"), ("1,2", "9 cells"), ("", "votes")],
)
def test_a_cell_is_named(tmp_path: Path, cell: str, words: str) -> None:
    (tmp_path / "certificates.csv").write_text(f"{','.join(HEADER)}\n0,1,1,{cell},1,0.5,1,9\n")
    with pytest.raises(RunError, match="is broken") as refused:
        read_certificates(tmp_path / "certificates.csv")
    assert "line 2" in refused.value.where
    assert words in refused.value.where + refused.value.got


@pytest.mark.parametrize("radius", ["nan", "inf", "1e999", "0x1", "1e5", "0.5"])
def test_radii_are_finite_numbers(tmp_path: Path, radius: str) -> None:
    (tmp_path / "certificates.csv").write_text(f"{','.join(HEADER)}\n0,1,1,5,1,{radius},1,9\n")
    if radius in ("1e5", "0.5"):
        assert read_certificates(tmp_path / "certificates.csv")[0].radius == float(radius)
        return
    with pytest.raises(RunError, match="radius"):
        read_certificates(tmp_path / "certificates.csv")


@pytest.mark.parametrize("name", ["demo", "hgm-pixeldp", "stobatch"])
def test_kept_runs_are_read(name: str) -> None:
    root = KEPT / name
    run = Run.open(root)
    assert run.record["format"] == 1
    (certified,) = certifications(root).values()
    assert certified.certificates
    assert all(found.lines and found.inputs for found in attacks_of(root).values())
    assert private_files.load_source(root / "private") is None


def test_ten_thousand_certificates_are_read_at_once(tmp_path: Path) -> None:
    lines = "".join(f"{index},3,3,9990,3,0.512345,1,10000\n" for index in range(10_000))
    (tmp_path / "certificates.csv").write_text(",".join(HEADER) + "\n" + lines)
    began = time.process_time()
    assert len(read_certificates(tmp_path / "certificates.csv")) == 10_000
    assert time.process_time() - began < 1.0
