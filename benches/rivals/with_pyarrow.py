"""pyarrow reads the same files into a table, and no more: what a trace costs beyond that is checks and numbering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .data import FOLDER


def trace_file(kind: str, rows: int) -> Path:
    """A file of clients and compute times, written once. csv: 1,000 clients by number; parquet: 10^5 by text."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"trace-{rows}.{kind}"
    if not path.exists():
        generator = np.random.default_rng(0)
        compute = generator.exponential(size=rows)
        beside = path.with_suffix(f".{kind}.part")
        if kind == "csv":
            made = pa.table({"client": generator.integers(0, 1000, rows), "compute": compute})
            pyarrow.csv.write_csv(made, beside)
        else:
            names = pa.array([f"device-{i:06d}" for i in range(100_000)])
            client = pa.array(generator.integers(0, len(names), rows, dtype=np.int32))
            texts = pa.DictionaryArray.from_arrays(client, names).cast(pa.string())
            pyarrow.parquet.write_table(pa.table({"client": texts, "compute": compute}), beside)
        beside.replace(path)
    return path


def read_trace(kind: str, rows: str) -> Callable[[], dict[str, Any]]:
    import pyarrow.csv
    import pyarrow.parquet

    path, read = trace_file(kind, int(rows)), pyarrow.csv.read_csv if kind == "csv" else pyarrow.parquet.read_table

    def run() -> dict[str, Any]:
        table = read(path)
        return {"amount": table.num_rows, "norm": float(np.sum(table["compute"].to_numpy()))}

    return run
