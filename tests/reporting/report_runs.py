"""Small runs with certificates, attacks and audits, written as docs/formats/run.md describes them, and checks of pages."""

from __future__ import annotations

import html
import json
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from numpy.typing import NDArray
from safetensors.numpy import save

from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.certificate_verdict import (
    FLIPPED,
    HELD,
    UNDECIDED,
    AttackedCertificate,
    AuditSettings,
    CertificateAudit,
    Flip,
    verdict_of,
)
from twinproof.certification.method import CertificateSettings
from twinproof.data.record import Dataset, InputKind, Scaling, Split
from twinproof.evaluation.attack_record import AttackLine, AttackSettings, format_lines, read_attacks
from twinproof.evaluation.attack_results import attack_results
from twinproof.evaluation.certified import CertifiedLine
from twinproof.evaluation.protocols import CLEAN, AttackPlan, Entry
from twinproof.files import sha256_file, write_json
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.reporting import canvas, write_report
from twinproof.runs.layout import RunLayout
from twinproof.runs.records import ABSTAIN, Certificate, format_certificates, json_file
from work_settings import CERTIFICATES, changed

LARGEST_RADIUS = 1.599289
_honestly_drawn = canvas._drawn
_drawings: dict[bytes, Markup] = {}
CLASSES = ("zero", "one", "two", "three")
LABELS = tuple(index % len(CLASSES) for index in range(60))
SIZES = (0.25, 0.5, 1.0)
HOSTILE = "<script>alert(1)</script>\"'&"
Answer = Callable[[Certificate, Entry], int]


@pytest.fixture(scope="module", autouse=True)
def each_plot_once() -> Iterator[None]:
    """Plots take most of the time of a page, and those of many pages here show the same figures."""

    def drawn(name: str, draw: canvas.Draw, frame: canvas.Frame) -> Markup:
        shown = [cell.cell_contents for cell in draw.__closure__ or ()]
        key = pickle.dumps((name, draw.__qualname__, frame, shown))
        if key not in _drawings:
            _drawings[key] = _honestly_drawn(name, draw, frame)
        return _drawings[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canvas, "_drawn", drawn)
        yield


def privacy_promise(status: Status = Status.PROVEN) -> Guarantee:
    return Guarantee(
        kind=Kind.PRIVACY,
        status=status,
        promise="(epsilon, delta)-differential privacy under adding or removing one record",
        theorem="Composition of Poisson-sampled Gaussian mechanisms, accounted by privacy loss distributions",
        assumptions=("One person has one record.", "The noise key was drawn from the system's entropy and is destroyed."),
        values=(("epsilon", 2.9999), ("delta", 1e-5)),
    )


def robustness_promise(status: Status = Status.PROVEN) -> Guarantee:
    return Guarantee(
        kind=Kind.ROBUSTNESS,
        status=status,
        promise="The smoothed classifier's answer is constant within the certified l2 radius",
        theorem="Cohen, Rosenfeld and Kolter 2019, theorem 1, with noise on a grid",
        assumptions=("The noise at inference is the noise that was certified.",),
        values=(("sigma", 0.5), ("alpha", 0.001)),
    )


def run_record(private: Status = Status.PROVEN, robust: Status | None = Status.PROVEN, **changes: Any) -> dict[str, Any]:
    """A complete run.json; keyword arguments replace entries."""
    record: dict[str, Any] = {
        "format": 3, "state": "complete", "created": "2025-01-01T10:00:00Z", "recipe": "dp-cert-gaussian", "device": "cpu",
        "config": {"recipe": "dp-cert-gaussian"},
        "data": {
            "name": "squares", "kind": "image", "shape": [1, 8, 8], "classes": list(CLASSES), "levels": 255,
            "test_records": 360, "records": 1437, "feature_names": [], "scaling": None,
        },
        "guarantees": {
            "privacy": privacy_promise(private).as_dict(),
            "robustness": {} if robust is None else {"l2": robustness_promise(robust).as_dict()},
        },
        "privacy": {
            "epsilon": 2.9999, "epsilon_rdp": 3.210001, "delta": 1e-5, "noise_multiplier": 1.234567, "sample_rate": 0.0625,
            "steps": 400, "clip_norm": 1.0, "divisor": 90,
        },
        "accuracy": {"value": 0.925, "low": 0.892, "high": 0.951, "confidence": 0.95, "correct": 333, "total": 360},
        "versions": {"twinproof": "0.1.0", "torch": "2.13.0"},
        "files": {"model.safetensors": {"sha256": "ab" * 32}},
    }  # fmt: skip
    if changes.get("format", 3) != 3:
        record["guarantees"]["robustness"] = record["guarantees"]["robustness"]["l2"]
    return {**record, **changes}


