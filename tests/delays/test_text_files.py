"""Text files as people have them: one reading rule with and without pyarrow, delimiters, gaps, and errors by line."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb
import fedbuff._delays.columns
from fedbuff._delays.table import Wanted, present_columns
from fedbuff._delays.text_file import TextFile, _header, _parse_with_arrow


@pytest.fixture(params=["arrow", "rule"])
def reader(request, monkeypatch):
    """With pyarrow, and without it."""
    if request.param == "rule":
        monkeypatch.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
    else:
        pytest.importorskip("pyarrow")
    return request.param


def outcome(path: Path, **options):
    """What reading gives, whichever it is: ids, times and flags, or the error's text and rows."""
    try:
        trace = fb.read_trace(path, **options)
    except fb.TraceError as error:
        return str(error), error.row, error.line, error.count
    return trace.client_ids.dtype.kind, trace.client_ids.tolist(), trace.compute.tolist(), trace.ok.tolist()


CELLS = [
    "1e3",
    " 1",
    "+1",
    "0x10",
    "nan",
    "inf",
    "-1",
    "1_0",
    "\uff11",
    "1.",
    ".5",
    "1e400",
    "1e-400",
    "",
    " ",
    "NA",
    "-0",
]
CELLS += ["9" * 30, "1" + "0" * 5000, "0." + "1" * 400, "007", '"1"', '" 1"', "1,", '1"', '"1"2', '"1', "\t1", "nan(1)"]
CELLS += [
    "true",
    "1d5",
    "0X1",
    "1\x0b",
    "\u0661",
    "²",
    "\xa01",
    "\u20281",
    "1e5\r",
    "--1",
    "1 2",
    "infinity",
    "None",
    "null",
]


@pytest.mark.parametrize("column", ["client", "compute", "task", "ok"])
def test_one_rule_for_odd_cells(tmp_path, monkeypatch, column) -> None:
    pytest.importorskip("pyarrow")
    plain = {"client": "0", "compute": "1.5", "task": "0", "ok": "1"}
    path = tmp_path / "t.csv"
    for cell in CELLS:
        path.write_text(
            ",".join(plain) + "\n" + ",".join((plain | {column: cell}).values()) + "\n", encoding="utf-8", newline=""
        )
        fast = outcome(path)
        with monkeypatch.context() as without:
            without.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
            assert outcome(path) == fast, cell


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("client,compute\n\uff11,1\n2,1\n", ["2", "\uff11"]),
        ("client,compute\n10,1\n2,1\n", [2, 10]),
        ("client,compute\n+1,1\n2,1\n", ["+1", "2"]),
        ("client,compute\n 1,1\n2,1\n", [" 1", "2"]),
        ("client,compute\n-0,1\n2,1\n", ["-0", "2"]),
        ("client,compute\n0x10,1\n2,1\n", ["0x10", "2"]),
        ("client,compute\n1e3,1\n2,1\n", ["1e3", "2"]),
        ("client,compute\n9223372036854775808,1\n2,1\n", ["2", "9223372036854775808"]),
        ("client,compute\n" + "1" * 5000 + ",1\n2,1\n", ["1" * 5000, "2"]),
        ("client,compute\nnan,1\n2,1\n", ["2", "nan"]),
    ],
)
def test_ids_are_integers_only_where_they_are_written_so(tmp_path, reader, text, ids) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert fb.read_trace(tmp_path / "t.csv").client_ids.tolist() == ids


