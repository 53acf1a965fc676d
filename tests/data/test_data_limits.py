"""Files that lie about their size, never end, or hold what no codec takes: each ends in one error, at once."""

from __future__ import annotations

import errno
import gzip
import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from data_samples import idx_bytes, write_csv, write_image_folder, write_mnist
from PIL import Image
from pyarrow import parquet

from twinproof.cli.train import read_toml
from twinproof.data import limits
from twinproof.data.load import load, public_name
from twinproof.data.record import DataConfig, Dataset
from twinproof.errors import ConfigError, DataError, SystemFault
from twinproof.privacy.redistribution import parse_redistribution

RANGES = {"*": (0.0, 1.0)}


def load_path(path: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=str(path), **settings), public_fraction=0.3)


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    encoded = header.encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(encoded).to_bytes(2 if version == 1 else 4, "little") + encoded + content


def write_members(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def array_bytes(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["x.csv", "x.npz", "x.parquet"])
def test_pipes_devices_and_folders_are_not_read(tmp_path: Path, name: str) -> None:
    whole = write_csv(tmp_path / "whole.csv", "age,label", "0.1,a", "0.2,b")
    pipe, device = tmp_path / name, tmp_path / f"device-{name}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, got in ((pipe, "a pipe"), (device, "a device")):
        with pytest.raises(DataError, match="not a regular file") as caught:
            load_path(path, ranges=RANGES)
        assert (caught.value.where, caught.value.got) == (str(path), got)
    with pytest.raises(DataError, match="a folder"):
        load_path(whole, ranges=RANGES, test=str(tmp_path))


def test_other_options_that_name_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got: a device"):
        parse_redistribution("/dev/zero")
    with pytest.raises(ConfigError, match="got: a device"):
        read_toml(Path("/dev/zero"))
    large = tmp_path / "large.txt"
    large.write_bytes(b"1 " * (limits.SHARES_BYTES // 2 + 1))
    with pytest.raises(DataError, match=r"got: 16.0 MiB"):
        parse_redistribution(str(large))
    lying = tmp_path / "lying.npy"
    lying.write_bytes(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"))
    with pytest.raises(DataError, match=r"got: 67055.2 GiB of records in 80 bytes"):
        parse_redistribution(str(lying))
    nested = tmp_path / "nested.toml"
    nested.write_text("a = " + "[" * 5000)
    with pytest.raises(ConfigError, match="settings file"):
        read_toml(nested)


@pytest.mark.parametrize("sizes", [(2**31, 28, 28), (60_000, 10_000, 28)])
def test_an_idx_header_that_declares_too_much(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    write_mnist(tmp_path)
    header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in sizes)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(100)))
    with pytest.raises(DataError, match="too much memory for a file of this size") as caught:
        load_path(tmp_path)
    assert "GiB of records in" in caught.value.got


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 2**20)
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((3000, 28, 28), dtype=np.uint8))))
    with pytest.raises(DataError, match="too much memory"):
        load_path(tmp_path)
    # A header that understates the content: reading ends one byte later.
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((40, 28, 28), dtype=np.uint8)) + bytes(2**25)))
    with pytest.raises(DataError, match="longer than its header"):
        load_path(tmp_path)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 50), }", "too much memory"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (100000000, 2), }", "too much memory"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3), }", "shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3), }", "0 bytes"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2, 2, 2, 2), }", "up to 4 axes"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (4,), }", "type"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", "pickled objects are refused"),
        ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (4,), }", "type"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': 'many', }", "cannot be read"),
        ("{'descr': 7, 'fortran_order': False, 'shape': (4,), }", "cannot be read"),
        ("{'shape': (4,)}", "cannot be read"),
        ("-" * 900 + "1", "cannot be read"),
        ("(" * 150 + ")" * 150, "cannot be read"),
        ("[" * 5000, "cannot be read"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_headers_of_arrays(tmp_path: Path, header: str, match: str, version: int) -> None:
    path = write_members(tmp_path / "a.npz", x=npy(header + "\n", version=version), y=array_bytes(np.arange(4) % 2))
    with pytest.raises(DataError, match=match) as caught:
        load_path(path, ranges=RANGES)
    assert caught.value.where.startswith(str(path))


def test_other_members_of_an_archive_are_left_alone(tmp_path: Path) -> None:
    arrays = {"x": array_bytes(np.random.default_rng(0).random((60, 3))), "y": array_bytes(np.arange(60) % 2)}
    data = load_path(write_members(tmp_path / "a.npz", **arrays, notes=b"not an array"), ranges=RANGES)
    assert len(data.train) + len(data.test) == 60
    path = write_members(tmp_path / "b.npz", **{f"a{number}": b"" for number in range(30)})
    with pytest.raises(DataError, match=r"a19, \.\.\. \(30 in all\)"):
        load_path(path)


def test_an_archive_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = write_members(
        tmp_path / "a.npz", x=array_bytes(np.zeros((70_000, 1000), dtype=np.uint8)), y=array_bytes(np.zeros(70_000, int))
    )
    with pytest.raises(DataError, match=r"got: 543.1 MiB of records in") as caught:
        load_path(path, ranges=RANGES)
    assert "without compression" in caught.value.fix


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (np.array(["a", "\ud800"]), "not valid text"),
        (np.array(["a", "9" * 5000]), "too long"),
        (np.array(["a", "b" * 131_000]), "too long"),
        (np.array([97, 0x7FFFFFFF], dtype="<u4").view("<U1"), r"record 1\n  got: U\+7FFFFFFF"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), "too large"),
    ],
)
def test_labels_that_are_not_names(tmp_path: Path, labels: Any, match: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 3)), y=labels)
    with pytest.raises(DataError, match=match):
        load_path(path, ranges=RANGES)
    np.savez(path, x=np.zeros((4, 0)), y=np.arange(4) % 2)
    with pytest.raises(DataError, match="inputs are empty"):
        load_path(path, ranges=RANGES)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_image_folder(tmp_path / "pets", ("cat", os.fsdecode(b"d\xff\xfeg")))
    with pytest.raises(DataError, match="not valid text") as caught:
        load_path(tmp_path / "pets")
    assert caught.value.got == r"'d\udcff\udcfeg'"
    caught.value.message().encode()
    assert public_name(Path(os.fsdecode(b"a\xff.csv"))) == r"a\udcff.csv"
    with pytest.raises(ConfigError):
        load(os.fsdecode(b"a\xff.csv"))
    with pytest.raises(DataError, match="nothing at this path"):
        load_path(Path("a\0.csv"))
    with pytest.raises(DataError, match="File name too long"):
        load_path(Path("a" * 300 + ".csv"))


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def test_a_long_label_and_many_columns_take_seconds(tmp_path: Path) -> None:
    long = write_csv(tmp_path / "long.csv", "age,label", *["0.5,a", "0.25,b"] * 20_000, f"0.5,{'c' * 131_000}")
    columns = ",".join(f"column{number}" for number in range(60_000))
    rows = [",".join([f"0.{number}"] * 60_000) + f",{'ab'[number % 2]}" for number in range(10, 30)]
    wide = write_csv(tmp_path / "wide.csv", f"{columns},label", *rows)

    def read() -> None:
        with pytest.raises(DataError, match=r"'cccccccccccccccccccc'... \(131000 characters\)"):
            load_path(long, ranges=RANGES)
        assert load_path(wide, ranges=RANGES).shape == (60_000,)

    assert timed(read) < 15
    over = write_csv(tmp_path / "over.csv", ",".join(f"c{number}" for number in range(limits.COLUMNS)) + ",label", "1")
    with pytest.raises(DataError, match="too many columns"):
        load_path(over, ranges=RANGES)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("1.pgm", b"P5 100000 100000 255\n0", r"cannot be read|unusable size"),
        ("1.pgm", b"P5 10000 10000 255\n0", "10000x10000 pixels"),
        # Pillow would hand PostScript to a program of its own.
        ("1.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n", "cannot identify image file"),
        ("1a.png", None, "a pipe"),
    ],
)
def test_images_that_are_not_opened(tmp_path: Path, name: str, content: bytes | None, match: str) -> None:
    for part in ("train", "test"):
        write_image_folder(tmp_path / part)
    path = tmp_path / "train" / "cat" / name
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=match):
        load_path(tmp_path)


