"""Time and memory to read a large table: the readers beside the row-by-row ones that they replaced.

    python benchmarks/read_tables.py --rows 1000000 --columns 50 --out results/read-tables.json

Every reader runs in a process of its own, one after the other on the same files; memory is the process's peak above what it
had before it began to read.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.data.table import read_table
from twinproof.files import write_json
from twinproof.runs.layout import utc_now

BLOCK = 50_000


def write_tables(folder: Path, rows: int, columns: int) -> tuple[Path, Path]:
    """The same random table as CSV and as Parquet."""
    import pyarrow
    from pyarrow import parquet

    generator = np.random.default_rng(0)
    names = [f"f{number}" for number in range(columns)]
    plain, packed = folder / "table.csv", folder / "table.parquet"
    schema = pyarrow.schema([*((name, pyarrow.float64()) for name in names), ("label", pyarrow.string())])
    with open(plain, "w", encoding="utf-8") as handle, parquet.ParquetWriter(packed, schema) as writer:
        handle.write(",".join([*names, "label"]) + "\n")
        for start in range(0, rows, BLOCK):
            values = generator.normal(size=(min(BLOCK, rows - start), columns)).round(6)
            labels = [f"class {label}" for label in generator.integers(0, 3, len(values))]
            handle.writelines(
                f"{','.join(map(repr, row))},{label}\n" for row, label in zip(values.tolist(), labels, strict=True)
            )
            writer.write_batch(pyarrow.record_batch([*values.T, labels], schema=schema))
    return plain, packed


def old_csv(path: Path) -> int:
    """Python's csv module and one array a row: the reader of 12d5acf, without its checks."""
    features, labels = [], []
    with open(path, newline="", encoding="utf-8-sig") as handle:
        reader = csv.reader(handle, strict=True)
        next(reader)
        for cells in reader:
            labels.append(cells.pop().strip())
            numbers = np.array([float(cell) for cell in cells])
            if not np.isfinite(numbers).all():
                raise ValueError("not finite")
            features.append(numbers)
    return len(np.stack(features)) + 0 * len(np.array(labels))


def old_parquet(path: Path) -> int:
    """Arrow's table as Python objects: the reader of 12d5acf."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    columns = [
        np.array([np.nan if value is None else float(value) for value in table.column(name).to_pylist()])
        for name in table.column_names[:-1]
    ]
    labels = np.array([str(value) for value in table.column(len(columns)).to_pylist()])
    return len(np.stack(columns, axis=1)) + 0 * len(labels)


def new_reader(path: Path) -> int:
    """The reader of today."""
    return len(read_table(path, "table", DataConfig(source=str(path))).train)


def whole_load(path: Path) -> int:
    """Reading and everything after it: bounds, classes, levels."""
    test = path.with_name("test.csv")
    with open(path, encoding="utf-8") as handle:
        test.write_text("".join(next(handle) for _ in range(1000)), encoding="utf-8")
    return len(load(DataConfig(source=str(path), test=str(test), ranges={"*": (-6.0, 6.0)})).train)


READERS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "csv, row by row (12d5acf)": ("table.csv", old_csv),
    "csv": ("table.csv", new_reader),
    "csv, whole load": ("table.csv", whole_load),
    "parquet, Python objects (12d5acf)": ("table.parquet", old_parquet),
    "parquet": ("table.parquet", new_reader),
}


def measure(name: str, folder: Path) -> None:
    """One reader, in this process; prints a line of JSON."""
    file, read = READERS[name]
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401 (loading the package is not reading)

    before = peak_bytes()
    start, core = time.perf_counter(), time.process_time()
    rows = read(folder / file)
    taken = {"seconds": round(time.perf_counter() - start, 2), "core_seconds": round(time.process_time() - core, 2)}
    print(json.dumps({"rows": rows, **taken, "megabytes": round((peak_bytes() - before) / 1e6)}))


def peak_bytes() -> int:
    """The kernel's mark of resident memory; that of getrusage may be the parent's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reader", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        measure(given.reader[0], Path(given.reader[1]))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        files = write_tables(Path(place), given.rows, given.columns)
        for name in READERS:
            line = [sys.executable, __file__, "--reader", name, place]
            answer = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[name] = json.loads(answer)
            print(name, answer.strip(), flush=True)
        sizes = {file.name: file.stat().st_size for file in files}
    result = {
        "command": f"python benchmarks/read_tables.py --rows {given.rows} --columns {given.columns}",
        "made": utc_now(),
        "device": f"cpu: {platform.machine()}, 1 thread",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("numpy", "pyarrow")},
        "bytes": sizes,
        "readers": found,
    }
    if given.out is not None:
        write_json(given.out, result)


if __name__ == "__main__":
    main()
