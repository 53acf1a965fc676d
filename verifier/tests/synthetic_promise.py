"""The synthetic run in the format of this version: with the promises that its settings lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from synthetic_run import bind, chain
from twinproof_verify.sentences import privacy_promise, robustness_promise


def in_format_2(root: Path) -> None:
    """The synthetic run as this version writes it: the format, the neighbours, and the promises that its settings lead to."""
    lines = [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
    story = [(line["kind"], line["body"]) for line in lines]
    story[0][1].update(format=2, neighbours="replace-by-null")
    (root / "ledger.jsonl").write_text(chain(story))
    run = json.loads((root / "run.json").read_text())
    run |= {"format": 2, "own_network": {"assumptions": ["kept-state"]}}
    if run["privacy"] is None:
        run.pop("own_network")
    settings = json.loads((root / "certificates.json").read_text()) if (root / "certificates.json").is_file() else {}
    for kind, promise in (("privacy", privacy_promise(run)), ("robustness", robustness_promise(run, settings, {}))):
        run["guarantees"][kind] = {"kind": kind, **cast(dict[str, Any], promise)}
    (root / "run.json").write_text(json.dumps(run))
    bind(root)
