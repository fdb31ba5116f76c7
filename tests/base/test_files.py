"""Writing: the old file or the whole new one, whoever saves beside, whatever fails. Reading: no trust in sizes."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._base import files as _files
from fedbuff._base.files import (
    FileError,
    make_folder,
    open_npz,
    open_text,
    read_npy,
    replacing,
    write_npz,
)


def save(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text)


def beside_of(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f".{path.name}.*.part"))


def test_the_file_beside_is_new_and_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def spy(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        opened.append((os.fspath(path), flags))
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", spy)
    for _ in range(2):
        save(tmp_path / "a.txt", "whole")
    made = [(path, flags) for path, flags in opened if path.endswith(".part")]
    assert len({path for path, _ in made}) == 2
    assert all(flags & os.O_EXCL and flags & os.O_CREAT for _, flags in made)
    assert all(re.fullmatch(r"\.a\.txt\.[0-9a-f]{16}\.part", Path(path).name) for path, _ in made)
    assert str(os.getpid()) not in {Path(path).name.split(".")[3] for path, _ in made}


def test_a_link_that_lies_in_wait_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["0" * 16, "1" * 16])
    monkeypatch.setattr(_files.secrets, "token_hex", lambda n: next(names))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".a.txt.{'0' * 16}.part").symlink_to(victim)
    save(tmp_path / "a.txt", "whole")
    assert victim.read_text() == "precious"
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(tmp_path / "a.txt", "whole")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_file_then_rename_then_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def spy_replace(self: Path, target: Any) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    save(path, "whole")
    assert order == ["file", "rename", "folder"]
    order.clear()
    make_folder(tmp_path / "x" / "y")
    assert order == ["folder", "folder"]


@pytest.mark.parametrize("call", ["fsync of the file", "rename", "write"])
def test_a_failure_leaves_the_old_file_and_nothing_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.txt"
    save(path, "old")

    def fail(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "write":
        with pytest.raises(OSError, match="No space left"), replacing(path) as beside:
            beside.write_text("half")
            fail()
    else:
        monkeypatch.setattr(*((os, "fsync", fail) if "fsync" in call else (Path, "replace", fail)))
        with pytest.raises(OSError, match="No space left"):
            save(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_of_the_storage_names_the_file_that_was_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/a\.txt'") as caught:
        save(path, "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    with pytest.raises(ConnectionResetError) as other, replacing(path):
        raise ConnectionResetError(errno.ECONNRESET, "of a stream that is saved")
    assert other.value.filename is None
    with pytest.raises(FileNotFoundError, match="another"), replacing(path):
        (tmp_path / "another").read_text()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(5):
        save(tmp_path / "a.txt", "whole")
        with pytest.raises(KeyError), replacing(tmp_path / "a.txt"):
            raise KeyError
        with pytest.raises(FileNotFoundError, match=r"nowhere/a\.txt"):
            save(tmp_path / "nowhere" / "a.txt", "whole")
    assert opened() == before


def test_threads_that_save_to_one_path_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    errors: list[BaseException] = []
    numbers = [np.full(5000, float(number)) for number in range(4)]

    def work(number: int) -> None:
        try:
            for _ in range(15):
                write_npz(path, {"x": numbers[number]})
                with open_npz(path, "a file") as file:
                    found = file["x"]
                assert (found == found[0]).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.listdir(tmp_path) == ["a.npz"]


def test_servers_saved_from_two_threads(tmp_path: Path) -> None:
    server = fb.Server(np.zeros(2000), fb.FedBuff(buffer_size=2))
    path = tmp_path / "server.npz"
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                server.save(path)
                fb.Server.load(path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.listdir(tmp_path) == ["server.npz"]


KILLED = """
import os, signal, sys
from fedbuff._base.files import replacing
with replacing(sys.argv[1]) as beside:
    beside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(beside_of(path)) == 1
    (tmp_path / ".other.txt.0123456789abcdef.part").write_text("another file's")
    save(path, "whole")
    assert beside_of(path) == []
    assert sorted(os.listdir(tmp_path)) == [".other.txt.0123456789abcdef.part", "a.txt"]


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path) as beside:
        beside.write_text("first")
        save(path, "second")
        assert beside.exists()
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_taken_for_a_leftover_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "a.txt", _files._locked
    taken: list[Path] = []

    def late(descriptor: int) -> bool | None:
        if not taken:
            taken.extend(beside_of(path))
            monkeypatch.setattr(_files, "_locked", lock)
            _files._remove_leftovers(path)
        return lock(descriptor)

    monkeypatch.setattr(_files, "_locked", late)
    save(path, "whole")
    assert len(taken) == 1
    assert path.read_text() == "whole"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = tmp_path / "a.txt"
    left = tmp_path / ".a.txt.0123456789abcdef.part"
    left.write_text("whose?")
    monkeypatch.setattr(_files.fcntl, "flock", none)
    save(path, "whole")
    assert path.read_text() == "whole"
    assert left.exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_equal_texts_give_equal_bytes(tmp_path: Path, compressed: bool) -> None:
    for name in ("a", "b"):
        with open_text(tmp_path / name, compressed=compressed) as text:
            text.write("one\ntwo é\n")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# ---- reading ----


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.float32(2.5),
        "text": np.array(["a", "bc"]),
        "empty": np.empty((0, 3), np.int64),
        "swapped": np.arange(3, dtype=">i4"),
        "flags": np.array([True, False]),
    }
    for save_them in (np.savez, np.savez_compressed):
        save_them(tmp_path / "a.npz", **arrays)
        with open_npz(tmp_path / "a.npz", "a file") as file:
            assert file.files == list(arrays)
            for name, want in arrays.items():
                got = file[name]
                np.testing.assert_array_equal(got, want)
                assert got.dtype == np.asarray(want).dtype.newbyteorder("=") and got.dtype.isnative
                assert got.shape == np.shape(want)
                assert got.flags.writeable


