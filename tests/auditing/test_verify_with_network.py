"""Lies that only the network and the test set can show: each is caught with them, and named as not checked without."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import DEMO, KEPT, NOISY, TWO_NOISES, copied, count_each_ledger_once, digits, reconfigured, reweighted
from torch import nn

from synthetic_run import forge_lines, forge_run, forge_settings
from twinproof.auditing import redraw as redraw_module
from twinproof.auditing import redraw_network, with_network
from twinproof.auditing.ask_network import Place
from twinproof.auditing.redraw_noise import Draws
from twinproof.auditing.verify import verify_run
from twinproof.errors import ConfigError, RunError
from twinproof.guarantee import format_down
from twinproof.layers.networks import build_network
from twinproof_verify import Originals
from twinproof_verify.bounds import Counts, clopper_pearson
from twinproof_verify.certificates import CertificateSettings, rules_of
from twinproof_verify.inspection import ATTACK_VOTES, NO_MODULE, NO_TEST_SET, VOTES
from twinproof_verify.models import translated

Cells = list[list[str]]


@pytest.fixture(scope="module", autouse=True)
def one_account_for_each_ledger() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        count_each_ledger_once(patched)
        yield


def change_cells(root: Path, name: str, change: Callable[[Cells], object]) -> None:
    """The cells of a CSV file, without its header; digests are put right."""

    def apply(lines: list[str]) -> None:
        rows = [line.rstrip("\n").split(",") for line in lines[1:]]
        change(rows)
        lines[1:] = [",".join(row) + "\n" for row in rows]

    forge_lines(name, apply)(root)


@pytest.fixture(autouse=True)
def made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept runs count as made with this torch: with another one, votes may differ by 1 %, which hides small lies."""
    monkeypatch.setattr(Place, "of", classmethod(lambda cls, record, model: Place(torch.device("cpu"), same=True)))


def passed(root: Path, name: str, **given: Any) -> bool | None:
    """Whether the check ``name`` passed; None where it was not made."""
    found = [check.passed for check in verify_run(root, originals=digits(), **given).checks if check.name == name]
    return all(found) if found else None


@pytest.mark.parametrize("name", [DEMO, NOISY, TWO_NOISES])
def test_kept_runs_pass_with_the_test_set_and_all_votes_are_the_same(name: str) -> None:
    result = verify_run(KEPT / name, originals=digits(), redraw=20 if name == NOISY else 40)
    assert result.problems == ()
    votes = [check.detail for check in result.checks if check.name.startswith("votes of")]
    assert len(votes) == (1 if name == TWO_NOISES else 2)
    assert all(": 0 votes differ" in detail for detail in votes)
    assert ("votes of 360 of 400 certificates" in result.not_checked) == (name == DEMO)


