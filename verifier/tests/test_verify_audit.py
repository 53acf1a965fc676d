"""The verifier of an audit of certificates: an honest one passes, every planted lie is found where it was told."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from planted_lies import Apply, Lie, other_weights, told, truncate
from synthetic_attacks import FALSE_FLIPS, VOTES, forge_json, stored_inputs, stored_labels, verdict_of, write_attacked_run
from synthetic_run import BLOCKS, LEVELS, epsilons, forge_cell, forge_run, radius, sha256, tau
from twinproof_verify import Originals, epsilon
from twinproof_verify import verify as verify_run
from twinproof_verify.audits import probability_of
from twinproof_verify.epsilon import Spent

ORIGINALS = Originals(stored_inputs(), stored_labels())


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true epsilons, not computed anew for every lie."""
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(*epsilons(sum(BLOCKS))))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One flip inside a radius, which chance explains; not to be changed."""
    root = tmp_path_factory.mktemp("honest") / "run"
    write_attacked_run(root)
    return root


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three flips, which refute the promise; not to be changed."""
    root = tmp_path_factory.mktemp("broken") / "run"
    write_attacked_run(root, flips=3)
    return root


@pytest.fixture
def root(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def audit(change: Callable[[Any], Any]) -> Apply:
    return forge_json("audit.json", lambda record: change(record["certificates"]))


def verdict(**changes: Any) -> Apply:
    return audit(lambda section: section["verdict"].update(changes))


def section_of(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / "audit.json").read_text())["certificates"])


def first(section: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]) -> Any:
    return next(entry for entry in section["attacked"] if wanted(entry))


def flipped(entry: dict[str, Any]) -> bool:
    return bool(entry["verdict"] == "flipped")


def beyond(entry: dict[str, Any]) -> bool:
    return entry["flip"] is not None and not flipped(entry)


def of_flipped(change: Callable[[Any], Any]) -> Apply:
    """A lie about the flip inside, with a verdict that is counted anew."""
    return _recounted(lambda section: change(first(section, flipped)))


def of_beyond(change: Callable[[Any], Any]) -> Apply:
    """A lie about a flip beyond the radius."""
    return _recounted(lambda section: change(first(section, beyond)))


def _recounted(change: Callable[[dict[str, Any]], Any]) -> Apply:
    def both(section: dict[str, Any]) -> None:
        change(section)
        section["verdict"] = verdict_of(section["attacked"])

    return audit(both)


def closer(section: dict[str, Any]) -> None:
    section["verdict"]["closest"] += 1e-6


