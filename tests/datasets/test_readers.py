"""fb.datasets: small files in the published formats come back as they were written; bad ones name what is wrong."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base import pickles

rng = np.random.default_rng(5)
PICTURES = rng.integers(0, 256, (7, 28, 28), dtype=np.uint8)
DIGITS = rng.integers(0, 10, 7, dtype=np.uint8)
COLOURED = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    codes = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, codes[array.dtype.name], array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_mnist(folder: Path, packed: bool = False, prefix: str = "") -> None:
    for split, rows in (("train", slice(0, 5)), ("t10k", slice(5, 7))):
        for what, array in (("images-idx3", PICTURES[rows]), ("labels-idx1", DIGITS[rows])):
            data = idx(array)
            name = f"{prefix}{split}-{what}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


# ---- IDX ----


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_of_every_type(kind: str, packed: bool, tmp_path: Path) -> None:
    array = (rng.standard_normal((3, 1, 4)) * 100).astype(kind)
    (tmp_path / "a").write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    read = fb.datasets.read_idx(tmp_path / "a")
    assert read.dtype == array.dtype and read.dtype.isnative
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(packed: bool, tmp_path: Path) -> None:
    write_mnist(tmp_path, packed)
    data = fb.datasets.read_mnist(tmp_path)
    np.testing.assert_array_equal(data.X, PICTURES[:5])
    np.testing.assert_array_equal(data.y, DIGITS[:5])
    assert data.test is not None and data.clients is None and len(data) == 5
    np.testing.assert_array_equal(data.test[0], PICTURES[5:])
    name = f"t10k-images-idx3-ubyte{'.gz' if packed else ''}"
    turned = fb.datasets.read_mnist(tmp_path / name, transpose=True)
    np.testing.assert_array_equal(turned.X, PICTURES[5:].transpose(0, 2, 1))
    rows = data.flat(divide_by=255)
    assert rows.dtype == np.float32 and rows.shape == (5, 784)
    np.testing.assert_array_equal(rows, PICTURES[:5].reshape(5, -1).astype(np.float32) / np.float32(255))


def test_mnist_errors(tmp_path: Path) -> None:
    with pytest.raises(fb.FileError, match="it has no train-images-idx3-ubyte"):
        fb.datasets.read_mnist(tmp_path)
    write_mnist(tmp_path)
    write_mnist(tmp_path, prefix="emnist-")
    with pytest.raises(fb.FileError, match="it has several: emnist-train-images-idx3-ubyte, train"):
        fb.datasets.read_mnist(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "t10k-labels-idx1-ubyte"
    with pytest.raises(
        fb.FileError, match=r"t10k-labels-idx1-ubyte: not the labels of 5 pictures: its array is \(2,\)"
    ):
        fb.datasets.read_mnist(images, labels)
    with pytest.raises(fb.FileError, match=r"not pictures: its array is \(2,\)"):
        fb.datasets.read_mnist(labels, labels)
    with pytest.raises(ValueError, match="labels: expected None where path is a folder"):
        fb.datasets.read_mnist(tmp_path, labels)
    (tmp_path / "other").write_bytes(idx(PICTURES))
    with pytest.raises(ValueError, match="labels: missing; other does not say images-idx3"):
        fb.datasets.read_mnist(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        fb.datasets.read_mnist(tmp_path / "no-images-idx3-ubyte")


@pytest.mark.parametrize("packed", [False, True])
def test_a_declared_size_is_not_believed(packed: bool, tmp_path: Path) -> None:
    data = struct.pack(">BBBB3I", 0, 0, 8, 3, 60_000, 2**20, 2**16) + bytes(100)
    (tmp_path / "a").write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(fb.FileError, match=r"a: not an IDX file: uint8 .* takes 4123168604160000 bytes, and the file"):
        fb.datasets.read_idx(tmp_path / "a")


# ---- CIFAR ----


def records(labels: list[list[int]]) -> bytes:
    return b"".join(bytes(label) + picture.tobytes() for label, picture in zip(labels, COLOURED, strict=True))


def python_2(batch: dict[str, Any]) -> bytes:
    """A pickle as Python 2's protocol 2 wrote it: texts and bytes are strings of bytes, arrays by _reconstruct."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    out = b"\x80\x02}("
    for key, value in batch.items():
        out += text(key.encode())
        if isinstance(value, np.ndarray):
            n, width = value.shape
            out += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR"
            out += b"(K\x01" + b"J" + struct.pack("<i", n) + b"J" + struct.pack("<i", width) + b"\x86"
            out += (
                b"cnumpy\ndtype\n("
                + text(b"u1")
                + b"K\x00K\x01tR(K\x03"
                + text(b"|")
                + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            )
            out += b"\x89" + text(value.tobytes()) + b"tb"
        elif isinstance(value, list):
            out += b"](" + b"".join(b"K" + bytes([item]) for item in value) + b"e"
        else:
            out += text(value.encode())
    return out + b"u."


