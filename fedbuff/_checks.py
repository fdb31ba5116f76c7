"""Checks of numbers and names that come from a user: errors that name the argument."""

from __future__ import annotations

import math
import reprlib

__all__ = ["choice", "count", "number", "seed_of", "shortened", "shown"]

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
    if not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name}: expected a number, got {type(value).__name__}") from None
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        bound = f"> {low:g}" if open_low else f">= {low:g}"
        top = f" and <= {high:g}" if math.isfinite(high) else ""
        raise ValueError(f"{name}: expected a number {bound}{top}, got {value}")
    return float(value)


def count(name: str, value: int, *, low: int = 1) -> int:
    try:
        whole = value.__index__()
    except AttributeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None
    if isinstance(value, bool) or whole < low:
        raise ValueError(f"{name}: expected an int >= {low}, got {value}")
    return whole


def choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def seed_of(value: int) -> int:
    """A seed: the 64-bit key of Philox."""
    key = count("seed", value, low=0)
    if key >= 2**64:
        raise ValueError(f"seed: expected an int below 2**64, got {key}")
    return key
