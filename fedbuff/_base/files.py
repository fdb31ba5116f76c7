"""Files: writing them so that a reader sees the old one or the whole new one, reading them without trust, and choosing
formats by name.

Every writer of the package writes through `replacing`: beside the target under a name that nobody can guess, then
flush, fsync of the file, rename, fsync of the folder. Every reader reads through `reading`, `open_npz`, `read_npy` or
`read_json`: a damaged file raises `FileError`, and no size that a file declares is believed before it was compared with
the file's own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import json
import math
import os
import re
import secrets
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from .arrays import little_endian
from .checks import is_number, path_of, shortened, shown

__all__ = [
    "FileError",
    "MissingPackageError",
    "NpzReader",
    "Unpacked",
    "check_parquet",
    "file_format",
    "guarded",
    "make_folder",
    "most_unpacked",
    "naming",
    "open_npz",
    "open_plain",
    "open_text",
    "optional",
    "read_json",
    "read_npy",
    "read_rest",
    "reading",
    "replacing",
    "replacing_bytes",
    "save_npz",
    "sync_folder",
    "unguarded",
    "write_npz",
]

MOST_REASON = 1000  # characters of a message: a damaged file may quote itself at any length

PathLike = str | os.PathLike[str]

MOST_EXPANSION = 1032  # of deflate: the most bytes that one byte can stand for; a member that declares more is damaged
MOST_UNPACKED = 100  # bytes that we unpack, on average, from one
SMALL = 1 << 26  # bytes that a file may declare whatever its own size
_BLOCK = 1 << 20
_NPY_HEADER = 1 << 16  # bytes, at most, before an array's own
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class FileError(ValueError):
    """A file that is damaged, or is not what it should be: `path` is the file, `member` the part of it, `reason` why.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "s.npz")
    >>> _ = path.write_bytes(b"half of a file")
    >>> try:
    ...     fb.load_schedule(path)
    ... except fb.FileError as error:
    ...     print(error.path.name, "|", error.reason)
    s.npz | not a schedule, or not a whole one: File is not a zip file
    """

    def __init__(self, reason: str, path: PathLike | None = None, member: str | None = None) -> None:
        self.reason, self.path, self.member = shortened(reason, MOST_REASON), path, member
        where = "" if path is None else f"{os.fspath(path)}: "
        super().__init__(f"{where}{self.reason}{'' if member is None else f' (member {member})'}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.path, self.member)


# ---- writing ----


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Gives a path beside `path` to write to; renames it to `path` at the end, or removes it after an error.

    The file beside is new, of an unpredictable name, and locked while it is written: two that save to one path do not
    disturb each other, and the last to finish wins. The next save removes what a killed process left beside `path`.
    """
    target = path_of("path", path)
    beside, lock = _create_beside(target)
    try:
        with naming(target, beside):
            yield beside
            with beside.open("rb") as written:
                os.fsync(written.fileno())
            beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error says what is wrong; the next save removes the file
            beside.unlink(missing_ok=True)
        raise
    finally:
        with contextlib.suppress(OSError):  # nothing was written through it
            os.close(lock)
    with naming(target, target.parent):
        sync_folder(target.parent)
    _remove_leftovers(target)


@contextmanager
def replacing_bytes(path: PathLike) -> Iterator[IO[bytes]]:
    """`replacing` for a writer that takes an open file: errors keep their number, which pyarrow's own files lose."""
    with replacing(path) as beside, beside.open("wb") as file:
        yield file


_OF_STORAGE = {
    *(errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE),
    *(errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.ENXIO, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ETXTBSY),
}