def header(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


ABSURD: dict[str, tuple[bytes, str]] = {
    "more than there is": (header("(1000000000000,)"), "takes 8000000000000 bytes, and 16 are there"),
    "beyond 64 bits": (header("(18446744073709551617,)"), "bytes are|bytes, and 16 are there"),
    "beside a zero": (header("(0, 1000000000000)"), "and 16 are there"),
    "negative": (header("(-2,)"), "shape|bytes"),
    "less than there is": (header("(1,)"), "takes 8 bytes, and 16 are there"),
    "objects": (header("(2,)", "|O"), "Python objects"),
    "no header": (b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((", ""),
    "a token that does not end": (b"\x93NUMPY\x01\x00\x10\x00'''{'descr': 1L  \n", ""),
    "another version": (b"\x93NUMPY\x09\x00" + header("(2,)")[8:], "format"),
    "text": (b"hello", "magic"),
}


@pytest.mark.parametrize("case", ABSURD)
def test_headers_that_lie(tmp_path: Path, case: str) -> None:
    start, reason = ABSURD[case]
    content = start + bytes(16)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(FileError, match=rf"a\.npy: not a matrix: .*({reason})"):
        read_npy(tmp_path / "a.npy", "a matrix")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("w.npy", content)
    with (
        open_npz(tmp_path / "a.npz", "a file") as opened,
        pytest.raises(FileError, match=r"a\.npz: not a file: .* \(member w\)") as caught,
    ):
        opened["w"]
    assert (caught.value.path, caught.value.member) == (tmp_path / "a.npz", "w")


def test_members_that_lie(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", x=np.arange(100.0))
    whole = path.read_bytes()
    central = whole.rindex(b"PK\x01\x02")

    def changed(at: int, value: bytes) -> bytes:
        return whole[:at] + value + whole[at + len(value) :]

    for offset, value, reason in [
        (8, b"\x01\x00", "encrypted"),
        (10, b"\x0c\x00", "compressed by method 12"),
        (10, b"\x63\x00", "compressed by method 99"),
        (24, (10**9).to_bytes(4, "little"), "declares 1000000000 bytes and stores"),
    ]:
        path.write_bytes(changed(central + offset, value))
        with pytest.raises(FileError, match=reason):
            open_npz(path, "a file")
    path.write_bytes(whole[:400] + b"?" + whole[401:])
    with pytest.raises(FileError, match="Bad CRC-32"), open_npz(path, "a file") as file:
        file["x"]
    with zipfile.ZipFile(path, "w") as two, pytest.warns(UserWarning, match="Duplicate"):
        two.writestr("x.npy", b"")
        two.writestr("x.npy", b"")
    with pytest.raises(FileError, match="two members x"):
        open_npz(path, "a file")


@pytest.mark.parametrize("read", [lambda p: open_npz(p, "x"), lambda p: read_npy(p, "x"), fb.load_schedule])
def test_a_missing_file_is_an_error_of_the_file_system(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.npz")


def test_errors_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(FileError("why", "a.npz", "w")))
    assert (str(error), error.member) == ("a.npz: why (member w)", "w")
    row = pickle.loads(pickle.dumps(fb.TraceError("why", 3, "a.csv")))
    assert (str(row), row.row) == ("row 3: why (a.csv)", 3)
    assert isinstance(row, fb.FileError)


def test_arrays_are_little_endian_in_files_and_native_in_memory(tmp_path: Path) -> None:
    swapped = np.arange(6, dtype=">f8").reshape(2, 3)
    write_npz(tmp_path / "ours.npz", {"a": swapped, "name": np.array("x")})
    with zipfile.ZipFile(tmp_path / "ours.npz") as file:
        assert b"'<f8'" in file.read("a.npy")
    np.savez(tmp_path / "theirs.npz", a=swapped, f=np.asfortranarray(swapped))
    for name, members in (("ours", "a"), ("theirs", "af")):
        with open_npz(tmp_path / f"{name}.npz", "a test") as file:
            for member in members:
                read = file[member]
                assert read.dtype == np.dtype("=f8") and read.dtype.isnative and (read == swapped).all()


def test_a_checkpoint_of_a_big_endian_machine_is_read(tmp_path: Path) -> None:
    problem = fb.Quadratic(np.ones((4, 3)))
    schedule = fb.schedule(fb.DelayModel(n_clients=4), fb.FedBuff(buffer_size=2), server_steps=20, seed=1)
    replay = fb.Replay(problem, schedule, fb.LocalSGD(steps=2, lr=0.1))
    replay.run(max_steps=7)
    replay.save(tmp_path / "here.npz")
    with np.load(tmp_path / "here.npz") as file:
        there = {name: file[name].astype(file[name].dtype.newbyteorder(">")) for name in file.files}
    np.savez(tmp_path / "there.npz", **there)
    resumed = fb.Replay.load(tmp_path / "there.npz", problem, schedule)
    resumed.run()
    replay.run()
    assert resumed.w.tobytes() == replay.w.tobytes()
