"""Accuracy in numbers: each method under each measure at its own budget, from cells whose numbers are known."""

from __future__ import annotations

from synthetic_cells import measured
from twinproof_papers.catalogue.experiments import EXPERIMENTS
from twinproof_papers.cell import Cell
from twinproof_papers.comparison import markdown
from twinproof_papers.findings import Table
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS

BASE = {"securesgd": 0.5, "securesgd-agm": 0.4, "dpsgd": 0.3, "adlm": 0.35, "adlm-published": 0.25}


def share(cell: Cell, measure: str, attack: str, size: float) -> float:
    """FGSM is weaker than the others; more budget helps, size hurts, and seeing the noise hurts more."""
    value = BASE[cell.method] + 0.04 * (attack == "fgsm") - 0.1 * size + 0.1 * float(cell.training["epsilon"])
    return value - (0.2 if measure == "adaptive" else 0.0)


def level(seeds: int) -> Table:
    figure = REPRODUCTIONS["hgm-fig5"]
    (table,) = figure.findings(measured(figure.cells(Options(seeds=seeds)), share)).beside
    return table


def test_every_method_and_measure_has_a_row() -> None:
    table = level(1)
    assert table.header == ("method", "measure", "epsilon 0.2", "epsilon 0.5", "epsilon 1", "epsilon 2")
    measures = (
        "no attack",
        "size 0.1: mean over the papers' attacks",
        "size 0.2: mean over the papers' attacks",
        "size 0.2: PGD that sees the noise",
    )
    names = ("Secure-SGD", "Secure-SGD, AGM", "DPSGD", "AdLM", "AdLM, as published (no privacy)")
    assert [row[:2] for row in table.rows] == [(name, measure) for name in names for measure in measures]


def test_numbers_are_those_of_the_method_the_measure_and_the_budget() -> None:
    rows = {row[:2]: row[2:] for row in level(1).rows}
    assert rows["Secure-SGD", "no attack"] == ("52.00", "55.00", "60.00", "70.00")
    assert rows["Secure-SGD, AGM", "size 0.1: mean over the papers' attacks"] == ("42.00", "45.00", "50.00", "60.00")
    assert rows["DPSGD", "size 0.2: mean over the papers' attacks"] == ("31.00", "34.00", "39.00", "49.00")
    assert rows["DPSGD", "size 0.2: PGD that sees the noise"] == ("10.00", "13.00", "18.00", "28.00")


def test_trainings_have_an_interval_and_the_page_has_the_list_and_the_table() -> None:
    figure = REPRODUCTIONS["hgm-fig5"]
    findings = figure.findings(measured(figure.cells(Options(seeds=2)), share))
    page = markdown(EXPERIMENTS["hgm-fig5"], findings, "a caption", "a command")
    assert "| securesgd over dpsgd, conventional accuracy | 10.74 | 20.00 (20.00 to 20.00) |" in page
    assert "| DPSGD | no attack | 32.00 (32.00 to 32.00) |" in page
    assert page.index("securesgd over dpsgd") < page.index("## Accuracy (%)") < page.index("two-tailed t-test")
    assert "\n\n\n" not in page
