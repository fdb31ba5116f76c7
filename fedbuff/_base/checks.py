"""Checks of numbers and names that come from a user: errors that name the argument."""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "as_written",
    "choice",
    "count",
    "flag",
    "instance",
    "integer",
    "is_number",
    "list_of",
    "mapping",
    "number",
    "path_of",
    "real",
    "seed_of",
    "share_of",
    "shortened",
    "shown",
]

_MOST_SHOWN = 200  # characters of a user's value in a message
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = _MOST_SHOWN


def shown(value: object) -> str:
    """A value as a message shows it: never long, however much it holds."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 600:
        return f"an int of {value.bit_length()} bits"
    try:
        return shortened(_brief.repr(value))
    except Exception:  # a repr of the user's own, or digits beyond Python's limit
        return f"a {type(value).__name__}"


def shortened(text: str, most: int = _MOST_SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."


def number(name: str, value: float, *, low: float = 0.0, high: float = math.inf, open_low: bool = False) -> float:
    """A finite float in range, or an error that names the argument."""
    if isinstance(value, (bool, str, bytes)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:
        raise ValueError(f"{name}: expected a number that float64 holds, got {shown(value)}") from None
    except Exception:
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}") from None
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        bound = "that is finite" if low == -math.inf else f"> {low:g}" if open_low else f">= {low:g}"
        top = f" and <= {high:g}" if math.isfinite(high) else ""
        raise ValueError(f"{name}: expected a number {bound}{top}, got {value}")
    return float(value)


def count(name: str, value: int, *, low: int = 1, high: int = 2**63 - 1) -> int:
    """An int from low to high, or an error that names the argument."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None
    if isinstance(value, (bool, np.bool_)) or whole < low:
        raise ValueError(f"{name}: expected an int >= {low}, got {shown(value)}")
    if whole > high:
        top = f"2**{high.bit_length()}" if high + 1 == 1 << high.bit_length() else str(high + 1)
        raise ValueError(f"{name}: expected an int below {top}, got {shown(value)}")
    return whole


def as_written(value: float) -> Fraction:
    """A finite number as the decimal that it prints as, so that 0.1 is a tenth."""
    return Fraction(str(value))


def share_of(share: float, n: int) -> int:
    """The whole number nearest to a share of n, halves up; the share counts as it is written: 0.7 of 45 is 31.5."""
    return math.floor(as_written(share) * n + Fraction(1, 2))


def choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of the choices, or an error that names the argument."""
    if not isinstance(value, str) or value not in choices:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name}: expected one of {', '.join(choices)}, got {shown(value)}")


def flag(name: str, value: Any) -> bool:
    """True or False, or an error that names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")
    return bool(value)


def is_number(text: str) -> bool:
    """Whether `float` takes the text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def integer(name: str, value: Any) -> int:
    """An int of any size, or an error that names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None


def real(name: str, value: Any) -> float:
    """A finite float, or an error that names the argument."""
    return number(name, value, low=-math.inf)


def list_of(name: str, value: Any, what: str) -> list[Any]:
    """The members of a sequence, or an error that names the argument; a text is none."""
    if not isinstance(value, (str, bytes, Mapping)):
        try:
            return list(value)
        except TypeError:
            pass
    raise TypeError(f"{name}: expected {what}, got {type(value).__name__}")


def mapping(name: str, value: Any) -> dict[Any, Any]:
    """A dictionary, or an error that names the argument."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a dictionary, got {type(value).__name__}")
    return dict(value)


def path_of(name: str, value: Any) -> Path:
    """A path of the file system, or an error that names the argument."""
    try:
        text = os.fspath(value)
    except TypeError:
        raise TypeError(f"{name}: expected a path, got {type(value).__name__}") from None
    if isinstance(text, bytes):
        raise TypeError(f"{name}: expected a path as text, got bytes")
    if not text or "\0" in text:
        raise ValueError(f"{name}: expected a path, got {shown(text)}")
    return Path(text)


def instance(name: str, value: Any, kinds: type | tuple[type, ...], what: str) -> None:
    """An object of these types, or an error that names the argument and what it should be."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name}: expected {what}, got {type(value).__name__}")


def seed_of(value: int) -> int:
    """A seed: the 64-bit key of Philox."""
    return count("seed", value, low=0, high=2**64 - 1)