WRITERS = {
    "python 2": python_2,
    "protocol 2": lambda batch: pickle.dumps(batch, 2),
    "protocol 4": lambda batch: pickle.dumps(batch, 4),
    "protocol 5": lambda batch: pickle.dumps(batch, 5),
}


def test_the_hand_made_pickle_is_one() -> None:
    made = pickle.loads(python_2({"data": COLOURED.reshape(6, -1), "labels": [1, 2]}), encoding="bytes")
    np.testing.assert_array_equal(made[b"data"], COLOURED.reshape(6, -1))


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_cifar_10(write: Any, tmp_path: Path) -> None:
    for at in (1, 2):
        part = slice(3 * at - 3, 3 * at)
        batch = {"batch_label": "a", "labels": [at, 0, 9], "data": COLOURED[part].reshape(3, -1)}
        (tmp_path / f"data_batch_{at}").write_bytes(write(batch))
    (tmp_path / "test_batch.bin").write_bytes(records([[label] for label in range(6)]))
    data = fb.datasets.read_cifar(tmp_path)
    np.testing.assert_array_equal(data.X, COLOURED)
    assert data.y.tolist() == [1, 0, 9, 2, 0, 9] and data.test is not None
    np.testing.assert_array_equal(data.test[0], COLOURED)
    assert data.test[1].tolist() == list(range(6))


@pytest.mark.parametrize("write", [None, *WRITERS.values()], ids=["binary", *WRITERS])
def test_cifar_100(write: Any, tmp_path: Path) -> None:
    coarse, fine = [1, 0, 19, 3, 2, 5], [99, 4, 50, 7, 0, 1]
    path = tmp_path / "train"
    if write is None:
        path.write_bytes(records([list(pair) for pair in zip(coarse, fine, strict=True)]))
    else:
        path.write_bytes(write({"data": COLOURED.reshape(6, -1), "coarse_labels": coarse, "fine_labels": fine}))
    assert fb.datasets.read_cifar(path).y.tolist() == fine
    data = fb.datasets.read_cifar(tmp_path, labels="coarse")
    assert data.y.tolist() == coarse
    np.testing.assert_array_equal(data.X, COLOURED)


def test_cifar_errors(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    for data, text in (
        (bytes(3073 * 2 - 1), "6145 bytes are no records of 3073 or 3074"),
        (b"", "0 bytes are no records"),
        (bytes([10, *bytes(3072)]), "its labels are higher than CIFAR's"),
        (pickle.dumps([1]), "it holds a list, not a dictionary"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}), r"data is uint8 \(2, 3072\), expected"),
        (pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}), r"data is float64 \(1, 3072\), expected uint8"),
        (pickle.dumps({"data": np.array([None]), "labels": [1]}), "an array of 'O8' is not one of numbers"),
        (pickle.dumps({"labels": [1]}), "it lacks the array data"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": "a"}), "it lacks the list labels"),
        (pickle.dumps(Path), "it names pathlib"),
    ):
        path.write_bytes(data)
        with pytest.raises(fb.FileError, match=f"batch.bin: not a CIFAR file: .*{text}"):
            fb.datasets.read_cifar(path)
    path.write_bytes(bytes(3073))
    with pytest.raises(fb.FileError, match="CIFAR-10 has no coarse labels"):
        fb.datasets.read_cifar(path, labels="coarse")
    with pytest.raises(ValueError, match="labels: expected one of fine, coarse, got 'all'"):
        fb.datasets.read_cifar(path, labels="all")
    with pytest.raises(fb.FileError, match="no folder of CIFAR files"):
        fb.datasets.read_cifar(tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x02cnumpy\ndtype\n}X\x09\x00\x00\x00_functionNsb.",  # gives a function of ours another body
        b"\x80\x02cnumpy\ndtype\nN}X\x09\x00\x00\x00_functionNs\x86b.",  # the same by setattr
        b"\x80\x02cnumpy\nndarray\n(K\x09tR.",
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00zlibtR.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x05\x85NK\x00U\x01atb.",
        b"\x80\x02cnumpy\ndtype\n(U\x02u1tR(K\x03tb.",
        b"\x80\x02cnumpy.core.multiarray\nscalar\n.",
    ],
)
def test_a_pickle_changes_and_runs_nothing(program: bytes) -> None:
    before = dict(pickles._NUMPY)
    functions = [call._function for call in before.values()]
    with pytest.raises(Exception, match=r".") as caught:
        pickles.loads_arrays(program)
    assert isinstance(caught.value, (pickle.UnpicklingError, TypeError, ValueError))
    assert before == pickles._NUMPY and [call._function for call in before.values()] == functions
    pickles.loads_arrays(pickle.dumps({"a": np.arange(3)}, 2))


