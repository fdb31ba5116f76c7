"""Reading traces: 10^7 rows of Parquet must cost less than 3 s; 10^6 rows of CSV, with and without pyarrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb
import fedbuff._delays.text_file

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 10_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("traces")


def columns(kind: str) -> dict[str, object]:
    rng = np.random.default_rng(0)
    client = rng.integers(0, 100_000 if kind == "integers" else 10_000, ROWS)
    made = {"client": client, "compute": rng.exponential(size=ROWS)}
    if kind == "strings":
        names = pa.array([f"device-{i:05d}" for i in range(10_000)])
        made["client"] = pa.DictionaryArray.from_arrays(pa.array(client.astype(np.int32)), names).cast(pa.string())
    if kind == "all columns":
        made |= {name: rng.random(ROWS) for name in ("wait", "download", "upload")}
        made["ok"] = rng.random(ROWS) < 0.99
    return made


@pytest.mark.parametrize("kind", ["integers", "strings", "all columns"])
def test_parquet(benchmark, folder, kind) -> None:
    path = folder / "t.parquet"
    pq.write_table(pa.table(columns(kind)), path)
    trace = benchmark.pedantic(fb.read_trace, args=(path,), rounds=3)
    assert trace.n_rows == ROWS
    assert trace.n_clients == (100_000 if kind == "integers" else 10_000)
    assert benchmark.stats.stats.min < 3.0


@pytest.mark.parametrize("reader", ["pyarrow", "numpy"])
def test_csv(benchmark, folder, monkeypatch, reader) -> None:
    rows = ROWS // 10
    rng = np.random.default_rng(1)
    path = folder / "t.csv"
    fb.Trace(rng.integers(0, 1000, rows), rng.exponential(size=rows)).save(path)
    if reader == "numpy":
        monkeypatch.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
    trace = benchmark.pedantic(fb.read_trace, args=(path,), rounds=1)
    assert trace.n_rows == rows
