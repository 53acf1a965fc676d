"""The synthetic run in later formats: with the promises that its settings lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from synthetic_run import bind, chain, sha256
from twinproof_verify.models import translated
from twinproof_verify.sentences import privacy_promise, robustness_promise

MADE = ("device", "versions", "created", "seconds")
NOISE = ("law", "place", "sigma", "grid", "levels", "dimension", "tau", "operator_norm", "operator_norm_method", "slack")
# The keys of format 3 by section, as docs/formats/run.md has them.
SECTIONS = {
    "method": ("norm", "bound", "statistic", "confidence", "runner_up"),
    "sampling": ("n0", "n", "alpha", "target_radius", "shared_noise"),
    "noise": (*NOISE, "slackless_norm"),
    "network": ("model_sha256", "form", "arithmetic", "classes"),
    "made": MADE,
}
PLAN = ("norm", "sizes", "attacks", "protocols", "steps", "step_size", "restarts", "draws", "paper_steps", "aim")
BUDGET = ("steps", "draws", "restarts", "directions", "rounds", "screen", "votes")


def sections(record: dict[str, Any], wanted: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """A record whose keys stand in sections; others keep their places."""
    moved = {name for names in wanted.values() for name in names}
    rest = {name: value for name, value in record.items() if name not in moved}
    return {**rest, **{section: {name: record[name] for name in names} for section, names in wanted.items()}}


def in_format_2(root: Path) -> None:
    """The synthetic run in format 2: the neighbours, and the promises that its settings lead to."""
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    story = [(line["kind"], line["body"]) for line in lines]
    story[0][1].update(format=2, neighbours="replace-by-null")
    (root / "ledger.jsonl").write_text(chain(story))
    run = json.loads((root / "run.json").read_text())
    run |= {"format": 2, "own_network": {"assumptions": ["kept-state"]}}
    if run["privacy"] is None:
        run.pop("own_network")
    settings = json.loads((root / "certificates.json").read_text()) if (root / "certificates.json").is_file() else {}
    certificates = translated("certificates", settings) if settings else {}
    for kind, promise in (("privacy", privacy_promise(run)), ("robustness", robustness_promise(run, certificates))):
        run["guarantees"][kind] = {"kind": kind, **cast(dict[str, Any], promise)}
    (root / "run.json").write_text(json.dumps(run))
    bind(root)


def in_format_3(root: Path, name: str, *, audit: str) -> None:
    """The attacked run of format 2 in format 3: everything under a ``name``, and the audit under one of its own."""
    settings, attacks, audited = (
        json.loads((root / f"{one}.json").read_text()) for one in ("certificates", "attacks", "audit")
    )
    run = json.loads((root / "run.json").read_text())
    settings = sections({**settings, "format": 3, "slackless_norm": None}, SECTIONS)
    plan, results = {key: attacks[key] for key in PLAN}, attacks["results"]
    keys = ("state", "inputs", "key", "dimension", "random_network")
    noise = {**settings["noise"], "dimension": attacks["noise_dimension"]}
    sampling = {**settings["sampling"], **{key: attacks[key] for key in ("n0", "n", "alpha")}}
    kept = {key: attacks[key] for key in keys}
    same = {"method": settings["method"], "network": settings["network"], "made": settings["made"]}
    attacks = {**kept, "format": 3, "certificates": name, "plan": plan, "noise": noise, "sampling": sampling, **same}
    for kind, record in (("certificates", settings), ("attacks", {**attacks, "results": results})):
        (root / kind / name).mkdir(parents=True)
        (root / kind / name / f"{kind}.json").write_text(json.dumps(record))
        (root / f"{kind}.json").unlink()
        for path in root.glob(f"{kind}.*"):
            path.rename(root / kind / name / path.name)
    section = {**audited["certificates"], "classes": settings["network"]["classes"], "of": name}
    section["settings_sha256"] = sha256((root / "certificates" / name / "certificates.json").read_bytes())
    section = sections(section, {"budget": BUDGET, "network": SECTIONS["network"], "made": MADE})
    (root / "audits").mkdir()
    (root / "audits" / f"{audit}.json").write_text(json.dumps({"format": 3, "certificates": section}))
    (root / "audit.json").unlink()
    promise = robustness_promise(run, settings, (f"audits/{audit}.json", section["verdict"]))
    run["guarantees"]["robustness"] = {name: {"kind": "robustness", **cast(dict[str, Any], promise)}}
    (root / "run.json").write_text(json.dumps({**run, "format": 3}))
