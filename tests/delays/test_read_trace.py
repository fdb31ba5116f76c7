"""Reading and writing traces: CSV with and without pyarrow, gzip, NPZ, Parquet; bad files name the line or row."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb
import fedbuff._delays.text_file

_PLACES = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
DATA = next((place for place in _PLACES if place.is_dir()), _PLACES[3])

GOOD = "client,task,wait,download,compute,upload,ok,note\n" + "".join(
    f"{c},{k},0.5,{0.1 * c},{1 + k},0.25,{'true' if k else 'FALSE'},x\n" for k in range(3) for c in (2, 0, 1)
)


@pytest.fixture(params=["arrow", "numpy"])
def reader(request, monkeypatch):
    """Both CSV readers: the fast one, and the one where only NumPy is there."""
    if request.param == "numpy":
        monkeypatch.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
    else:
        pytest.importorskip("pyarrow")
    return request.param


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_csv(tmp_path, reader, name) -> None:
    trace = fb.read_trace(write(tmp_path / name, GOOD))
    assert trace.n_clients == 3
    assert trace.client_ids.tolist() == [0, 1, 2]
    assert trace.compute.tolist() == [1.0, 2.0, 3.0] * 3
    assert trace.download.tolist() == [0.0] * 3 + [0.1] * 3 + [0.2] * 3
    assert trace.ok.tolist() == [False, True, True] * 3


def test_both_csv_readers_agree(tmp_path, monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    rows = [
        f'"dev,{c}",{v!r},{u!r}'
        for c, v, u in zip(
            rng.integers(0, 9, 500).tolist(), rng.exponential(size=500).tolist(), rng.random(500).tolist(), strict=True
        )
    ]
    rows.insert(3, "")  # a blank line
    path = write(tmp_path / "t.csv", "\ufeffclient,compute,upload\r\n" + "\r\n".join(rows))
    fast = fb.read_trace(path)
    monkeypatch.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
    assert fb.read_trace(path) == fast
    assert fast.client_ids[0] == "dev,0"


def test_ids_that_look_like_integers_but_are_not(tmp_path, reader) -> None:
    path = write(tmp_path / "t.csv", "client,compute\n007,1\n7,2\n")
    assert fb.read_trace(path).client_ids.tolist() == ["007", "7"]


def test_columns_and_unit(tmp_path, reader) -> None:
    path = write(tmp_path / "t.csv", "index,worker,batch_time,task\n0,3,476,9\n1,4,509,9\n")
    trace = fb.read_trace(path, columns={"client": "worker", "compute": "batch_time", "task": None}, unit="ms")
    assert trace.compute.tolist() == [0.476, 0.509]
    assert (
        fb.read_trace(path, columns={"client": "worker", "total": "batch_time", "task": None}, unit=0.5).compute[0]
        == 238.0
    )
    assert (
        fb.read_trace(path, columns={"client": "worker", "compute": "batch_time", "task": None}, unit="min").compute[1]
        == 509 * 60
    )
    with pytest.raises(fb.TraceError, match=r"no column 'gpu' \(for client\); the file has 'index'"):
        fb.read_trace(path, columns={"client": "gpu", "compute": "batch_time"})
    with pytest.raises(ValueError, match="'speed' is not one of client"):
        fb.read_trace(path, columns={"speed": "batch_time"})
    with pytest.raises(ValueError, match=r"unit: expected one of .*, got 'd'"):
        fb.read_trace(path, columns={"client": "worker"}, unit="d")


HEAD = "client,compute,upload,ok,task\n0,1.0,0.0,1,0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "0,1.0,-0.3,1,1\n", "line 3: upload -0.3 is negative"),
        (HEAD + "0,nan,0.0,1,1\n", "line 3: compute is NaN"),
        (HEAD + "0,1.0,inf,1,1\n", "line 3: upload inf is infinite"),
        (HEAD + "9,1.0,0.1,1,0\n", "line 3: client 9 is unknown"),
        (HEAD + "0,fast,0.1,1,1\n", "line 3: compute 'fast' is not a number"),
        (HEAD + "0,,0.1,1,1\n", "line 3: compute is empty"),
        (HEAD + "0,1.0,0.1,maybe,1\n", "line 3: ok 'maybe' is neither true nor false"),
        (HEAD + "0,1.0,0.1,1,1.5\n", "line 3: task '1.5' is not an integer"),
        (HEAD + "0,1.0,0.1,1,1\n0,1.0,0.", "line 4: 3 fields where the header has 5: is the file cut?"),
        (HEAD + "0,1.0,0.1,1,1,7\n", "line 3: 6 fields where the header has 5: is the file cut?"),
        (HEAD + "0,1.0,0.1,1,2\n", "line 3: client 0 has task 2 but no task 1"),
        (HEAD + "0,1.0,0.1,1,0\n", "line 3: client 0 has task 0 twice"),
        (HEAD + ",1.0,0.1,1,0\n", "line 3: client is empty"),
        (HEAD.splitlines()[0] + "\n", "the file has no rows"),
        ("", "the file is empty"),
        ("client,task\n0,0\n", "the file has neither compute nor total"),
        ("client,compute,compute\n0,0,0\n", "column 'compute' appears twice"),
        ("client,compute,total\n0,0,0\n", "the file has compute and total"),
    ],
)
def test_bad_csv_names_the_line(tmp_path, reader, text, message) -> None:
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(fb.TraceError) as caught:
        fb.read_trace(path, clients=2, end="stop")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("(bad.csv)")


def test_errors_use_our_names_for_mapped_columns(tmp_path, reader) -> None:
    path = write(tmp_path / "t.csv", "worker,took,fine\n0,1.0,true\n0,,true\n")
    columns = {"client": "worker", "compute": "took", "ok": "fine"}
    with pytest.raises(fb.TraceError, match=r"^line 3: compute is empty"):
        fb.read_trace(path, columns=columns)
    write(path, "worker,took,fine\n0,1.0,true\n0,1.0,perhaps\n")
    with pytest.raises(fb.TraceError, match=r"^line 3: ok 'perhaps' is neither"):
        fb.read_trace(path, columns=columns)


def test_truncated_gzip_names_the_line(tmp_path, reader) -> None:
    rng = np.random.default_rng(1)
    text = "client,compute\n" + "".join(
        f"{c},{v!r}\n" for c, v in zip(rng.integers(0, 50, 5000), rng.random(5000).tolist(), strict=True)
    )
    whole = write(tmp_path / "whole.csv.gz", text).read_bytes()
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(fb.TraceError, match=r"^line \d+: .*\(cut.csv.gz\)$") as caught:
        fb.read_trace(cut)
    assert 1000 < caught.value.row < 4000
    assert caught.value.line == caught.value.row + 1


def sample() -> fb.Trace:
    rng = np.random.default_rng(2)
    client = rng.integers(0, 20, 300)
    names = np.array([f"phone {i}" for i in range(20)])
    parts = {name: rng.exponential(size=300) for name in ("wait", "download", "upload")}
    return fb.Trace(names[client], rng.exponential(size=300), **parts, ok=rng.random(300) < 0.9)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".npz", ".parquet"])
def test_save_and_read_give_the_same_bits(tmp_path, ending) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    trace = sample()
    trace.save(tmp_path / f"t{ending}")
    assert fb.read_trace(tmp_path / f"t{ending}") == trace
    assert [path.name for path in tmp_path.iterdir()] == [f"t{ending}"]


def test_npz_keeps_availability_and_others_refuse_it(tmp_path) -> None:
    for period in (None, 10.0, [5.0, 7.0]):
        windows = fb.Availability([0, 1], [0.0, 1.0], [1.0, 3.0], n_clients=2, period=period, policy="pause")
        trace = fb.Trace([0, 1], [1.0, 2.0], availability=windows)
        trace.save(tmp_path / "t.npz")
        assert fb.read_trace(tmp_path / "t.npz") == trace
    with pytest.raises(ValueError, match="only NPZ"):
        trace.save(tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


def test_no_half_written_file_is_left(tmp_path, monkeypatch) -> None:
    target = tmp_path / "t.npz"
    target.write_bytes(b"the old file")

    def fails(file, **columns):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="disk full"):
        sample().save(target)
    assert target.read_bytes() == b"the old file"
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_npz_refusals(tmp_path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, client=[0, 1], compute=np.array([1.0, -2.0]))
    with pytest.raises(fb.TraceError, match=r"^row 2: compute -2.0 is negative"):
        fb.read_trace(path)
    np.savez(path, client=[0, 1], compute=np.array(["a", "b"]))
    with pytest.raises(fb.TraceError, match="compute has type <U1, which is not a number"):
        fb.read_trace(path)
    np.savez(path, client=[0, 1], compute=np.array([1.0]))
    with pytest.raises(fb.TraceError, match="columns differ in length: client 2, compute 1"):
        fb.read_trace(path)
    np.savez(path, client=np.array([{}]), compute=np.array([1.0]))
    with pytest.raises(fb.TraceError, match="not a whole NPZ file"):
        fb.read_trace(path)
    sample().save(path)
    whole = path.read_bytes()
    np.save(tmp_path / "v.npy", np.ones(3))
    for content in (whole[: len(whole) // 2], b"", b"not a zip", (tmp_path / "v.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(fb.TraceError, match="not a whole NPZ file"):
            fb.read_trace(path)


def test_parquet_types_nulls_and_truncation(tmp_path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"

    def table(**columns):
        pq.write_table(pa.table(columns), path, row_group_size=2)

    table(client=["b", "a", "b", "c"], compute=pa.array([1, 2, 3, 4], pa.int16()), ok=[True, False, True, True])
    trace = fb.read_trace(path)
    assert trace.client_ids.tolist() == ["a", "b", "c"]
    assert trace.compute.tolist() == [2.0, 1.0, 3.0, 4.0]
    assert trace.ok.tolist() == [False, True, True, True]
    table(client=["b", "a", "b"], compute=[1.0, 2.0, None])
    with pytest.raises(fb.TraceError, match=r"^row 3: compute is empty; missing=.*\(t.parquet\)$"):
        fb.read_trace(path)
    table(client=["b", "a", "b"], compute=["1", "2", "3"])
    with pytest.raises(fb.TraceError, match="compute has type string, which is not a number"):
        fb.read_trace(path)
    table(client=[0.5, 1.0], compute=[1.0, 2.0])
    with pytest.raises(fb.TraceError, match="client has type double, which is not a label"):
        fb.read_trace(path)
    table(client=[1, 2, 2], compute=[1.0, 2.0, -1.0])
    with pytest.raises(fb.TraceError, match=r"^row 3: compute -1.0 is negative"):
        fb.read_trace(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 20])
    with pytest.raises(fb.TraceError, match="not a whole Parquet file"):
        fb.read_trace(path)
    with pytest.raises(FileNotFoundError):
        fb.read_trace(tmp_path / "missing.parquet")


def test_missing_pyarrow_names_the_extra(tmp_path, monkeypatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match=r"reading Parquet needs pyarrow: pip install fedbuff\[parquet\]"):
        fb.read_trace(tmp_path / "t.parquet")


def test_unknown_endings_and_missing_files(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"path: expected a name that ends in .csv, .csv.gz, .npz, .parquet"):
        fb.read_trace(tmp_path / "t.xlsx")
    with pytest.raises(FileNotFoundError):
        fb.read_trace(tmp_path / "t.csv")


@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
def test_arrival_log_files(tmp_path, ending) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    log = fb.ArrivalLog(["b", "a", "b"], [1.0, 2.5, 2.5], version=[0, 0, 1], start_time=[0.0, 0.5, 1.0])
    log.save(tmp_path / f"log{ending}")
    assert fb.read_arrival_log(tmp_path / f"log{ending}") == log
    versions_only = fb.ArrivalLog([0, 1], [1.0, 2.0], version=[0, 0])
    versions_only.save(tmp_path / f"log{ending}")
    assert fb.read_arrival_log(tmp_path / f"log{ending}") == versions_only


def test_arrival_log_refusals(tmp_path, reader) -> None:
    path = write(tmp_path / "log.csv", "client,arrive_time,version\n0,2.0,0\n1,1.0,0\n")
    with pytest.raises(fb.TraceError, match=r"^line 3: arrive_time 1.0 is before the row above, 2.0 \(log.csv\)$"):
        fb.read_arrival_log(path)
    write(path, "client,arrive_time\n0,2.0\n")
    with pytest.raises(fb.TraceError, match="neither version nor start_time"):
        fb.read_arrival_log(path)


@pytest.mark.skipif(not (DATA / "alibaba_minibatch").is_dir(), reason=f"no recorded data in {DATA}")
def test_alibaba_minibatch() -> None:
    columns = {"client": "worker", "compute": "batch_time_norm"}
    steady = fb.read_trace(DATA / "alibaba_minibatch" / "job_4_norm.csv", columns=columns, unit="ms")
    assert steady.n_clients == 10
    assert steady.summary()["between_clients"] > 0.5
    mean = np.add.reduceat(steady.compute, steady.offsets[:-1]) / np.diff(steady.offsets)
    assert 4 < mean.max() / mean.min() < 6
    straggler = fb.read_trace(DATA / "alibaba_minibatch" / "job_1_norm.csv", columns=columns, unit="ms")
    assert np.diff(straggler.offsets).tolist() == [300] * 10


@pytest.mark.skipif(not (DATA / "netlatency_rtt").is_dir(), reason=f"no recorded data in {DATA}")
def test_round_trip_times_as_a_delay_matrix() -> None:
    with np.load(DATA / "netlatency_rtt" / "seattle_rtt_688x99x99_seconds.npz") as file:
        rtt = file["rtt"][:, 49, :]
    known = np.isfinite(rtt).all(axis=0) & (rtt >= 0).all(axis=0)
    trace = fb.traces.from_delay_matrix(rtt[:, known])
    assert trace.n_rows == 688 * int(known.sum())
    assert trace.compute[688 + 5] == rtt[5, np.flatnonzero(known)[1]]
