"""The pictures of a benchmark: every measured row is in them, nothing else is, and labels can be read."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401  (first: it makes `plot` importable)
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import plot
import run
from speed.certification import OURS, PAPER, CertificationRow
from speed.private_step import BASELINE, Row

METHODS = {"plain SGD": None, "twinproof": 2.5, "Opacus hooks": 1.0, "Opacus ghost": 0.98, "torch vmap(grad)": 1.01}


def step_rows() -> list[dict[str, Any]]:
    """Two networks, two batches; the large one with one batch, and with a method that was not run."""
    rows = [
        Row("small", batch, copies, batch, name, private=True, records_per_second=100 * (ratio or 5.0), ratio_to_opacus=ratio)
        for batch in (256, 64)
        for copies in (1, 3)
        for name, ratio in METHODS.items()
    ]
    rows += [Row("large", 64, 1, 16, name, private=True, records_per_second=7.0) for name in METHODS if name != "Opacus ghost"]
    rows.append(Row("large", 64, 1, 16, "Opacus ghost", private=True, note="out of memory"))
    return [row.as_dict() for row in rows]


def result() -> dict[str, Any]:
    certified = [
        CertificationRow(PAPER, 500, 10_100, images_per_second=14.1, ratio_to_paper=1.0, same_prediction=1.0),
        CertificationRow(OURS, 500, 10_100, images_per_second=2114.9, ratio_to_paper=150.0, same_prediction=0.9996),
    ]
    return {
        "format": run.FORMAT,
        "date": "2026-01-02T03:04:05Z",
        "device": "cpu: made up",
        "versions": {"torch": "2.0", "opacus": "1.6.0", "twinproof": "0.1.0"},
        "threads": 1,
        "turns": 3,
        "limits": {},
        "private_step": step_rows(),
        "certification": [row.as_dict() for row in certified],
    }


def written(folder: Path, content: object, name: str = "made-up.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_words_are_those_of_the_benchmark() -> None:
    assert (plot.FORMAT, plot.BASELINE) == (run.FORMAT, BASELINE)


def test_every_measured_row_is_a_point() -> None:
    found = plot.panels(step_rows())
    assert [(panel.workload, panel.copies) for panel in found] == [("small", 1), ("small", 3), ("large", 1)]
    points = [point for panel in found for line in panel.lines for point in line.points]
    assert len(points) == sum(row["records_per_second"] is not None for row in step_rows())
    ours = next(line for line in found[0].lines if line.method == "twinproof")
    assert ours.points == ((64, 250.0), (256, 250.0))
    assert "Opacus ghost" not in [line.method for line in found[2].lines]


def test_all_lines_are_labelled_and_drawn() -> None:
    found = plot.panels(step_rows())
    figure = plot.step_figure(found, "a caption")
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [len(axes.lines) for axes in visible] == [5, 5, 4]
    assert sorted(texts(figure)) == sorted(line.label for panel in found for line in panel.lines)
    drawn = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for axes in visible for line in axes.lines]  # type: ignore[arg-type]
    assert drawn == [list(line.points) for panel in found for line in panel.lines]


def test_bars_start_at_zero_and_round_agreement_down() -> None:
    figure = plot.certification_figure(result()["certification"], "a caption")
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [14.1, 2114.9]
    assert texts(figure) == ["14.1   1.00×   same answer 100 %", "2,115   150×   same answer 99.9 %"]


def smallest_gap(places: list[float]) -> float:
    ordered = sorted(places)
    return min(second - first for first, second in itertools.pairwise(ordered))


@pytest.mark.parametrize("number", [2, 5, 11, 40])
def test_labels_do_not_overlap(number: int) -> None:
    """They keep their order, stay inside and apart; where nothing overlaps, nothing moves."""
    draw = random.Random(number)
    for _ in range(50):
        wanted = [draw.choice([draw.random(), 0.5, 0.51, 0.99]) for _ in range(number)]
        places = plot.spread(wanted, 0.06)
        assert smallest_gap(places) >= min(0.06, 1 / (number - 1)) - 1e-9
        assert min(places) >= -1e-9
        assert max(places) <= 1 + 1e-9
        assert all(p <= q for w, p in zip(wanted, places, strict=True) for v, q in zip(wanted, places, strict=True) if w < v)
    assert plot.spread([0.9, 0.1, 0.5], 0.06) == pytest.approx([0.9, 0.1, 0.5])
    assert smallest_gap([0.5, 0.5, 0.51]) < 0.06  # the places they wanted would fail


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_files_are_named_after_the_result_and_repeatable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    path = written(tmp_path, result())
    assert plot.main([str(path), "--out", str(tmp_path / "first"), "--format", suffix]) == 0
    names = [f"made-up-private-step.{suffix}", f"made-up-certification.{suffix}"]
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == names
    assert plot.main([str(path), "--out", str(tmp_path / "second"), "--format", suffix]) == 0
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "no result of a benchmark"),
        ({**result(), "format": "twinproof-benchmark/2"}, "got: twinproof-benchmark/2"),
        ({**result(), "private_step": [], "certification": []}, "nothing was measured"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, message: str) -> None:
    path = written(tmp_path, content)
    assert plot.main([str(path), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
