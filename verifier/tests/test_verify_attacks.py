"""The verifier of attacks: an honest record passes, every planted lie is found where it was told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from scipy import stats

from planted_lies import Apply, Lie, told, truncate
from synthetic_attacks import (
    ATTACKED,
    SIZES,
    forge_json,
    forge_tensor,
    results,
    stored_inputs,
    stored_labels,
    write_attacked_run,
)
from synthetic_run import ALPHA, BLOCKS, LEVELS, bind, epsilons, forge_cell, forge_lines, forge_run, forge_settings, radius
from twinproof_verify import Originals, epsilon
from twinproof_verify import verify as verify_run
from twinproof_verify.attack_results import budget, distances, reach
from twinproof_verify.epsilon import Spent

ORIGINALS = Originals(stored_inputs(), stored_labels())
ENTRY = "adaptive/smoothed/fgsm/0.25"
# Columns of attacks.csv.
LABEL, AIM, LENGTH, NETWORK, PREDICTION, COUNTED, TOP, RADIUS, DRAWN = 5, 6, 7, 8, 10, 11, 12, 13, 14


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true epsilons, not computed anew for every lie."""
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(*epsilons(sum(BLOCKS))))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    root = tmp_path_factory.mktemp("honest") / "run"
    write_attacked_run(root)
    return root