def test_images_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(3):
                Image.new("L", (1000, 1000)).save(tmp_path / part / name / f"{number}.png")
    assert load_path(tmp_path).shape == (1, 1000, 1000)
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 2**20)
    with pytest.raises(DataError, match="store the images without compression"):
        load_path(tmp_path)


def test_a_parquet_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNPACKED_BYTES", 2**20)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"age": np.zeros(200_000), "label": ["a", "b"] * 100_000}), path)
    with pytest.raises(DataError, match="too much memory") as caught:
        load_path(path, ranges=RANGES)
    assert "or as CSV" in caught.value.fix


def test_a_file_above_the_limit_is_not_opened(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", "age,label", "1,a")
    os.truncate(path, limits.FILE_BYTES + 1)
    with pytest.raises(DataError, match=r"too large\n.*\n  got: 64.0 GiB"):
        load_path(path, ranges=RANGES)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), MemoryError),
        (OSError(errno.EIO, "Input/output error"), SystemFault),
        (PermissionError(errno.EACCES, "Permission denied"), SystemFault),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_faults_of_the_machine_are_not_called_bad_data(error: BaseException, kind: type[BaseException]) -> None:
    with pytest.raises(kind), limits.reading("a.csv"):
        raise error


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (ValueError("bad digit"), "ValueError: bad digit"),
        (AssertionError(), "AssertionError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file or directory"),
        (zipfile.BadZipFile("no zip"), "BadZipFile: no zip"),
    ],
)
def test_what_decoders_raise_becomes_one_error(error: Exception, got: str) -> None:
    with pytest.raises(DataError) as caught, limits.reading("a.csv", "a table", "mend it"):
        raise error
    assert list(caught.value.as_dict().values()) == ["the file cannot be read", "a.csv", got, "a table", "mend it"]
