"""Where things lie, and what a broken file says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.reading import MetricsLine, read_lines


def test_the_names_stand_in_the_description(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    paths = [
        layout.run_json,
        layout.model,
        layout.ledger,
        layout.metrics,
        layout.report_html,
        layout.report_json,
        layout.private,
    ]
    description = (Path(__file__).parents[2] / "docs" / "formats" / "run.md").read_text()
    assert all(path.parent == tmp_path and path.name in description for path in paths)
    assert list(tmp_path.iterdir()) == [], "naming makes nothing"


def test_no_run(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match="not a run directory") as refused:
            read_run_json(root)
        assert refused.value.where == str(root)
        assert refused.value.fix


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is broken"),
        (b"{", "is broken"),
        (b"\xff\xfe{}", "is broken"),
        (b"[]", "is broken"),
        (b"{}", "unknown format"),
        (b'{"format": 0}', "unknown format"),
        (b'{"format": true}', "unknown format"),
        (b'{"format": 4}', "made by a newer version"),
        (b'{"format": "1"}', "unknown format"),
        (b"null", "is broken"),
    ],
)
def test_a_broken_run_json(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RunError, match=message):
        read_run_json(tmp_path)


@pytest.mark.parametrize(
    ("content", "steps"),
    [
        (b"", []),
        (b'{"step": 1}\n', [1]),
        (b'{"step": 1}\n{"step": 2}\n', [1, 2]),
        (b'{"step": 1}\n{"st', [1]),
        (b'{"step": 1}\n{"step": 2}', [1]),  # a whole object whose newline did not reach the disk may still be cut short
        (b'{"step": 1}\n\n{"step": 3}\n', [1, 3]),
        (b'{"st', []),
    ],
)
def test_json_lines_pass_over_a_torn_tail(tmp_path: Path, content: bytes, steps: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    assert [line["step"] for line in read_lines(path, MetricsLine)] == steps


def test_json_lines_of_no_file(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "metrics.jsonl", MetricsLine) == []


@pytest.mark.parametrize("broken", [b'{"st', b"[1]", b"7", b"\xff"])
def test_a_broken_line_that_is_not_the_last_is_named(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + broken + b'\n{"step": 3}\n')
    with pytest.raises(RunError, match=re.escape("metrics.jsonl is broken")) as refused:
        read_lines(path, MetricsLine)
    assert refused.value.where.endswith("line 2")
