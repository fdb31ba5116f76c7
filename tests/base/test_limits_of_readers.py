"""Small files that stand for much: refused with the file's name before memory is asked for, or read in little of it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base.arrays import text_array
from fedbuff._base.files import SMALL, open_npz, save_npz
from fedbuff._study.data import RowReader
from fedbuff._sweep.parts import NpzParts, read_part

MOST = 400 << 20  # bytes that a refusal may have asked for; NumPy's arrays are counted
LONG = 120_000  # characters; a field of a CSV file may have 131,072


def peak(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(path: Path, call: Callable[[], Any], match: str) -> None:
    """A FileError about this file, after little memory."""

    def caught() -> None:
        with pytest.raises(fb.FileError, match=match) as raised:
            call()
        assert path.name in str(raised.value)

    assert peak(caught) < MOST


def read_rows(path: Path, *, labels: bool = True, sparse: bool = False, **options: Any) -> Any:
    reader = RowReader(True, sparse, labels, np.dtype(np.float32), bytes=False, form=None, target=-1, divide_by=1.0)
    return reader.read(path.parent, path.name, **options)


def bomb(path: Path, begin: bytes, more: bytes) -> Path:
    """A gzip file of some 100 kB that unpacks to 100 MB."""
    path.write_bytes(gzip.compress(begin + more * (100_000_000 // len(more)), 9, mtime=0))
    assert path.stat().st_size < 500_000
    return path


GZIPS: dict[str, tuple[bytes, bytes, Callable[[Path], Any]]] = {
    "t.csv.gz": (b"client,compute\n", b"7,1.0\n", fb.read_trace),
    "d.txt.gz": (b"", b"1 1\n", fb.traces.from_delay_matrix),
    "rows.csv.gz": (b"", b"1,1\n", read_rows),
    "rows.svm.gz": (b"1 1:1\n", b"# " + b"a" * 997 + b"\n", fb.read_svmlight),
    "i-ubyte.gz": (b"\0\0\x08\x01" + (100_000_000).to_bytes(4, "big"), b"\0", fb.datasets.read_idx),
}


@pytest.mark.parametrize("name", GZIPS)
def test_a_gzip_that_stands_for_far_more_than_its_size(name: str, tmp_path: Path) -> None:
    begin, more, read = GZIPS[name]
    path = bomb(tmp_path / name, begin, more)
    refused(path, lambda: read(path), "more than 67108864 bytes|takes 100000000 bytes")


@pytest.mark.parametrize("name", ["t.csv.gz", "rows.svm.gz"])
def test_the_error_of_a_gzip_names_the_way_out(name: str, tmp_path: Path) -> None:
    begin, more, read = GZIPS[name]
    with pytest.raises(fb.FileError, match="unpack it with gunzip, and give that file"):
        read(bomb(tmp_path / name, begin, more))


def test_a_small_gzip_may_expand_as_it_likes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"client,compute\n" + b"7,1.0\n" * 100_000, 9, mtime=0))
    assert fb.read_trace(path).n_rows == 100_000


def test_an_npz_that_stands_for_far_more_than_its_size(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, X=np.zeros((9_000_000, 1)), y=np.zeros(9_000_000))
    refused(path, lambda: fb.datasets.read_npz(path), r"unpacks to more than 67108864 bytes.*numpy\.savez")


def test_our_own_npz_is_never_one_that_we_refuse(tmp_path: Path) -> None:
    zeros = np.zeros(SMALL // 8 + 1000)
    with (tmp_path / "a.npz").open("wb") as file:
        save_npz(file, {"zeros": zeros}, compressed=True)
    with open_npz(tmp_path / "a.npz", "it") as arrays:
        assert np.array_equal(arrays["zeros"], zeros)
    with (tmp_path / "b.npz").open("wb") as file:
        save_npz(file, {"zeros": zeros[:100_000]}, compressed=True)
    assert (tmp_path / "b.npz").stat().st_size < 10_000


def test_one_long_text_among_many_short_ones(tmp_path: Path) -> None:
    """NumPy's texts all have the room of the longest."""
    short = ["x"] * 20_000
    assert text_array(["long" * 20, *short]).dtype == "U80"
    with pytest.raises(ValueError, match="a text of 120000 characters among 20001"):
        text_array(["y" * LONG, *short])
    assert text_array([]).size == 0


def test_labels_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("client,compute\n" + "".join(f"c{i},1\n" for i in range(20_000)) + f"{'y' * LONG},1\n")
    refused(path, lambda: fb.read_trace(path), "labels: a text of 120000 characters among 20001")


def test_people_of_celeba(tmp_path: Path) -> None:
    who = tmp_path / "identity_CelebA.txt"
    who.write_text("".join(f"{i}.jpg {i}\n" for i in range(20_000)) + f"last.jpg {'9' * LONG}\n")
    lines = "".join(f"{i}.jpg 1 -1\n" for i in range(20_000))
    (tmp_path / "list_attr_celeba.txt").write_text(f"20001\nSmiling Young\n{lines}last.jpg 1 1\n")
    refused(who, lambda: fb.datasets.read_celeba(tmp_path), "a text of 120000 characters among 20001")