ODD_FILES = {
    "bom and crlf": "\ufeffclient,compute\r\na,1\r\n\r\nb,2\r\n",
    "lone carriage returns": "client,compute\ra,1\rb,2\r",
    "blank lines": "\n\nclient,compute\n\n \na,1\n\t\nb,2\n\n",
    "no line end": "client,compute\na,1\nb,2",
    "quotes": 'client,compute\n"a",1\n"b","2"\n',
    "quotes inside": 'client,compute\n"a""x",1\nb"y,2\n',
    "newlines in quotes": 'client,compute\n"a\nx",1\n"b\r\ny",2\n',
    "a quoted header": '"client","compute"\na,1\nb,2\n',
    "a header of two lines": 'client,"compute\nseconds",compute\na,x,1\nb,x,2\n',
    "an open quote": 'client,compute\na,1\n"b,2\n',
    "text after a quote": 'client,compute\n"a"x,1\nb,2\n',
    "nul": "client,compute\na\0,1\na,2\n",
    "ragged": "client,compute\na,1\nb,2,3\nc\n",
    "columns twice that nobody wants": "client,x,x,compute\na,1,1,1\nb,1,1,2\n",
    "a long field": "client,compute,note\na,1," + "x" * 200_000 + "\nb,2,x\n",
    "many": "client,compute\n" + "".join(f"{i % 97},{i / 7!r}\n" for i in range(70_000)),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_one_rule_for_odd_files(tmp_path, monkeypatch, name) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text(ODD_FILES[name], encoding="utf-8", newline="")
    fast = outcome(path)
    with gzip.open(tmp_path / "z.csv.gz", "wt", encoding="utf-8", newline="") as file:
        file.write(ODD_FILES[name])
    zipped = outcome(tmp_path / "z.csv.gz")
    monkeypatch.setattr(fedbuff._delays.text_file, "find_spec", lambda name: None)
    assert outcome(path) == fast
    assert outcome(tmp_path / "z.csv.gz") == zipped
    if isinstance(fast[1], list):
        assert zipped == fast
    if name in ("bom and crlf", "lone carriage returns", "blank lines", "no line end", "quotes", "a quoted header"):
        assert fast[:3] == ("U", ["a", "b"], [1.0, 2.0])


def test_pyarrow_reads_plain_files_itself(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    wanted = {"client": Wanted("client", "label", True), "compute": Wanted("compute", "number", True)}
    for text in ("client,compute\na,1\nb,2\n", '"client","compute"\r\n"a,b","1"\r\nc,2\r\n'):
        (tmp_path / "t.csv").write_text(text, newline="")
        file = TextFile(tmp_path / "t.csv")
        names = _header(reader := file.reader())
        assert _parse_with_arrow(file, reader.line_num, names, present_columns(names, wanted)) is not None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"client,compute\na\0,1\n", "line 2: a NUL byte; is this a text file? (t.csv)"),
        (b"client,compute\na,1\n\n\xff,2\n", "line 4: not UTF-8 text: invalid start byte (t.csv)"),
        ("client,compute\na,1\n".encode("utf-16"), "UTF-16 text; save it as UTF-8 (t.csv)"),
        (b'client,compute\na,1\n"b\nc,2\n', "line 3: cannot be read: unexpected end of data (t.csv)"),
        (
            b"client;compute\na;1,5\n",
            "line 2: compute '1,5' is not a number; decimals are written with a point (t.csv)",
        ),
        (
            b"client,compute,task\na,1," + b"9" * 19 + b"\n",
            f"line 2: task '{'9' * 19}' is not an integer of 64 bits (t.csv)",
        ),
        (b"device,compute\na,1\n", "no column 'client'; the file has 'device', 'compute' (t.csv)"),
    ],
)
def test_refusals(tmp_path, reader, data, message) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(fb.TraceError) as caught:
        fb.read_trace(tmp_path / "t.csv")
    assert str(caught.value) == message


IMPERFECT = 'client,note,compute\na,"two\nlines",1\na,x,\nb,x,-1\n\nb,x,2\na,x,NaN\na,x,fast\nb\nb,x,NA\na,x,3\nb,x,\n'


def test_all_bad_rows_at_once_by_their_lines(tmp_path, reader) -> None:
    path = tmp_path / "t.csv"
    path.write_text(IMPERFECT)
    with pytest.raises(fb.TraceError) as caught:
        fb.read_trace(path)
    assert str(caught.value) == (
        "line 4: compute is empty; line 5: compute -1.0 is negative; line 8: compute is NaN; "
        "line 9: compute 'fast' is not a number; line 10: 1 fields where the header has 3: is the file cut?; "
        "...: 7 bad rows; missing='drop' (--missing drop) leaves out the rows with missing values (t.csv)"
    )
    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.row, error.line, error.count) == (str(caught.value), 2, 4, 7)
    assert [(bad.row, bad.line) for bad in error.bad] == [(2, 4), (3, 5), (5, 8), (6, 9), (7, 10)]