# ---- LEAF ----


def leaf(user_data: dict[str, Any], **changed: Any) -> str:
    content = {"users": list(user_data), "num_samples": [len(user["y"]) for user in user_data.values()]}
    return json.dumps({**content, "hierarchies": [], "user_data": user_data, **changed})


FEMNIST = {
    "f2": {"x": rng.random((3, 784)).round(3).tolist(), "y": [61, 0, 5]},
    "f1": {"x": rng.random((2, 784)).round(3).tolist(), "y": [7, 7]},
    "idle": {"x": [], "y": []},
}


def test_femnist(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(leaf(FEMNIST))
    data = fb.datasets.read_leaf(tmp_path / "a.json")
    assert data.names == ("f1", "f2") and data.y.tolist() == [61, 0, 5, 7, 7] and data.clients is not None
    assert data.clients.tolist() == [1, 1, 1, 0, 0] and data.X.dtype == np.float32
    np.testing.assert_array_equal(data.X, np.array(FEMNIST["f2"]["x"] + FEMNIST["f1"]["x"], np.float32))
    problem = fb.Softmax(data.X, data.y, data.clients)
    assert problem.n_samples.tolist() == [2, 3]


def test_leaf_folders(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "train" / "1.json").write_text(leaf({"f2": FEMNIST["f2"]}))
    (tmp_path / "train" / "2.json").write_text(leaf({"f1": FEMNIST["f1"]}))
    (tmp_path / "test" / "1.json").write_text(leaf({"f1": FEMNIST["f1"]}))
    data = fb.datasets.read_leaf(tmp_path)
    assert data.y.tolist() == [61, 0, 5, 7, 7] and data.names == ("f1", "f2")
    assert data.test is not None and data.test[1].tolist() == [7, 7]
    assert fb.datasets.read_leaf(tmp_path / "train").test is None


def test_shakespeare(tmp_path: Path) -> None:
    users = {"HAMLET": {"x": ["To be, or", "o be, or "], "y": [" ", "n"]}, "KING_é": {"x": ["é\n}aAzZ 9"], "y": ["~"]}}
    (tmp_path / "s.json").write_text(leaf(users))
    data = fb.datasets.read_leaf(tmp_path / "s.json")
    letters = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
    assert len(letters) == 80
    spelt = ["".join((letters + "~")[place] for place in row) for row in data.X.tolist()]
    assert spelt == ["To be, or", "o be, or ", "~\n}aAzZ 9"] and data.names == ("HAMLET", "KING_é")
    assert data.y.tolist() == [letters.index(" "), letters.index("n"), 80]
    own = fb.datasets.read_leaf(tmp_path / "s.json", letters="be ")
    assert own.X[0].tolist() == [3, 3, 2, 0, 1, 3, 2, 3, 3]
    with pytest.raises(ValueError, match="letters: expected a text of 1 to 254 letters, none of them twice"):
        fb.datasets.read_leaf(tmp_path / "s.json", letters="aa")


def test_names_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        leaf({"17": {"x": ["000001.jpg", "02.jpg"], "y": [0, 1]}, "3": {"x": ["9.jpg"], "y": [1]}})
    )
    data = fb.datasets.read_leaf(tmp_path / "c.json")
    assert data.X.tolist() == ["000001.jpg", "02.jpg", "9.jpg"] and data.names == ("17", "3")