@pytest.mark.parametrize("where", ["x", "y", "user"])
def test_texts_of_leaf(where: str, tmp_path: Path) -> None:
    path, long, n = tmp_path / "all.json", "y" * LONG, 20_000
    x, y = ["aa"] * n, ["bb"] * n
    users = {"ann": {"x": x, "y": y}, "bob": {"x": ["aa"], "y": ["bb"]}}
    if where == "user":
        users = {f"u{i}": {"x": ["aa"], "y": ["bb"]} for i in range(n)} | {long: {"x": ["aa"], "y": ["bb"]}}
    else:
        users["bob"][where] = [long]
    path.write_text(json.dumps({"users": list(users), "user_data": users}))
    refused(path, lambda: fb.datasets.read_leaf(path), "a text of 120000 characters among")


@pytest.mark.parametrize("column", [0, 1])
def test_a_long_field_of_a_csv(column: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = [["1", f"k{i % 3}"] for i in range(20_000)]
    rows[7][column] = "9" * LONG if column == 0 else "k" * LONG
    path.write_text("a,b\n" + "".join(",".join(row) + "\n" for row in rows))
    match = "a text of 120000 characters" if column else "expected rows of finite|infinit|is not a number|overflow"
    if column:
        refused(path, lambda: read_rows(path), match)
    else:
        assert peak(lambda: read_rows(path)) < MOST  # a number that float64 takes for an infinity


def test_sparse_rows_that_are_to_be_dense(tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("1 1:1\n0 2147483646:1\n")
    refused(path, lambda: read_rows(path), r"2 rows of 2147483646 features take \d+ bytes.*a problem of sparse rows")
    assert read_rows(path, sparse=True).X.nnz == 2


def test_a_matrix_with_one_long_row(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(",".join(["1"] * 20_000) + "\n" + "1\n" * 20_000)
    refused(path, lambda: fb.traces.from_delay_matrix(path, header=False), "1 values where the first row has 20000")


def test_a_matrix_with_many_workers_is_read_in_time(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(",".join(f"w{i}" for i in range(30_000)) + "\n" + ",".join(["1"] * 30_000) + "\n")
    began = time.process_time()
    assert fb.traces.from_delay_matrix(path).n_clients == 30_000
    assert time.process_time() - began < 8  # names that were compared with all before them took far longer
    path.write_text(",".join([*(f"w{i}" for i in range(100)), "w3"]) + "\n" + ",".join(["1"] * 101) + "\n")
    with pytest.raises(fb.FileError, match="column 'w3' appears twice"):
        fb.traces.from_delay_matrix(path)


def test_windows_that_many_clients_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbuff.traces._fedscale._MOST_WINDOWS", 1000)
    capacity = {i: {"computation": 1.0, "communication": 1.0} for i in range(300)}
    active = [float(2 * i) for i in range(5)]
    devices = {0: {"active": active, "inactive": [t + 1 for t in active], "finish_time": 10.0}}
    path = tmp_path / "behave"
    path.write_bytes(pickle.dumps(devices))
    with pytest.raises(fb.FileError, match="300 clients would have 1500 windows, at most 1000 are made"):
        fb.traces.from_fedscale(capacity, path, model_bytes=1, samples_per_task=1)


@pytest.mark.parametrize("key", [2**70, -(2**63) - 1, 10**5000], ids=["large", "small", "no text"])
def test_ids_that_64_bits_do_not_hold(key: int, tmp_path: Path) -> None:
    path = tmp_path / "capacity"
    path.write_bytes(pickle.dumps({key: {"computation": 1.0, "communication": 1.0}}))
    try:
        made = fb.traces.from_fedscale(path, model_bytes=1, samples_per_task=1)
    except fb.FileError as error:
        assert "ids: " in str(error)
    else:
        assert str(made.client_ids[0]) == str(key)


def test_texts_of_an_npz_that_are_no_characters(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    fb.Trace(["a", "b"], [1.0, 2.0]).save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = next(name for name, array in arrays.items() if array.dtype.kind == "U")
    wrong = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint32).copy()
    wrong[0] = 0x110000
    arrays[name] = wrong.view(arrays[name].dtype).reshape(arrays[name].shape)
    np.savez(path, **arrays)
    with pytest.raises(fb.FileError, match="its texts hold numbers that are no characters"):
        fb.read_trace(path)


def test_offsets_of_a_part_that_do_not_ascend(tmp_path: Path) -> None:
    """A difference of unsigned numbers is never negative."""
    schema: Any = {"history.loss": "floats"}
    for kind in (np.uint64, np.int64):
        stream = io.BytesIO()
        offsets = np.array([0, 3, 1, 3], kind)
        np.savez(stream, **{"history.loss/values": np.zeros(3), "history.loss/offsets": offsets})
        (tmp_path / "part.npz").write_bytes(stream.getvalue())
        with pytest.raises(fb.FileError, match="offsets that do not fit its values"):
            read_part(NpzParts(), tmp_path / "part.npz", schema)


def test_codes_that_stand_for_no_label() -> None:
    """As a damaged Parquet file may give them."""
    pa = pytest.importorskip("pyarrow")
    from fedbuff._delays.table import from_arrow

    for codes in ([0, 3], [-1, 0]):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a", "b", "c"]), safe=False)
        with pytest.raises(fb.FileError, match=r"client cannot be read: .*out of bounds"):
            from_arrow(pa.chunked_array([column]), "client", "label")
