"""Changes of files with a knowledge of their structure: what is changed is packed again with sizes and checksums that
are right, so that the damage gets past the first checks."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

WORDS = [
    b"nan", b"inf", b"-inf",
    b"1e999", b"-1", b"0", b"1", b"9" * 30, b"1e-400", b"[[", b"]", b"{}", b"null", b"true", b'"',
    b"'", b",", b":", b";",
    b"\t", b" ", b"\n", b"\r", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"#", b"=", b"0x10", b"1_0",
    b"\\u0000", b"\\ud800",
    "é".encode(), b"--", b"'=1+1", b"2147483648", b"-9223372036854775809", b"18446744073709551616",
]  # fmt: skip
OPCODES = [
    b"c", b"R", b"b", b"i", b"o",
    b"\x81", b"\x92", b"\x93", b"h\xff", b"j\xff\xff\xff\xff", b"0", b"2", b"(", b"t", b"e",
    b"u", b"s", b"}", b"]", b"N", b".", b"G", b"Q", b"P1\n", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f",
    b"cos\nsystem\n", b"c__builtin__\neval\n", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"X\xff\xff\xff\x7f",
    b"B\xff\xff\xff\x7f", b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
]  # fmt: skip
NUMBERS = [0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 0.5, 1e300, 1e-300]
VALUES = [
    *NUMBERS,
    2**64,
    10**40,
    float("nan"),
    float("inf"),
    "",
    "text",
    None,
    True,
    [],
    {},
    [[1]],
    {"a": None},
    "é\0",
]


def changed(data: bytes, rng: random.Random) -> bytes:
    """The file with one change or a few."""
    change: Callable[[bytes, random.Random], bytes]
    if rng.random() < 0.2:
        change = change_bytes
    elif data.startswith(b"PK"):
        change = change_zip
    elif data.startswith(b"\x1f\x8b"):
        change = change_gzip
    elif data.startswith(b"PAR1"):
        change = change_parquet
    elif data.startswith(b"\x80"):
        change = change_pickle
    elif data.startswith(b"\x93NUMPY"):
        change = change_npy
    elif data[:1] in b"{[" and (value := parsed(data)) is not None:
        return json.dumps(change_value(value, rng)).encode("utf-8", "surrogatepass")
    else:
        change = change_text if is_text(data) else change_bytes
    for _ in range(1 if rng.random() < 0.7 else rng.randrange(2, 5)):
        data = change(data, rng)
    return data


def is_text(data: bytes) -> bool:
    return not any(byte < 9 for byte in data[:1000])


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits, bytes, pieces that go, come twice or stand elsewhere, an end."""
    at, kind = rng.randrange(len(data) + 1), rng.randrange(7)
    length = min(rng.choice((1, 2, 4, 8, 30, 300)), len(data) - at)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(length) + data[at + length :]
    if kind == 2:
        return data[:at] + data[at + length :]
    if kind == 3:
        return data[: at + length] + data[at:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        number = int(rng.choice(NUMBERS[:13])) % 2**64
        width = rng.choice((1, 2, 4, 8))
        return data[:at] + (number % 2 ** (8 * width)).to_bytes(width, "little") + data[at + width :]
    other = rng.randrange(len(data) + 1)
    return data[:at] + data[other : other + length] + data[at:]


def change_text(data: bytes, rng: random.Random) -> bytes:
    """Words, cells and lines."""
    kind = rng.randrange(6)
    if kind == 0:
        return change_bytes(data, rng)
    if kind == 1:
        lines = data.split(b"\n")
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[at : at + rng.randrange(2)] = [lines[other]] * rng.randrange(3)
        return b"\n".join(lines)
    places = [at for at, byte in enumerate(data) if byte in b"0123456789,:=\"' \t\n"]
    at = rng.choice(places) if places else 0
    return data[:at] + rng.choice(WORDS) * rng.choice((1, 1, 1, 2, 40)) + data[at + rng.randrange(3) :]


def change_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with another one somewhere in it, or a key or an item more, less or twice."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {name: part for name, part in value.items() if name != key}
        if kind == 1:
            return {**value, rng.choice(("", "x", "é", key + " ", rng.choice(list(value)))): rng.choice(VALUES)}
        return {**value, key: change_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[:at] + [value[at]] * rng.choice((2, 3, 50)) + value[at + 1 :]
        return [*value[:at], change_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 0.5))
    if isinstance(value, str) and value and rng.random() < 0.5:
        return change_text(value.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    return rng.choice(VALUES)


def change_array(old: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    """Another number, type, shape or text."""
    if old.dtype.kind == "U" and not is_unicode(old):
        return np.ascontiguousarray(old).reshape(-1).view(np.uint32)
    if old.dtype.kind == "U" and old.size == 1 and (value := parsed(text_of(old))) is not None:
        return np.array(json.dumps(change_value(value, rng)))
    if old.dtype == np.uint8 and old.ndim == 1 and (value := parsed(old.tobytes())) is not None:
        return np.frombuffer(json.dumps(change_value(value, rng)).encode("utf-8", "surrogatepass"), np.uint8)
    kind = rng.randrange(10)
    if kind < 5 and old.size:
        edited = np.array(old)
        flat, at = edited.reshape(-1), rng.randrange(old.size)
        if old.dtype.kind in "iu":
            limits = np.iinfo(old.dtype)
            near = int(flat[at]) + rng.choice((-2, -1, 1, 2))
            number = near if rng.random() < 0.5 else int(rng.choice(NUMBERS[:13]))
            flat[at] = min(max(number, int(limits.min)), int(limits.max))
        elif old.dtype.kind == "f":
            with np.errstate(over="ignore"):
                flat[at] = rng.choice((np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 5e-324, flat[at] + 1.0))
        elif old.dtype.kind == "U":
            flat[at] = rng.choice(("", "x", "é", "=1"))
        elif old.dtype.kind == "b":
            flat[at] = not flat[at]
        return edited
    if kind == 5:
        return old[: rng.randrange(old.shape[0] + 1)] if old.ndim else old.reshape(1)
    if kind == 6:
        return np.concatenate([old, old]) if old.ndim else np.stack([old, old])
    if kind == 7:
        with np.errstate(invalid="ignore", over="ignore"):
            if old.dtype.kind in "US":
                plain = old.dtype.kind == "U" and all(map(str.isascii, old.reshape(-1).tolist()))
                return old.astype("S", casting="unsafe") if plain else old
            return old.astype(rng.choice(("<f4", "<f8", "<i4", "<i8", "<u1", "?", ">f8", "<c16", "<f2", "<u8")))
    if kind == 8:
        return old.reshape(rng.choice(((-1, 1), (1, -1), (-1,))))
    return np.array(rng.choice(("text", "", "[]", "{}")))


def is_unicode(array: np.ndarray[Any, Any]) -> bool:
    """Whether Python has its characters; an earlier change may have made any bits of them."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    return bool(codes.size == 0 or codes.max() <= 0x10FFFF)


def text_of(array: np.ndarray[Any, Any]) -> bytes:
    return str(array.reshape(())[()]).encode("utf-8", "surrogatepass")


def written(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
    return stream.getvalue()


def change_npy(data: bytes, rng: random.Random) -> bytes:
    """Another array, or another header before the same bytes."""
    try:
        old = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except Exception:
        return change_bytes(data, rng)
    if rng.random() < 0.7:
        return written(change_array(old, rng))
    head = data.find(b"\n") + 1
    return change_text(data[:head], rng) + data[head:]


def change_zip(data: bytes, rng: random.Random) -> bytes:
    """Members with other contents and right checksums, other names, or another order."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = {name: file.read(name) for name in file.namelist()}
    except Exception:
        return change_bytes(data, rng)
    if not members:
        return change_bytes(data, rng)
    names = list(members)
    name, other, kind = rng.choice(names), rng.choice(names), rng.randrange(12)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[name] = members[other]
    elif kind == 2:
        members[rng.choice(("x.npy", name.upper(), name.removesuffix(".npy"), "../" + name))] = members.pop(name)
    elif kind == 3:
        members[name] = change_bytes(members[name], rng)
    else:
        members[name] = change_npy(members[name], rng)
    stream = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(stream, "w") as file:
        for key, content in members.items():
            file.writestr(zipfile.ZipInfo(key), content, method)
    return stream.getvalue()


def change_gzip(data: bytes, rng: random.Random) -> bytes:
    try:
        plain = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return change_bytes(data, rng)
    return gzip.compress(changed(plain, rng), 1, mtime=0)


def change_pickle(data: bytes, rng: random.Random) -> bytes:
    """Opcodes: those that make objects, call, look up memory and build."""
    if rng.random() < 0.4:
        return change_bytes(data, rng)
    code = rng.choice(OPCODES)
    at = rng.randrange(2, len(data) + 1) if len(data) > 2 else len(data)
    return data[:at] + code + data[at + rng.randrange(3) :]


def change_parquet(data: bytes, rng: random.Random) -> bytes:
    """Another table: its values, types, names, and what its metadata say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(data))
    except Exception:
        return change_bytes(data, rng)
    kind, at = rng.randrange(8), rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.rename_columns(
            [rng.choice(("x", name.upper(), "")) if n == name else n for n in table.column_names]
        )
    elif kind == 2:
        table = table.slice(rng.randrange(table.num_rows + 1), rng.randrange(table.num_rows + 1))
    elif kind == 3:
        table = table.set_column(at, name, pa.nulls(table.num_rows, column.type))
    elif kind == 4 and table.schema.metadata:
        metadata = {
            key: json.dumps(change_value(parsed(value), rng)).encode() if parsed(value) is not None else value
            for key, value in table.schema.metadata.items()
        }
        table = table.replace_schema_metadata(metadata)
    elif kind == 5:
        try:
            table = table.set_column(
                at, name, column.cast(rng.choice((pa.float32(), pa.string(), pa.int8(), pa.uint64())))
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            table = table.set_column(at, name, pa.array(["text"] * table.num_rows))
    else:
        values = column.to_pylist()
        if values:
            place = rng.randrange(len(values))
            values[place] = change_value(values[place], rng)
        try:
            table = table.set_column(at, name, pa.array(values, column.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
            table = table.set_column(at, name, pa.array(list(map(str, values))))
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()
