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
    Lie("NaN weights, all digests fixed up", nan_weights, "model.safetensors", "not finite"),
    Lie("weights cut short", truncate("model.safetensors", 4), "model.safetensors", "cannot be loaded"),
    Lie("the weights are a link to elsewhere", link_model, "model.safetensors", "not a regular file"),
    Lie("no weights", lambda root: (root / "model.safetensors").unlink(), "model.safetensors", "missing"),
    Lie("no ledger", lambda root: (root / "ledger.jsonl").unlink(), "ledger.jsonl", "missing"),
    Lie("no metrics", lambda root: (root / "metrics.jsonl").unlink(), "metrics.jsonl", "missing"),
    Lie("settings without certificates", lambda root: (root / "certificates.csv").unlink(), "certificates.csv", "missing"),
    Lie(
        "a path out of the run",
        forge_run(lambda r: r["files"].update({"../x": {"sha256": "0" * 64}})),
        "run.json",
        "a name that no",
    ),
    Lie(
        "an absolute path",
        forge_run(lambda r: r["files"].update({"/etc/x": {"sha256": "0" * 64}})),
        "run.json",
        "a name that no",
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
    Lie("format 0", forge_run(lambda r: r.update(format=0)), "run.json", "format"),
    Lie("format true", forge_run(lambda r: r.update(format=True)), "run.json", "format"),
    Lie("half finished", forge_run(lambda r: r.update(state="nearly")), "run.json", "state"),
    Lie("another config", forge_run(lambda r: r["config"].update(note="x")), "run.json", "config is not the one"),
    Lie("another recipe", forge_run(lambda r: r.update(recipe="other")), "run.json", "config.recipe"),
    Lie(
        "epsilon too small",
        forge_run(lambda r: r["privacy"].update(epsilon=round(PLD - 1e-6, 6))),
        "run.json",
        "privacy.epsilon is sm",
    ),
    Lie(
        "epsilon too large", forge_run(lambda r: r["privacy"].update(epsilon=round(PLD * 1.02, 6))), "run.json", "more than 1 %"
    ),
    Lie("epsilon with 9 places", forge_run(lambda r: r["privacy"].update(epsilon=PLD + 1e-9)), "run.json", "not rounded"),
    Lie("epsilon a string", forge_run(lambda r: r["privacy"].update(epsilon="1")), "run.json", "privacy.epsilon"),
    Lie("epsilon beyond floats", forge_run(lambda r: r["privacy"].update(epsilon=10**400)), "run.json", "privacy.epsilon"),
    Lie(
        "epsilon_rdp too small",
        forge_run(lambda r: r["privacy"].update(epsilon_rdp=PLD)),
        "run.json",
        "privacy.epsilon_rdp is sm",
    ),
    Lie("wrong delta", forge_run(lambda r: r["privacy"].update(delta=1e-6)), "run.json", "privacy.delta"),
    Lie("wrong noise", forge_run(lambda r: r["privacy"].update(noise_multiplier=5.0)), "run.json", "noise_multiplier"),
    Lie("wrong rate", forge_run(lambda r: r["privacy"].update(sample_rate=0.04)), "run.json", "sample_rate"),
    Lie("wrong steps", forge_run(lambda r: r["privacy"].update(steps=29)), "run.json", "privacy.steps"),
    Lie("no privacy block", forge_run(lambda r: r.update(privacy=None)), "run.json", "no privacy block"),
    Lie(
        "promise below the block",
        forge_run(lambda r: r["guarantees"]["privacy"]["values"].update(epsilon=0.1)),
        "run.json",
        "values.epsilon",
    ),
    Lie(
        "promise lacks delta", forge_run(lambda r: r["guarantees"]["privacy"]["values"].pop("delta")), "run.json", "lacks delta"
    ),
    Lie("seed but proven", forge_run(lambda r: r["config"].update(seed=0)), "run.json", "known seed"),
    Lie("no word on the seed", forge_run(lambda r: r["config"].pop("seed")), "run.json", "known seed"),
    Lie(
        "a fifth word",
        forge_run(lambda r: r["guarantees"]["robustness"].update(status="sure")),
        "run.json",
        "robustness.status",
    ),
    Lie(
        "kinds mixed up",
        forge_run(lambda r: r["guarantees"]["privacy"].update(kind="robustness")),
        "run.json",
        "something else",
    ),
    Lie("accuracy inflated", forge_run(lambda r: r["accuracy"].update(value=0.9)), "run.json", "accuracy.value"),
    Lie("interval narrowed", forge_run(lambda r: r["accuracy"].update(low=0.6)), "run.json", "accuracy.low"),
    Lie("more correct than asked", forge_run(lambda r: r["accuracy"].update(correct=61)), "run.json", "impossible"),
    Lie("not JSON", lambda root: (root / "run.json").write_bytes(b"{"), "run.json", "no JSON object"),
    Lie("an empty object", lambda root: (root / "run.json").write_bytes(b"{}"), "run.json", "privacy is missing"),
    Lie("a key twice", lambda root: (root / "run.json").write_bytes(b'{"format":1,"format":1}'), "run.json", "no JSON"),
    Lie("NaN", lambda root: (root / "run.json").write_bytes(b'{"seconds":NaN}'), "run.json", "no JSON object"),
    Lie("nested without end", lambda root: (root / "run.json").write_bytes(b"[" * 10**6), "run.json", "no JSON object"),
    Lie("an accuracy that is a text", forge_run(lambda r: r["accuracy"].update(value="1")), "run.json", "accuracy.value"),
    Lie(
        "values that are none", forge_run(lambda r: r["guarantees"]["privacy"].update(values=[])), "run.json", "privacy.values"
    ),
    Lie(
        "robustness promised with a smaller alpha",
        forge_run(lambda r: r["guarantees"]["robustness"]["values"].update(alpha=1e-9)),
        "run.json",
        "robustness.values.alpha",
    ),
    Lie(
        "robustness proven without certificates",
        both(remove("certificates.json"), remove("certificates.csv"), bind),
        "run.json",
        "nothing is certified",
    ),
    Lie("no robustness", forge_run(lambda r: r["guarantees"].pop("robustness")), "run.json", "robustness is missing"),
]

