"""CelebA's lists: attributes of the pictures (list_attr_celeba.txt) and who is on them (identity_CelebA.txt)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._base.arrays import text_array
from .._base.checks import path_of
from .._base.files import FileError, PathLike, reading
from ._dataset import Dataset

__all__ = ["read_celeba"]

_ATTRIBUTES, _IDENTITIES = "list_attr_celeba.txt", "identity_CelebA.txt"


def read_celeba(path: PathLike, identities: PathLike | None = None, *, target: str = "Smiling") -> Dataset:
    """Whether each picture has the target attribute, with the other attributes (0 or 1) as X; a client per person.

    >>> import fedbuff as fb, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "list_attr_celeba.txt").write_text("2\\nBald Smiling Young\\n1.jpg -1 1 1\\n2.jpg 1 -1 -1\\n")
    >>> _ = (folder / "identity_CelebA.txt").write_text("1.jpg 2880\\n2.jpg 17\\n")
    >>> data = fb.datasets.read_celeba(folder)
    >>> data.X.tolist(), data.y.tolist(), data.names
    ([[0, 1], [1, 0]], [1, 0], ('17', '2880'))

    path        list_attr_celeba.txt, or the folder that has both lists
    identities  identity_CelebA.txt; None is the one beside `path`

    Pictures are not read: LEAF's own JSON (`read_leaf`) gives their names.
    """
    source = path_of("path", path)
    file = source / _ATTRIBUTES if source.is_dir() else source
    people = file.with_name(_IDENTITIES) if identities is None else path_of("identities", identities)
    who = _read_identities(people)
    owners: list[str] = []
    with reading(file, "a list of attributes"), file.open(encoding="utf-8") as lines:
        declared, names = lines.readline().strip(), lines.readline().split()
        if not declared.isdecimal() or not names:
            raise ValueError("expected a number of pictures, and then the names of attributes")
        if target not in names:
            raise ValueError(f"it has no attribute {target}; it has {', '.join(names[:8])}, ...")
        table = bytearray()
        for number, line in enumerate(lines, 3):
            words = line.split()
            if not words:
                continue
            if len(words) != len(names) + 1 or not {*words[1:]} <= {"1", "-1"}:
                raise ValueError(f"line {number}: expected a name and {len(names)} numbers 1 or -1")
            if words[0] not in who:
                raise FileError(f"not the people of all pictures: it lacks {words[0]}", people)
            owners.append(who[words[0]])
            table += bytes(word == "1" for word in words[1:])
        if len(owners) != int(declared[:20]) or not owners:
            raise ValueError(f"it declares {declared[:20]} pictures and has {len(owners)}")
    with reading(people, "a list of people"):
        people_names, clients = np.unique(text_array(owners), return_inverse=True)
    values: NDArray[np.uint8] = np.frombuffer(bytes(table), np.uint8).reshape(len(owners), len(names))
    column = names.index(target)
    return Dataset(
        np.delete(values, column, axis=1),
        values[:, column].astype(np.int64),
        clients.astype(np.int64),
        tuple(people_names.tolist()),
    )


def _read_identities(file: Path) -> dict[str, str]:
    """The person on each picture."""
    found: dict[str, str] = {}
    with reading(file, "a list of people"), file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if words and (len(words) != 2 or words[0] in found):
                raise ValueError(f"line {number}: expected a picture's name, once, and a person's number")
            if words:
                found[words[0]] = words[1]
    return found
