"""Every kind of file that the package reads, damaged in every way that we know: it is read, or a FileError comes.

Nothing of zipfile, zlib, json, tokenize, struct, csv, tomllib, numpy or pyarrow may reach the user. All damage is drawn
from fixed seeds.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._replay import checkpoint
from fedbuff._study.data import RowReader
from fedbuff._study.run_folder import load_run, run_study

TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]},
    "trace": {"kind": "model", "n_clients": 3, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 1, "lr": 0.5},
    "schedule": {"server_steps": 6},
    "replay": {"metrics": ["loss"]},
}
TOML = """
seeds = [0, 1]
[problem]
kind = "quadratic"
centers = [[0.0, 1.0], [2.0, 0.0]]
[trace]
kind = "model"
n_clients = 2
compute = {kind = "exponential", scale = 1.0}
[strategy]
kind = "fedbuff"
buffer_size = 2
[local]
steps = 1
lr = 0.5
[schedule]
server_steps = 5
"""
FEDSCALE = {number: {"computation": 10.0 + number, "communication": 1000.0} for number in range(5)}
FLASH = {
    f"d{number}": {"messages": "0\tscreen_lock\n1\tbattery_charged_on\n2\twifi\n90\tscreen_unlock", "model": "M"}
    for number in range(3)
}


@dataclass(frozen=True)
class Kind:
    """Makes a file (or a folder with it) and says which file is damaged, and who reads it."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    slow: bool = False


def made_schedule() -> fb.Schedule:
    model = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    return fb.schedule(model, fb.FedBuff(buffer_size=2), server_steps=12)


def made_trace(availability: bool = False) -> fb.Trace:
    windows = fb.Availability([0, 1], [0.0, 1.0], [5.0, 6.0], n_clients=3, period=10.0) if availability else None
    return fb.Trace(["a", "b", "c", "a"], [1.0, 2.0, 3.0, 4.0], upload=[0.5, 0.25, 0.1, 0.2], availability=windows)


def saved(thing: Any, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        thing().save(folder / name)
        return folder / name

    return make


def content(value: bytes, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(value)
        return folder / name

    return make


def made_server() -> Any:
    server = fb.Server(np.arange(3.0), fb.FedBuff(buffer_size=3, optimizer=fb.Adam(), base="current", norm="arrivals"))
    for _ in range(4):
        server.download()
        server.upload(np.ones(3), server.version)
    server.download()
    return server


def made_replay() -> fb.Replay:
    problem = fb.Quadratic(np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0], [3.0, 1.0]]))
    replay = fb.Replay(problem, made_schedule(), fb.LocalSGD(steps=1, lr=0.1))
    replay.run(5)
    return replay


def made_log() -> fb.ArrivalLog:
    return fb.ArrivalLog([0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], version=[0, 0, 1, 1])


def sweep_file(form: str, name: str, monkeypatched: bool = False) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from fedbuff._sweep import store as _sweep_store

        default, _sweep_store.default_format = _sweep_store.default_format, lambda: form
        try:
            fb.sweep(TABLES, grid={"strategy.buffer_size": [1, 2]}, seeds=[0, 1], out=folder / "sweep", progress=False)
        finally:
            _sweep_store.default_format = default
        return folder / "sweep" / name

    return make


def read_sweep(path: Path) -> Any:
    results = fb.load_sweep(path.parent if path.name == "sweep.json" else path.parents[1])
    return [results.column(name) for name in results.columns if not name.startswith("history.")], results.histories()


