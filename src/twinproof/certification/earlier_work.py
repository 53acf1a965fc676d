"""What an earlier certification left in a run: gone on with, refused, or replaced without ever mixing the two."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from twinproof.certification.promise import unfinished_promise
from twinproof.errors import RunError
from twinproof.files import sync_folder
from twinproof.runs.certificates import CertificateSettings, read_certificates, read_settings, write_settings
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.record import update_run_json
from twinproof.runs.run_model import GUARANTEES

SAMPLING, COMPLETE = "sampling", "complete"
CERTIFICATE_FILES = ("certificates.json", "certificates.csv")


def take_up(root: Path, wanted: CertificateSettings, *, own_key: bool, overwrite: bool) -> tuple[CertificateSettings, int]:
    """The settings to go on with, and how many inputs are done already.

    ``own_key`` says that the caller chose the key of ``wanted``; otherwise the key of the earlier work is taken over.

    Guarantees
        Certificates made under other settings are never counted as done: work is gone on with only where every setting that
        the votes depend on is the same, and the old files are gone before the new settings are on the disk.
    """
    earlier = None if overwrite else read_settings(root)
    if earlier is None:
        _start_afresh(root, wanted)
        return wanted, 0
    different = _differences(earlier, wanted, own_key=own_key)
    if different:
        old, new = asdict(earlier), asdict(wanted)
        raise RunError(
            "this run has certificates with other settings",
            where=str(RunLayout(root).certificates_json),
            got=", ".join(f"{name} {old[name]}" for name in different),
            wanted=", ".join(f"{name} {new[name]}" for name in different),
            fix="--overwrite replaces them; or copy the run first",
        )
    return earlier, _lines_done(root, earlier)


def earlier_form(root: Path, device: torch.device, *, shared_noise: bool) -> str | None:
    """The form of the network in which earlier work of this kind counted its votes on such a device; None without any."""
    earlier = read_settings(root)
    if earlier is None or _device_kind(earlier) != device.type or earlier.shared_noise != shared_noise:
        return None
    return earlier.form


def is_recorded(root: Path) -> bool:
    """Whether ``run.json`` binds the certificates already."""
    return all(name in read_run_json(root).get("files", {}) for name in CERTIFICATE_FILES)


def _differences(earlier: CertificateSettings, wanted: CertificateSettings, *, own_key: bool) -> list[str]:
    """Names of the settings that differ and matter: where votes are still to be drawn, also what they are drawn with."""
    free = {"state", "created", "seconds"} | (set() if own_key else {"key"})
    same_device = _device_kind(earlier) == _device_kind(wanted)
    if earlier.state == COMPLETE:
        free |= {"device", "versions", "arithmetic", "form"}
    elif same_device:
        free |= {"device"}
    old, new = asdict(earlier), asdict(wanted)
    different = [name for name in old if name not in free and old[name] != new[name]]
    # The looks follow from the other settings: named only where nothing else explains them.
    return [name for name in different if name != "looks"] or different


def _device_kind(settings: CertificateSettings) -> str:
    return settings.device.partition(":")[0]


def _lines_done(root: Path, settings: CertificateSettings) -> int:
    indices = [certificate.index for certificate in read_certificates(root)]
    short = settings.state == COMPLETE and len(indices) != settings.inputs
    if short or len(indices) > settings.inputs or indices != list(range(len(indices))):
        raise RunError(
            "the certificates are not the ones that certificates.json describes",
            where=str(RunLayout(root).certificates_csv),
            got=f"{len(indices)} lines, state {settings.state!r}",
            wanted=f"the inputs 0 to {settings.inputs - 1} in order",
            fix="restore the file, or certify again with --overwrite",
        )
    return len(indices)


def _start_afresh(root: Path, wanted: CertificateSettings) -> None:
    guarantees = {**read_run_json(root, GUARANTEES)["guarantees"], "robustness": unfinished_promise(wanted).as_dict()}
    # Settings go first and come back last: a kill in between leaves no settings, never new ones beside old certificates.
    layout = RunLayout(root)
    layout.certificates_json.unlink(missing_ok=True)
    sync_folder(root)
    layout.certificates_csv.unlink(missing_ok=True)
    sync_folder(root)
    update_run_json(root, files=CERTIFICATE_FILES, guarantees=guarantees)
    write_settings(root, wanted)
