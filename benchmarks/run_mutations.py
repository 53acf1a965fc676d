"""Changes of a run for ``fuzz_runs.py``: by the structure of its files, by their bytes, and of the files themselves."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import struct
from pathlib import Path
from typing import Any

from twinproof.files import sha256_file
from twinproof.privacy.ledger import GENESIS, Entry

# Written into the text as they are: not every one of them is JSON.
RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "[" * 100_000,
    "[" * 60 + "]" * 60,
    '"\\ud800"',
    "tru",
    "",
)
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**53 + 1,
    2**63,
    10**30,
    -0.5,
    1e-320,
    1e308,
    "",
    "x",
    "x" * 5000,
    "../../etc/passwd",
    "a\x00b",
    "\u202e\x1b[2J",
    [],
    {},
    [None],
    [[]],
    {"x": {"x": []}},
)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        found.append((value, key))
        if isinstance(inner, (dict, list)):
            _places(inner, found)
    return found


def mutate_json(content: bytes, dice: random.Random) -> bytes:
    """One change of the structure: a key lost, renamed, said twice or added, or a value replaced."""
    value = json.loads(content)
    places = _places(value, [])
    if not places:
        return content
    holder, key = dice.choice(places)
    mark, raw = '"\u2063raw\u2063"', None
    change = dice.randrange(7)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, dict):
        holder[dice.choice(["x", "", str(key) + "_", str(key).upper()])] = holder.pop(key)
    elif change == 2:
        holder[key], raw = json.loads(mark), dice.choice(RAW)
    elif change == 3 and isinstance(holder, dict):
        holder[key], raw = json.loads(mark), f"1, {json.dumps(str(key))}: 2"
    elif change == 4 and isinstance(holder[key], (int, float)):
        holder[key] = dice.choice([-holder[key], holder[key] * 2, holder[key] + 1, holder[key] * 10**6, float(holder[key]) / 3])
    elif change == 5 and len(places) > 1:
        other, place = dice.choice(places)
        other[place] = holder[key]
        try:
            json.dumps(value)
        except (ValueError, RecursionError):  # a value inside itself
            return content
    else:
        holder[key] = dice.choice(JUNK)
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
    return (text if raw is None else text.replace(mark, raw).replace(json.dumps(json.loads(mark)), raw)).encode()


def mutate_lines(content: bytes, dice: random.Random, *, chained: bool) -> bytes:
    """A line changed, lost, doubled or moved; ``chained`` gives a ledger right hashes again."""
    lines = [line for line in content.split(b"\n") if line]
    place, change = dice.randrange(len(lines)), dice.randrange(5)
    if change == 0:
        del lines[place]
    elif change == 1:
        lines.insert(dice.randrange(len(lines)), lines[place])
    else:
        lines[place] = mutate_json(lines[place], dice)
    return _rechained(lines) if chained else b"".join(line + b"\n" for line in lines)


def _rechained(lines: list[bytes]) -> bytes:
    entries, previous = [], GENESIS
    for index, line in enumerate(lines):
        try:
            record = json.loads(line)
            entry = Entry(record.get("index", index), record["kind"], record["body"], previous)
            entries.append(entry.line())
            previous = entry.hash
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            entries.append(line + b"\n")
    return b"".join(entries)


def mutate_table(content: bytes, dice: random.Random) -> bytes:
    """A cell, a column or a line changed."""
    rows = [line.split(b",") for line in content.split(b"\n")]
    row = dice.choice(rows)
    cell = dice.randrange(len(row))
    change = dice.randrange(6)
    if change == 0:
        del row[cell]
    elif change == 1:
        row.insert(cell, b"7")
    elif change == 2:
        rows.remove(row)
    elif change == 3:
        rows.insert(dice.randrange(len(rows)), list(row))
    else:
        junk = (b"", b"-1", b"x", b"nan", b"inf", b"1e999", b"9" * 30, b"9" * 6000, b"1_0", b'"', b"\xff", b" 1", b"-0", b"0x1")
        row[cell] = dice.choice(junk)
    return b"\n".join(b",".join(row) for row in rows)


def mutate_tensors(content: bytes, dice: random.Random) -> bytes:
    """The header of a safetensors file changed by its structure, its length fitting or not."""
    (length,) = struct.unpack("<Q", content[:8])
    header = mutate_json(content[8 : 8 + length], dice)
    said = len(header) if dice.random() < 0.8 else dice.choice([0, 2**40, 2**64 - 1, len(header) + 1])
    return struct.pack("<Q", said) + header + content[8 + length :]


def mutate_bytes(content: bytes, dice: random.Random) -> bytes:
    """Bytes flipped, cut, added or spelled in another way."""
    change, place = dice.randrange(8), dice.randrange(len(content) + 1)
    if change == 0:
        return content[:place]
    if change == 1:
        return b""
    if change == 2:
        return content[:place] + dice.randbytes(8) + content[place:]
    if change == 3:
        return b"\xef\xbb\xbf" + content
    if change == 4:
        return content + dice.choice([b"\x00", b"\n", b"{}", content[:50]])
    if change == 5:
        return content.decode("latin-1").encode("utf-16")
    changed = bytearray(content)
    for _ in range(dice.choice([1, 1, 4, 64])):
        if changed:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def mutate_names(path: Path, others: list[Path], dice: random.Random) -> None:
    """A file is lost, takes another one's place, or becomes something else."""
    change, other = dice.randrange(7), dice.choice(others)
    if change == 1 and other != path and other.is_file():
        shutil.copyfile(other, path)
        return
    path.unlink()
    if change == 2:
        path.mkdir()
    elif change == 3:
        os.mkfifo(path)
    elif change == 4:
        path.symlink_to("/dev/zero")
    elif change == 5:
        path.symlink_to(path)


def mutate(root: Path, dice: random.Random) -> str:
    """Changes one file of the run (now and then two) and says which; half of the time what depends on it is made to fit."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    names = []
    for _ in range(1 if dice.random() < 0.8 else 2):
        # run.json holds most of what verbs read.
        path = root / "run.json" if dice.random() < 0.3 else dice.choice(files)
        if not path.is_file() or path.is_symlink():
            continue
        names.append(str(path.relative_to(root)))
        if dice.random() < 0.1:
            mutate_names(path, files, dice)
            continue
        content, kind = path.read_bytes(), path.suffix
        try:
            if dice.random() < 0.25:
                content = mutate_bytes(content, dice)
            elif kind == ".json":
                content = mutate_json(content, dice)
            elif kind == ".jsonl":
                content = mutate_lines(content, dice, chained=path.name == "ledger.jsonl" and dice.random() < 0.7)
            elif kind == ".csv":
                content = mutate_table(content, dice)
            elif kind == ".safetensors":
                content = mutate_tensors(content, dice)
            else:
                content = mutate_bytes(content, dice)
        except (ValueError, struct.error, IndexError, RecursionError):  # a second change of a file that the first one broke
            content = mutate_bytes(content, dice)
        path.write_bytes(content)
    if dice.random() < 0.5:
        _make_fit(root)
    return ", ".join(names) or "nothing"


def _make_fit(root: Path) -> None:
    """Renews the digests in ``run.json``, as somebody would who changes a run on purpose."""
    if not (root / "run.json").is_file():
        return
    try:
        record = json.loads((root / "run.json").read_text())
        for name, entry in record["files"].items():
            if stat.S_ISREG((root / name).lstat().st_mode):
                entry["sha256"] = sha256_file(root / name)
        (root / "run.json").write_text(json.dumps(record))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