def run_file(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        run_study(fb.StudyConfig(TABLES), folder / "run", progress=False)
        return folder / "run" / name

    return make


def read_run(path: Path) -> Any:
    run = load_run(path.parents[1] if path.parent.name == "seed-0" else path.parent)
    return [(seed.schedule, seed.history) for seed in run.seeds]


def npy(folder: Path) -> Path:
    np.save(folder / "m.npy", np.arange(12.0).reshape(3, 4))
    return folder / "m.npy"


def rows_npz(folder: Path) -> Path:
    np.savez(folder / "rows.npz", X=np.arange(8.0).reshape(4, 2), y=np.array([0, 1, 0, 1]), clients=np.arange(4))
    return folder / "rows.npz"


def read_rows(path: Path) -> Any:
    reader = RowReader(True, False, True, np.dtype(np.float64), bytes=False, form=None, target=-1, divide_by=1.0)
    return reader.read(path.parent, path.name)


def labels_beside(folder: Path) -> Path:
    """An IDX file of pictures, with that of their labels."""
    (folder / "l-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x05" + bytes(range(5)))
    (folder / "l-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0\0\x05\0\0\0\x02\0\0\0\x03" + bytes(range(30)))
    return folder / "l-images-idx3-ubyte"


def people_beside(folder: Path) -> Path:
    """CelebA's two lists."""
    (folder / "identity_CelebA.txt").write_text("".join(f"{at}.jpg {at % 3}\n" for at in range(9)))
    lines = "".join(f"{at}.jpg {(-1) ** at} 1 -1\n" for at in range(9))
    (folder / "list_attr_celeba.txt").write_text(f"9\nBald Smiling Young\n{lines}")
    return folder / "list_attr_celeba.txt"


CIFAR = {
    "batch_label": "training batch 1 of 5",
    "data": np.arange(3 * 3072, dtype=np.uint8).reshape(3, 3072),
    "labels": [3, 9, 0],
    "filenames": ["a.png", "b.png", "c.png"],
}
LEAF = {
    "users": ["ann", "bob"],
    "num_samples": [2, 1],
    "user_data": {"ann": {"x": [[0.5, 1.0], [0.25, 0.0]], "y": [3, 1]}, "bob": {"x": [[1.0, 1.0]], "y": [2]}},
}
SVMLIGHT = b"".join(b"%d 1:%d 3:0.%d # row\n" % (row % 2, row, row) for row in range(20))
CSV = b"client,compute,ok\n" + b"".join(b"%d,%d.5,true\n" % (row % 3, row) for row in range(20))
KINDS: dict[str, Kind] = {
    "schedule.npz": Kind(saved(made_schedule, "s.npz"), fb.load_schedule),
    "schedule.parquet": Kind(saved(made_schedule, "s.parquet"), fb.load_schedule),
    "server": Kind(saved(made_server, "server.npz"), lambda path: fb.Server.load(path)),
    "checkpoint": Kind(saved(made_replay, "c.npz"), checkpoint.read_checkpoint),
    "trace.npz": Kind(saved(lambda: made_trace(True), "t.npz"), fb.read_trace),
    "trace.parquet": Kind(saved(made_trace, "t.parquet"), fb.read_trace),
    "trace.csv": Kind(content(CSV, "t.csv"), fb.read_trace),
    "trace.csv.gz": Kind(content(gzip.compress(CSV, mtime=0), "t.csv.gz"), fb.read_trace),
    "log.npz": Kind(saved(made_log, "l.npz"), fb.read_arrival_log),
    "log.csv": Kind(saved(made_log, "l.csv"), fb.read_arrival_log),
    "sweep.json": Kind(sweep_file("npz", "sweep.json"), read_sweep),
    "sweep part.npz": Kind(sweep_file("npz", "parts/part-000000.npz"), read_sweep),
    "sweep part.parquet": Kind(sweep_file("parquet", "parts/part-000000.parquet"), read_sweep),
    "run config": Kind(run_file("config.json"), read_run),
    "run provenance": Kind(run_file("provenance.json"), read_run),
    "run result": Kind(run_file("seed-0/result.json"), read_run),
    "run history": Kind(run_file("seed-0/history.csv"), read_run),
    "run schedule": Kind(run_file("seed-0/schedule.npz"), read_run),
    "svmlight": Kind(content(SVMLIGHT, "rows.txt"), fb.read_svmlight),
    "svmlight gzip": Kind(content(gzip.compress(SVMLIGHT, mtime=0), "rows.gz"), fb.read_svmlight),
    "fedscale": Kind(
        content(pickle.dumps(FEDSCALE), "capacity"),
        lambda path: fb.traces.from_fedscale(path, model_bytes=1e6, samples_per_task=10),
    ),
    "flash": Kind(content(json.dumps(FLASH).encode(), "states"), lambda path: fb.traces.from_flash(path, compute=1.0)),
    "delays.npy": Kind(npy, fb.traces.from_delay_matrix),
    "delays.txt": Kind(content(b"1.5 2.5\n3.5 4.5\n", "d.txt"), fb.traces.from_delay_matrix),
    "ages.txt": Kind(content(b"0 0\n1 0\n0 1\n", "a.txt"), fb.traces.from_gradient_ages),
    "configuration": Kind(content(TOML.encode(), "run.toml"), fb.StudyConfig.read),
    "configuration.json": Kind(content(json.dumps(TABLES).encode(), "run.json"), fb.StudyConfig.read),
    "data.npz": Kind(rows_npz, lambda path: read_rows(path)),
    "mnist": Kind(labels_beside, fb.datasets.read_mnist),
    "idx gzip": Kind(
        content(gzip.compress(b"\0\0\x0c\x02\0\0\0\x03\0\0\0\x02" + bytes(24), mtime=0), "i.gz"), fb.datasets.read_idx
    ),
    "cifar records": Kind(content(bytes([3, *3072 * [7], 9, *3072 * [1]]), "batch.bin"), fb.datasets.read_cifar),
    "cifar pickle": Kind(content(pickle.dumps(CIFAR, 2), "data_batch_1"), fb.datasets.read_cifar),
    "cifar pickle 5": Kind(content(pickle.dumps(CIFAR, 5), "data_batch_1"), fb.datasets.read_cifar),
    "leaf": Kind(content(json.dumps(LEAF).encode(), "leaf.json"), fb.datasets.read_leaf),
    "celeba": Kind(people_beside, fb.datasets.read_celeba),
    "data.csv": Kind(content(b"a,b,y\n1,2,x\n3,4,z\n", "rows.csv"), lambda path: read_rows(path)),
}


def flips(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    for _ in range(25):
        at = int(rng.integers(len(data)))
        yield data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :]
    for _ in range(5):
        at = int(rng.integers(len(data)))
        noise = rng.integers(0, 256, 8, dtype=np.uint8).tobytes()
        yield data[:at] + noise + data[at + 8 :]


def cuts(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    yield b""
    yield data[:1]
    yield data[:-1]
    yield data + data
    for at in rng.integers(0, len(data), 6).tolist():
        yield data[:at]
        yield data[at:]
        yield data[:at] + data[(at + 7) % len(data) :]


def texts(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Other words in the place of words: what a parser of text meets."""
    words = [b"nan", b"1e999", b"-1", b"9" * 5000, b"[" * 3000, b"\xff\xfe", b"\x00", b"null", b'"', b"{}", b"\n", b""]
    numbers = [at for at, byte in enumerate(data) if byte in b'0123456789"{[']
    for word in words:
        for at in rng.choice(numbers, 2).tolist() if numbers else ():
            yield data[:at] + word + data[at + 1 :]


def zips(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Members with other contents and right checksums, other names, other flags, methods and sizes."""
    if not data.startswith(b"PK"):
        return
    import io

    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}

    def packed(changed: dict[str, bytes]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as file:
            for name, value in changed.items():
                file.writestr(zipfile.ZipInfo(name), value)
        return stream.getvalue()

    def array(values: Any, **options: Any) -> bytes:
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asanyarray(values), **options)
        return stream.getvalue()

    names = list(members)
    for name in names:
        old = np.lib.format.read_array(io.BytesIO(members[name]))
        yield packed({key: value for key, value in members.items() if key != name})
        yield packed(members | {name: members[names[int(rng.integers(len(names)))]]})
        yield packed(members | {name: array(np.array([None, {}], object), allow_pickle=True)})
        yield packed(members | {name: array(np.stack([old, old]))})
        yield packed(members | {name: array(old.reshape(-1)[:0])})
        yield packed(members | {name: array(np.array("text"))})
        yield packed(members | {name: members[name][:-1]})
        yield packed(members | {name: members[name][: len(members[name]) // 3]})
        yield packed(members | {name: members[name].replace(b"'shape': (", b"'shape': (9999999999,", 1)})
        yield packed(members | {name: members[name].replace(b"}", b"[", 1)})
        if old.dtype.kind in "iuf" and old.size:
            for value in (-1, 2**31, 2**62, 0.5, np.nan):
                with np.errstate(invalid="ignore"):
                    edited = np.array(old)
                    edited.reshape(-1)[int(rng.integers(old.size))] = np.float64(value).astype(old.dtype)
                yield packed(members | {name: array(edited)})
    first = data.index(b"PK\x01\x02")
    for at, value in ((8, b"\x01\x00"), (8, b"\x21\x08"), (10, b"\x08\x00"), (10, b"\x0c\x00"), (10, b"\x5f\x00")):
        yield data[: first + at] + value + data[first + at + 2 :]
    for at in (16, 20, 24, 42):
        for size in (0, 2**31, 2**32 - 1):
            yield data[: first + at] + size.to_bytes(4, "little") + data[first + at + 4 :]


def jsons(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Every key of an object left out, and every value of another type."""
    try:
        value = json.loads(data)
    except ValueError:
        return
    yield from (b"[]", b"3", b"null", b'"text"', b"{}", b"[" * 100_000)
    if isinstance(value, dict):
        for key in value:
            yield json.dumps({name: part for name, part in value.items() if name != key}).encode()
            for other in (None, [], {}, "text", -1, 1e300, [[1]], {"a": None}):
                yield json.dumps({**value, key: other}).encode()


def gzips(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    if data.startswith(b"\x1f\x8b"):
        plain = gzip.decompress(data)
        for changed in [*texts(plain, rng), *cuts(plain, rng)]:
            yield gzip.compress(changed, mtime=0)
        yield gzip.compress(b"0" * 10_000_000, mtime=0)


DAMAGE = (flips, cuts, texts, zips, jsons, gzips)


def checksummed(data: bytes) -> bytes:
    """A checkpoint with the checksum of what it holds."""
    import io

    try:
        with np.load(io.BytesIO(data)) as file:
            arrays = {name: file[name] for name in file.files if name != "checksum"}
        arrays["checksum"] = np.frombuffer(checkpoint._digest(arrays), np.uint8)
    except Exception:
        return data
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_raise_one_type(kind: str, tmp_path: Path) -> None:
    if "parquet" in kind:
        pytest.importorskip("pyarrow.parquet")
    path = KINDS[kind].make(tmp_path)
    whole = path.read_bytes()
    KINDS[kind].read(path)
    rng = np.random.default_rng(zlib.crc32(kind.encode()))
    refused = tried = 0
    for damage in DAMAGE:
        for number, data in enumerate(damage(whole, rng)):
            path.write_bytes(checksummed(data) if kind == "checkpoint" and damage is zips else data)
            tried += 1
            try:
                KINDS[kind].read(path)
            except fb.FileError as error:
                refused += 1
                assert path.name in str(error) or path.parent.name in str(error), error
                assert len(str(error)) < 3000
            except Exception as error:
                raise AssertionError(f"{damage.__name__} {number}: {type(error).__name__}: {error}") from error
    assert tried >= 50 and refused >= tried // 4


def test_a_rule_of_other_values_is_refused(tmp_path: Path) -> None:
    """Every field of a saved server's rule, with values of other types and sizes."""
    path = saved(made_server, "server.npz")(tmp_path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    rule = json.loads(str(arrays["rule"]))
    for name in rule:
        for value in (None, "text", [], {}, -1, 0.5, 1e300, True, 2**70, [1, {"a": 1}]):
            np.savez(path, **arrays | {"rule": np.array(json.dumps({**rule, name: value}))})
            try:
                fb.Server.load(path)
            except fb.FileError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} {value!r}: {type(error).__name__}: {error}") from error


def test_a_run_folder_without_its_files(tmp_path: Path) -> None:
    run_file("config.json")(tmp_path)
    for name in ("provenance.json", "config.json"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        (tmp_path / "copy" / name).unlink()
        with pytest.raises(fb.FileError, match=f"not a run folder: it has no {name}"):
            load_run(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")