def test_missing_drop(tmp_path, reader) -> None:
    path = tmp_path / "t.csv"
    path.write_text(IMPERFECT)
    with pytest.raises(fb.TraceError, match=r"^line 5: compute -1.0 is .*line 9: .*line 10: .*: 3 bad rows \(t.csv\)$"):
        fb.read_trace(path, missing="drop")
    good = [line for line in IMPERFECT.splitlines(keepends=True) if not line.startswith(("b,x,-1", "a,x,fast", "b\n"))]
    path.write_text("".join(good))
    trace = fb.read_trace(path, missing="drop")
    assert trace.client_ids.tolist() == ["a", "b"]
    assert trace.compute.tolist() == [1.0, 3.0, 2.0]
    path.write_text("client,compute,ok\n1,2,yes\n,3,yes\n2,4,\n10,1,no\n")
    trace = fb.read_trace(path, missing="drop")
    assert trace.client_ids.tolist() == [1, 10]
    assert trace.ok.tolist() == [True, False]
    with pytest.raises(fb.TraceError, match=r"^line 5: client 10 is unknown \(t.csv\)$"):
        fb.read_trace(path, missing="drop", clients=2, end="stop")
    path.write_text("client,compute\n1,\n")
    with pytest.raises(fb.TraceError, match="a value is missing in every row"):
        fb.read_trace(path, missing="drop")
    with pytest.raises(ValueError, match="missing: expected 'error' or 'drop', got 'skip'"):
        fb.read_trace(path, missing="skip")


