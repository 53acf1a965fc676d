"""Attacks on disk: read back as written, rounded in the safe direction, broken files named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.evaluation.attack_record import HEADER, NOBODY, AttackLine, attacks_of, format_lines, parse_lines
from twinproof.evaluation.protocols import size_name
from twinproof.runs.records import ABSTAIN

DEMO = Path(__file__).parents[1] / "fixtures" / "format-1" / "demo"
LINES = [
    AttackLine(0, "clean", "none", "none", 0.0, 3, NOBODY, 0.0, 3, 3, 3, 990, 3, 0.5, 1000),
    AttackLine(0, "paper", "network", "fgsm", 0.25, 3, NOBODY, 0.25, 4, 3, ABSTAIN, 510, 3, 0.0, 1000),
    AttackLine(1, "adaptive", "smoothed", "pgd", 0.25, 3, 8, 0.249999, 8, 8, 8, 900, 8, 0.125, 1000),
]


def test_lines_round_trip_in_the_documented_form() -> None:
    text = format_lines(LINES)
    assert parse_lines(text, Path("attacks.csv")) == LINES
    header, _, line, _ = text.decode().splitlines()
    assert header == ",".join(HEADER)
    assert line == "0,paper,network,fgsm,0.25,3,-1,0.250000,4,3,-1,510,3,0.000000,1000"


def test_radii_go_down_and_lengths_go_up() -> None:
    row = replace(LINES[0], radius=0.1234569, length=0.1234561).row()
    assert (row[HEADER.index("radius")], row[HEADER.index("length")]) == ("0.123456", "0.123457")


def test_a_line_knows_what_became_of_it() -> None:
    assert [(line.correct, line.misled) for line in LINES] == [(True, False), (False, False), (False, True)]
    assert LINES[2].entry == "adaptive/smoothed/pgd/0.25"
    assert [size_name(size) for size in (0.0, 0.25, 1.0, 8 / 255)] == ["0", "0.25", "1", "0.0313725490196"]


def test_attacks_of_format_1_have_the_same_settings_in_their_places() -> None:
    (found,) = attacks_of(DEMO).values()
    flat, settings = json.loads((DEMO / "attacks.json").read_text()), found.settings
    assert (found.name, settings.plan.norm, settings.method.norm) == ("l2", flat["norm"], flat["certificate_norm"])
    assert (settings.noise.sigma, settings.noise.dimension) == (flat["sigma"], flat["noise_dimension"])
    assert (settings.plan.sizes, settings.sampling.n) == (tuple(flat["sizes"]), flat["n"])
    assert (found.results, len(found.lines)) == (flat["results"], flat["inputs"] * (1 + len(settings.plan.entries)))
    assert found.inputs.keys() == {entry.name for entry in settings.plan.entries}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("attacks.json", b"{"),
        ("attacks.json", b'{"format": 4}'),
        ("attacks.json", b'{"format": 3}'),
        ("attacks.csv", b"index,label\n0,1\n"),
        ("attacks.csv", format_lines(LINES).replace(b"510", b"many")),
        ("attacks.csv", format_lines(LINES)[:-8]),
        ("attacks.safetensors", b"nonsense"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    root = Path(shutil.copytree(DEMO, tmp_path / "run"))
    (root / name).write_bytes(content)
    with pytest.raises(RunError) as broken:
        [(found.lines, found.inputs) for found in attacks_of(root).values()]
    assert name in broken.value.where
