"""Rows to clients: each function gives an int64 client number per row, as the problems' `clients` takes it.

Every client gets at least one row. Draws come from NumPy's Philox, keyed by the seed: nothing depends on, or moves, any
global state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._base.arrays import to_array
from ._base.checks import count, number, seed_of

__all__ = ["by_column", "by_writer", "dirichlet", "iid", "label_skew", "pathological", "shards"]


def iid(n_rows: int, n_clients: int, seed: int) -> NDArray[np.int64]:
    """Rows dealt at random in shares that differ by at most one row.

    >>> import fedbuff as fb, numpy as np
    >>> clients = fb.partition.iid(10, n_clients=4, seed=0)
    >>> np.bincount(clients).tolist()
    [3, 2, 3, 2]
    """
    rows, n = _sizes(count("n_rows", n_rows), n_clients, 1, "n_clients")
    clients = np.empty(rows, np.int64)
    clients[_generator(seed).permutation(rows)] = _blocks(rows, n)
    return clients


def dirichlet(labels: ArrayLike, n_clients: int, alpha: float, seed: int, min_rows: int = 1) -> NDArray[np.int64]:
    """Each class is split over the clients in shares drawn from Dirichlet(alpha, ..., alpha).

    >>> import fedbuff as fb, numpy as np
    >>> labels = np.repeat([0, 1], 50)
    >>> clients = fb.partition.dirichlet(labels, n_clients=3, alpha=0.3, seed=0, min_rows=5)
    >>> bool(np.bincount(clients).min() >= 5)
    True

    A large alpha comes near to equal shares, a small one gives most of a class to few clients. A client that was left
    with fewer than `min_rows` rows gets the missing ones from the clients that have most.
    """
    index, n_classes = _class_index("labels", labels)
    least = count("min_rows", min_rows)
    rows, n = _sizes(index.size, n_clients, least, "min_rows * n_clients")
    concentration = number("alpha", alpha, open_low=True)
    generator = _generator(seed)
    order = _shuffled_by_class(index, generator)
    ends = np.cumsum(np.bincount(index, minlength=n_classes))
    clients = np.empty(rows, np.int64)
    begin = 0
    for end in ends.tolist():
        cuts = np.cumsum(_shares(generator, concentration, n))
        middle = (np.arange(end - begin) + 0.5) / (end - begin)
        clients[order[begin:end]] = np.minimum(np.searchsorted(cuts, middle, side="right"), n - 1)
        begin = end
    return _fill_up(clients, n, least, generator)


def shards(labels: ArrayLike, n_clients: int, shards_per_client: int, seed: int) -> NDArray[np.int64]:
    """Rows sorted by label are cut into equal shards, and each client is dealt so many of them (McMahan et al.).

    >>> import fedbuff as fb, numpy as np
    >>> labels = np.repeat(np.arange(10), 20)
    >>> clients = fb.partition.shards(labels, n_clients=5, shards_per_client=2, seed=0)
    >>> [len(set(labels[clients == i])) for i in range(5)]
    [2, 2, 2, 2, 2]
    """
    index, _ = _class_index("labels", labels)
    each = count("shards_per_client", shards_per_client)
    rows, n = _sizes(index.size, n_clients, each, "shards_per_client * n_clients")
    generator = _generator(seed)
    order = _shuffled_by_class(index, generator)
    owner = generator.permutation(n * each) // each
    clients = np.empty(rows, np.int64)
    clients[order] = owner[_blocks(rows, n * each)]
    return clients


def pathological(labels: ArrayLike, n_clients: int, classes_per_client: int, seed: int) -> NDArray[np.int64]:
    """Each client has rows of exactly so many classes; a class's rows are shared equally by the clients that have it.

    >>> import fedbuff as fb, numpy as np
    >>> labels = np.repeat(np.arange(10), 20)
    >>> clients = fb.partition.pathological(labels, n_clients=15, classes_per_client=3, seed=0)
    >>> [len(set(labels[clients == i])) for i in range(15)] == 15 * [3]
    True

    The number of clients differs by at most one from class to class. `shards` cuts rows and not classes, so that a
    shard may hold the end of one class and the begin of the next.
    """
    index, n_classes = _class_index("labels", labels)
    each = count("classes_per_client", classes_per_client, high=n_classes)
    n = count("n_clients", n_clients)
    if n * each < n_classes:
        raise ValueError(f"n_clients: {n} clients of {each} classes leave some of {n_classes} classes to nobody")
    generator = _generator(seed)
    owners = _owners_of_classes(generator, n, n_classes, each)
    order = _shuffled_by_class(index, generator)
    clients = np.empty(index.size, np.int64)
    begin = 0
    for label, size in enumerate(np.bincount(index, minlength=n_classes).tolist()):
        who = np.flatnonzero(owners[:, label])
        if size < len(who):
            raise ValueError(f"n_clients: class {label} has {size} rows, too few for its {len(who)} clients")
        clients[order[begin : begin + size]] = generator.permutation(who)[_blocks(size, len(who))]
        begin += size
    return clients


def _owners_of_classes(generator: np.random.Generator, n: int, n_classes: int, each: int) -> NDArray[np.bool_]:
    """owners[i, c]: client i has class c. A client takes the classes that fewest have taken, at random among them."""
    owners = np.zeros((n, n_classes), np.bool_)
    taken = np.zeros(n_classes, np.int64)
    for client in range(n):
        chosen = np.lexsort((generator.random(n_classes), taken))[:each]
        owners[client, chosen] = True
        taken[chosen] += 1
    return owners


def label_skew(
    labels: ArrayLike, n_clients: int, alpha: float, sigma: float, seed: int, min_rows: int = 1
) -> NDArray[np.int64]:
    """Clients of unequal size, each with its own mix of classes: sizes are log-normal, mixes are Dirichlet(alpha).

    >>> import fedbuff as fb, numpy as np
    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = fb.partition.label_skew(labels, n_clients=20, alpha=0.5, sigma=1.0, seed=0, min_rows=5)
    >>> sizes = np.bincount(clients)
    >>> int(sizes.sum()), bool(sizes.min() >= 5), bool(sizes.max() > 3 * np.median(sizes))
    (1000, True, True)

    alpha     of the Dirichlet distribution that a client's shares of the classes are drawn from
    sigma     of log(size); 0 gives sizes that differ by at most one row
    min_rows  what every client has; the rows beyond it are shared by the log-normal draws

    As in Hsu, Qi and Brown, 2019, clients take rows in turn (here in random order), and a class that has run out is
    left out of the later mixes: the last clients take what is left.
    """
    index, n_classes = _class_index("labels", labels)
    least = count("min_rows", min_rows)
    rows, n = _sizes(index.size, n_clients, least, "min_rows * n_clients")
    concentration, spread = number("alpha", alpha, open_low=True), number("sigma", sigma, high=100.0)
    generator = _generator(seed)
    weights = np.exp(spread * generator.standard_normal(n))
    ends = np.rint(np.cumsum(weights) / weights.sum() * (rows - n * least)).astype(np.int64)
    sizes = least + np.diff(ends, prepend=0)
    order = _shuffled_by_class(index, generator)
    left = np.bincount(index, minlength=n_classes)
    begins = np.cumsum(left) - left  # of the rows of each class that nobody has taken
    clients = np.empty(rows, np.int64)
    for client in generator.permutation(n).tolist():
        taken = _take_rows(generator, _shares(generator, concentration, n_classes), left, int(sizes[client]))
        for label in np.flatnonzero(taken).tolist():
            clients[order[begins[label] : begins[label] + taken[label]]] = client
        begins += taken
        left -= taken
    return clients


def _take_rows(
    generator: np.random.Generator, shares: NDArray[np.float64], left: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """How many rows of each class: multinomial by the shares, no more than are left; what is short is drawn again."""
    taken = np.zeros_like(left)
    while (short := size - int(taken.sum())) > 0:
        open_classes = left > taken
        wanted = np.where(open_classes, shares, 0.0)
        if not wanted.sum() > 0.0:  # its own classes have run out
            wanted = np.where(open_classes, left - taken, 0).astype(np.float64)
        taken = np.minimum(taken + generator.multinomial(short, wanted / wanted.sum()), left)
    return taken


def by_writer(writers: ArrayLike, n_clients: int, seed: int) -> NDArray[np.int64]:
    """Writers (users, devices) dealt at random to fewer clients, each with all of its rows: a client has whole writers.

    >>> import fedbuff as fb
    >>> fb.partition.by_writer(["ann", "bob", "ann", "cleo"], n_clients=2, seed=0).tolist()
    [0, 1, 0, 0]

    The number of writers differs by at most one from client to client; a client for each writer is `by_column`.
    """
    index, n_writers = _class_index("writers", writers)
    n = count("n_clients", n_clients)
    if n > n_writers:
        raise ValueError(f"n_clients: {n_writers} writers are too few for {n} clients")
    owner = np.empty(n_writers, np.int64)
    owner[_generator(seed).permutation(n_writers)] = _blocks(n_writers, n)
    return owner[index]


def by_column(values: ArrayLike) -> NDArray[np.int64]:
    """A client for each value of a column (a user, a writer, a device), numbered as `np.unique(values)` sorts them.

    >>> import fedbuff as fb
    >>> fb.partition.by_column(["ann", "bob", "ann", "cleo"]).tolist()
    [0, 1, 0, 2]
    """
    return _class_index("values", values)[0]


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed_of(seed)))


def _sizes(n_rows: int, n_clients: int, each: int, wanted: str) -> tuple[int, int]:
    n = count("n_clients", n_clients)
    if n_rows < n * each:
        raise ValueError(f"n_clients: {n_rows} rows are too few for {wanted} = {n * each}")
    return n_rows, n


def _blocks(n_rows: int, n_blocks: int) -> NDArray[np.int64]:
    """Positions 0 .. n_rows - 1 cut into consecutive blocks whose sizes differ by at most one."""
    return np.arange(n_rows, dtype=np.int64) * n_blocks // n_rows


def _class_index(name: str, values: ArrayLike) -> tuple[NDArray[np.int64], int]:
    given = to_array(name, values)
    if given.ndim != 1 or given.size == 0:
        raise ValueError(f"{name}: expected one value per row, got shape {given.shape}")
    if given.dtype.kind == "f" and np.isnan(given).any():
        raise ValueError(f"{name}: row {int(np.argmax(np.isnan(given)))} is NaN")
    try:
        classes, index = np.unique(given, return_inverse=True)
    except TypeError:  # objects without an order, such as None beside strings
        raise TypeError(f"{name}: the values cannot be sorted; pass numbers or strings") from None
    return index.astype(np.int64, copy=False), len(classes)


def _shuffled_by_class(index: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers sorted by class, in random order within a class."""
    shuffled = generator.permutation(index.size)
    order: NDArray[np.int64] = shuffled[np.argsort(index[shuffled], kind="stable")]
    return order


def _shares(generator: np.random.Generator, alpha: float, n: int) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = generator.dirichlet(np.full(n, alpha))
    if np.isfinite(shares).all():
        return shares
    # alpha is so small (below about 1e-300) that every gamma variate is 0: in the limit one client takes all
    shares = np.zeros(n)
    shares[generator.integers(n)] = 1.0
    return shares


def _fill_up(clients: NDArray[np.int64], n: int, least: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Moves as few rows as possible so that each client has `least`; the largest clients give, down to one level."""
    counts = np.bincount(clients, minlength=n)
    missing = np.maximum(least - counts, 0)
    n_missing = int(missing.sum())
    if n_missing == 0:
        return clients
    shuffled = generator.permutation(clients.size)
    order = shuffled[np.argsort(clients[shuffled], kind="stable")]
    rank: NDArray[np.int64] = np.arange(clients.size) - np.repeat(np.cumsum(counts) - counts, counts)
    highest: NDArray[Any] = np.argsort(-rank, kind="stable")[:n_missing]
    clients[order[highest]] = np.repeat(np.arange(n), missing)
    return clients