LEDGER_LIES = [
    Lie("a line deleted", forge_lines("ledger.jsonl", lambda t: t.pop(2)), "ledger.jsonl", "chain is broken"),
    Lie("lines reordered", forge_lines("ledger.jsonl", swap), "ledger.jsonl", "index is wrong"),
    Lie("a line twice", forge_lines("ledger.jsonl", lambda t: t.insert(2, t[2])), "ledger.jsonl", "chain is broken"),
    Lie("close missing", forge_lines("ledger.jsonl", lambda t: t.pop()), "ledger.jsonl", "last line is not 'close'"),
    Lie("open missing", forge_ledger(lambda s: s.pop(0)), "ledger.jsonl", "first line is not 'open'"),
    Lie("an event after close", forge_ledger(lambda s: s.append(s[1])), "ledger.jsonl", "only be the last"),
    Lie("no final newline", truncate("ledger.jsonl", 1), "ledger.jsonl", "cut off"),
    Lie("half a line", truncate("ledger.jsonl", 40), "ledger.jsonl", "cut off"),
    Lie("an empty ledger", lambda root: (root / "ledger.jsonl").write_bytes(b""), "ledger.jsonl", "empty"),
    Lie(
        "an edited number",
        forge_lines("ledger.jsonl", lambda t: t.__setitem__(3, t[3].replace('"steps": 12', '"steps": 11'))),
        "ledger.jsonl",
        "hash does not match",
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
    Lie("hidden steps", forge_ledger(one_block_fewer), "ledger.jsonl", "steps of config"),
    Lie("ranges not paid for", forge_ledger(lambda s: s.pop(1)), "ledger.jsonl", "no event of the ledger pays"),
    Lie(
        "ranges paid too little",
        forge_ledger(lambda s: s[1][1].update(noise_multiplier=30.0)),
        "ledger.jsonl",
        "no event of the ledger",
    ),
    Lie(
        "ranges from nowhere",
        forge_run(lambda r: r["data"]["scaling"].update(source="luck")),
        "run.json",
        "data.scaling.source",
    ),
    Lie("a gap", forge_ledger(lambda s: s[3][1].update(first_step=13)), "ledger.jsonl", "begin where"),
    Lie("close counts fewer", forge_ledger(lambda s: s[-1][1].update(steps=29)), "ledger.jsonl", "sum of all"),
    Lie("lower epsilon in close", forge_ledger(lambda s: s[-1][1].update(epsilon=0.1)), "ledger.jsonl", "close: epsilon is sm"),
    Lie("lower RDP in close", forge_ledger(lambda s: s[-1][1].update(epsilon_rdp=0.1)), "ledger.jsonl", "epsilon_rdp is sm"),
    Lie("larger delta", forge_ledger(lambda s: s[0][1].update(delta=1e-3)), "run.json", "privacy.delta"),
    Lie("other neighbours", forge_ledger(lambda s: s[0][1].update(neighbours="replace-one")), "ledger.jsonl", "neighbours"),
    Lie("an unknown kind", forge_ledger(lambda s: s.insert(2, ("gift", {}))), "ledger.jsonl", "unknown kind"),
    Lie("an unknown key", forge_ledger(lambda s: s[2][1].update(discount=2)), "ledger.jsonl", "unknown key"),
    Lie("negative noise", forge_ledger(lambda s: s[2][1].update(noise_multiplier=-4.0)), "ledger.jsonl", "noise_multiplier"),
    Lie("NaN noise", forge_ledger(lambda s: s[2][1].update(noise_multiplier=float("nan"))), "ledger.jsonl", "no JSON object"),
    Lie("rate above 1", forge_ledger(lambda s: s[2][1].update(sample_rate=1.5)), "ledger.jsonl", "sample_rate"),
    Lie("no noise to speak of", forge_ledger(lambda s: s[1][1].update(noise_multiplier=1e-9)), "ledger.jsonl", "beyond what"),
    Lie("steps without end", forge_ledger(lambda s: s[4][1].update(steps=2**52)), "ledger.jsonl", "beyond what"),
    Lie("a fractional step", forge_ledger(lambda s: s[4][1].update(steps=6.0)), "ledger.jsonl", "steps has a value"),
    Lie(
        "a note beside the body",
        forge_lines("ledger.jsonl", lambda t: t.__setitem__(1, '{"note":1,' + t[1][1:])),
        "ledger.jsonl",
        "unknown key",
    ),
]

CERTIFICATE_LIES = [
    Lie("radius inflated", forge_cell(0, 5, f"{radius(DRAWS) + 1e-6:.6f}"), "certificates.csv", "radius is above"),
    Lie("radius too small", forge_cell(0, 5, f"{radius(DRAWS) - 5e-6:.6f}"), "certificates.csv", "radius is below"),
    Lie("votes beyond n", forge_cell(0, 3, str(DRAWS + 1)), "certificates.csv", "more votes than draws"),
    Lie("votes lowered", forge_cell(0, 3, "900"), "certificates.csv", "radius is above"),
    Lie("votes for nothing", forge_cell(0, 3, "10"), "certificates.csv", "prediction is not what"),
    Lie("NaN radius", forge_cell(0, 5, "nan"), "certificates.csv", "no certificate"),
    Lie("negative radius", forge_cell(0, 5, "-0.100000"), "certificates.csv", "no certificate"),
    Lie(
        "correct flag",
        forge_cell(0, 6, "1" if certificate_rows()[0][6] == "0" else "0"),
        "certificates.csv",
        "correct does not",
    ),
    Lie("label out of range", forge_cell(4, 1, "3"), "certificates.csv", "label is no class"),
    Lie("top out of range", forge_cell(4, 4, "3"), "certificates.csv", "top is no class"),
    Lie("index skipped", forge_cell(4, 0, "5"), "certificates.csv", "not consecutive"),
    Lie("a hard input dropped", forge_lines("certificates.csv", lambda t: t.pop(7)), "certificates.csv", "not consecutive"),
    Lie(
        "the last input dropped",
        forge_lines("certificates.csv", lambda t: t.pop()),
        "certificates.csv",
        "number of certificates",
    ),
    Lie("wrong header", forge_lines("certificates.csv", lambda t: t.__setitem__(0, "a,b\n")), "certificates.csv", "header"),
    Lie("last line cut", truncate("certificates.csv", 3), "certificates.csv", "cut off"),
    Lie("tau understated", forge_settings(lambda s: s.update(tau=tau() * 0.99)), "certificates.json", "tau is understated"),
    Lie(
        "largest radius overstated",
        forge_settings(lambda s: s.update(largest_radius=0.8)),
        "certificates.json",
        "largest_radius is ab",
    ),
    Lie("another norm", forge_settings(lambda s: s.update(norm="linf")), "certificates.json", "norm"),
    Lie("alpha 1", forge_settings(lambda s: s.update(alpha=1.0)), "certificates.json", "alpha"),
    Lie("alpha promised smaller", forge_settings(lambda s: s.update(alpha=1e-5)), "certificates.json", "spend more than alpha"),
    Lie(
        "alpha promised smaller everywhere",
        forge_settings(lambda s: s.update(alpha=1e-5, looks=[{"draws": DRAWS, "alpha": 1e-5}])),
        "certificates.csv",
        "radius is above",
    ),
    Lie("looks missing", forge_settings(lambda s: s.pop("looks")), "certificates.json", "looks is missing"),
    Lie("no look", forge_settings(lambda s: s.update(looks=[])), "certificates.json", "looks has a value"),
    Lie("a look that is none", forge_settings(lambda s: s.update(looks=[3])), "certificates.json", "looks[0] has a"),
    Lie("draws beyond the looks", forge_cell(0, 7, str(DRAWS + 1)), "certificates.csv", "none of the looks"),
    Lie("no draws", forge_cell(0, 7, "0"), "certificates.csv", "none of the looks"),
    Lie("sigma lowered", forge_settings(lambda s: s.update(sigma=0.2)), "certificates.csv", "radius is above"),
    Lie("grid no power of two", forge_settings(lambda s: s.update(grid=0.3)), "certificates.json", "grid"),
    Lie("grid too coarse", forge_settings(lambda s: s.update(sigma=0.2, grid=1.0)), "certificates.json", "too coarse"),
    Lie(
        "no word on the arithmetic", forge_settings(lambda s: s.pop("arithmetic")), "certificates.json", "arithmetic is missing"
    ),
    Lie("no form", forge_settings(lambda s: s.update(form="")), "certificates.json", "form has a value"),
    Lie("half shared", forge_settings(lambda s: s.update(shared_noise="yes")), "certificates.json", "shared_noise has a value"),
    Lie("other levels", forge_settings(lambda s: s.update(levels=1)), "certificates.json", "levels is not"),
    Lie("other dimension", forge_settings(lambda s: s.update(dimension=4)), "certificates.json", "dimension is not"),
    Lie("fewer inputs", forge_settings(lambda s: s.update(inputs=INPUTS - 1)), "certificates.csv", "number of certificates"),
    Lie(
        "more inputs than records", forge_settings(lambda s: s.update(inputs=61)), "certificates.json", "more than the test set"
    ),
    Lie("still sampling", forge_settings(lambda s: s.update(state="sampling")), "certificates.json", "state"),
    Lie(
        "largest radius understated",
        forge_settings(lambda s: s.update(largest_radius=0.5)),
        "certificates.json",
        "largest_radius is be",
    ),
]

METRICS_LIES = [
    Lie("a step twice", forge_lines("metrics.jsonl", lambda t: t.insert(1, t[1])), "metrics.jsonl", "steps do not grow"),
    Lie(
        "epsilon comes back",
        forge_lines("metrics.jsonl", lambda t: t.__setitem__(2, t[2].replace(str(PLD), "0.01"))),
        "metrics.jsonl",
        "epsilon shrinks",
    ),
    Lie(
        "epsilon above the final one",
        forge_lines("metrics.jsonl", lambda t: t.__setitem__(2, t[2].replace(str(PLD), "9.0"))),
        "metrics.jsonl",
        "above the final",
    ),
    Lie("not JSON", forge_lines("metrics.jsonl", lambda t: t.insert(0, "x\n")), "metrics.jsonl", "no JSON object"),
    Lie(
        "a step behind the end",
        forge_lines("metrics.jsonl", lambda t: t.append(t[2].replace("30", "31"))),
        "metrics.jsonl",
        "behind",
    ),
    Lie("last line cut", truncate("metrics.jsonl", 5), "metrics.jsonl", "cut off"),
    Lie(
        "accuracy above 1",
        forge_lines("metrics.jsonl", lambda t: t.__setitem__(0, t[0].replace("0.5", "1.5"))),
        "metrics.jsonl",
        "test_accuracy",
    ),
]

LIES = [*DIGEST_LIES, *RUN_LIES, *LEDGER_LIES, *CERTIFICATE_LIES, *METRICS_LIES]
