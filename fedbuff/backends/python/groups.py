"""Groups of tasks that a client's function takes in one call: csrc/core/replay/groups.hpp."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["size_of_group"]


def size_of_group(versions: Sequence[int], steps: Sequence[int], most: int, is_all: bool) -> int | None:
    """How many of these rows are in the group that begins with the first; None where later rows decide.

    A group takes the next row while it has fewer than `most` and the row's version is at most the step of its first
    row: all versions that it needs come from steps before that one, whose rows are in earlier groups. `is_all`: there
    are no later rows.
    """
    size = 1
    while size < min(len(versions), most) and versions[size] <= steps[0]:
        size += 1
    return size if size < len(versions) or size == most or is_all else None