@contextmanager
def naming(path: PathLike, *others: PathLike) -> Iterator[None]:
    """Makes an error of the storage name this file, which was to be written, whatever file it named."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_STORAGE or error.filename not in (None, *(os.fspath(other) for other in others)):
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def _create_beside(target: Path) -> tuple[Path, int]:
    """A new, empty file in the folder of `target`, and the descriptor that holds its lock."""
    while True:
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = os.fspath(target)
            raise
        try:
            if _locked(lock) is not False and os.fstat(lock).st_nlink:
                return beside, lock
        except BaseException:
            os.close(lock)
            beside.unlink(missing_ok=True)
            raise
        os.close(lock)  # another save took it for one of a killed process, and removes it


def _locked(descriptor: int) -> bool | None:
    """Takes the lock of a file; False where another has it, None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_leftovers(target: Path) -> None:
    """Removes what killed processes left beside `target`: a file there that nobody has locked has no writer."""
    left = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if left.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _locked(descriptor):
            os.unlink(path)
    finally:
        os.close(descriptor)


def sync_folder(folder: PathLike) -> None:
    """Syncs a folder: a rename, a new file or a removed one survives a power cut after this."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS):  # a file system without it
            raise OSError(error.errno, error.strerror, os.fspath(folder)) from error
    finally:
        os.close(descriptor)


def make_folder(path: PathLike, *, exist_ok: bool = False) -> None:
    """Makes a folder and those above it, and syncs them."""
    folder = Path(path)
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    for made in missing:
        sync_folder(made.parent)


@contextmanager
def open_text(beside: Path, *, compressed: bool) -> Iterator[IO[str]]:
    """A new text file, plain or gzip; equal texts give equal bytes, whatever the file is called until its rename."""
    with beside.open("wb") as file, contextlib.ExitStack() as stack:
        stream: Any = file
        if compressed:
            stream = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline=""))


_FORMULA = "=+-@\t\r\n"  # a spreadsheet takes a cell that begins so for a formula


def guarded(text: str) -> str:
    """A text as a cell of a CSV file: an apostrophe comes before what a spreadsheet would take for a formula.

    >>> from fedbuff._base.files import guarded, unguarded
    >>> guarded("=1+1"), unguarded("'=1+1"), guarded("phone-7"), guarded("-7")
    ("'=1+1", '=1+1', 'phone-7', '-7')
    """
    return f"'{text}" if text.lstrip("'")[:1] in {*_FORMULA} and not is_number(text) else text


def unguarded(text: str) -> str:
    """The text that `guarded` made such a cell of."""
    return text[1:] if text.startswith("'") and text.lstrip("'")[:1] in {*_FORMULA} else text


def write_npz(path: PathLike, arrays: Mapping[str, Any], *, compressed: bool = False) -> None:
    """Writes arrays as .npz, in the place of what is there."""
    with replacing_bytes(path) as file:
        save_npz(file, arrays, compressed=compressed)


def save_npz(file: IO[bytes], arrays: Mapping[str, Any], *, compressed: bool = False) -> None:
    """Arrays as .npz into an open file: little-endian, whatever machine this is.

    They are not compressed where so few bytes would stand for them that `NpzReader` would refuse the file.
    """
    made: dict[str, Any] = {name: little_endian(np.asarray(array)) for name, array in arrays.items()}
    for name, array in made.items():
        if array.dtype.hasobject:  # it would be pickled
            raise TypeError(f"{name}: expected numbers or text, got an array of objects")
    if compressed:
        np.savez_compressed(file, **made)
        size = file.tell()
        if sum(array.nbytes + _NPY_HEADER for array in made.values()) <= most_unpacked(size):
            return
        file.seek(0)
        file.truncate()
    np.savez(file, **made)


# ---- reading ----


@contextmanager
def reading(path: PathLike, what: str, member: str | None = None) -> Iterator[None]:
    """Whatever a parser raises inside becomes a FileError: `{path}: not {what}: {reason}`.

    Passed on as they are: FileErrors, errors of the file system (no such file, no permission), a lack of memory, and a
    library that is not installed.
    """
    try:
        yield
    except (FileError, ImportError):
        raise
    except Exception as error:  # a damaged file can make a parser raise nearly anything
        if isinstance(error, MemoryError) and not type(error).__module__.startswith("pyarrow"):
            raise
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # seeking before the begin
            raise
        raise FileError(f"not {what}: {_reason(error)}", path, member) from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) or type(error).__name__


def most_unpacked(size: int) -> int:
    """How many bytes a compressed file of this size may stand for."""
    return max(SMALL, MOST_UNPACKED * size)


class Unpacked(io.RawIOBase):
    """The bytes that a gzip file stands for, and a FileError after the most that are unpacked of it."""

    def __init__(self, path: Path) -> None:
        self.most = self._left = most_unpacked(os.stat(path).st_size)
        self._path, self._file = path, gzip.GzipFile(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto1(buffer)  # what there is before an end that comes too early
        self._left -= n
        if self._left < 0:
            raise FileError(
                f"it unpacks to more than {self.most} bytes, {MOST_UNPACKED} times its own; where that is right, "
                "unpack it with gunzip, and give that file",
                self._path,
            )
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def open_plain(path: PathLike) -> io.BufferedReader:
    """A file's bytes to read, unpacked (`Unpacked` is then its `raw`) where it is gzip, whatever its name."""
    file = path_of("path", path)
    with file.open("rb") as head:
        compressed = head.read(2) == b"\x1f\x8b"
    return io.BufferedReader(Unpacked(file), _BLOCK) if compressed else file.open("rb")


