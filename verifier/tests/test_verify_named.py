"""Runs of format 3: several certifications, attacks and audits, each checked by itself and against the promise of its name."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planted_lies import Apply, Lie, both, told
from synthetic_attacks import forge_json, write_attacked_run
from synthetic_promise import in_format_2, in_format_3
from synthetic_run import BLOCKS, bind, epsilons, forge_run, sha256
from twinproof_verify import epsilon, verify
from twinproof_verify.epsilon import Spent
from twinproof_verify.evidence import RunFolder
from twinproof_verify.findings import Problem

DEMO = Path(__file__).parents[2] / "tests" / "fixtures" / "format-3" / "demo"
L2, LINF = "certificates/l2/certificates.json", "certificates/linf-hgm/certificates.json"
L2_LINES, LINF_LINES = "certificates/l2/certificates.csv", "certificates/linf-hgm/certificates.csv"
ATTACKS, AUDIT = "attacks/l2/attacks.json", "audits/l2.json"
Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def spent() -> Spent:
    """The epsilons of the kept run, which no lie here touches."""
    result = verify(DEMO)
    assert result.epsilon is not None
    assert result.epsilon_rdp is not None
    return Spent(result.epsilon, result.epsilon_rdp)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spent: Spent) -> Path:
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: spent)
    return Path(shutil.copytree(DEMO, tmp_path / "run"))


def write(name: str, text: str = "{}") -> Apply:
    """Another file in the run."""

    def apply(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return apply


def edit(name: str, change: Change) -> Apply:
    """A lie in a JSON file, with every digest of run.json put right."""

    def apply(root: Path) -> None:
        forge_json(name, change)(root)
        bind_all(root)

    return apply


def bind_all(root: Path) -> None:
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith("report")]
    names = sorted(path.relative_to(root).as_posix() for path in paths if path.name != "run.json")
    forge_run(lambda run: run.update(files={name: {"sha256": sha256((root / name).read_bytes())} for name in names}))(root)


def promises(change: Change) -> Apply:
    return forge_run(lambda run: change(run["guarantees"]["robustness"]))


def named(name: str) -> Apply:
    return forge_run(lambda run: run["files"].update({name: {"sha256": "0" * 64}}))


def swap(one: str, other: str) -> Apply:
    """Two files or folders change their places, and their digests with them."""

    def apply(root: Path) -> None:
        (root / one).rename(root / "aside")
        (root / other).rename(root / one)
        (root / "aside").rename(root / other)
        bind_all(root)

    return apply


def copy(source: str, target: str) -> Apply:
    def apply(root: Path) -> None:
        shutil.copy(root / source, root / target)
        bind_all(root)

    return apply


def remove(name: str) -> Apply:
    def apply(root: Path) -> None:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        bind_all(root)

    return apply


def link(name: str) -> Apply:
    """What has a name lies elsewhere, with a link in its place."""

    def apply(root: Path) -> None:
        elsewhere = root.parent / "elsewhere"
        (root / name).rename(elsewhere)
        (root / name).symlink_to(elsewhere)

    return apply


def cell(name: str, row: int, column: int, value: str) -> Apply:
    def apply(root: Path) -> None:
        lines = [line.split(",") for line in (root / name).read_text().splitlines()]
        lines[row + 1][column] = value
        (root / name).write_text("".join(",".join(line) + "\n" for line in lines))
        bind_all(root)

    return apply


def swapped(found: dict[str, Any]) -> None:
    found["l2"], found["linf-hgm"] = found["linf-hgm"], found["l2"]


STRANGE = "a name that no file"
NO_PART = "not part of a run"
PROMISE_LIES = told(
    "run.json",
    ("a certification without its promise", promises(lambda p: p.pop("l2")), "robustness.l2 is missing"),
    ("a promise without its certification", promises(lambda p: p.update(linf=p["l2"])), "robustness.linf is of no"),
    ("no promise at all", promises(lambda p: p.clear()), "robustness.linf-hgm is missing"),
    ("the certificates removed", remove("certificates/l2"), "robustness.l2 is of no certification"),
    ("a promise under a path", promises(lambda p: p.update({"../l2": p.pop("l2")})), "../l2"),
    ("the promises swapped", promises(swapped), "robustness.l2.values.norm is not that"),
    ("one promise alone", forge_run(lambda r: r["guarantees"].update(robustness=r["guarantees"]["privacy"])), "robustness."),
    ("a list of promises", forge_run(lambda r: r["guarantees"].update(robustness=[])), "guarantees.robustness has a value"),
    ("a promise that is none", promises(lambda p: p.update(l2=3)), "guarantees.robustness.l2 has a value"),
    ("kinds mixed up", promises(lambda p: p["linf-hgm"].update(kind="privacy")), "robustness.linf-hgm speaks of"),
    ("the folders swapped", swap("certificates/l2", "certificates/linf-hgm"), "robustness.l2.values.norm is not that"),
    ("a larger radius promised", promises(lambda p: p["l2"]["values"].update(largest_radius=0.9)), "l2.values.largest_radius"),
    ("other words", promises(lambda p: p["linf-hgm"].update(promise="All is well.")), "robustness.linf-hgm.promise does"),
    ("refuted for nothing", promises(lambda p: p["l2"].update(status="refuted")), "l2.status and the verdict of audits/l2"),
    ("refuted without an audit", promises(lambda p: p["linf-hgm"].update(status="refuted")), "robustness.linf-hgm.status"),
    ("called format 2", forge_run(lambda r: r.update(format=2)), "guarantees.robustness."),
)
NAME_LIES = [
    *told(
        "run.json",
        ("out of the run", named("certificates/../../l2/certificates.csv"), STRANGE),
        ("around the run", named("certificates/l2/../l2/certificates.csv"), STRANGE),
        ("the folder above", named("certificates/../certificates.csv"), STRANGE),
        ("no name", named("certificates//certificates.csv"), STRANGE),
        ("a hidden name", named("attacks/.l2/attacks.csv"), STRANGE),
        ("an audit out of the run", named("audits/../run.json"), STRANGE),
        ("an audit in a folder", named("audits/l2/l2.json"), STRANGE),
        ("a file of another kind", named("certificates/l2/attacks.csv"), STRANGE),
        ("a name of old", named("certificates.json"), STRANGE),
        ("a line break", named("certificates/l2\n/certificates.csv"), STRANGE),
        ("a NUL", named("certificates/l2\0/certificates.csv"), STRANGE),
    ),
    *(
        Lie(f"no digest of {name}", forge_run(lambda run, name=name: run["files"].pop(name)), name, "no digest")  # type: ignore[misc]
        for name in (L2, LINF_LINES, ATTACKS, "attacks/l2/attacks.safetensors", AUDIT)
    ),
    Lie("another digest", cell(L2_LINES, 0, 3, "1"), L2_LINES, "prediction is not what"),
    Lie("a note", write("certificates/l2/notes.txt"), "certificates/l2/notes.txt", NO_PART),
    Lie("a note beside the names", write("certificates/notes.txt"), "certificates/notes.txt", "not a folder"),
    Lie("a folder in a folder", write("attacks/l2/more/x.csv"), "attacks/l2/more", NO_PART),
    Lie("a hidden folder", write("attacks/.l2/attacks.csv"), "attacks/.l2", NO_PART),
    Lie("a name too long", write(f"certificates/{'x' * 61}/certificates.csv"), f"certificates/{'x' * 61}", NO_PART),
    Lie("certificates in the old place", write("certificates.json"), "certificates.json", NO_PART),
    Lie("an audit that is a text", write("audits/l2.txt"), "audits/l2.txt", NO_PART),
    Lie("an audit that is a folder", write("audits/x.json/l2.json"), "audits/x.json", "not a regular file"),
    Lie("an audit in the old place", write("audit.json"), "audit.json", NO_PART),
    Lie(
        "half a certification",
        write("certificates/half/certificates.csv", ""),
        "certificates/half/certificates.json",
        "missing",
    ),
    Lie("an empty folder", lambda root: (root / "attacks/none").mkdir(), "attacks/none/attacks.csv", "missing"),
    Lie("a named folder is a link", link("certificates/l2"), "certificates/l2", "not a folder"),
    Lie("all certificates are a link", link("certificates"), "certificates", "not a folder"),
    Lie("the lines are a link", link(L2_LINES), L2_LINES, "not a regular file"),
    Lie("an audit that is a link", link(AUDIT), AUDIT, "not a regular file"),
    Lie("files before format 3", forge_run(lambda r: r.update(format=2)), "certificates", NO_PART),
]
CERTIFICATE_LIES = [
    Lie("the lines swapped", swap(L2_LINES, LINF_LINES), L2_LINES, "radius is"),
    Lie("fewer lines than certified", copy(LINF_LINES, L2_LINES), L2_LINES, "number of certificates"),
    Lie("settings of another name", copy(L2, LINF), LINF_LINES, "number of certificates"),
    Lie("a radius of one name", cell(LINF_LINES, 2, 5, "0.900000"), LINF_LINES, "radius is above"),
    *told(
        LINF,
        ("tau understated", edit(LINF, lambda s: s["noise"].update(tau=1e-12)), "tau is understated"),
        ("the norm of another", edit(LINF, lambda s: s["noise"].update(operator_norm=1.0)), "operator_norm is not that"),
        ("other weights", edit(LINF, lambda s: s["network"].update(model_sha256="0" * 64)), "model_sha256 is not the digest"),
        ("other classes", edit(LINF, lambda s: s["network"].update(classes=9)), "classes is not the number"),
        ("tf32 on a CPU", edit(LINF, lambda s: s["network"].update(arithmetic="tf32")), "a CPU"),
        ("levels of other data", edit(LINF, lambda s: s["noise"].update(levels=255)), "levels is not"),
        ("a section missing", edit(LINF, lambda s: s.pop("sampling")), "sampling is missing"),
        ("a section that is none", edit(LINF, lambda s: s.update(noise=[])), "noise has a value"),
        ("a key outside its section", edit(LINF, lambda s: s.update(n=2000)), "unknown key"),
        ("a key in another section", edit(LINF, lambda s: s["method"].update(n=2000)), "method.there is an unknown key"),
        ("the words of format 2", edit(LINF, lambda s: s.update(s.pop("sampling"))), "sampling is missing"),
        ("called format 2", edit(LINF, lambda s: s.update(format=2)), "format has a value"),
        ("no JSON", both(write(LINF, "{"), bind_all), "no JSON object"),
    ),
]
OTHER_LIES = [
    *told(
        ATTACKS,
        ("compared with nothing there", edit(ATTACKS, lambda a: a.update(certificates="other")), "is not there"),
        ("compared with others", edit(ATTACKS, lambda a: a.update(certificates="linf-hgm")), "stale"),
        ("compared with none", edit(ATTACKS, lambda a: a.update(certificates=None)), "results.certified_by"),
        ("compared with a path", edit(ATTACKS, lambda a: a.update(certificates="../l2")), "certificates has a value"),
        ("no word on certificates", edit(ATTACKS, lambda a: a.pop("certificates")), "certificates is missing"),
        ("judged by scores", edit(ATTACKS, lambda a: a["method"].update(statistic="scores")), "method.statistic has"),
        ("judged by shared noise", edit(ATTACKS, lambda a: a["sampling"].update(shared_noise=True)), "shared_noise has"),
        ("judged at a target", edit(ATTACKS, lambda a: a["sampling"].update(target_radius=0.5)), "target_radius has"),
        ("counted as in format 1", edit(ATTACKS, lambda a: a.update(format=1)), "format has a value"),
        ("other classes", edit(ATTACKS, lambda a: a["network"].update(classes=9)), "classes is not the number"),
        ("other coordinates", edit(ATTACKS, lambda a: a.update(dimension=9)), "dimension is not"),
        ("a size more", edit(ATTACKS, lambda a: a["plan"]["sizes"].append(0.75)), "results.sizes"),
        ("flips denied", edit(ATTACKS, lambda a: a["results"]["sizes"][0].update(flips=9)), "flips does not follow"),
        ("the plan outside", edit(ATTACKS, lambda a: a.update(a.pop("plan"))), "plan is missing"),
    ),
    Lie("the certificates gone", remove("certificates/l2"), ATTACKS, "is not there"),
    *told(
        AUDIT,
        ("of another", edit(AUDIT, lambda a: a["certificates"].update(of="linf-hgm")), "stale: certificates_sha256"),
        ("of nothing there", edit(AUDIT, lambda a: a["certificates"].update(of="other")), "of is no certification"),
        ("of a path", edit(AUDIT, lambda a: a["certificates"].update(of="../l2")), "of has a value"),
        ("of no name", edit(AUDIT, lambda a: a["certificates"].pop("of")), "of is missing"),
        ("of certificates made again", swap("certificates/l2", "certificates/linf-hgm"), "stale: settings_sha256"),
        ("of other weights", edit(AUDIT, lambda a: a["certificates"]["network"].update(model_sha256="0" * 64)), "stale: model"),
        ("other classes", edit(AUDIT, lambda a: a["certificates"]["network"].update(classes=9)), "classes is not"),
        ("votes outside the budget", edit(AUDIT, lambda a: a["certificates"].update(votes=10000)), "unknown key"),
        ("a flip more", edit(AUDIT, lambda a: a["certificates"]["verdict"].update(flips=1)), "verdict.flips"),
        ("called format 2", edit(AUDIT, lambda a: a.update(format=2)), "format has a value"),
    ),
    Lie("no audit of them any more", remove("certificates/l2"), AUDIT, "of is no certification"),
]
LIES = [*PROMISE_LIES, *NAME_LIES, *CERTIFICATE_LIES, *OTHER_LIES]


def test_a_run_with_several_certifications_passes_quickly() -> None:
    began = time.monotonic()
    result = verify(DEMO)
    assert time.monotonic() - began < 3
    assert result.problems == ()
    assert result.certificates == 100
    names = {check.name for check in result.checks}
    assert {"certificates (l2)", "certificates (linf-hgm)", "attack results (l2)", "audit (l2)"} <= names


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name.replace(" ", "-"))
def test_a_lie_is_caught_under_the_name_that_it_was_told_of(root: Path, lie: Lie) -> None:
    lie.apply(root)
    result = verify(root)
    told = [problem for problem in result.problems if problem.file == lie.file and lie.what in problem.what]
    assert told, result.problems
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["ok"] is False


def test_what_is_wrong_with_one_name_is_no_fault_of_another(root: Path) -> None:
    cell(LINF_LINES, 2, 5, "0.900000")(root)
    result = verify(root)
    assert {problem.file for problem in result.problems} == {LINF_LINES}
    assert [check.name for check in result.checks if not check.passed] == ["certificates (linf-hgm)"]


def test_nothing_is_read_through_a_link(root: Path) -> None:
    """Whoever checks a run does not open what lies elsewhere, whichever part of the path is the link."""
    for name, part in ((L2, "certificates/l2"), (ATTACKS, "attacks")):
        link(part)(root)
        assert isinstance(RunFolder(root).content(name), Problem)
        (root.parent / "elsewhere").rename(root.parent / part.replace("/", "-"))


def test_a_release_without_some_of_its_work_passes(root: Path) -> None:
    for name in ("attacks", "audits", "certificates/linf-hgm"):
        remove(name)(root)
    promises(lambda found: found.pop("linf-hgm"))(root)
    assert verify(root).problems == ()
    remove("certificates")(root)
    promises(lambda found: found.clear())(root)
    assert verify(root).problems == ()


def test_two_audits_of_one_certification_pass(root: Path) -> None:
    copy(AUDIT, "audits/again.json")(root)
    assert verify(root).problems == ()
    edit("audits/again.json", lambda audit: audit["certificates"]["verdict"].update(flips=1))(root)
    assert {problem.file for problem in verify(root).problems} == {"audits/again.json"}


def test_attacks_that_name_no_certificates_are_said_to_be_compared_with_none(root: Path) -> None:
    edit(ATTACKS, lambda attacks: attacks.update(certificates=None))(root)
    assert f"whether {ATTACKS} contradicts certificates: it names none" in verify(root).not_checked


@pytest.mark.parametrize("flips", [1, 3])
def test_a_run_of_format_2_is_the_same_in_format_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flips: int) -> None:
    """With three flips an audit refutes the promise, which then names it; no other name excuses that."""
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(*epsilons(sum(BLOCKS))))
    root = tmp_path / "run"
    write_attacked_run(root, flips=flips)
    in_format_2(root)
    in_format_3(root, "mine", audit="yours")
    bind_all(root)
    assert verify(root).problems == ()
    promise = json.loads((root / "run.json").read_text())["guarantees"]["robustness"]["mine"]
    assert promise["status"] == ("refuted" if flips == 3 else "proven")
    assert ("audits/yours.json" in promise["reason"]) == (flips == 3)
    promises(lambda found: found["mine"].update(status="proven" if flips == 3 else "refuted"))(root)
    said = [problem.what for problem in verify(root).problems]
    assert "guarantees.robustness.mine.status and the verdict of audits/yours.json differ" in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("certificates.json", lambda record: record.update(method={})),
        ("certificates.json", lambda record: record.update(noise=record["sigma"])),
        ("attacks.json", lambda record: record.update(certificates="l2")),
        ("attacks.json", lambda record: record.update(plan={})),
        ("attacks.json", lambda record: record.update(arithmetic="float32")),
        ("audit.json", lambda record: record["certificates"].update(of="l2")),
        ("audit.json", lambda record: record["certificates"].update(budget={})),
    ],
)
def test_keys_of_format_3_are_unknown_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change
) -> None:
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(*epsilons(sum(BLOCKS))))
    root = tmp_path / "run"
    write_attacked_run(root)
    forge_json(name, change)(root)
    bind(root)
    assert any(problem.file == name and "unknown key" in problem.what for problem in verify(root).problems)