def settings_of(root: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((root / "certificates.json").read_text())
    return settings


def set_votes(root: Path, votes: Callable[[int, int], int]) -> None:
    """Other votes, by old ones and draws, with the radii and predictions that follow from them."""
    rule = rules_of(CertificateSettings.model_validate(translated("certificates", settings_of(root))))[0]

    def change(rows: Cells) -> None:
        for row in rows:
            row[3] = str(votes(int(row[3]), int(row[7])))
            answer = rule.answers(Counts.of_votes(np.array([int(row[3])])))
            sure = bool(answer.low[0] > answer.high[0])
            row[2], row[5] = (row[4] if sure else "-1"), f"{format_down(float(answer.radius[0]) if sure else 0.0)}"
            row[6] = str(int(row[2] == row[1]))

    change_cells(root, "certificates.csv", change)


def labels_are_predictions(root: Path) -> None:
    def change(rows: Cells) -> None:
        for row in rows:
            row[1], row[6] = row[4], str(int(row[2] != "-1"))

    change_cells(root, "certificates.csv", change)


def keep_the_right(root: Path) -> None:
    def change(rows: Cells) -> None:
        rows[:] = [row for row in rows if row[6] == "1"]
        for index, row in enumerate(rows):
            row[0] = str(index)

    change_cells(root, "certificates.csv", change)
    kept = len((root / "certificates.csv").read_text().splitlines()) - 1
    forge_settings(lambda settings: settings.update(inputs=kept))(root)


def another_images(root: Path) -> None:
    """The surest certificate of each class stands for every input of the class."""

    def change(rows: Cells) -> None:
        best = {row[1]: row for row in sorted(rows, key=lambda row: float(row[5])) if row[6] == "1"}
        for row in rows:
            row[2:] = best.get(row[1], row)[2:]

    change_cells(root, "certificates.csv", change)


def reported(root: Path, correct: int) -> None:
    """So many right answers in run.json, with the interval that follows."""

    def change(run: dict[str, Any]) -> None:
        total = run["accuracy"]["total"]
        low, high = clopper_pearson(correct, total, run["accuracy"]["confidence"])
        run["accuracy"].update(correct=correct, value=correct / total, low=low, high=high)

    forge_run(change)(root)


def all_right(root: Path) -> None:
    reported(root, 400)


def better_progress(root: Path) -> None:
    def change(lines: list[str]) -> None:
        lines[-1] = json.dumps({**json.loads(lines[-1]), "test_accuracy": 1.0}) + "\n"

    forge_lines("metrics.jsonl", change)(root)


def less_loss(root: Path) -> None:
    def change(lines: list[str]) -> None:
        lines[-1] = json.dumps({**json.loads(lines[-1]), "test_loss": 0.1}) + "\n"

    forge_lines("metrics.jsonl", change)(root)


def nothing_misled(root: Path) -> None:
    def change(rows: Cells) -> None:
        for row in rows:
            row[8] = row[9] = row[5]

    change_cells(root, "attacks.csv", change)


def nobody_sure(root: Path) -> None:
    """The smoothed classifier is said to abstain at every attacked input, and so to be misled by none."""

    def change(rows: Cells) -> None:
        for row in rows:
            row[10:14] = ["-1", "0", row[12], "0.000000"]

    change_cells(root, "attacks.csv", change)


def right_without_attack(root: Path) -> None:
    def change(rows: Cells) -> None:
        for row in rows:
            if row[1] == "clean":
                row[9] = row[5]

    change_cells(root, "attacks.csv", change)


def double_sigma(root: Path) -> None:
    def change(settings: dict[str, Any]) -> None:
        settings["sigma"] *= 2
        settings["tau"] = settings["dimension"] * (17 * settings["sigma"] * 16 / settings["grid"] * 2**-64 + 2**-49) + 2**-36

    forge_settings(change)(root)
    rule = rules_of(CertificateSettings.model_validate(translated("certificates", settings_of(root))))[0]
    most = float(rule.answers(rule.unanimous()).radius[0])
    forge_settings(lambda settings: settings.update(largest_radius=float(format_down(most))))(root)
    set_votes(root, lambda votes, draws: votes)


def constants(root: Path) -> None:
    def change(weights: dict[str, Any]) -> None:
        weights["3.weight"] *= 0
        weights["3.bias"][:] = np.eye(10, dtype=np.float32)[3]

    reweighted(root, change)


def another_top(root: Path) -> None:
    """Inputs whose class is not certified get the true one as their answer, if only by a little."""
    change_cells(root, "certificates.csv", lambda rows: [row.__setitem__(4, row[1]) for row in rows])


@dataclass(frozen=True)
class Lie:
    """``check`` fails with the network, the test set and all votes; ``covered`` is what names the lie without them."""

    name: str
    run: str
    apply: Callable[[Path], object]
    check: str
    covered: str


LIES = [
    Lie("labels are predictions", TWO_NOISES, labels_are_predictions, "labels", NO_TEST_SET),
    Lie("labels are predictions in the demo", DEMO, labels_are_predictions, "labels", NO_TEST_SET),
    Lie("only right certificates kept", TWO_NOISES, keep_the_right, "labels", NO_TEST_SET),
    Lie("only right certificates kept, votes", TWO_NOISES, keep_the_right, "votes of certificates", VOTES),
    Lie("another image's certificate", TWO_NOISES, another_images, "votes of certificates", VOTES),
    Lie("all right", DEMO, all_right, "accuracy again", NO_TEST_SET),
    Lie("all right with noise", NOISY, all_right, "accuracy again", NO_TEST_SET),
    Lie("all right with two noises", TWO_NOISES, all_right, "accuracy again", NO_TEST_SET),
    Lie("a last line that is better", DEMO, better_progress, "accuracy again", NO_TEST_SET),
    Lie("less loss", TWO_NOISES, less_loss, "accuracy again", NO_TEST_SET),
    Lie("nothing misled", DEMO, nothing_misled, "network under attack", NO_TEST_SET),
    Lie("nothing misled behind a layer", NOISY, nothing_misled, "network under attack", NO_TEST_SET),
    Lie("nobody misled after voting", DEMO, nobody_sure, "votes of answers to attacked inputs", ATTACK_VOTES),
    Lie("right without attack", NOISY, right_without_attack, "network under attack", NO_TEST_SET),
    Lie("unanimous votes", DEMO, lambda root: set_votes(root, lambda votes, draws: draws), "votes of certificates", VOTES),
    Lie(
        "unanimous behind a layer",
        NOISY,
        lambda root: set_votes(root, lambda votes, draws: draws),
        "votes of certificates",
        VOTES,
    ),
    Lie(
        "unanimous twice", TWO_NOISES, lambda root: set_votes(root, lambda votes, draws: draws), "votes of certificates", VOTES
    ),
    Lie(
        "fifty votes more",
        DEMO,
        lambda r: set_votes(r, lambda votes, draws: min(draws, votes + 50)),
        "votes of certificates",
        VOTES,
    ),
    Lie("sigma doubled", DEMO, double_sigma, "votes of certificates", VOTES),
    Lie("a network of constants", DEMO, constants, "votes of certificates", VOTES),
    Lie("a network of constants, accuracy", DEMO, constants, "accuracy again", NO_TEST_SET),
    Lie("a network of constants, attacks", DEMO, constants, "network under attack", NO_TEST_SET),
    Lie("another class selected", TWO_NOISES, another_top, "votes of certificates", VOTES),
    Lie("another key", DEMO, forge_settings(lambda settings: settings.update(key="00" * 32)), "votes of certificates", VOTES),
    Lie("another shape", NOISY, forge_run(lambda run: run["data"].update(shape=[1, 4, 16])), "test set", NO_TEST_SET),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name.replace(" ", "-"))
def test_a_lie_is_caught_with_the_test_set_and_named_without_it(tmp_path: Path, lie: Lie) -> None:
    root = copied(lie.run, tmp_path)
    lie.apply(root)
    votes = {"redraw": 40 if lie.run == TWO_NOISES else 20} if lie.check.startswith("votes") else {}
    assert passed(root, lie.check, **votes) is False
    without = verify_run(root)
    assert lie.covered in without.not_checked
    assert lie.check not in {check.name for check in without.checks}


def test_forged_votes_pass_without_being_drawn_again(tmp_path: Path) -> None:
    """So the line that names them must be there: nothing else shows this lie."""
    root = copied(TWO_NOISES, tmp_path)
    set_votes(root, lambda votes, draws: draws)
    result = verify_run(root, originals=digits())
    assert (result.problems, VOTES in result.not_checked) == ((), True)


def test_a_redraw_that_ignores_sigma_passes_a_doubled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copied(DEMO, tmp_path)
    honest = redraw_network.Noise.of(settings_of(root))
    double_sigma(root)
    monkeypatch.setattr(redraw_network.Noise, "of", lambda settings: honest)
    assert passed(root, "votes of certificates", redraw=5) is True


@pytest.mark.parametrize("name", [DEMO, NOISY, TWO_NOISES])
def test_noise_that_is_not_the_formats_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planted bug draws noise of the same law from the same key, in another order."""
    honest = Draws.of
    for wrong in (
        lambda self, purpose, index, first, count: honest(self, purpose, index + 1, first, count),
        lambda self, purpose, index, first, count: honest(self, purpose, index, first + 10**6, count),
        lambda self, purpose, index, first, count: -honest(self, purpose, index, first, count),
        lambda self, purpose, index, first, count: honest(self, "select", index, first, count),
    ):
        monkeypatch.setattr(Draws, "of", wrong)
        assert passed(KEPT / name, "votes of certificates", redraw=12) is False  # more than are unanimous in any of them


def test_votes_may_differ_by_one_percent_elsewhere_and_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copied(DEMO, tmp_path)
    set_votes(root, lambda votes, draws: max(0, votes - 90))
    assert passed(root, "votes of certificates", redraw=5) is False
    monkeypatch.setattr(Place, "of", classmethod(lambda cls, record, model: Place(torch.device("cpu"), same=False)))
    assert passed(root, "votes of certificates", redraw=5) is True
    (detail,) = [c.detail for c in verify_run(root, originals=digits(), redraw=5).checks if c.name == "votes of certificates"]
    assert "450 votes differ" in detail
    set_votes(root, lambda votes, draws: max(0, votes - 15))
    assert passed(root, "votes of certificates", redraw=5) is False


def test_close_calls_alone_may_differ_here() -> None:
    """A network whose two classes are always equal up to rounding: any votes could be those of another order of sums."""
    outputs = torch.tensor([[1.0, 1.0 + 2.0**-20], [1.0, 2.0], [3.0, 3.0]])
    assert redraw_module.close_calls(outputs) == 2


def test_accuracy_elsewhere_may_differ_by_one_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "of", classmethod(lambda cls, record, model: Place(torch.device("cpu"), same=False)))
    root = copied(DEMO, tmp_path)
    for change, right in ((3, True), (-3, True), (6, False), (-6, False)):
        reported(root, 377 + change)
        assert passed(root, "accuracy again") is right, change


def test_which_certificates_are_drawn_again_is_chosen_at_random() -> None:
    assert redraw_module.chosen(3, 400, random.Random(1)) == redraw_module.chosen(3, 400, random.Random(1))
    assert len({tuple(redraw_module.chosen(20, 400)) for _ in range(5)}) == 5
    assert redraw_module.chosen(50, 4) == [0, 1, 2, 3]


def test_what_is_needed_to_draw_again_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without the test set"):
        verify_run(KEPT / DEMO, redraw=3)
    with pytest.raises(ConfigError, match="nothing to draw"):
        verify_run(KEPT / DEMO, originals=digits(), redraw=0)
    root = copied(DEMO, tmp_path)
    reconfigured(root, lambda config: config.update(model="own:Sequential"))
    with pytest.raises(ConfigError, match="without the network"):
        verify_run(root, originals=digits(), redraw=3)


def test_an_owners_network_is_asked_where_it_is_given(tmp_path: Path) -> None:
    root = copied(DEMO, tmp_path)
    reconfigured(root, lambda config: config.update(model="own:Sequential"))
    assert NO_MODULE in verify_run(root, originals=digits()).not_checked
    module = build_network("mlp", (1, 8, 8), 10)
    assert isinstance(module, nn.Sequential)
    assert passed(root, "votes of certificates", network=module, redraw=3) is True
    assert passed(root, "accuracy again", network=module) is True
    module[2] = nn.ReLU()  # the same weights in another network
    assert passed(root, "votes of certificates", network=module, redraw=3) is False
    assert passed(root, "accuracy again", network=module) is False


def test_a_network_that_would_take_long_is_left_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_network, "MOST_SECONDS", 0.0)
    result = verify_run(KEPT / DEMO, originals=digits())
    assert any(one.startswith("accuracy on the test set (about") for one in result.not_checked)
    assert passed(KEPT / DEMO, "accuracy again", redraw=1) is True


def test_a_test_set_of_another_form_is_not_used(tmp_path: Path) -> None:
    flat = Originals(digits().inputs.reshape(400, 64), digits().labels)
    result = verify_run(KEPT / DEMO, originals=flat)
    assert any("data.shape is not that of the test set" in problem.what for problem in result.problems)


HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 0.5, 1e308, 10**400, 2**53, "", "\ud800", [], [None], {}, {"a": 1})


@pytest.mark.parametrize("every", [32, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["run.json", "certificates.json", "attacks.json"])
def test_no_value_makes_the_network_raise(file: str, every: int, tmp_path: Path) -> None:
    """Every top-level value, and those of config, its noise layer and data, replaced by hostile ones in turn; or some."""
    root = copied(NOISY, tmp_path)
    honest = json.loads((root / file).read_text())
    parts = [honest] if file != "run.json" else [honest["config"]["noise_layer"], honest["config"], honest["data"], honest]
    spots = [(part, key) for part in parts for key in part]
    for number, (part, key) in enumerate(spots[::every]):
        kept = part[key]
        for value in (HOSTILE[number % len(HOSTILE)], HOSTILE[(5 * number + 3) % len(HOSTILE)]):
            part[key] = value
            (root / file).write_text(json.dumps(honest))
            try:
                result = verify_run(root, originals=digits(), redraw=1)
            except (RunError, ConfigError):
                continue  # a newer format, an unfinished run, an owner's network that was not given
            assert result.problems
        part[key] = kept


def test_whoever_asks_the_network_shares_its_layers_and_nothing_else() -> None:
    """The noise, the counting and the radii of certification, evaluation and attacks are not asked about themselves."""
    folder = Path(redraw_module.__file__).parent
    for path in (*folder.glob("redraw*.py"), *(folder / f"{name}.py" for name in ("ask_network", "with_network", "verify"))):
        tree = ast.parse(path.read_text())
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
        found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        rooms = {".".join(module.split(".")[:2]) for module in found if module.startswith("twinproof.")}
        assert rooms <= {"twinproof.auditing", "twinproof.compute", "twinproof.layers", "twinproof.errors"}, path.name