def read_json(path: PathLike, what: str) -> Any:
    """The value in a JSON file."""
    with reading(path, what):
        return json.loads(Path(path).read_text(encoding="utf-8"))


def read_npy(path: PathLike, what: str) -> NDArray[Any]:
    """The array of a .npy file; one of Python objects is refused."""
    with reading(path, what), Path(path).open("rb") as file:
        return _read_array(file, os.fstat(file.fileno()).st_size)


class NpzReader:
    """The arrays of an .npz file by name, each checked when it is read; `files` are the names."""

    def __init__(self, path: PathLike, what: str) -> None:
        self._path, self._what = path, what
        self._stream = path_of("path", path).open("rb")
        try:
            with reading(path, what):
                self._members = self._open()
        except BaseException:
            self._stream.close()
            raise
        self.files = list(self._members)

    def _open(self) -> dict[str, zipfile.ZipInfo]:
        size = os.fstat(self._stream.fileno()).st_size
        self._zip = zipfile.ZipFile(self._stream)
        members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = info.filename.removesuffix(".npy")
            if name in members:
                raise ValueError(f"it has two members {name}")
            if info.flag_bits & 0x1:
                raise ValueError(f"its member {name} is encrypted")
            if info.compress_type not in _STORED:
                raise ValueError(f"its member {name} is compressed by method {info.compress_type}; 0 and 8 are read")
            if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
                raise ValueError(f"its member {name} declares {info.file_size} bytes and stores {info.compress_size}")
            if info.file_size > MOST_EXPANSION * info.compress_size:
                raise ValueError(f"its member {name} declares {info.file_size} bytes in {info.compress_size}")
            members[name] = info
        if sum(info.compress_size for info in members.values()) > size:
            raise ValueError("its members are larger than the file")
        if sum(info.file_size for info in members.values()) > most_unpacked(size):
            raise ValueError(
                f"it unpacks to more than {most_unpacked(size)} bytes, {MOST_UNPACKED} times its own; where that is "
                "right, save it without compression, with numpy.savez"
            )
        return members

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._members:
            raise FileError(f"not {self._what}: it is not there", self._path, name)
        info = self._members[name]
        with reading(self._path, self._what, name), self._zip.open(info) as member:
            return _read_array(member, info.file_size)

    def text(self, name: str) -> str:
        """A member that is one string."""
        array = self[name]
        if array.dtype.kind != "U" or array.size != 1:
            raise FileError(f"not {self._what}: expected a text, got {array.dtype} {array.shape}", self._path, name)
        return str(array.reshape(())[()])

    def all(self) -> dict[str, NDArray[Any]]:
        return {name: self[name] for name in self.files}

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_npz(path: PathLike, what: str) -> NpzReader:
    """An .npz file to read from; `what` it should be, as in "a schedule", stands in the error."""
    return NpzReader(path, what)