def fewest_votes() -> int:
    """The votes that just prove a majority, by the definition of the bound."""
    level = FALSE_FLIPS / (10 * 40)
    return next(votes for votes in range(VOTES // 2, VOTES) if stats.beta.ppf(level, votes, VOTES - votes + 1) - tau() > 0.5)


def certified_again(root: Path) -> None:
    forge_cell(0, 3, "900")(root)
    forge_cell(0, 5, f"{radius(900):.6f}")(root)


LIES = [
    *told(
        "audit.json",
        ("a flip removed", verdict(flips=0), "verdict.flips"),
        ("a flipped certificate removed", audit(lambda s: s["attacked"].remove(first(s, flipped))), "every certificate"),
        (
            "removed, and attackable with it",
            _recounted(lambda s: (s["attacked"].remove(first(s, flipped)), s.update(attackable=len(s["attacked"])))),
            "claim something",
        ),
        ("called held", of_flipped(lambda e: e.update(verdict="held")), "verdict does not follow"),
        ("called flipped", of_beyond(lambda e: e.update(verdict="flipped")), "verdict does not follow"),
        ("the evidence removed", of_flipped(lambda e: e["flip"].update(stored=None)), "stored does not follow"),
        ("evidence of nothing", of_beyond(lambda e: e["flip"].update(stored=[0] * 16)), "stored does not follow"),
        ("evidence that is no input", of_flipped(lambda e: e["flip"].update(stored=[256] * 16)), "no input"),
        ("half the evidence", of_flipped(lambda e: e["flip"]["stored"].pop()), "no input"),
        ("undecided hidden", verdict(undecided=0), "verdict.undecided"),
        ("closest ratio raised", audit(closer), "verdict.closest"),
        ("a ratio raised", of_beyond(lambda e: e["flip"].update(ratio=e["flip"]["ratio"] + 2e-6)), "flip.ratio"),
        (
            "a distance raised",
            of_beyond(lambda e: e["flip"].update(distance=e["radius"] * 1.6, ratio=1.6)),
            "none between stored",
        ),
        ("a distance beyond squares", of_beyond(lambda e: e["flip"].update(distance=1e200)), "none between stored"),
        ("median raised", verdict(median=9.0), "verdict.median"),
        ("no closest", verdict(closest=None), "verdict.closest"),
        ("beyond reach", verdict(beyond_reach=0), "verdict.beyond_reach"),
        ("verdict flipped", verdict(refuted=True, verdict="refuted"), "verdict.refuted"),
        ("only the words", verdict(verdict="refuted"), "verdict.verdict"),
        ("alpha excused", verdict(alpha=0.01), "verdict.alpha"),
        ("more expected", verdict(expected=5.0), "verdict.expected"),
        ("probability raised", verdict(probability=0.5), "verdict.probability"),
        ("another bound", verdict(bound="markov"), "verdict.bound"),
        ("a verdict unasked for", verdict(note="fine"), "verdict.note"),
        ("more inputs", audit(lambda s: s.update(inputs=60)), "more than were certified"),
        ("fewer inputs", audit(lambda s: s.update(inputs=20)), "claim something"),
        ("a smaller radius", of_beyond(lambda e: e.update(radius=e["radius"] - 1e-6)), "not the certificate"),
        ("another input", of_beyond(lambda e: e.update(index=49)), "not the certificate"),
        ("a flip to the same class", of_beyond(lambda e: e["flip"].update(prediction=e["prediction"])), "no other class"),
        ("a flip to no class", of_beyond(lambda e: e["flip"].update(prediction=7)), "no other class"),
        ("too few votes", of_flipped(lambda e: e["flip"].update(votes=fewest_votes() - 1)), "not proven by its votes"),
        ("votes beyond draws", of_flipped(lambda e: e["flip"].update(votes=VOTES + 1)), "not proven by its votes"),
        ("fewer draws", of_flipped(lambda e: e["flip"].update(draws=10)), "number of a confirmation"),
        ("false flips excused", audit(lambda s: s.update(false_flips=0.5)), "false_flips has a value"),
        ("a short search", audit(lambda s: s.update(outward=1.2)), "further away than was searched"),
        ("found at the input", of_beyond(lambda e: e["flip"].update(found_by="input")), "lies elsewhere"),
        ("found by luck", of_beyond(lambda e: e["flip"].update(found_by="luck")), "found_by has a value"),
        ("the certificates' noise", audit(lambda s: s.update(key="ab" * 32)), "certificates' own"),
        ("still attacking", audit(lambda s: s.update(state="attacking", verdict=None)), "state has a value"),
        ("an unknown arithmetic", audit(lambda s: s.update(arithmetic="int8")), "arithmetic has a value"),
        ("an entry that is none", audit(lambda s: s["attacked"].__setitem__(0, 3)), "attacked[0] has a value"),
        ("a text for a number", of_beyond(lambda e: e["flip"].update(distance="1")), "distance has a value"),
        ("no section", forge_json("audit.json", lambda r: r.pop("certificates")), "certificates is missing"),
        ("another section", forge_json("audit.json", lambda r: r.update(privacy={})), "unknown key"),
        ("format 0", forge_json("audit.json", lambda r: r.update(format=0)), "format"),
        ("cut short", truncate("audit.json", 9), "no JSON object"),
        ("NaN", lambda root: (root / "audit.json").write_text('{"format":NaN}'), "no JSON object"),
        ("stale after certify --overwrite", certified_again, "stale: certificates_sha256"),
        ("stale settings", forge_json("certificates.json", lambda s: s.update(seconds=9.0)), "stale: settings_sha256"),
        ("an audit of other weights", other_weights(1.0), "stale: model_sha256"),
        ("certificates gone", lambda root: (root / "certificates.csv").unlink(), "stale: certificates_sha256"),
    ),
    Lie(
        "refuted for nothing", forge_run(lambda r: r["guarantees"]["robustness"].update(status="refuted")), "run.json", "status"
    ),
    *told(
        "certificates.json",
        ("tf32 on a CPU", forge_json("certificates.json", lambda s: s.update(arithmetic="tf32")), "a CPU"),
        (
            "an unknown precision",
            forge_json("certificates.json", lambda s: s.update(arithmetic="half")),
            "arithmetic has a value",
        ),
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name.replace(" ", "-"))
def test_a_lie_about_an_audit_is_caught_where_it_was_told(root: Path, lie: Lie) -> None:
    lie.apply(root)
    verification = verify_run(root)
    told = [problem for problem in verification.problems if problem.file == lie.file and lie.what in problem.what]
    assert told, verification.problems


@pytest.mark.parametrize("status", ["proven", "published", "none"])
def test_a_refuted_promise_must_say_so(broken: Path, tmp_path: Path, status: str) -> None:
    root = Path(shutil.copytree(broken, tmp_path / "run"))
    assert section_of(root)["verdict"]["refuted"]
    assert verify_run(root).problems == ()
    forge_run(lambda run: run["guarantees"]["robustness"].update(status=status))(root)
    problems = verify_run(root).problems
    assert [problem.file for problem in problems] == ["run.json"]
    assert "robustness.status and the verdict" in problems[0].what


@pytest.mark.parametrize(("flips", "status", "differ"), [(0, "refuted", False), (3, "refuted", False), (0, "proven", True)])
def test_a_bound_that_is_known_to_be_false_is_refuted_whatever_the_audit_finds(
    tmp_path: Path, flips: int, status: str, differ: bool
) -> None:
    root = tmp_path / "run"
    write_attacked_run(root, flips=flips)
    forge_json("certificates.json", lambda settings: settings.update(bound="published"))(root)
    audit(lambda found: found.update(settings_sha256=sha256((root / "certificates.json").read_bytes())))(root)
    forge_run(lambda run: run["guarantees"]["robustness"].update(status=status))(root)
    said = [problem.what for problem in verify_run(root).problems if problem.file == "run.json"]
    assert any("status and the verdict" in what for what in said) == differ
    assert any("the bound of the certificates is false" in what for what in said) == differ


@pytest.mark.parametrize(
    "change", [{"refuted": False, "verdict": "not refuted"}, {"flips": 2}, {"probability": 0.002, "refuted": False}]
)
def test_a_refutation_cannot_be_talked_away(broken: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    root = Path(shutil.copytree(broken, tmp_path / "run"))
    verdict(**change)(root)
    forge_run(lambda run: run["guarantees"]["robustness"].update(status="proven"))(root)
    assert {"audit.json"} <= {problem.file for problem in verify_run(root).problems}


def test_shared_noise_is_held_to_markov(tmp_path: Path) -> None:
    """The binomial tail would refute where failures may coincide; a verdict that uses it is a lie."""
    write_attacked_run(tmp_path / "run", flips=3, shared=True)
    section = section_of(tmp_path / "run")
    assert (section["verdict"]["bound"], section["verdict"]["refuted"]) == ("markov", False)
    assert verify_run(tmp_path / "run").problems == ()
    audit(lambda found: found.update(verdict=verdict_of(found["attacked"], shared=False)))(tmp_path / "run")
    assert any("verdict.bound" in problem.what for problem in verify_run(tmp_path / "run").problems)


def test_the_fewest_votes_that_prove_a_majority_pass(root: Path) -> None:
    of_flipped(lambda entry: entry["flip"].update(votes=fewest_votes()))(root)
    assert len(section_of(root)["attacked"]) == 40, "the number that the level above is shared among"
    assert verify_run(root).problems == ()


@pytest.mark.parametrize(("share", "proven"), [(0.555, False), (0.56, True)])
def test_flips_of_scores_are_held_to_hoeffding(root: Path, share: float, proven: bool) -> None:
    """Sums in units of 2^-20. As many votes would do: Clopper and Pearson's bound is not for means of scores."""
    level = FALSE_FLIPS / (10 * 40)
    assert share * VOTES > fewest_votes()
    least = 0.5 + math.sqrt(math.log(1 / level) / (2 * VOTES)) + tau()
    forge_json("certificates.json", lambda settings: settings.update(statistic="scores"))(root)
    of_flipped(lambda entry: entry["flip"].update(votes=int(share * VOTES * 2**20)))(root)
    said = [problem.what for problem in verify_run(root).problems if "not proven by its votes" in problem.what]
    inside = first(section_of(root), flipped)
    at = section_of(root)["attacked"].index(inside)
    assert (share > least) == proven
    assert (f"attacked[{at}].flip is not proven by its votes" in said) == (not proven)


def test_with_the_test_set_the_evidence_is_measured(root: Path) -> None:
    assert verify_run(root, inputs=ORIGINALS).problems == ()
    of_flipped(lambda entry: entry["flip"]["stored"].__setitem__(0, entry["flip"]["stored"][0] + 1))(root)
    assert verify_run(root).problems == (), "a run alone does not hold the original"
    found = verify_run(root, inputs=ORIGINALS).problems
    assert ["not that of the stored input" in problem.what for problem in found] == [True]


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_distances_are_measured_in_the_norm_of_the_certificates(tmp_path: Path, norm: str) -> None:
    root = tmp_path / "run"
    write_attacked_run(root, norm=norm)
    assert verify_run(root, inputs=ORIGINALS).problems == ()
    of_flipped(lambda entry: entry["flip"]["stored"].__setitem__(1, entry["flip"]["stored"][1] + 11))(root)
    found = verify_run(root, inputs=ORIGINALS).problems
    assert ["not that of the stored input" in problem.what for problem in found] == [True]
    audit(lambda section: section.update(norm="l2"))(root)
    assert any("norm is not that of the certificates" in problem.what for problem in verify_run(root).problems)


def test_half_a_level_is_no_distance(tmp_path: Path) -> None:
    write_attacked_run(tmp_path / "run", norm="linf")
    of_beyond(lambda entry: entry["flip"].update(distance=entry["flip"]["distance"] + 0.5 / LEVELS))(tmp_path / "run")
    assert any("none between stored" in problem.what for problem in verify_run(tmp_path / "run").problems)


def test_every_flip_lies_where_a_stored_input_can(honest: Path) -> None:
    distances = [entry["flip"]["distance"] for entry in section_of(honest)["attacked"] if entry["flip"]]
    assert all(math.isclose((one * LEVELS) ** 2, round((one * LEVELS) ** 2)) for one in distances)


@pytest.mark.parametrize(("flips", "inputs", "alpha"), [(1, 50, 0.001), (3, 50, 0.001), (50, 50, 0.5), (2, 10_000, 1e-4)])
def test_the_probability_is_the_binomial_tail(flips: int, inputs: int, alpha: float) -> None:
    assert probability_of(flips, inputs, alpha, shared=False) == pytest.approx(
        stats.binom.sf(flips - 1, inputs, alpha), rel=1e-9
    )
    assert probability_of(flips, inputs, alpha, shared=True) == min(1.0, inputs * alpha / flips)
    assert probability_of(0, inputs, alpha, shared=False) == 1.0