@pytest.mark.parametrize(
    ("text", "message", "member"),
    [
        (leaf(FEMNIST, users=["f1"]), "users are not those of user_data", None),
        (leaf(FEMNIST, num_samples=[3, 2, 1]), "num_samples are not the numbers of rows in user_data", None),
        (leaf(FEMNIST) + "x", "it goes on after its end, at character", None),
        (leaf(FEMNIST)[:-1], "expected , at character", None),
        ('{"user_data": {"a": {"x": [[NaN]], "y": [0]}}}', "NaN is not a finite number", "a"),
        ('{"user_data": {"a": {"x": [[1e39]], "y": [0]}}}', "expected rows of finite numbers", "a"),
        ('{"user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 0]}}}', "expected rows of numbers, all of one length", "a"),
        ('{"user_data": {"a": {"x": [[1]], "y": []}}}', "1 rows and 0 targets", "a"),
        (
            '{"user_data": {"a": {"x": [1], "y": [1]}}}',
            "expected rows that are all lists of numbers, or all texts",
            "a",
        ),
        ('{"user_data": {"a": {"x": ["ab", "c"], "y": ["a", "b"]}}}', "expected texts of one length", "a"),
        ('{"user_data": {"a": 3}}', "expected lists x and y", "a"),
        ('{"user_data": {"a": {"x": [[1]], "y": [null]}}}', "expected targets that are all numbers, or all texts", "a"),
        (
            leaf({"a": {"x": [[1, 2]], "y": [1]}, "b": {"x": [[1]], "y": [1]}}),
            r"rows of float32 \(1,\), those before",
            "b",
        ),
        (leaf({"a": {"x": [], "y": []}}), "it has no rows", None),
    ],
)
def test_leaf_errors(text: str, message: str, member: str | None, tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(fb.FileError, match=message) as caught:
        fb.datasets.read_leaf(tmp_path / "l.json")
    assert "l.json" in str(caught.value) and caught.value.member == member


def test_leaf_takes_a_small_multiple_of_the_file(tmp_path: Path) -> None:
    pictures = np.tile(["0.0", "1.0"], (40, 392)).tolist()  # five characters a number, as FEMNIST has mostly
    rows = "[" + ", ".join("[" + ", ".join(row) + "]" for row in pictures) + "]"
    user = f'{{"x": {rows}, "y": {[0] * 40}}}'
    names = [f"w{at}" for at in range(60)]
    data = ", ".join(f'"{name}": {user}' for name in names)
    path = tmp_path / "f.json"
    path.write_text(f'{{"users": {json.dumps(names)}, "num_samples": {[40] * 60}, "user_data": {{{data}}}}}')
    tracemalloc.start()
    try:
        assert fb.datasets.read_leaf(path).X.shape == (2400, 784)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * path.stat().st_size


# ---- CelebA, NPZ ----


def test_celeba(tmp_path: Path) -> None:
    lists = tmp_path / "list_attr_celeba.txt", tmp_path / "identity_CelebA.txt"
    lists[0].write_text("3\nBald Smiling Young\n1.jpg -1 1 1\n2.jpg  1 -1 -1\n3.jpg 1 1 1\n")
    lists[1].write_text("3.jpg 9\n1.jpg 2880\n2.jpg 9\n")
    data = fb.datasets.read_celeba(lists[0], lists[1], target="Bald")
    assert data.X.tolist() == [[1, 1], [0, 0], [1, 1]] and data.y.tolist() == [0, 1, 1]
    assert data.names == ("2880", "9") and data.clients is not None and data.clients.tolist() == [0, 1, 1]
    with pytest.raises(fb.FileError, match="it has no attribute Old; it has Bald, Smiling, Young"):
        fb.datasets.read_celeba(tmp_path, target="Old")
    lists[1].write_text("3.jpg 9\n1.jpg 2880\n")
    with pytest.raises(fb.FileError, match=r"identity_CelebA\.txt: not the people of all pictures: it lacks 2\.jpg"):
        fb.datasets.read_celeba(tmp_path)
    lists[1].write_text("1.jpg 9\n2.jpg 9\n3.jpg 9\n")
    for text, message in (
        ("3\nBald Smiling\n1.jpg 1 1\n", "it declares 3 pictures and has 1"),
        ("1\nBald Smiling\n1.jpg 1 2\n", "line 3: expected a name and 2 numbers 1 or -1"),
        ("a\nBald Smiling\n1.jpg 1 2\n", "expected a number of pictures"),
    ):
        lists[0].write_text(text)
        with pytest.raises(fb.FileError, match=message):
            fb.datasets.read_celeba(tmp_path)


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "k.npz"
    np.savez(path, x_train=PICTURES, y_train=DIGITS, x_test=PICTURES[:2], y_test=DIGITS[:2])
    data = fb.datasets.read_npz(path)
    assert data.X.shape == (7, 28, 28) and data.test is not None and data.test[0].shape == (2, 28, 28)
    np.savez(path, X=PICTURES, y=DIGITS, clients=[5, 5, 1, 1, 1, 1, 1])
    data = fb.datasets.read_npz(path)
    assert data.clients is not None and data.clients.tolist() == [1, 1, 0, 0, 0, 0, 0] and data.names == ("1", "5")
    np.savez(path, X=PICTURES)
    with pytest.raises(fb.FileError, match="it has no array y; it has X"):
        fb.datasets.read_npz(path)
    np.savez(path, X=PICTURES, y=DIGITS[:3])
    with pytest.raises(fb.FileError, match=r"X is \(7, 28, 28\) and y \(3,\)"):
        fb.datasets.read_npz(path)


# ---- in a configuration ----

REST: dict[str, Any] = {
    "trace": {"kind": "model", "n_clients": 2, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.1},
    "schedule": {"server_steps": 3},
}


def config(folder: Path, **problem: Any) -> fb.StudyConfig:
    return fb.StudyConfig({"problem": {"kind": "softmax", **problem}, **REST}, folder)


def test_a_configuration_names_them(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=True)
    (tmp_path / "leaf.json").write_text(leaf(FEMNIST))
    (tmp_path / "train").write_bytes(records([[at, 50 + at] for at in range(6)]))
    iid = {"kind": "iid", "n_clients": 2}
    mnist = config(tmp_path, data="train-images-idx3-ubyte.gz", divide_by=255, partition=iid)
    assert mnist.problem.dim == 784 * len(set(DIGITS[:5].tolist())) + len(set(DIGITS[:5].tolist()))
    folder = config(tmp_path, data=".", format="mnist", partition=iid)
    assert folder.held_out is not None and folder.held_out[0].shape == (2, 784)
    femnist = config(tmp_path, data="leaf.json")
    assert femnist.problem.n_samples.tolist() == [2, 3] and femnist.run().version == 3
    grouped = config(tmp_path, data="leaf.json", partition={"kind": "by_writer", "n_clients": 1})
    assert grouped.problem.n_samples.tolist() == [5]
    cifar = config(tmp_path, data="train", format={"kind": "cifar", "labels": "coarse"}, partition=iid)
    assert sorted(cifar.rows.y.tolist()) == list(range(6))
    turned = config(tmp_path, data=".", format={"kind": "mnist", "transpose": True}, partition=iid)
    np.testing.assert_array_equal(turned.rows.X[0], PICTURES[0].T.reshape(-1).astype(np.float32))


def test_a_configuration_says_what_is_wrong(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    iid = {"kind": "iid", "n_clients": 2}
    for problem, text in (
        ({"data": "x", "format": "tar"}, "problem.format.kind: expected one of npz, mnist, cifar, leaf, celeba, csv"),
        (
            {"data": "x", "format": {"kind": "cifar", "label": "a"}},
            "problem.format.label: unknown key; did you mean labels",
        ),
        (
            {"data": "train-labels-idx1-ubyte", "partition": iid},
            "problem: labels: missing; train-labels-idx1-ubyte does not",
        ),
        (
            {"data": "t10k-images-idx3-ubyte", "partition": {"kind": "by_writer", "n_clients": 1}},
            "problem.partition: the data",
        ),
        ({"data": ".", "format": "cifar", "partition": iid}, "problem.data: .*no folder of CIFAR files"),
    ):
        with pytest.raises(ValueError, match=text):
            _ = config(tmp_path, **problem).problem
