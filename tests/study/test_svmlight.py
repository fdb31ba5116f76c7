"""fb.read_svmlight: values, blocks, every error with its line; and real files where they are at hand."""

from __future__ import annotations

import gzip
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb
from fedbuff._study import svmlight as _svmlight

REPOSITORY = Path(__file__).resolve().parents[2]
BESIDE = [folder / "shared" / "data" / "libsvm" for folder in REPOSITORY.parents[:2]]
LIBSVM = next((folder for folder in BESIDE if folder.is_dir()), BESIDE[0])


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "a.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_values(write: Any) -> None:
    X, y = fb.read_svmlight(write("+1 1:0.5 3:-2e-1\n-1\n 0.25\t2:.5 \r\n3 1:7. 2:8 3:+9"))
    assert X.toarray().tolist() == np.array([[0.5, 0, -0.2], [0, 0, 0], [0, 0.5, 0], [7, 8, 9]], np.float32).tolist()
    assert y.tolist() == [1.0, -1.0, 0.25, 3.0]
    assert (X.data.dtype, X.indices.dtype, X.indptr.dtype, y.dtype) == (np.float32, np.int32, np.int64, np.float32)
    assert (X.shape, X.nnz, X.format, X.dtype) == ((4, 3), 6, "csr", np.float32)
    assert repr(X) == "<CSR: 4 x 3, 6 float32 values>"


def test_float64_is_what_python_reads(write: Any) -> None:
    numbers = [0.1, 1 / 3, 1e-310, 2.0**-1074, 1.7976931348623157e308, -0.0, 123456789.123456789]
    X, y = fb.read_svmlight(write("".join(f"{x!r} 1:{x!r}\n" for x in numbers)), dtype=np.float64)
    assert y.tolist() == X.data.tolist() == numbers


def test_comments_blank_lines_and_queries_are_skipped(write: Any) -> None:
    text = "# 1:2 a head\n\n1 qid:3 1:1 # qid:4 5:6\n   \n2 qid:12\n3 2:1#2\n#last"
    X, y = fb.read_svmlight(write(text))
    assert X.toarray().tolist() == [[1, 0], [0, 0], [0, 1]] and y.tolist() == [1, 2, 3]


def test_zero_based(write: Any) -> None:
    zero, one = write("1 0:1 2:1\n", "zero"), write("1 1:1 2:1\n", "one")
    assert fb.read_svmlight(zero)[0].toarray().tolist() == [[1, 0, 1]]
    assert fb.read_svmlight(one)[0].toarray().tolist() == [[1, 1]]
    assert fb.read_svmlight(one, zero_based=True)[0].toarray().tolist() == [[0, 1, 1]]
    assert fb.read_svmlight(one, zero_based=False, n_features=4)[0].shape == (1, 4)
    with pytest.raises(ValueError, match=r"zero: line 1: index 0: indices count from 1"):
        fb.read_svmlight(zero, zero_based=False)
    with pytest.raises(ValueError, match="zero_based: expected True, False or 'auto', got 'yes'"):
        fb.read_svmlight(zero, zero_based="yes")  # type: ignore[arg-type]


def test_n_features(write: Any) -> None:
    path = write("1 1:1\n# a comment\n1 1:1 3:1\n")
    assert fb.read_svmlight(path, n_features=5)[0].shape == (2, 5)
    with pytest.raises(ValueError, match=r"a.txt: line 3: index 3: there are 2 features, counted from 1$"):
        fb.read_svmlight(path, n_features=2)
    with pytest.raises(ValueError, match="n_features: expected an int >= 1, got 0"):
        fb.read_svmlight(path, n_features=0)
    assert fb.read_svmlight(write("1\n2\n"))[0].toarray().tolist() == [[0], [0]]


@pytest.mark.parametrize("dtype", [np.float16, np.int64, ">f4"])
def test_dtype(write: Any, dtype: Any) -> None:
    with pytest.raises(TypeError, match="dtype: "):
        fb.read_svmlight(write("1 1:1\n"), dtype=dtype)