def test_missing_drop_of_other_formats(tmp_path) -> None:
    np.savez(tmp_path / "t.npz", client=["b", "", "a", "a"], compute=[1.0, 2.0, np.nan, 4.0])
    with pytest.raises(fb.TraceError, match=r"^row 2: client is empty; row 3: compute is NaN: 2 bad rows; missing="):
        fb.read_trace(tmp_path / "t.npz")
    assert fb.read_trace(tmp_path / "t.npz", missing="drop").compute.tolist() == [4.0, 1.0]
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    made = {"client": ["2", None, "1", "1", ""], "compute": [1.0, 2.0, None, 4.0, 5.0], "ok": ["yes"] * 5}
    pq.write_table(pa.table(made), tmp_path / "t.parquet")
    with pytest.raises(
        fb.TraceError, match=r"^row 2: client is empty; row 3: compute .*; row 5: client .*: 3 bad rows"
    ):
        fb.read_trace(tmp_path / "t.parquet")
    trace = fb.read_trace(tmp_path / "t.parquet", missing="drop")
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == ([1, 2], [4.0, 1.0])
    pq.write_table(pa.table(made | {"ok": ["yes", None, "no", "maybe", "no"]}), tmp_path / "t.parquet")
    with pytest.raises(fb.TraceError, match=r"^row 4: ok 'maybe' is neither true nor false \(t.parquet\)$"):
        fb.read_trace(tmp_path / "t.parquet", missing="drop")
    pq.write_table(pa.table({"client": ["a", "a\0"], "compute": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(fb.TraceError, match=r"^row 2: the label 'a\\x00' has a NUL character"):
        fb.read_trace(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    "text",
    [
        "client,note,compute\na,x;y,1.5\nb,x|y,2\n",
        "client;note;compute\na;x,y;1.5\nb;x y;2\n",
        "client\tnote\tcompute\na\tx,y\t1.5\nb\tx y\t2\n",
        "client|note|compute\na|x,y|1.5\nb|x;y|2\n",
        "client note  compute\na   x,y\t1.5 \n  b x;y 2\n",
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".tsv.gz"])
def test_the_delimiter_is_found(tmp_path, reader, text, ending) -> None:
    path = tmp_path / f"t{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith(".gz") else text.encode())
    trace = fb.read_trace(path)
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["a", "b"], [1.5, 2.0])


def test_the_delimiter_is_named(tmp_path, reader) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client#compute\na#1\n")
    assert fb.read_trace(path, delimiter="#").compute.tolist() == [1.0]
    path.write_text("client\tcompute\na\t1\n")
    for name in ("tab", "\t", "\\t"):
        assert fb.read_trace(path, delimiter=name).compute.tolist() == [1.0]
    with pytest.raises(fb.TraceError, match=r"no column 'client'; the file has 'client\\tcompute'"):
        fb.read_trace(path, delimiter="comma")
    with pytest.raises(ValueError, match=r"delimiter: expected one character or one of comma, tab, .*, got 'dash'"):
        fb.read_trace(path, delimiter="dash")


def test_tsv_is_written(tmp_path) -> None:
    trace = fb.Trace(["a b", "c\td"], [1.0, 2.0])
    for name in ("t.tsv", "t.tsv.gz"):
        trace.save(tmp_path / name)
        assert fb.read_trace(tmp_path / name) == trace
    assert (tmp_path / "t.tsv").read_text().startswith("client\twait\t")


def test_tasks_by_order(tmp_path, reader) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,task,compute\na,3,3\na,1,1\nb,7,4\nb,5,2\na,2,2\n")
    with pytest.raises(fb.TraceError) as caught:
        fb.read_trace(path)
    assert str(caught.value) == (
        "line 3: client 'a' has task 1 but no task 0; line 4: client 'b' has task 7 but no task 6; "
        "line 5: client 'b' has task 5 but no task 0: 3 bad rows; "
        "tasks='order' (--tasks order) takes the numbers by their order (t.csv)"
    )
    assert fb.read_trace(path, tasks="order").compute.tolist() == [1.0, 2.0, 3.0, 2.0, 4.0]
    path.write_text("client,task,compute\na,1,3\na,1,1\na,-1,1\n")
    with pytest.raises(
        fb.TraceError, match=r"^line 3: client 'a' has task 1 twice; line 4: task -1 is negative: 2 bad"
    ):
        fb.read_trace(path, tasks="order")
    with pytest.raises(ValueError, match="tasks: expected one of number, order, got 'rank'"):
        fb.Trace([0], [1.0], task=[0], tasks="rank")


def test_one_client_where_the_file_names_none(tmp_path, reader) -> None:
    path = tmp_path / "t.csv"
    path.write_text("compute\n1\n2\n")
    trace = fb.read_trace(path, client="phone")
    assert (trace.client_ids.tolist(), trace.compute.tolist()) == (["phone"], [1.0, 2.0])
    assert fb.read_trace(path, client=7).client_ids.tolist() == [7]
    with pytest.raises(ValueError, match="client: give the one client 7 or a column of them, not both"):
        fb.read_trace(path, client=7, columns={"client": "device"})
    with pytest.raises(TypeError, match="client: expected an int or a string, got float"):
        fb.read_trace(path, client=7.0)
    path.write_text("start_time,arrive_time\n0,1\n1,2\n")
    assert fb.read_arrival_log(path, client=3).client_ids.tolist() == [3]


def test_logs_read_imperfect_files_too(tmp_path, reader) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("client\tarrive_time\tversion\na\t1\t0\nb\t2\t\na\t3\t0\n")
    with pytest.raises(fb.TraceError, match=r"^line 3: version is empty; missing='drop'"):
        fb.read_arrival_log(path)
    assert fb.read_arrival_log(path, missing="drop").arrive_time.tolist() == [1.0, 3.0]
    path.write_text("client\tarrive_time\tversion\na\t2\t0\nb\t1\t0\na\t0\t0\n")
    with pytest.raises(
        fb.TraceError, match=r"^line 3: arrive_time 1.0 is before .*; line 4: .*: 2 bad rows \(log.tsv\)$"
    ):
        fb.read_arrival_log(path)


def test_ids_with_nul_are_not_merged() -> None:
    with pytest.raises(fb.TraceError, match=r"row 2: client 'a.x00' has a NUL character"):
        fb.Trace(np.array(["a", "a\0"], dtype=object), [1.0, 2.0])
    recorder = fb.Recorder()
    recorder.started("a")
    with pytest.raises(ValueError, match=r"client 'a.x00': expected an id without NUL characters"):
        recorder.started("a\0")


def test_constant_delays() -> None:
    pytest.importorskip("scipy")
    for value in (0.0, 0.1, 3.3):
        trace = fb.Trace(np.zeros(7, int), np.full(7, value))
        first = trace.fit()[0]
        assert (first.distribution, first.ks) == (fb.Constant(value), 0.0)
        assert not any(fit.distribution.kind in ("truncated_normal", "log_normal") for fit in trace.fit())
        assert trace.summary()["between_clients"] == 0.0
    steady = fb.Trace(np.repeat([0, 1, 2], 7), np.repeat([0.1, 0.3, 0.7], 7))
    assert steady.summary()["between_clients"] == 1.0
    with pytest.raises(ValueError, match="constant cannot be fitted: the samples vary"):
        steady.fit(families=["constant"])
    assert steady.bootstrap(20, seed=1).compute.reshape(3, 20).std(axis=1).max() < 1e-15


def test_short_delays_after_long_ones_are_not_timeless() -> None:
    trace = fb.Trace(np.repeat([0, 1], 2), [1e9, 1e9, 1e-9, 1e-9])
    assert fb.schedule(trace, fb.FedBuff(1), max_time=1.05e-8).n_arrivals == 10
