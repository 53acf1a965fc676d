"""Small valid data sets of every form that is read, and ways to damage them: by byte, and by someone who knows the format."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

FORMS = ("npz", "csv", "parquet", "images", "idx", "cifar10")
CIFAR10_RECORDS = 10

Files = dict[bytes, bytes]

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
TEXTS = (
    "", " ", "nan", "inf", "-inf", "1e999", "-1e-400", "1_000", "0x10", "+1", "--1", "1e", "1.5.2", "9" * 400, "9" * 5000,
    "true", "NA", "null", "\x00", "a\x00b", "\ufeff", "\u202e", "\u0661", "é", "\U0001f600", '"', '""', '"a', 'a"b', "'",
    ",", ",,,,", "\n", "\r", "\r\n", "\t1", "a" * 300, "b" * 20_000, "=1+1", "../../x", "%s%n", "{}", "[1]", "-0", "1,5",
    "\ud7ff", "\u2028",
)  # fmt: skip
DTYPES = (
    "<f8", ">f8", "<f4", "<f2", "|u1", "|i1", "<i8", "<u8", ">i4", "|b1", "<U3", ">U3", "<U0", "<U70000", "|S3", "|O",
    "|V8", "<M8[ns]", "<c16", "<f16", "<q", "", "f", "x9", "<f99", "<U-1", "a5", "f8,f8", "<i9999999999",
)  # fmt: skip
SHAPES = (
    "()", "(0,)", "(12,)", "(12, 3)", "(12, 0)", "(-1,)", "(-1, 3)", "(3, 12)", "(12, 4, 4)", "(12, 4, 4, 3)",
    "(12, 1, 1, 1, 1, 1)", "(1000000000,)", "(100000000, 3)", "(2000000, 50)", "(9223372036854775807,)",
    "(9223372036854775808, 2)", "(4294967296, 4294967296)", "(True,)", "(12.0,)", "('12',)", "12", "None", "[12]",
    "((12,),)", "(12, None)", f"({'9' * 200},)",
)  # fmt: skip
HEADERS = (
    "", "{", "{}", "()", "None", "{'descr': '<f8'}", "[" * 190, "(" * 150 + ")" * 150, "-" * 900 + "1", "{" * 90,
    "__import__('os')", "{'descr': '<f8', 'fortran_order': 'maybe', 'shape': (12,), }",
    "{'descr': [('a', '<f8'), ('b', '|O')], 'fortran_order': False, 'shape': (12,), }",
    "{'descr': '<f8', 'fortran_order': True, 'shape': (12, 3), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (12, 3), 'more': 1}", "9" * 5000,
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A data set: its files by name (in bytes, because names may be broken too), the path and settings to load it with."""

    form: str
    files: Files
    source: str
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes all files below ``folder``."""
        for name, content in self.files.items():
            path = os.path.join(os.fsencode(folder), name)  # noqa: PTH118 (names that are not text)
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "wb") as handle:
                handle.write(content)


class Damage:
    """Makes damaged samples; the same generator and number give the same files."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._images = generator.integers(0, 256, (12, 4, 4), dtype=np.uint8)
        self._features = generator.random((12, 3))
        self._labels = np.arange(12) % 2
        self._bomb = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 40_000, 64, 64) + bytes(40_000 * 64 * 64), 1)

    def sample(self, form: str, draw: random.Random) -> Sample:
        """A damaged data set of this form."""
        makers: dict[str, Callable[[random.Random], Sample]] = {
            "npz": self._npz,
            "csv": self._csv,
            "parquet": self._parquet,
            "images": self._image_folder,
            "idx": self._idx,
            "cifar10": self._cifar10,
        }
        return makers[form](draw)

    def _npz(self, draw: random.Random) -> Sample:
        x: NDArray[Any] = draw.choice([self._images, self._features, self._images / 255, self._features.astype(np.float32)])
        y: NDArray[Any] = draw.choice([self._labels, np.array(["no", "yes"])[self._labels], self._labels.astype(np.uint8)])
        names = draw.choice([("x", "y"), *[("x_train", "y_train", "x_test", "y_test")] * 3])
        arrays = {name: npy_bytes(x if name.startswith("x") else y) for name in names}
        aware = draw.random() < 0.8
        if aware:
            for _ in range(draw.randint(1, 2)):
                name = draw.choice(list(arrays))
                arrays[name] = _damaged_array(arrays[name], draw)
        content = _archive(arrays, draw, aware)
        if not aware or draw.random() < 0.2:
            content = damaged_bytes(content, draw)
        ranges: dict[str, Any] = {"ranges": draw.choice([{"*": (0.0, 1.0)}, {"*": (0.0, 1.0)}, "test"])}
        return Sample("npz", {b"a.npz": content}, "a.npz", ranges if (x.ndim == 2) != (draw.random() < 0.05) else {})

    def _csv(self, draw: random.Random) -> Sample:
        rows = [
            [f"{value:.3f}" for value in row] + [("no", "yes")[label]]
            for row, label in zip(self._features, self._labels, strict=True)
        ]
        table = [["a", "b", "c", "label"], *rows]
        for _ in range(draw.randint(0, 3)):
            row = draw.choice(table)
            place = draw.randrange(len(row) + 1)
            change = draw.randrange(5)
            if change == 0:
                row.insert(place, draw.choice(TEXTS))
            elif change == 1 and row:
                del row[min(place, len(row) - 1)]
            elif change == 2:
                table.insert(draw.randrange(len(table)), list(row))
            elif row:
                row[min(place, len(row) - 1)] = draw.choice(TEXTS)
        ending = draw.choice(["\n", "\r\n", "\r", "\n\n", "\n \n"] if draw.random() < 0.3 else ["\n"])
        quote = '"' if draw.random() < 0.1 else ""
        text = ending.join(",".join(f"{quote}{cell}{quote}" for cell in row) for row in table) + draw.choice(["", ending])
        content = text.encode("utf-8", errors="surrogatepass")
        encoding = draw.random()
        if encoding < 0.05:
            content = text.encode("utf-16", errors="surrogatepass")
        elif encoding < 0.1:
            content = b"\xef\xbb\xbf" + content
        if draw.random() < 0.5:
            content = damaged_bytes(content, draw)
        return Sample("csv", {b"a.csv": content}, "a.csv", {"ranges": {"*": (0.0, 1.0)}})

    def _parquet(self, draw: random.Random) -> Sample:
        columns: dict[str, Any] = {name: pyarrow.array(self._features[:, place]) for place, name in enumerate("abc")}
        columns["label"] = draw.choice(
            [
                pyarrow.array(self._labels),
                pyarrow.array(["no", "yes"] * 6),
                pyarrow.array(["no", "yes"] * 6).dictionary_encode(),
            ]
        )
        if draw.random() < 0.4:
            columns[draw.choice(["a", "label", "new", "", "x" * 300, "\x00", "é"])] = _odd_column(draw)
        buffer = io.BytesIO()
        parquet.write_table(
            pyarrow.table(columns),
            buffer,
            compression=draw.choice(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
            use_dictionary=draw.random() < 0.5,
            row_group_size=draw.choice([3, 100]),
            data_page_version=draw.choice(["1.0", "2.0"]),
            store_schema=draw.random() < 0.7,
        )
        content = buffer.getvalue()
        if draw.random() < 0.85:
            # Most of a small file is its footer, which is where the lies are; half of the damage goes into the pages.
            start = 4 if draw.random() < 0.5 else max(4, len(content) - 600)
            content = content[:start] + damaged_bytes(content[start:], draw)
        return Sample("parquet", {b"a.parquet": content}, "a.parquet", {"ranges": {"*": (0.0, 1.0)}})

    def _image_folder(self, draw: random.Random) -> Sample:
        form = draw.choice(["png", "jpg", "bmp", "webp", "tiff", "pgm", "ppm"])
        mode = "L" if form in ("png", "jpg", "bmp", "tiff", "pgm") else "RGB"
        whole = image_bytes(Image.new(mode, (6, 5), draw.randrange(256)), form)
        files = {b"%s/%s/%d.%s" % (part, name, number, form.encode()): whole
                 for part in (b"train", b"test") for name in (b"cat", b"dog") for number in range(2)}  # fmt: skip
        name = draw.choice(list(files))
        change = draw.random()
        if change < 0.12:
            other = draw.choice(["L", "RGB", "RGBA", "P", "1", "I;16", "CMYK", "F", "LA", "I"])
            size = draw.choice([(6, 5), (5, 6), (1, 1), (300, 200)])
            files[name] = image_bytes(Image.new(other, size), "tiff")
        elif change < 0.2:
            files[draw.choice([b"train/d\xff\xfeg/0.png", b"train/cat/\xff.png", b"train/cat/a.eps", b"test/\xf0/0.png"])] = (
                whole
            )
        elif change < 0.25:
            files[name] = draw.choice(
                [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 5\n", b"GIF89a" + bytes(20), b"P5 99999 99999 255\n0"]
            )
        elif change < 0.5 and form == "png":
            files[name] = _damaged_png(whole, draw)
        else:
            files[name] = damaged_bytes(whole, draw)
        return Sample("images", files, ".")

    def _idx(self, draw: random.Random) -> Sample:
        contents = {}
        for stem in ("train", "t10k"):
            contents[f"{stem}-images-idx3-ubyte"] = bytes([0, 0, 8, 3]) + struct.pack(">3I", 12, 4, 4) + self._images.tobytes()
            contents[f"{stem}-labels-idx1-ubyte"] = bytes([0, 0, 8, 1]) + struct.pack(">I", 12) + bytes(self._labels.tolist())
        name = draw.choice(list(contents))
        change = draw.random()
        if change < 0.4:  # one number of the header
            place = draw.choice(range(4, 16 if "images" in name else 8, 4))
            number = struct.pack(">I", draw.choice(NUMBERS) & 0xFFFFFFFF)
            contents[name] = contents[name][:place] + number + contents[name][place + 4 :]
        elif change < 0.7:
            contents[name] = damaged_bytes(contents[name], draw)
        zipped = draw.random() < 0.6
        files = {
            f"{key}{'.gz' if zipped else ''}".encode(): gzip.compress(value, 1) if zipped else value
            for key, value in contents.items()
        }
        key = f"{name}{'.gz' if zipped else ''}".encode()
        if change >= 0.7:
            files[key] = damaged_bytes(files[key], draw)
        if change > 0.998 and "images" in name:
            files[key] = self._bomb
        return Sample("idx", files, ".")

    def _cifar10(self, draw: random.Random) -> Sample:
        record = bytes(3072)
        batch = b"".join(bytes([number]) + record for number in range(CIFAR10_RECORDS))
        files = {f"{name}.bin".encode(): batch for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")}
        name = draw.choice(list(files))
        if draw.random() < 0.1:
            del files[name]
        else:
            files[name] = damaged_bytes(batch, draw)
        return Sample("cifar10", files, ".", {})


def npy_bytes(values: NDArray[Any]) -> bytes:
    """An array as numpy.save writes it."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def image_bytes(image: Image.Image, form: str) -> bytes:
    """An image file."""
    buffer = io.BytesIO()
    image.save(buffer, {"jpg": "jpeg", "pgm": "ppm"}.get(form, form))
    return buffer.getvalue()


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """One to four changes that know nothing of the format: flips, cuts, copies, insertions, numbers at the edge of a type."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        place = draw.randrange(len(changed) + 1)
        length = draw.choice([1, 2, 4, 8, 16, 64])
        change = draw.randrange(8)
        if change <= 1 and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif change == 2 and place < len(changed):
            changed[place] = draw.randrange(256)
        elif change == 3:
            del changed[place:]
        elif change == 4:
            del changed[place : place + length]
        elif change == 5:
            changed[place:place] = changed[place // 2 : place // 2 + length] * draw.choice([1, 3])
        elif change == 6:
            size = draw.choice([1, 2, 4, 8])
            number = draw.choice(NUMBERS) & (2 ** (8 * size) - 1)
            changed[place : place + size] = number.to_bytes(size, draw.choice(["little", "big"]))
        else:
            changed[place:place] = draw.choice(TEXTS).encode(errors="surrogatepass")[:2000]
    return bytes(changed)


def _damaged_array(content: bytes, draw: random.Random) -> bytes:
    """An array whose header, text or end is someone's lie."""
    length = int.from_bytes(content[8:10], "little")
    header, values = content[10 : 10 + length].decode(), content[10 + length :]
    change = draw.randrange(7)
    if change == 0:
        order = draw.choice(["True", "False"])
        header = f"{{'descr': '{draw.choice(DTYPES)}', 'fortran_order': {order}, 'shape': {draw.choice(SHAPES)}, }}\n"
    elif change == 1:
        header = draw.choice(HEADERS) + "\n"
    elif change == 2:
        header = header.partition("(")[0] + draw.choice(SHAPES) + ", }\n"
    elif change == 3:
        values = values[: draw.randrange(len(values) + 1)] + bytes(draw.choice([0, 1, 8, 4096]))
    elif change == 4:
        points = [draw.choice([0, 97, 0xD800, 0xDFFF, 0x10FFFF, 0x110000, 0xFFFFFFFF, 0x39]) for _ in range(36)]
        header, values = "{'descr': '<U3', 'fortran_order': False, 'shape': (12,), }\n", struct.pack("<36I", *points)
    elif change == 5:
        numbers = [draw.choice([0.0, 1.0, 0.5, -1.0, float("nan"), float("inf"), 1e308, 5e-324]) for _ in range(36)]
        header, values = "{'descr': '<f8', 'fortran_order': False, 'shape': (12, 3), }\n", struct.pack("<36d", *numbers)
    else:
        return draw.choice([b"", b"\x93NUMPY", b"text", content[:20], b"\x80\x04K\x01.", content + content])
    encoded = header.encode()
    if draw.random() < 0.2:
        version = draw.choice([2, 3, 0, 9])
        return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", len(encoded)) + encoded + values
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded) & 0xFFFF) + encoded + values


def _archive(arrays: dict[str, bytes], draw: random.Random, aware: bool) -> bytes:
    buffer = io.BytesIO()
    usual = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    foreign = (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(buffer, "w", draw.choice(foreign if draw.random() < 0.05 else usual)) as archive:
        if aware and draw.random() < 0.1:
            archive.writestr(
                draw.choice(["notes.txt", "x", "é.npy", "../x.npy", "x.npy/", "z.npy"]), draw.choice([b"", b"text", bytes(100)])
            )
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    packed = bytearray(buffer.getvalue())
    if aware and draw.random() < 0.15:  # a field of the archive's directory: sizes, flags (encrypted), method, offset
        place = packed.index(b"PK\x01\x02") + draw.choice([6, 8, 10, 16, 20, 24, 28, 42])
        number = draw.choice(NUMBERS) & 0xFFFF
        packed[place : place + 2] = struct.pack("<H", number)
    return bytes(packed)


def _odd_column(draw: random.Random) -> Any:
    columns: list[Callable[[], Any]] = [
        lambda: pyarrow.array([1.0, None] * 6),
        lambda: pyarrow.array([float("nan")] * 12),
        lambda: pyarrow.array([2**64 - 1] * 12, pyarrow.uint64()),
        lambda: pyarrow.array([True, False] * 6),
        lambda: pyarrow.array([b"\xff", b"a"] * 6),
        lambda: pyarrow.array(["a" * 300, ""] * 6),
        lambda: pyarrow.array([None] * 12),
        lambda: pyarrow.array([[1, 2], []] * 6),
        lambda: pyarrow.array([{"a": 1}] * 12),
        lambda: pyarrow.array(np.arange(12).astype("M8[ns]")),
        lambda: pyarrow.array([1, 2] * 6, pyarrow.decimal128(10, 2)),
        lambda: pyarrow.array(np.arange(12, dtype=np.float16)),
        lambda: pyarrow.array(["9" * 5000] * 12),
        lambda: pyarrow.array(["a", None] * 6).dictionary_encode(),
        lambda: pyarrow.array(range(12)),
        lambda: pyarrow.array(["a", "b"] * 6, pyarrow.large_string()),
    ]
    return draw.choice(columns)()


def _damaged_png(content: bytes, draw: random.Random) -> bytes:
    """A number of the header, with a checksum that fits."""
    header = bytearray(content[12:29])
    place = draw.randrange(4, len(header))
    size = 4 if place < 9 else 1
    header[place : place + size] = (draw.choice(NUMBERS) & (2 ** (8 * size) - 1)).to_bytes(size, "big")
    header = header[:17]
    return content[:12] + bytes(header) + struct.pack(">I", zlib.crc32(header)) + content[33:]