ERRORS = {
    "1 1:a": "the value of index 1, 'a' is not a number",
    "1 1:2_0": "the value of index 1, '2_0' is not a number",
    "1 1:0x1": "the value of index 1, '0x1' is not a number",
    "1 1:1-2": "the value of index 1, '1-2' is not a number",
    "1 1:1.5.5": "the value of index 1, '1.5.5' is not a number",
    "1 1:\x00": "the value of index 1, '\\x00' is not a number",
    "1 1:nan": "the value of index 1, 'nan' is not finite",
    "1 1:-inf": "the value of index 1, '-inf' is not finite",
    "1 1:1e39": "the value of index 1, '1e39' is too large for float32",
    "1 1:1e999": "the value of index 1, '1e999' is too large for float32",
    "x 1:1": "target 'x' is not a number",
    "1,2 1:1": "target '1,2' is not a number",
    "1:1 2:1": "target '1:1' is not a number",
    "NaN 1:1": "target 'NaN' is not finite",
    "1 1:1 1:2": "index 1 comes after 1; indices must rise",
    "1 2:1 1:2": "index 1 comes after 2; indices must rise",
    "1 -1:2": "the index of '-1:2' is negative",
    "1 +1:2": "the index of '+1:2' is not an integer",
    "1 1.0:2": "the index of '1.0:2' is not an integer",
    "1 :2": "the index of ':2' is not an integer",
    "1 qid:x 1:1": "the index of 'qid:x' is not an integer",
    "1 1:1 qid:2": "the index of 'qid:2' is not an integer",
    "1 1:2:3": "the value of index 1, '2:3' is not a number",
    "1 2147483648:1": "the index of '2147483648:1' is above 2147483647",
    "1 99999999999999999999:1": "the index of '99999999999999999999:1' is above 2147483647",
    "1 1:1 2:": "'2:' is not index:value: is the line cut?",
    "1 1:1 2": "'2' is not index:value: is the line cut?",
    "1 1: 2": "'1:' is not index:value: is the line cut?",
    "1 1 :2": "'1' is not index:value: is the line cut?",
    "1 1:1\r1 1:1": "'1' is not index:value: is the line cut?",
    "1 1:\xff": "the value of index 1, '\xff' is not a number",
}


@pytest.mark.parametrize("bad", ERRORS)
@pytest.mark.parametrize("after", ["", "\n", "\n1 1:1\n1 1:x\n"])
def test_errors_name_the_line(write: Any, bad: str, after: str) -> None:
    path = write("1 1:1 3:1\n# comment\n\n" + bad + after)
    with pytest.raises(ValueError) as caught:
        fb.read_svmlight(path)
    assert str(caught.value) == f"{path}: line 4: {ERRORS[bad]}"


def test_empty_and_missing(write: Any, tmp_path: Path) -> None:
    for text in ("", "\n", "# nothing\n"):
        with pytest.raises(ValueError, match=r"a.txt: the file has no rows$"):
            fb.read_svmlight(write(text))
    with pytest.raises(FileNotFoundError):
        fb.read_svmlight(tmp_path / "missing")


