"""The lies that the verifier must catch: how each is told, in which file it must be found, and in what words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from synthetic_run import (
    BLOCKS,
    DRAWS,
    INPUTS,
    bind,
    certificate_rows,
    epsilons,
    forge_cell,
    forge_ledger,
    forge_lines,
    forge_run,
    forge_settings,
    radius,
    sha256,
    tau,
)

PLD, RDP = epsilons(sum(BLOCKS))
Apply = Callable[[Path], object]


@dataclass(frozen=True)
class Lie:
    name: str
    apply: Apply
    file: str
    what: str


def told(file: str, *rows: tuple[str, Apply, str]) -> list[Lie]:
    """Lies in one file: each with its name, how it is told, and the words of the problem that it must raise."""
    return [Lie(name, apply, file, what) for name, apply, what in rows]


def both(*applies: Apply) -> Apply:
    def apply(root: Path) -> None:
        for one in applies:
            one(root)

    return apply


def flip_weight(root: Path) -> None:
    path = root / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def other_weights(value: float) -> Apply:
    def apply(root: Path) -> None:
        (root / "model.safetensors").write_bytes(save({"weight": np.full(3, value, dtype=np.float32)}))
        bind(root)

    return apply


def nan_weights(root: Path) -> None:
    """Weights that are broken, with every digest put right: only a look inside finds it."""
    other_weights(float("nan"))(root)
    digest = sha256((root / "model.safetensors").read_bytes())
    forge_ledger(lambda story: story[-1][1].update(model_sha256=digest))(root)
    forge_settings(lambda settings: settings.update(model_sha256=digest))(root)


def truncate(name: str, count: int) -> Apply:
    def apply(root: Path) -> None:
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[:-count])
        bind(root)

    return apply


def link_model(root: Path) -> None:
    (root / "model.safetensors").rename(root.parent / "elsewhere.safetensors")
    (root / "model.safetensors").symlink_to(root.parent / "elsewhere.safetensors")


def link_private(root: Path) -> None:
    (root / "private").rename(root.parent / "elsewhere")
    (root / "private").symlink_to(root.parent / "elsewhere")


def remove(name: str) -> Apply:
    return lambda root: (root / name).unlink()


def swap(lines: list[str]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def leave(name: str) -> Apply:
    return lambda root: (root / name).write_bytes(b"secret")


def noise_everywhere(value: float) -> Apply:
    """More noise than was added, told in ledger and privacy block alike; the config still knows better."""

    def story_of(story: list[tuple[str, dict[str, object]]]) -> None:
        for kind, body in story:
            if kind == "poisson-gaussian":
                body["noise_multiplier"] = value

    return both(forge_ledger(story_of), forge_run(lambda run: run["privacy"].update(noise_multiplier=value)))


def one_block_fewer(story: list[tuple[str, dict[str, object]]]) -> None:
    del story[-2]
    story[-1][1]["steps"] = sum(BLOCKS[:-1])


DIGEST_LIES = [
    Lie("a flipped byte in the weights", flip_weight, "model.safetensors", "not the one that run.json binds"),
    Lie("weights swapped, run.json fixed up", other_weights(1.0), "ledger.jsonl", "model_sha256"),
    Lie("certificates of another model", other_weights(1.0), "certificates.json", "model_sha256"),
    *told(
        "model.safetensors",
        ("NaN weights, all digests fixed up", nan_weights, "not finite"),
        ("weights cut short", truncate("model.safetensors", 4), "cannot be loaded"),
        ("the weights are a link to elsewhere", link_model, "not a regular file"),
        ("no weights", lambda root: (root / "model.safetensors").unlink(), "missing"),
    ),
    Lie("no ledger", lambda root: (root / "ledger.jsonl").unlink(), "ledger.jsonl", "missing"),
    Lie("no metrics", lambda root: (root / "metrics.jsonl").unlink(), "metrics.jsonl", "missing"),
    Lie("settings without certificates", lambda root: (root / "certificates.csv").unlink(), "certificates.csv", "missing"),
    *told(
        "run.json",
        ("a path out of the run", forge_run(lambda r: r["files"].update({"../x": {"sha256": "0" * 64}})), "a name that no"),
        ("an absolute path", forge_run(lambda r: r["files"].update({"/etc/x": {"sha256": "0" * 64}})), "a name that no"),
    ),
    Lie("a file without digest", forge_run(lambda r: r["files"].pop("certificates.csv")), "certificates.csv", "no digest"),
    Lie("a digest that is none", forge_run(lambda r: r["files"].update({"metrics.jsonl": 3})), "run.json", "no usable digest"),
    Lie("a stranger's file", leave("train.npz"), "train.npz", "not part of a run"),
    Lie("audit.json not bound", leave("audit.json"), "audit.json", "no digest"),
    Lie("private open to all", lambda root: (root / "private").chmod(0o755), "private", "others may look"),
    Lie("key left behind", leave("private/key"), "private/key", "left behind"),
    Lie("checkpoint left behind", leave("private/checkpoint.safetensors"), "private/checkpoint.safetensors", "left behind"),
    Lie("half a key left behind", leave("private/key.part"), "private/key.part", "left behind"),
    Lie(
        "a file neither bound nor there",
        both(forge_run(lambda r: r["files"].pop("metrics.jsonl")), remove("metrics.jsonl")),
        "metrics.jsonl",
        "missing",
    ),
    Lie("private is a link", link_private, "private", "not a folder"),
    Lie("the report is a folder", lambda root: (root / "report.json").mkdir(), "report.json", "not a regular file"),
]

RUN_LIES = [
    *told(
        "run.json",
        ("format 0", forge_run(lambda r: r.update(format=0)), "format"),
        ("format true", forge_run(lambda r: r.update(format=True)), "format"),
        ("half finished", forge_run(lambda r: r.update(state="nearly")), "state"),
        ("another config", forge_run(lambda r: r["config"].update(note="x")), "config is not the one"),
        ("another recipe", forge_run(lambda r: r.update(recipe="other")), "config.recipe"),
        ("epsilon too small", forge_run(lambda r: r["privacy"].update(epsilon=round(PLD - 1e-6, 6))), "privacy.epsilon is sm"),
        ("epsilon too large", forge_run(lambda r: r["privacy"].update(epsilon=round(PLD * 1.02, 6))), "more than 1 %"),
        ("epsilon with 9 places", forge_run(lambda r: r["privacy"].update(epsilon=PLD + 1e-9)), "not rounded"),
        ("epsilon a string", forge_run(lambda r: r["privacy"].update(epsilon="1")), "privacy.epsilon"),
        ("epsilon beyond floats", forge_run(lambda r: r["privacy"].update(epsilon=10**400)), "privacy.epsilon"),
        ("epsilon_rdp too small", forge_run(lambda r: r["privacy"].update(epsilon_rdp=PLD)), "privacy.epsilon_rdp is sm"),
        ("wrong delta", forge_run(lambda r: r["privacy"].update(delta=1e-6)), "privacy.delta"),
        ("wrong noise", forge_run(lambda r: r["privacy"].update(noise_multiplier=5.0)), "noise_multiplier"),
        ("wrong rate", forge_run(lambda r: r["privacy"].update(sample_rate=0.04)), "sample_rate"),
        ("wrong steps", forge_run(lambda r: r["privacy"].update(steps=29)), "privacy.steps"),
        ("no privacy block", forge_run(lambda r: r.update(privacy=None)), "no privacy block"),
        (
            "promise below the block",
            forge_run(lambda r: r["guarantees"]["privacy"]["values"].update(epsilon=0.1)),
            "values.epsilon",
        ),
        ("promise lacks delta", forge_run(lambda r: r["guarantees"]["privacy"]["values"].pop("delta")), "lacks delta"),
        ("seed but proven", forge_run(lambda r: r["config"].update(seed=0)), "known seed"),
        ("no word on the seed", forge_run(lambda r: r["config"].pop("seed")), "known seed"),
        ("a fifth word", forge_run(lambda r: r["guarantees"]["robustness"].update(status="sure")), "robustness.status"),
        ("kinds mixed up", forge_run(lambda r: r["guarantees"]["privacy"].update(kind="robustness")), "something else"),
        ("accuracy inflated", forge_run(lambda r: r["accuracy"].update(value=0.9)), "accuracy.value"),
        ("interval narrowed", forge_run(lambda r: r["accuracy"].update(low=0.6)), "accuracy.low"),
        ("more correct than asked", forge_run(lambda r: r["accuracy"].update(correct=61)), "impossible"),
        ("not JSON", lambda root: (root / "run.json").write_bytes(b"{"), "no JSON object"),
        ("an empty object", lambda root: (root / "run.json").write_bytes(b"{}"), "privacy is missing"),
        ("a key twice", lambda root: (root / "run.json").write_bytes(b'{"format":1,"format":1}'), "no JSON"),
        ("NaN", lambda root: (root / "run.json").write_bytes(b'{"seconds":NaN}'), "no JSON object"),
        ("nested without end", lambda root: (root / "run.json").write_bytes(b"[" * 10**6), "no JSON object"),
        ("an accuracy that is a text", forge_run(lambda r: r["accuracy"].update(value="1")), "accuracy.value"),
        ("values that are none", forge_run(lambda r: r["guarantees"]["privacy"].update(values=[])), "privacy.values"),
        (
            "robustness promised with a smaller alpha",
            forge_run(lambda r: r["guarantees"]["robustness"]["values"].update(alpha=1e-9)),
            "robustness.values.alpha",
        ),
        (
            "robustness proven without certificates",
            both(remove("certificates.json"), remove("certificates.csv"), bind),
            "nothing is certified",
        ),
        ("no robustness", forge_run(lambda r: r["guarantees"].pop("robustness")), "robustness is missing"),
    )
]

LEDGER_LIES = [
    *told(
        "ledger.jsonl",
        ("a line deleted", forge_lines("ledger.jsonl", lambda t: t.pop(2)), "chain is broken"),
        ("lines reordered", forge_lines("ledger.jsonl", swap), "index is wrong"),
        ("a line twice", forge_lines("ledger.jsonl", lambda t: t.insert(2, t[2])), "chain is broken"),
        ("close missing", forge_lines("ledger.jsonl", lambda t: t.pop()), "last line is not 'close'"),
        ("open missing", forge_ledger(lambda s: s.pop(0)), "first line is not 'open'"),
        ("an event after close", forge_ledger(lambda s: s.append(s[1])), "only be the last"),
        ("no final newline", truncate("ledger.jsonl", 1), "cut off"),
        ("half a line", truncate("ledger.jsonl", 40), "cut off"),
        ("an empty ledger", lambda root: (root / "ledger.jsonl").write_bytes(b""), "empty"),
        (
            "an edited number",
            forge_lines("ledger.jsonl", lambda t: t.__setitem__(3, t[3].replace('"steps": 12', '"steps": 11'))),
            "hash does not match",
        ),
    ),
    Lie(
        "fresh chain, less noise", forge_ledger(lambda s: s[3][1].update(noise_multiplier=3.0)), "run.json", "noise_multiplier"
    ),
    Lie(
        "less noise, old epsilon",
        forge_ledger(lambda s: s[3][1].update(noise_multiplier=3.0)),
        "ledger.jsonl",
        "close: epsilon is sm",
    ),
    Lie("more noise everywhere", noise_everywhere(5.0), "run.json", "not the one of config"),
    *told(
        "ledger.jsonl",
        ("hidden steps", forge_ledger(one_block_fewer), "steps of config"),
        ("ranges not paid for", forge_ledger(lambda s: s.pop(1)), "no event of the ledger pays"),
        ("ranges paid too little", forge_ledger(lambda s: s[1][1].update(noise_multiplier=30.0)), "no event of the ledger"),
    ),
    Lie(
        "ranges from nowhere",
        forge_run(lambda r: r["data"]["scaling"].update(source="luck")),
        "run.json",
        "data.scaling.source",
    ),
    *told(
        "ledger.jsonl",
        ("a gap", forge_ledger(lambda s: s[3][1].update(first_step=13)), "begin where"),
        ("close counts fewer", forge_ledger(lambda s: s[-1][1].update(steps=29)), "sum of all"),
        ("lower epsilon in close", forge_ledger(lambda s: s[-1][1].update(epsilon=0.1)), "close: epsilon is sm"),
        ("lower RDP in close", forge_ledger(lambda s: s[-1][1].update(epsilon_rdp=0.1)), "epsilon_rdp is sm"),
    ),
    Lie("larger delta", forge_ledger(lambda s: s[0][1].update(delta=1e-3)), "run.json", "privacy.delta"),
    *told(
        "ledger.jsonl",
        ("other neighbours", forge_ledger(lambda s: s[0][1].update(neighbours="replace-one")), "neighbours"),
        ("an unknown kind", forge_ledger(lambda s: s.insert(2, ("gift", {}))), "unknown kind"),
        ("an unknown key", forge_ledger(lambda s: s[2][1].update(discount=2)), "unknown key"),
        ("negative noise", forge_ledger(lambda s: s[2][1].update(noise_multiplier=-4.0)), "noise_multiplier"),
        ("NaN noise", forge_ledger(lambda s: s[2][1].update(noise_multiplier=float("nan"))), "no JSON object"),
        ("rate above 1", forge_ledger(lambda s: s[2][1].update(sample_rate=1.5)), "sample_rate"),
        ("no noise to speak of", forge_ledger(lambda s: s[1][1].update(noise_multiplier=1e-9)), "beyond what"),
        ("steps without end", forge_ledger(lambda s: s[4][1].update(steps=2**52)), "beyond what"),
        ("a fractional step", forge_ledger(lambda s: s[4][1].update(steps=6.0)), "steps has a value"),
        (
            "a note beside the body",
            forge_lines("ledger.jsonl", lambda t: t.__setitem__(1, '{"note":1,' + t[1][1:])),
            "unknown key",
        ),
    ),
]

CERTIFICATE_LIES = [
    *told(
        "certificates.csv",
        ("radius inflated", forge_cell(0, 5, f"{radius(DRAWS) + 1e-6:.6f}"), "radius is above"),
        ("radius too small", forge_cell(0, 5, f"{radius(DRAWS) - 5e-6:.6f}"), "radius is below"),
        ("votes beyond n", forge_cell(0, 3, str(DRAWS + 1)), "more votes than draws"),
        ("votes lowered", forge_cell(0, 3, "900"), "radius is above"),
        ("votes for nothing", forge_cell(0, 3, "10"), "prediction is not what"),
        ("NaN radius", forge_cell(0, 5, "nan"), "no certificate"),
        ("negative radius", forge_cell(0, 5, "-0.100000"), "no certificate"),
        ("correct flag", forge_cell(0, 6, "1" if certificate_rows()[0][6] == "0" else "0"), "correct does not"),
        ("label out of range", forge_cell(4, 1, "3"), "label is no class"),
        ("top out of range", forge_cell(4, 4, "3"), "top is no class"),
        ("index skipped", forge_cell(4, 0, "5"), "not consecutive"),
        ("a hard input dropped", forge_lines("certificates.csv", lambda t: t.pop(7)), "not consecutive"),
        ("the last input dropped", forge_lines("certificates.csv", lambda t: t.pop()), "number of certificates"),
        ("wrong header", forge_lines("certificates.csv", lambda t: t.__setitem__(0, "a,b\n")), "header"),
        ("last line cut", truncate("certificates.csv", 3), "cut off"),
    ),
    *told(
        "certificates.json",
        ("tau understated", forge_settings(lambda s: s.update(tau=tau() * 0.99)), "tau is understated"),
        ("largest radius overstated", forge_settings(lambda s: s.update(largest_radius=0.8)), "largest_radius is ab"),
        ("another norm", forge_settings(lambda s: s.update(norm="linf")), "norm"),
        ("alpha 1", forge_settings(lambda s: s.update(alpha=1.0)), "alpha"),
        ("alpha promised smaller", forge_settings(lambda s: s.update(alpha=1e-5)), "spend more than alpha"),
    ),
    Lie(
        "alpha promised smaller everywhere",
        forge_settings(lambda s: s.update(alpha=1e-5, looks=[{"draws": DRAWS, "alpha": 1e-5}])),
        "certificates.csv",
        "radius is above",
    ),
    *told(
        "certificates.json",
        ("looks missing", forge_settings(lambda s: s.pop("looks")), "looks is missing"),
        ("no look", forge_settings(lambda s: s.update(looks=[])), "looks has a value"),
        ("a look that is none", forge_settings(lambda s: s.update(looks=[3])), "looks[0] has a"),
    ),
    *told(
        "certificates.csv",
        ("draws beyond the looks", forge_cell(0, 7, str(DRAWS + 1)), "none of the looks"),
        ("no draws", forge_cell(0, 7, "0"), "none of the looks"),
        ("sigma lowered", forge_settings(lambda s: s.update(sigma=0.2)), "radius is above"),
    ),
    *told(
        "certificates.json",
        ("grid no power of two", forge_settings(lambda s: s.update(grid=0.3)), "grid"),
        ("grid too coarse", forge_settings(lambda s: s.update(sigma=0.2, grid=1.0)), "too coarse"),
        ("no word on the arithmetic", forge_settings(lambda s: s.pop("arithmetic")), "arithmetic is missing"),
        ("no form", forge_settings(lambda s: s.update(form="")), "form has a value"),
        ("half shared", forge_settings(lambda s: s.update(shared_noise="yes")), "shared_noise has a value"),
        ("other levels", forge_settings(lambda s: s.update(levels=1)), "levels is not"),
        ("other dimension", forge_settings(lambda s: s.update(dimension=4)), "dimension is not"),
    ),
    Lie("fewer inputs", forge_settings(lambda s: s.update(inputs=INPUTS - 1)), "certificates.csv", "number of certificates"),
    *told(
        "certificates.json",
        ("more inputs than records", forge_settings(lambda s: s.update(inputs=61)), "more than the test set"),
        ("still sampling", forge_settings(lambda s: s.update(state="sampling")), "state"),
        ("largest radius understated", forge_settings(lambda s: s.update(largest_radius=0.5)), "largest_radius is be"),
    ),
]

METRICS_LIES = [
    *told(
        "metrics.jsonl",
        ("a step twice", forge_lines("metrics.jsonl", lambda t: t.insert(1, t[1])), "steps do not grow"),
        (
            "epsilon comes back",
            forge_lines("metrics.jsonl", lambda t: t.__setitem__(2, t[2].replace(str(PLD), "0.01"))),
            "epsilon shrinks",
        ),
        (
            "epsilon above the final one",
            forge_lines("metrics.jsonl", lambda t: t.__setitem__(2, t[2].replace(str(PLD), "9.0"))),
            "above the final",
        ),
        ("not JSON", forge_lines("metrics.jsonl", lambda t: t.insert(0, "x\n")), "no JSON object"),
        ("a step behind the end", forge_lines("metrics.jsonl", lambda t: t.append(t[2].replace("30", "31"))), "behind"),
        ("last line cut", truncate("metrics.jsonl", 5), "cut off"),
        (
            "accuracy above 1",
            forge_lines("metrics.jsonl", lambda t: t.__setitem__(0, t[0].replace("0.5", "1.5"))),
            "test_accuracy",
        ),
    )
]

LIES = [*DIGEST_LIES, *RUN_LIES, *LEDGER_LIES, *CERTIFICATE_LIES, *METRICS_LIES]