def certificate_settings(**changes: Any) -> CertificateSettings:
    values: dict[str, Any] = {"model_sha256": "ab" * 32, "sigma": 0.5, "grid": 0.25, "dimension": 64, "n0": 100, "n": 10_000}
    made = {"key": "00" * 32, "largest_radius": LARGEST_RADIUS, "inputs": 360, "classes": 4, "seconds": 61.0}
    return changed(CERTIFICATES, **{**values, **made, "created": "2025-01-01T11:00:00Z", "device": "cpu", **changes})


def make_certificates(labels: Sequence[int], seed: int = 1, classes: int = 4, strength: float = 0.9) -> list[Certificate]:
    """Plausible certificates: most right with radii around the middle, some wrong with small ones, some abstentions."""
    generator = np.random.default_rng(seed)
    certificates = []
    for index, label in enumerate(labels):
        kind = generator.random()
        wrong = (label + 1) % classes
        radius = float(generator.beta(2.2, 1.8)) * LARGEST_RADIUS * strength
        if kind < 0.08:
            certificates.append(Certificate(index, label, ABSTAIN, 5010, wrong, 0.0))
        elif kind < 0.18:
            certificates.append(Certificate(index, label, wrong, 7000, wrong, round(0.4 * radius, 6)))
        else:
            certificates.append(Certificate(index, label, label, 9000, label, round(radius, 6)))
    return certificates


def write_run(
    root: Path,
    record: dict[str, Any] | None = None,
    certificates: Sequence[Certificate] | None = None,
    settings: CertificateSettings | None = None,
    metrics: Sequence[dict[str, Any]] | None = None,
) -> Path:
    """Writes what is given; the parts that are None stay absent."""
    root.mkdir(parents=True)
    layout = RunLayout(root)
    if metrics is not None:
        layout.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    record = run_record() if record is None else record
    if metrics is not None:
        record["files"] = {**record["files"], layout.metrics.name: {"sha256": sha256_file(layout.metrics)}}
    write_json(layout.run_json, record)
    if certificates is not None:
        add_certificates(root, certificates, settings or certificate_settings(inputs=len(certificates)))
    return root


def add_certificates(root: Path, certificates: Sequence[Certificate], settings: CertificateSettings) -> None:
    """Writes a certification under its norm; the promise is that of the one before."""
    name = settings.method.norm
    folder = root / "certificates" / name
    folder.mkdir(parents=True)
    (folder / "certificates.json").write_bytes(json_file(settings.as_dict()))
    (folder / "certificates.csv").write_bytes(format_certificates(certificates))
    record = json.loads((root / "run.json").read_text())
    files = {f"certificates/{name}/{path.name}": {"sha256": sha256_file(path)} for path in folder.iterdir()}
    promises = record["guarantees"]["robustness"]
    if record["format"] == 3:
        first = next(iter(promises.values()))
        kept = {} if len(list(folder.parent.iterdir())) == 1 else promises
        record["guarantees"]["robustness"] = {**kept, name: first}
    write_json(root / "run.json", {**record, "files": {**record["files"], **files}})