def check_parquet(path: PathLike, what: str = "a whole Parquet file") -> Any:
    """The metadata of a Parquet file, after a look at the sizes that it declares; OSError where there is no file."""
    pq = optional("pyarrow.parquet", "parquet", "reading Parquet")
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
    with reading(path, what):
        metadata = pq.read_metadata(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            if not 0 <= group.num_rows <= metadata.num_rows:
                raise ValueError(f"a row group declares {group.num_rows} rows, the file {metadata.num_rows}")
            # The metadata of columns are left to the reader: asked for here, damaged ones make pyarrow end the process.
        declared = 8 * metadata.num_rows * metadata.num_columns
        if declared > max(SMALL, MOST_EXPANSION * size):
            raise ValueError(f"it declares {metadata.num_rows} rows in {size} bytes")
        return metadata


def _read_array(stream: IO[bytes] | zipfile.ZipExtFile, size: int) -> NDArray[Any]:
    """The array of a stream in the format .npy, of `size` bytes with its header: neither more nor less."""
    fmt = np.lib.format
    version = fmt.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its .npy format is {version}")
    header = fmt.read_array_header_1_0 if version == (1, 0) else fmt.read_array_header_2_0
    shape, fortran, dtype = header(stream, max_header_size=_NPY_HEADER)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    if dtype.kind not in "biufcUSmM" or (dtype.itemsize == 0 and math.prod(shape) > size):
        raise ValueError(f"its type is {dtype}")
    if any(isinstance(length, bool) or length < 0 for length in shape) or len(shape) > 32:
        raise ValueError(f"its shape is {shape}")
    n_bytes = math.prod(shape) * dtype.itemsize
    if n_bytes != size - stream.tell():
        raise ValueError(f"{dtype} {shape} takes {n_bytes} bytes, and {size - stream.tell()} are there")
    flat = read_rest(stream, n_bytes)
    array: NDArray[Any] = flat.view(dtype) if n_bytes else np.empty(0, dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype.kind == "U" and n_bytes and array.view(np.uint32).max() > sys.maxunicode:
        raise ValueError("its texts hold numbers that are no characters")
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def read_rest(stream: Any, n_bytes: int) -> NDArray[np.uint8]:
    """The last bytes of a stream: neither fewer nor more. Memory is touched as they come, whatever was declared."""
    flat = np.empty(n_bytes, np.uint8)
    view = flat.data
    at = 0
    while at < n_bytes:
        piece = stream.read(min(_BLOCK, n_bytes - at))
        if not piece:
            raise ValueError("it breaks off")
        view[at : at + len(piece)] = piece
        at += len(piece)
    if stream.read(1):  # also makes zipfile and gzip compare the checksum
        raise ValueError("it goes on after its end")
    return flat


# ---- names ----


class MissingPackageError(ImportError):
    """A package that only an extra brings is not installed."""


def optional(module: str, extra: str | None, purpose: str) -> Any:
    """Imports what only an extra (or, with None, nothing of ours) brings; says what to install where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        wanted = package if extra is None else f"fedbuff[{extra}]"
        raise MissingPackageError(f"{purpose} needs {package}: pip install {wanted}") from error


def file_format(path: PathLike, known: dict[str, str], argument: str = "path") -> str:
    """The format that the name's ending stands for."""
    name = path_of(argument, path).name.lower()
    for ending, form in known.items():
        if name.endswith(ending):
            return form
    raise ValueError(f"{argument}: expected a name that ends in {', '.join(known)}, got {shown(name)}")
