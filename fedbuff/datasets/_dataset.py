"""`Dataset`: what the readers give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset", "joined"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows X with targets y, as the file has them: pixels stay uint8, pictures are (rows, [channels,] height, width).

    clients  a client number per row, where the file says whose a row is; else None: see `fedbuff.partition`
    names    what the file calls those clients, by number
    test     held-out (X, y), where they came with the rows; else None
    """

    X: Array
    y: Array
    clients: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    test: tuple[Array, Array] | None = None

    def flat(self, dtype: Any = np.float32, divide_by: float = 1.0) -> Array:
        """X as rows of numbers (rows, features) of a float dtype, divided by a number: 255 makes pixels 0 to 1.

        >>> import fedbuff as fb, numpy as np
        >>> data = fb.datasets.Dataset(np.full((3, 2, 2), 255, np.uint8), np.zeros(3))
        >>> data.flat(divide_by=255).tolist()[0]
        [1.0, 1.0, 1.0, 1.0]
        """
        return flat(self.X, np.dtype(dtype), divide_by)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        whose = "" if self.clients is None else f", {len(self.names)} clients"
        test = "" if self.test is None else f", {len(self.test[1])} held out"
        return f"<Dataset: {len(self)} rows of {self.X.shape[1:]} {self.X.dtype}{whose}{test}>"


def flat(X: Array, dtype: np.dtype[Any], divide_by: float) -> Array:
    """Rows as (rows, features) of a float dtype, divided by a number."""
    rows = X.reshape(len(X), -1).astype(dtype)
    return rows if divide_by == 1.0 else np.divide(rows, dtype.type(divide_by), out=rows)


def joined(parts: list[Dataset]) -> Dataset:
    """Rows of several files, one after the other; their names and held-out rows are left out."""
    if len(parts) == 1:
        return parts[0]
    return Dataset(np.concatenate([part.X for part in parts]), np.concatenate([part.y for part in parts]))