@pytest.fixture
def root(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def attacks(change: Callable[[Any], Any]) -> Apply:
    return forge_json("attacks.json", change)


def result(change: Callable[[Any], Any]) -> Apply:
    return attacks(lambda record: change(record["results"]))


def at_size(change: Callable[[Any], Any]) -> Apply:
    return result(lambda found: change(found["sizes"][0]))


def cell(row: int, column: int, value: str) -> Apply:
    """One cell of attacks.csv, rows from 0 without the header."""

    def change(lines: list[str]) -> None:
        cells = lines[row + 1].rstrip("\n").split(",")
        cells[column] = value
        lines[row + 1] = ",".join(cells) + "\n"

    return forge_lines("attacks.csv", change)


def one_more(name: str) -> Callable[[dict[str, Any]], None]:
    """An accuracy that is one input too high, in a record of scores."""
    return lambda scores: scores[name].update(value=scores[name]["value"] + 1 / ATTACKED)


def narrower(end: str, by: float) -> Callable[[dict[str, Any]], None]:
    return lambda scores: scores["smoothed"].update({end: scores["smoothed"][end] + by})


def far_away(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The first input is moved to the other end of the range."""
    moved = points.copy()
    moved[0] = np.where(moved[0] > LEVELS // 2, 0, LEVELS)
    return moved


def one_step_over(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The first input ends just outside the ball: 64 levels in one coordinate, where 63.75 are allowed."""
    moved = points.copy()
    moved[0] = stored_inputs()[0]
    moved[0, 0, 0, 0] = int(stored_inputs()[0, 0, 0, 0]) + (64 if stored_inputs()[0, 0, 0, 0] < 128 else -64)
    return moved


def no_crossing(record: dict[str, Any]) -> None:
    """Both flags gone, and the warnings with them."""
    for found in record["sizes"]:
        found["crossing"] = False
    record.update(crossing=False, warnings=[])


def certified_again(root: Path) -> None:
    """What `certify --overwrite` leaves: other certificates, in a consistent file."""
    forge_cell(0, 3, "900")(root)
    forge_cell(0, 5, f"{radius(900):.6f}")(root)


def uncertified(root: Path) -> None:
    for name in ("certificates.json", "certificates.csv", "audit.json"):
        (root / name).unlink()
    forge_run(lambda run: run["guarantees"]["robustness"].update(status="none"))(root)
    bind(root)


def tensor_of_no_attack(root: Path) -> None:
    tensors = dict(load_file(root / "attacks.safetensors"))
    tensors["adaptive/smoothed/fgsm/2"] = tensors[ENTRY]
    (root / "attacks.safetensors").write_bytes(save(tensors))
    bind(root)


RESULT_LIES = [
    *told(
        "attacks.json",
        ("an accuracy one input too high", at_size(lambda s: one_more("smoothed")(s["adaptive"]["worst"])), "worst"),
        ("the network's too", at_size(lambda s: one_more("network")(s["paper"]["attacks"]["fgsm"])), "fgsm.network"),
        ("clean accuracy too high", result(lambda r: one_more("smoothed")(r["clean"])), "clean.smoothed.value"),
        ("a lowest that is not", at_size(lambda s: s["paper"]["lowest"].update(network=1.0)), "lowest.network"),
        ("low end raised", at_size(lambda s: narrower("low", 1e-6)(s["adaptive"]["worst"])), "worst.smoothed.low"),
        ("high end lowered", at_size(lambda s: narrower("high", -1e-6)(s["adaptive"]["worst"])), "smoothed.high"),
        ("low end useless", at_size(lambda s: narrower("low", -0.01)(s["adaptive"]["worst"])), "smoothed.low"),
        ("less confidence", result(lambda r: r["clean"]["network"].update(confidence=0.5)), "confidence"),
        ("a crossing flag removed", at_size(lambda s: s.update(crossing=False)), "sizes[0].crossing"),
        ("all crossing flags removed", result(no_crossing), "results.crossing"),
        ("warnings removed", result(lambda r: r.update(warnings=[])), "results.warnings"),
        ("a flip removed", at_size(lambda s: s.update(flips=s["flips"] - 1)), "sizes[0].flips"),
        ("flips made likely", at_size(lambda s: s.update(flips_probability=0.5)), "flips_probability"),
        ("the certified line raised", at_size(lambda s: s["certified"].update(value=0.9)), "certified.value"),
        ("a reach understated", at_size(lambda s: s.update(reach=SIZES[0] - 1e-6)), "reach"),
        ("a difference", at_size(lambda s: s["difference"].update(smoothed=0.5)), "difference.smoothed"),
        ("weaker hidden", at_size(lambda s: s.update(weaker=not s["weaker"])), "weaker"),
        ("an attack left out", at_size(lambda s: s["adaptive"]["attacks"].pop("fgsm on smoothed")), "on smoothed"),
        ("an attack made up", at_size(lambda s: s["paper"]["attacks"].update(cw={})), "attacks.cw"),
        ("a size left out", result(lambda r: r["sizes"].pop()), "results.sizes"),
        ("another source", result(lambda r: r["certified_by"].update(source="attacks.csv")), "certified_by.source"),
        ("true for 1", at_size(lambda s: s["certified"].update(inputs=True)), "certified.inputs"),
        ("a text for a share", at_size(lambda s: s["certified"].update(value="0.2")), "certified.value"),
        ("results that are a list", attacks(lambda r: r.update(results=[])), "results has a value"),
    )
]
SETTING_LIES = [
    *told(
        "attacks.json",
        ("still attacking", attacks(lambda r: r.update(state="attacking")), "state"),
        ("format 0", attacks(lambda r: r.update(format=0)), "format"),
        ("an unknown key", attacks(lambda r: r.update(note="x")), "unknown key"),
        ("sizes out of order", attacks(lambda r: r.update(sizes=[0.5, 0.25])), "sizes"),
        ("an infinite size", attacks(lambda r: r.update(sizes=[1e308, float("inf")])), "no JSON object"),
    ),
    Lie("other sizes", attacks(lambda r: r.update(sizes=[0.2, 0.5])), "attacks.csv", "not the one that attacks.json asks"),
    *told(
        "attacks.json",
        ("another norm", attacks(lambda r: r.update(norm="linf")), "reach"),
        ("an unknown norm", attacks(lambda r: r.update(norm="l0")), "norm"),
        ("an attack twice", attacks(lambda r: r.update(attacks=["fgsm", "fgsm"])), "attacks has a value"),
    ),
    *told(
        "attacks.csv",
        ("an attack that was not run", attacks(lambda r: r.update(attacks=["fgsm", "pgd"])), "number of lines"),
        ("fewer inputs", attacks(lambda r: r.update(inputs=39)), "number of lines"),
    ),
    Lie("more inputs than records", attacks(lambda r: r.update(inputs=61)), "attacks.json", "more than the test set"),
    Lie("inputs beyond counting", attacks(lambda r: r.update(inputs=2**53)), "attacks.csv", "number of lines"),
    *told(
        "attacks.json",
        ("other weights", attacks(lambda r: r.update(model_sha256="0" * 64)), "model_sha256"),
        ("other levels", attacks(lambda r: r.update(levels=16)), "levels is not"),
        ("other dimension", attacks(lambda r: r.update(dimension=4)), "dimension is not"),
        ("another sigma", attacks(lambda r: r.update(sigma=0.5)), "stale: another smoothed"),
        ("another certificate norm", attacks(lambda r: r.update(certificate_norm="linf")), "stale: another"),
        ("another bound", attacks(lambda r: r.update(bound="hgm")), "stale: another smoothed"),
        ("another law", attacks(lambda r: r.update(law="laplace")), "stale: another smoothed"),
        ("another place", attacks(lambda r: r.update(place="first-layer")), "another smoothed classifier"),
        ("a bound of no law", attacks(lambda r: r.update(law="laplace", bound="hgm")), "not proven for this"),
        ("a smaller norm", attacks(lambda r: r.update(operator_norm=0.99)), "not that of the input itself"),
        ("tau understated", attacks(lambda r: r.update(tau=r["tau"] * 0.99)), "tau is understated"),
        ("a coarse grid", attacks(lambda r: r.update(grid=1.0)), "grid is too coarse"),
        ("other noise", attacks(lambda r: r.update(noise_dimension=4)), "noise.dimension is not"),
        ("the key of old", attacks(lambda r: r.update(l2_reach=1)), "unknown key"),
    ),
    *told(
        "attacks.csv",
        ("fewer draws", attacks(lambda r: r.update(n=900)), "draws is not n"),
        ("alpha promised smaller", attacks(lambda r: r.update(alpha=1e-6)), "radius is above"),
        ("targeted afterwards", attacks(lambda r: r.update(aim="next")), "aim is not"),
    ),
    *told(
        "attacks.json",
        ("an unknown aim", attacks(lambda r: r.update(aim="class:x")), "aim has a value"),
        ("not JSON", truncate("attacks.json", 5), "no JSON object"),
        ("NaN", lambda root: (root / "attacks.json").write_text('{"seconds":NaN}'), "no JSON object"),
    ),
]
LINE_LIES = [
    *told(
        "attacks.csv",
        ("a better answer", cell(ATTACKED, PREDICTION, "2"), "prediction is not what"),
        ("a larger radius", cell(0, RADIUS, "0.700000"), "radius is above"),
        ("more votes", cell(0, COUNTED, "1001"), "more votes than draws"),
        ("other draws", cell(0, DRAWN, "999"), "draws is not n"),
        ("an easier label", cell(ATTACKED, LABEL, "1"), "label is not that of the input"),
        ("a label that is no class", cell(0, LABEL, "3"), "label is no class"),
        ("a class that is none", cell(0, NETWORK, "7"), "network is no class"),
        ("an aim", cell(0, AIM, "1"), "aim is not"),
        ("a length over the size", cell(ATTACKED, LENGTH, "0.250002"), "outside the ball"),
        ("the original moved", cell(0, LENGTH, "0.000001"), "outside the ball"),
        ("NaN length", cell(0, LENGTH, "nan"), "no line of an attack"),
        ("a negative length", cell(0, LENGTH, "-0.100000"), "no line of an attack"),
        ("a hard input dropped", forge_lines("attacks.csv", lambda t: t.pop(7)), "number of lines"),
        ("an input twice", forge_lines("attacks.csv", lambda t: t.__setitem__(7, t[6])), "not consecutive"),
        ("wrong header", forge_lines("attacks.csv", lambda t: t.__setitem__(0, "a\n")), "header"),
        ("last line cut", truncate("attacks.csv", 3), "cut off"),
        ("a line less", truncate("attacks.csv", 60), "number of lines"),
    ),
    Lie("a better network", cell(ATTACKED, NETWORK + 1, "2"), "attacks.json", "network"),
]
INPUT_LIES = [
    *told(
        "attacks.safetensors",
        ("far outside the ball", forge_tensor(ENTRY, far_away), "outside the ball"),
        ("an input less", forge_tensor(ENTRY, lambda x: x[1:]), "these are no inputs"),
        ("floats", forge_tensor(ENTRY, lambda x: x.astype(np.float32)), "these are no inputs"),
        ("above the range", forge_tensor(ENTRY, lambda x: x.astype(np.uint16) + np.uint16(300)), "outside the range"),
        ("a tensor of no attack", tensor_of_no_attack, "belongs to no attack"),
        ("cut short", truncate("attacks.safetensors", 4), "cannot be loaded"),
        ("no attacked inputs", lambda root: (root / "attacks.safetensors").unlink(), "missing"),
    ),
    Lie("no lines", lambda root: (root / "attacks.csv").unlink(), "attacks.csv", "missing"),
    Lie("no settings", lambda root: (root / "attacks.json").unlink(), "attacks.json", "missing"),
    Lie("another file", lambda root: (root / "attacks.npz").write_bytes(b"x"), "attacks.npz", "not part of a run"),
]
STALE_LIES = [
    *told(
        "attacks.json",
        ("certified anew", certified_again, "present certificates"),
        ("other sigma certified", forge_settings(lambda s: s.update(sigma=0.5)), "stale"),
        ("certificates taken away", uncertified, "certified_by.source"),
        ("certificates broken", forge_lines("certificates.csv", lambda t: t.pop(3)), "without sound certificates"),
    )
]


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_an_honest_record_in_another_norm_passes(tmp_path: Path, norm: str) -> None:
    """And the reach of the l2 attacks is seen in the certificates' norm: taken for l2, the results do not follow."""
    write_attacked_run(tmp_path / "run", norm=norm)
    assert verify_run(tmp_path / "run", inputs=ORIGINALS).problems == ()
    attacks(lambda record: record.update(certificate_norm="l2"))(tmp_path / "run")
    assert any("stale" in problem.what for problem in verify_run(tmp_path / "run").problems)


@pytest.mark.parametrize("originals", [None, ORIGINALS], ids=["alone", "with-the-test-set"])
@pytest.mark.parametrize("flips", [0, 1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_an_honest_record_passes(tmp_path: Path, shared: bool, flips: int, originals: Originals | None) -> None:
    write_attacked_run(tmp_path / "run", flips=flips, shared=shared)
    verification = verify_run(tmp_path / "run", inputs=originals)
    assert verification.problems == ()
    assert {"attack lines", "attacked inputs", "attack results", "audit"} <= {check.name for check in verification.checks}


@pytest.mark.parametrize("shared", [False, True])
def test_chance_is_over_all_inputs_and_in_format_1_over_those_with_such_a_certificate(tmp_path: Path, shared: bool) -> None:
    root = tmp_path / "run"
    write_attacked_run(root, shared=shared)
    record = json.loads((root / "attacks.json").read_text())
    for size in record["results"]["sizes"]:
        covered = round(size["certified"]["value"] * size["certified"]["inputs"])
        assert covered < size["certified"]["inputs"]
        if size["flips"]:
            chance, flips = 4 * ALPHA, size["flips"]
            tail = covered * chance / flips if shared else float(stats.binom.sf(flips - 1, covered, chance))
            size["flips_probability"], size["crossing"] = tail, tail < 1e-6
    for number, sound in ((1, True), (2, False)):
        record["format"] = number
        attacks(lambda kept: kept.update(record))(root)
        assert (verify_run(root).problems == ()) is sound


def test_the_honest_record_has_something_to_lie_about(honest: Path) -> None:
    found = json.loads((honest / "attacks.json").read_text())["results"]
    assert found["crossing"]
    assert found["warnings"]
    assert found["sizes"][0]["flips"] > 4
    assert 0.1 < found["clean"]["smoothed"]["value"] < 0.9


@pytest.mark.parametrize(
    "lie", [*RESULT_LIES, *SETTING_LIES, *LINE_LIES, *INPUT_LIES, *STALE_LIES], ids=lambda lie: lie.name.replace(" ", "-")
)
def test_a_lie_about_attacks_is_caught_where_it_was_told(root: Path, lie: Lie) -> None:
    lie.apply(root)
    verification = verify_run(root)
    told = [problem for problem in verification.problems if problem.file == lie.file and lie.what in problem.what]
    assert told, verification.problems


@pytest.mark.parametrize(
    ("apply", "file", "what"),
    [
        (forge_tensor(ENTRY, one_step_over), "attacks.safetensors", "outside the ball"),
        (cell(ATTACKED, LENGTH, "0.010000"), "attacks.safetensors", "not as far away"),
        (forge_lines("attacks.csv", lambda t: _relabel(t)), "attacks.csv", "label is not that of the input"),
    ],
    ids=["a-quarter-of-a-level-outside", "a-length-understated", "labels-changed-everywhere"],
)
def test_the_test_set_shows_what_a_run_alone_cannot(root: Path, apply: Apply, file: str, what: str) -> None:
    apply(root)
    found = verify_run(root, inputs=ORIGINALS).problems
    assert any(problem.file == file and what in problem.what for problem in found), found


def _relabel(lines: list[str]) -> None:
    """The first input gets another class in all lines."""
    for row in range(1, len(lines), ATTACKED):
        cells = lines[row].split(",")
        cells[LABEL] = "1"
        lines[row] = ",".join(cells)


@pytest.mark.parametrize(
    "other",
    [
        Originals(stored_inputs()[:30], stored_labels()[:30]),
        Originals(stored_inputs().reshape(60, -1)[:, :8], stored_labels()),
        Originals(stored_inputs().astype(np.uint16) + np.uint16(100), stored_labels()),
        Originals(stored_inputs(), stored_labels()[:5]),
    ],
    ids=["fewer", "narrower", "more-levels", "fewer-labels"],
)
def test_another_test_set_is_not_used(honest: Path, other: Originals) -> None:
    problems = verify_run(honest, inputs=other).problems
    assert [problem.file for problem in problems] == ["run.json"]
    assert "test set that was given" in problems[0].what


def test_a_run_without_certificates_has_its_own_line(root: Path) -> None:
    """The results are those of the clean lines then, and a verifier that took the certificates would say otherwise."""
    uncertified(root)
    rows = [line.split(",") for line in (root / "attacks.csv").read_text().splitlines()[1 : ATTACKED + 1]]
    own = [
        ",".join(
            [
                *(row[at] for at in (0, LABEL, PREDICTION, COUNTED, TOP, RADIUS)),
                str(int(row[PREDICTION] == row[LABEL])),
                row[DRAWN],
            ]
        )
        for row in rows
    ]
    header = "index,label,prediction,votes,top,radius,correct,draws"
    (root / "certificates.csv").write_text("\n".join([header, *own]) + "\n")
    lines = _lines(root)
    honest = results(root, lines)
    (root / "certificates.csv").unlink()
    honest["certified_by"] = {"source": "attacks.csv", "inputs": ATTACKED, "alpha": ALPHA}
    attacks(lambda record: record.update(results=honest))(root)
    assert verify_run(root).problems == ()


def _lines(root: Path) -> list[dict[str, Any]]:
    text = (root / "attacks.csv").read_text().splitlines()
    names = text[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in text[1:]]
    kinds: dict[str, Callable[[str], Any]] = dict.fromkeys(("protocol", "target", "attack"), str)
    kinds |= dict.fromkeys(("size", "length", "radius"), float)
    return [{name: kinds.get(name, int)(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("certificate_norm", ["l2", "linf", "l1"])
@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
@pytest.mark.parametrize(("size", "dimension"), [(0.25, 784), (0.1, 64), (1 / 3, 7), (1e-6, 2), (2.0, 1), (1e300, 5)])
def test_reach_is_the_smallest_decimal_that_is_long_enough(
    norm: str, certificate_norm: str, size: float, dimension: int
) -> None:
    """The longest change is found among one coordinate alone and all of them equal."""
    longest = {"l1": Fraction(dimension) ** 2, "l2": Fraction(dimension), "linf": Fraction(1)}
    factor = max(Fraction(1), longest[certificate_norm] / longest[norm])
    unit, square = Fraction(1, 10**6), Fraction(repr(size)) ** 2 * factor
    far = reach(norm, size, certificate_norm, dimension)
    nearest = round(Fraction(repr(far)) / unit)
    if size < 1e9:
        assert (nearest * unit) ** 2 >= square > ((nearest - 1) * unit) ** 2
    else:
        assert math.isclose(far**0.5, float(size) ** 0.5 * float(factor) ** 0.25)


@pytest.mark.parametrize(
    ("norm", "size", "levels", "most"),
    [("linf", 0.3, 10, 3), ("l2", 0.3, 10, 9), ("l1", 0.7, 10, 7), ("linf", 0.05, 16, 0), ("l2", 1e300, 255, 2**62)],
)
def test_a_size_is_the_decimal_that_was_written(norm: str, size: float, levels: int, most: int) -> None:
    assert budget(norm, size, levels) == most


def test_distances_are_those_of_integers() -> None:
    draws = np.random.default_rng(0)
    some, others = draws.integers(0, 65536, (2, 1100, 9)).astype(np.uint16)
    moves = np.abs(some.astype(object) - others.astype(object))
    assert distances(some, others, "l2").tolist() == (moves**2).sum(axis=1).tolist()
    assert distances(some, others, "l1").tolist() == moves.sum(axis=1).tolist()
    assert distances(some, others, "linf").tolist() == moves.max(axis=1).tolist()