def test_gzip_whole_and_cut(write: Any) -> None:
    text = b"".join(b"1 1:%d 2:%d\n" % (i, i * i % 97) for i in range(100_000))
    packed = gzip.compress(text)
    X, y = fb.read_svmlight(write(packed, "a.gz"))
    np.testing.assert_array_equal(X.toarray()[:, 0], np.arange(100_000))
    assert y.size == 100_000
    with pytest.raises(ValueError, match=r"cut.gz: line \d+: the compressed file breaks off here: ") as caught:
        fb.read_svmlight(write(packed[: len(packed) // 2], "cut.gz"))
    assert 10_000 < int(str(caught.value).split("line ")[1].split(":")[0]) < 90_000
    broken = packed[:5000] + bytes(100) + packed[5100:]
    with pytest.raises(ValueError, match=r"bad.gz: line \d+: "):
        fb.read_svmlight(write(broken, "bad.gz"))


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_blocks_do_not_matter(write: Any, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    text = "# head\n" + "".join(f"{i} {i % 5 + 1}:{i / 7} 9:1\n\n" for i in range(200)) + "5 1:1"
    whole, targets = fb.read_svmlight(write(text))
    monkeypatch.setattr(_svmlight, "_BLOCK", size)
    parts, same = fb.read_svmlight(write(text))
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    np.testing.assert_array_equal(same, targets)
    with pytest.raises(ValueError, match="line 403: target 'x' is not a number"):
        fb.read_svmlight(write(text + "\nx"))


WORDS = ["1", "-2.5", "1:1", "2:3", "3:-1e2", "2:", ":", "4", "a", "1:b", "-1:1", "qid:1", "#", " ", "\t", "\n", "\n"]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(["", " "]))
def test_fast_path_and_walk_agree(words: list[str], between: str) -> None:
    """A block is refused exactly where the walk over its lines finds an error."""
    text = (between.join(words) + "\n").encode()
    dtype, path = np.dtype(np.float64), Path("a")
    try:
        block = _svmlight._parse(text, 1, dtype, path)
    except ValueError as error:
        assert str(error).startswith("a: line ")
    else:
        plain = _svmlight._QUERY.sub(rb"\1", _svmlight._COMMENT.sub(b"", text))
        _svmlight._locate_error(plain, 1, dtype, path)
        lines = [line.split() for line in plain.split(b"\n")]
        assert block.line.tolist() == [i for i, line in enumerate(lines, 1) if line]
        assert block.target.tolist() == [float(line[0]) for line in lines if line]
        pairs = [word.split(b":") for word in itertools.chain.from_iterable(line[1:] for line in lines)]
        assert block.index.tolist() == [int(index) for index, _ in pairs]
        assert block.value.tolist() == [float(value) for _, value in pairs]


def test_logistic_takes_the_rows(write: Any) -> None:
    generator = np.random.default_rng(0)
    dense = np.where(generator.random((40, 6)) < 0.4, generator.standard_normal((40, 6)), 0).astype(np.float32)
    y = np.where(generator.random(40) < 0.5, -1, 1)
    rows = (" ".join(f"{j}:{x!r}" for j, x in enumerate(row.tolist()) if x) for row in dense)
    path = write("".join(f"{label} {row}\n" for label, row in zip(y, rows, strict=True)))
    X, labels = fb.read_svmlight(path, n_features=6, zero_based=True)
    np.testing.assert_array_equal(X.toarray(), dense)
    clients = fb.partition.iid(40, 4, seed=0)
    w = generator.standard_normal(6).astype(np.float32)
    sparse, full = fb.Logistic(X, labels, clients), fb.Logistic(dense, y, clients)
    assert sparse.dim == 6 and sparse.classes.tolist() == [-1, 1]
    assert sparse.loss(w) == pytest.approx(full.loss(w), rel=1e-5)
    assert sparse.accuracy(w, (X, labels)) == full.accuracy(w)


@pytest.mark.skipif(not LIBSVM.is_dir(), reason=f"no real files in {LIBSVM}")
@pytest.mark.parametrize(
    ("name", "shape", "classes", "smoothness"),
    [
        ("a9a", (32561, 123), [-1, 1], 1.572),
        ("mushrooms", (8124, 112), [1, 2], 2.586),
        ("phishing", (11055, 68), [0, 1], 0.1626),
    ],
)
def test_real_files(name: str, shape: tuple[int, int], classes: list[int], smoothness: float) -> None:
    begin = time.perf_counter()
    X, y = fb.read_svmlight(LIBSVM / f"{name}.gz", dtype=np.float64)
    assert time.perf_counter() - begin < 5  # about 0.25 s, but the machine may be busy
    assert X.shape == shape and y.shape == shape[:1] and np.unique(y).tolist() == classes
    dense = X.toarray()
    largest = np.linalg.eigvalsh(dense.T @ dense)[-1] / (4 * shape[0])
    assert float(f"{largest:.4g}") == smoothness
    held_out = LIBSVM / f"{name}.t.gz"
    if held_out.exists():
        problem = fb.Logistic(X, y, fb.partition.iid(shape[0], 10, seed=0))
        test = fb.read_svmlight(held_out, dtype=np.float64, n_features=shape[1])
        assert problem.accuracy(problem.grad(problem.init()) * -1.0, test) > 0.5
