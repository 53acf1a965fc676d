"""Figures of per-example metrics: every image in one bin, bins that mean the same for all, radii joined to the right images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_smoothing import IMAGES, certified, falling, metric_values_of, radii_of_images

from twinproof.certification.method import find_certification
from twinproof_papers.cell import CellStore
from twinproof_papers.dpcert.methods import METHODS, MNIST, cells_of, setups_of
from twinproof_papers.dpcert.metrics import EVERY
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings
from twinproof_papers.making import make_cells
from twinproof_papers.reproduce import REPRODUCTIONS
from twinproof_papers.smoothing import sigma_name

EFFORT = Options(seeds=2)


def found(name: str) -> Findings:
    made = REPRODUCTIONS[name]
    return made.findings(certified(made.cells(EFFORT), falling))


@pytest.mark.parametrize("number", [5, 14])
def test_histograms_hold_every_image_once_on_one_grid(number: int) -> None:
    panels = found(f"dpcert-fig{number}").panels
    assert len(panels) == 6
    for panel in panels:
        assert len({line.places for line in panel.lines}) == 1
        for line in panel.lines:
            for repetition in range(2):
                assert sum(sample[repetition] for sample in line.samples) == pytest.approx(100)


def test_bins_lie_where_the_values_are() -> None:
    """Planted: bins named by their upper edge, which moves every value by a fifth of a decade."""
    panel = found("dpcert-fig5").panels[0]
    line = next(line for line in panel.lines if line.label == METHODS["dpsgd"].label)
    (cell, *_) = cells_of("dpsgd", MNIST, EFFORT)
    exponents = np.log10(metric_values_of(cell, "gradient_norm"))
    for place, sample in zip(line.places, line.samples, strict=True):
        inside = (exponents >= place - 0.1) & (exponents < place + 0.1)
        assert sample[0] == pytest.approx(100 * inside.mean())
    planted = [(exponents >= place - 0.3) & (exponents < place - 0.1) for place in line.places]
    assert any(abs(sample[0] - 100 * inside.mean()) > 1 for inside, sample in zip(planted, line.samples, strict=True))


def test_figure_6_is_the_logarithm_of_group_means_at_its_own_sigma() -> None:
    findings = found("dpcert-fig6")
    slope = findings.panels[0]
    assert [line.label for line in slope.lines] == [METHODS[method].label for method in EVERY]
    line = next(line for line in slope.lines if line.label == METHODS["psac"].label)
    (cell, *_) = cells_of("psac", MNIST, EFFORT)
    values, radii = metric_values_of(cell, "gradient_norm"), radii_of_images(0.5)
    for place, sample in zip(line.places, line.samples, strict=True):
        group = values[(radii >= place) & (radii < place + 0.1)]
        assert sample[0] == pytest.approx(math.log(group.mean()))
    (table,) = findings.tables
    assert table.rows[0] == (METHODS["regular"].label, "-1.000", "-1.000", "-1.000")


@pytest.mark.parametrize(("number", "metric"), [(17, "lipschitz_logits"), (18, "gradient_norm"), (19, "hessian_norm")])
def test_both_sides_of_a_radius_are_the_whole(number: int, metric: str) -> None:
    panels = found(f"dpcert-fig{number}").panels
    above, below = panels[:3], panels[3:]
    radii = radii_of_images(0.5)
    for threshold, top, bottom in zip((0.5, 1.0, 1.5), above, below, strict=True):
        assert f"at least {threshold:g}" in top.title
        assert f"below {threshold:g}" in bottom.title
        for one, other in zip(top.lines, bottom.lines, strict=True):
            shares = [sum(sample[0] for sample in line.samples) for line in (one, other)]
            assert shares[0] == pytest.approx(100 * (radii >= threshold).sum() / IMAGES)
            assert sum(shares) == pytest.approx(100)


def test_short_numbers_give_the_points_of_the_figures() -> None:
    """Planted: the first bin named by the first edge, empty bins or not."""
    made = REPRODUCTIONS["dpcert-fig5"]
    done = certified(made.cells(EFFORT), falling)
    short = made.findings(done).short
    for one in done:
        numbers = short[one.cell.name]
        assert set(numbers["radius"]) == {"0.5"}, "one sigma, also of a model that was certified at three"
        for metric in ("gradient_norm", "hessian_norm", "lipschitz_logits"):
            values, relation = metric_values_of(one.cell, metric), numbers["radius"]["0.5"][metric]
            assert _rebuilt(numbers["metrics"][metric]["histogram"]) == _counted(values)
            for split, original in zip(relation["splits"], one.numbers["radius"]["0.5"][metric]["splits"], strict=True):
                above = radii_of_images(0.5) >= split["threshold"]
                assert _rebuilt(split["at_least"]) == _counted(values[above])
                assert _rebuilt(split["below"]) == _counted(values[~above])
                edges = original["below"]["edges"]
                planted = {"first": round(10 * math.log10(edges[0])), "counts": split["below"]["counts"]}
                assert (_rebuilt(planted) == _counted(values[~above])) == (original["below"]["counts"][0] > 0)
            groups = one.numbers["radius"]["0.5"][metric]["groups"]
            assert [row[:2] for row in relation["groups"]] == [[group["low"], group["count"]] for group in groups]
            logs = [math.log(row[2]) for row in relation["groups"]]
            assert logs == pytest.approx([group["log_mean"] for group in groups], abs=1e-5)


def _rebuilt(histogram: dict[str, Any]) -> dict[int, int]:
    return {histogram["first"] + place: count for place, count in enumerate(histogram["counts"]) if count}


def _counted(values: Any) -> dict[int, int]:
    bins, counts = np.unique(np.floor(10 * np.log10(values)).astype(int), return_counts=True)
    return dict(zip(bins.tolist(), counts.tolist(), strict=True))


def test_a_model_is_measured_after_it_was_certified(tmp_path: Path) -> None:
    options = Options(seeds=1, limit=6, epochs=1, quick=True, device="cpu")
    (quick,) = setups_of((MNIST,), options)
    (cell,) = cells_of("regular", quick, options, metrics=True)
    store = CellStore(tmp_path)
    (done,) = make_cells([cell], store, options)
    assert cell.base is not None
    before = store.finished(cell.base)
    assert before is not None, "the certified cell is a finished one by itself"
    for sigma in (0.25, 0.5, 1.0):
        name = "run" if sigma == 0.25 else f"run-sigma-{sigma_name(sigma)}"
        found = find_certification(store.run_folder(cell).with_name(name))
        assert found is not None
        radii = [one.radius if one.correct else 0.0 for one in found.certificates]
        relation = done.numbers["radius"][sigma_name(sigma)]["gradient_norm"]
        counts = {round(group["low"], 6): group["count"] for group in relation["groups"]}
        wanted = np.unique(np.floor(np.round(np.array(radii) / 0.1, 9)), return_counts=True)
        assert counts == {round(number / 10, 6): count for number, count in zip(*wanted, strict=True)}
    assert done.numbers["examples"] == 6
    assert done.numbers["clean"] == before.numbers["clean"]
    store.forget(cell)
    assert store.finished(cell.base) is None, "made again means: the model too"
