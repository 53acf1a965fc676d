"""Attacks on disk: read back as written, rounded in the safe direction, equal content in equal bytes, broken files named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinproof.errors import RunError
from twinproof.runs.attacks import (
    HEADER,
    NOBODY,
    AttackLine,
    AttackRecord,
    AttackSettings,
    format_lines,
    is_complete,
    read_attack_lines,
    read_attacked_inputs,
    read_attacks,
    size_name,
    write_attacks,
)
from twinproof.runs.certificates import ABSTAIN

LINES = [
    AttackLine(0, "clean", "none", "none", 0.0, 3, NOBODY, 0.0, 3, 3, 3, 990, 3, 0.5, 1000),
    AttackLine(0, "paper", "network", "fgsm", 0.25, 3, NOBODY, 0.25, 4, 3, ABSTAIN, 510, 3, 0.0, 1000),
    AttackLine(1, "adaptive", "smoothed", "pgd", 0.25, 3, 8, 0.249999, 8, 8, 8, 900, 8, 0.125, 1000),
]
SETTINGS = AttackSettings(
    model_sha256="0" * 64,
    norm="l2",
    sizes=(0.25, 1.0),
    attacks=("fgsm", "pgd"),
    protocols=("paper", "adaptive"),
    steps=20,
    step_size=None,
    paper_steps=10,
    restarts=1,
    draws=8,
    aim=None,
    inputs=2,
    certificate_norm="l2",
    sigma=0.25,
    levels=16,
    law="gaussian",
    place="input",
    bound="tight",
    operator_norm=1.0,
    slack=0.0,
    grid=1 / 16,
    tau=1e-9,
    dimension=64,
    noise_dimension=64,
    n0=100,
    n=1000,
    alpha=0.001,
    key="ab" * 32,
    random_network=False,
    form="as given",
    device="cpu",
    versions={"torch": "2"},
    created="now",
    seconds=1.5,
    state="complete",
)
INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "paper/network/fgsm/0.25": np.arange(8, dtype=np.uint8).reshape(2, 4),
    "adaptive/smoothed/pgd/0.25": np.arange(8, dtype=np.uint8).reshape(2, 4)[::-1],
}
SHARE = {"value": 0.5, "low": 0.25, "high": 0.75, "confidence": 0.95}
SCORES = {"smoothed": SHARE, "network": SHARE, "abstained": SHARE, "certified": SHARE, "inputs": 2}
RECORD = AttackRecord(SETTINGS, {"clean": SCORES, "sizes": [], "crossing": False})


def test_round_trip(tmp_path: Path) -> None:
    assert read_attacks(tmp_path) is None
    assert read_attack_lines(tmp_path) == []
    assert read_attacked_inputs(tmp_path) == {}
    write_attacks(tmp_path, RECORD, LINES, INPUTS)
    assert read_attacks(tmp_path) == RECORD
    assert read_attack_lines(tmp_path) == LINES
    found = read_attacked_inputs(tmp_path)
    assert found.keys() == INPUTS.keys()
    assert all(np.array_equal(found[name], INPUTS[name]) and found[name].dtype == np.uint8 for name in INPUTS)
    assert is_complete(SETTINGS)
    assert not is_complete(replace(SETTINGS, state="attacking"))


def test_equal_content_has_equal_bytes(tmp_path: Path) -> None:
    for folder, inputs in (("one", INPUTS), ("two", dict(reversed(INPUTS.items())))):
        (tmp_path / folder).mkdir()
        write_attacks(tmp_path / folder, RECORD, LINES, inputs)
    for name in ("attacks.json", "attacks.csv", "attacks.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_form_is_the_documented_one(tmp_path: Path) -> None:
    write_attacks(tmp_path, RECORD, LINES, INPUTS)
    text = (tmp_path / "attacks.csv").read_text().splitlines()
    assert text[0] == ",".join(HEADER)
    assert text[2] == "0,paper,network,fgsm,0.25,3,-1,0.250000,4,3,-1,510,3,0.000000,1000"
    record = json.loads((tmp_path / "attacks.json").read_text())
    assert (record["format"], record["state"], record["sizes"]) == (2, "complete", [0.25, 1.0])


def test_radii_go_down_and_lengths_go_up() -> None:
    row = replace(LINES[0], radius=0.1234569, length=0.1234561).row()
    assert (row[HEADER.index("radius")], row[HEADER.index("length")]) == ("0.123456", "0.123457")


def test_a_line_knows_what_became_of_it() -> None:
    assert [(line.correct, line.misled) for line in LINES] == [(True, False), (False, False), (False, True)]
    assert LINES[2].entry == "adaptive/smoothed/pgd/0.25"
    assert [size_name(size) for size in (0.0, 0.25, 1.0, 8 / 255)] == ["0", "0.25", "1", "0.0313725490196"]


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("attacks.json", b"{", read_attacks),
        ("attacks.json", b"[]", read_attacks),
        ("attacks.json", b'{"format": 3}', read_attacks),
        ("attacks.json", b'{"format": 1}', read_attacks),
        ("attacks.csv", b"index,label\n0,1\n", read_attack_lines),
        ("attacks.csv", format_lines(LINES).replace("510", "many").encode(), read_attack_lines),
        ("attacks.csv", format_lines(LINES).encode()[:-8], read_attack_lines),
        ("attacks.safetensors", b"nonsense", read_attacked_inputs),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, read: Any) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError) as broken:
        read(tmp_path)
    assert name in broken.value.where