def certified_run(root: Path, robust: Status = Status.PROVEN, config: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run with certificates, whose promise of robustness has that status."""
    record = run_record(robust=robust, config={"recipe": "x", **(config or {})})
    return write_run(
        root, record, make_certificates(LABELS), certificate_settings(inputs=len(LABELS), **settings), make_metrics()
    )


def make_metrics(private: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "step": step, "epoch": step * 0.0625, "epsilon": round(2.9999 * (step / 400) ** 0.5, 6) if private else None,
            "test_accuracy": 0.95 * (1 - 2.0 ** (-step / 60)), "test_loss": 1 / step, "rate": 20.0,
        }
        for step in range(40, 401, 40)
    ]  # fmt: skip


def image_data(labels: Sequence[int], channels: int = 1) -> Dataset:
    """Images with a bright square whose place is the class."""
    inputs = np.zeros((len(labels), channels, 8, 8), np.uint8)
    for row, label in enumerate(labels):
        inputs[row, :, 2 * label : 2 * label + 2, 2 * label : 2 * label + 2] = 255
    split = Split(inputs, np.asarray(labels, np.int64))
    return Dataset("squares", InputKind.IMAGE, split, split, CLASSES, 255, public=True)


def feature_data(labels: Sequence[int]) -> Dataset:
    generator = np.random.default_rng(3)
    split = Split(generator.integers(0, 65536, (len(labels), 12)).astype(np.uint16), np.asarray(labels, np.int64))
    names = tuple(f"<b>feature {index}" for index in range(12))
    scaling = Scaling(low=(0.0,) * 12, high=(10.0,) * 12, source="declared")
    return Dataset("table", InputKind.FEATURES, split, split, CLASSES, 65535, names, scaling, public=True)


IMAGES = image_data(LABELS)


def attack_settings(dataset: Dataset, **changes: Any) -> AttackSettings:
    certified = certificate_settings(levels=dataset.levels, grid=1.0, dimension=int(np.prod(dataset.shape)), n=1000)
    plan = AttackPlan("l2", SIZES, ("fgsm", "pgd"))
    norm = changes.pop("certificate_norm", "l2")
    planned = {name: changes.pop(name) for name in list(changes) if hasattr(plan, name)}
    settings = AttackSettings(
        network=certified.network,
        inputs=len(LABELS),
        key="11" * 32,
        made=replace(certified.made, created="2025-01-01T12:00:00Z", seconds=12.5),
        state="complete",
        plan=replace(plan, **planned),
        method=replace(certified.method, norm=norm),
        sampling=certified.sampling,
        noise=certified.noise,
        certificates=norm,
        dimension=certified.noise.dimension,
        random_network=False,
    )
    return changed(settings, **changes)


def plausible(certificate: Certificate, entry: Entry) -> int:
    """Answers that respect every certificate: beyond the radius some abstain or are wrong, more of them when adaptive."""
    if entry == CLEAN or certificate.prediction == ABSTAIN or certificate.radius >= entry.size:
        return certificate.prediction
    kind = (certificate.index + (entry.attack == "pgd")) % (4 if entry.protocol == "adaptive" else 6)
    return ABSTAIN if kind == 1 else (certificate.label + 1) % 4 if kind == 0 else certificate.prediction


def crossing(certificate: Certificate, entry: Entry) -> int:
    """The planted bug: adaptive attacks mislead on every input, certified or not."""
    return (certificate.label + 1) % 4 if entry.protocol == "adaptive" else plausible(certificate, entry)


def moved(dataset: Dataset, entry: Entry, *, factor: float = 0.9) -> NDArray[Any]:
    """The test inputs with two coordinates moved by ``factor`` times the size in all, inside the range."""
    inputs = dataset.test.inputs.astype(np.int64)
    flat = inputs.reshape(len(inputs), -1)
    step = int(factor * entry.size * dataset.levels / np.sqrt(2))
    for place in (0, -1):
        upwards = flat[:, place] <= dataset.levels // 2
        flat[:, place] += np.where(upwards, step, -step)
    return np.clip(flat, 0, dataset.levels).reshape(inputs.shape).astype(dataset.test.inputs.dtype)


def attack_line(certificate: Certificate, entry: Entry, answer: int) -> AttackLine:
    network = certificate.label if entry.size < 1 else (certificate.label + 2) % 4
    return AttackLine(
        index=certificate.index, protocol=entry.protocol, target=entry.target, attack=entry.attack, size=entry.size,
        label=certificate.label, aim=-1, length=0.9 * entry.size, network=network, network_unrounded=network,
        prediction=answer, votes=900, top=max(answer, 0), radius=0.0 if answer == ABSTAIN else 0.3, draws=1000,
    )  # fmt: skip


def add_attacks(
    root: Path, dataset: Dataset, certificates: Sequence[Certificate], answer: Answer = plausible, **changes: Any
) -> list[AttackLine]:
    """Writes attacks on the run; ``factor`` is the share of each size that attacked inputs really moved."""
    factor = changes.pop("factor", 0.9)
    settings = attack_settings(dataset, **changes)
    plan = settings.plan
    lines = [attack_line(one, entry, answer(one, entry)) for entry in (CLEAN, *plan.entries) for one in certificates]
    results = attack_results(settings, lines, CertifiedLine(certificates, 0.001, "certificates.csv"))
    inputs = {entry.name: moved(dataset, entry, factor=factor) for entry in plan.entries}
    folder = root / "attacks" / plan.norm
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attacks.safetensors").write_bytes(save({name: np.ascontiguousarray(one) for name, one in inputs.items()}))
    (folder / "attacks.csv").write_bytes(format_lines(lines))
    (folder / "attacks.json").write_bytes(json_file({**settings.as_dict(), "results": results}))
    return lines


def attacked_run(root: Path, dataset: Dataset, answer: Answer = plausible, **changes: Any) -> Path:
    """A complete run with certificates and attacks."""
    certificates = make_certificates(LABELS)
    write_run(root, run_record(), certificates, metrics=make_metrics())
    add_attacks(root, dataset, certificates, answer, **changes)
    return root


def change_results(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites the results of ``attacks.json`` alone."""
    path = root / "attacks" / "l2" / "attacks.json"
    record = read_attacks(path, "l2")
    change(record.results)
    path.write_bytes(json_file({**record.settings.as_dict(), "results": record.results}))


def attacked_certificate(index: int, ratio: float | None, *, inside: bool = False, doubt: bool = False) -> AttackedCertificate:
    flip = None if ratio is None else Flip(ratio * 0.5, ratio, 2, 8000, 10_000, "walk", (1, 2) if inside else None)
    return AttackedCertificate(index, 1, 0.5, FLIPPED if inside else UNDECIDED if doubt else HELD, flip)


def add_audit(
    root: Path,
    attacked: Sequence[AttackedCertificate],
    *,
    complete: bool = True,
    shared_noise: bool = False,
    of: str = "l2",
    **changes: Any,
) -> CertificateAudit:
    """Writes an audit with these findings; the verdict is the one that the audit itself would give."""
    certified = certificate_settings()
    settings = AuditSettings(
        network=certified.network,
        inputs=len(LABELS),
        key="22" * 32,
        made=replace(certified.made, created="2025-01-01T13:00:00Z", seconds=33.0),
        state="complete",
        of=of,
        certificates_sha256=sha256_file(root / f"certificates/{of}/certificates.csv"),
        settings_sha256=sha256_file(root / f"certificates/{of}/certificates.json"),
        norm=of,
        attackable=len(attacked) if complete else 50,
        within=0.99,
        outward=3.0,
        budget=AttackBudget(directions=8, rounds=20),
        false_flips=1e-6,
    )
    verdict = verdict_of(attacked, len(LABELS), 0.001, shared_noise=shared_noise) if complete else None
    audit = CertificateAudit(of, changed(settings, **changes), tuple(attacked), verdict)
    (root / "audits").mkdir(exist_ok=True)
    (root / "audits" / f"{of}.json").write_bytes(audit.content())
    return audit


VOID = {"meta", "img", "br", "line", "rect"}


class Balance(HTMLParser):
    """Fails on a tag that is closed in the wrong place or never; keeps what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.sections: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.loads.append(str(value))
            assert not name.startswith("on"), name
            if tag == "section" and name == "id":
                self.sections.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(page: str) -> Balance:
    """A page that stands alone: balanced, nothing loaded from elsewhere, nothing run, no id twice."""
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert balance.open == []
    assert all(load.startswith(("data:image/png;base64,", "#")) for load in balance.loads), balance.loads
    assert not balance.tags & {"script", "link", "iframe", "object", "embed", "form"}
    assert "@import" not in page
    assert not re.search(r"https?://", page)
    assert not re.search(r"url\((?!#)", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    return balance


def text_of(page: str) -> str:
    """What a reader sees: no style sheet, no markup, one space between words."""
    shown = re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL))
    return " ".join(html.unescape(shown).split())


def report(root: Path, dataset: Dataset | None = IMAGES, **options: Any) -> tuple[str, dict[str, Any]]:
    """The page, checked, and its JSON copy."""
    files = write_report(root, dataset=dataset, **options)
    page = files.html.read_text(encoding="utf-8")
    check_page(page)
    return page, json.loads(files.json.read_text(encoding="utf-8"))


def section(page: str, name: str) -> str:
    """The inside of one section of a page."""
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]
