"""fb.partition: every row has a client, every client has rows, the same seed gives the same answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedbuff as fb

LABELS = np.repeat(np.arange(10), 60)

CALLS = {
    "iid": lambda n, seed: fb.partition.iid(600, n, seed),
    "dirichlet": lambda n, seed: fb.partition.dirichlet(LABELS, n, 0.1, seed),
    "shards": lambda n, seed: fb.partition.shards(LABELS, n, 2, seed),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def sizes(clients: Any, n: int) -> np.ndarray:
    assert clients.dtype == np.int64 and clients.shape == (600,)
    assert clients.min() >= 0 and clients.max() < n
    return np.bincount(clients, minlength=n)


@every_call
@pytest.mark.parametrize("n", [1, 2, 7, 100, 300])
def test_every_client_has_rows(call: Any, n: int) -> None:
    assert sizes(call(n, 0), n).min() >= 1


@every_call
def test_depends_on_the_seed_alone(call: Any) -> None:
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = call(20, 5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    np.testing.assert_array_equal(call(20, 5), first)
    assert (call(20, 6) != first).any()


@every_call
def test_problems_take_it(call: Any) -> None:
    X = np.ones((600, 3), np.float32)
    assert fb.Softmax(X, LABELS, call(20, 0)).n_clients == 20


@every_call
@pytest.mark.parametrize(
    ("n", "seed", "error", "text"),
    [
        (0, 0, ValueError, "n_clients: expected an int >= 1, got 0"),
        (2.5, 0, TypeError, "n_clients: expected an int, got float"),
        (2, -1, ValueError, "seed: expected an int >= 0, got -1"),
        (2, "a", TypeError, "seed: expected an int, got str"),
        (1000, 0, ValueError, "n_clients: 600 rows are too few for "),
    ],
)
def test_errors_name_the_argument(call: Any, n: Any, seed: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        call(n, seed)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("n", [1, 7, 59, 600])
def test_iid_is_even(n: int) -> None:
    shares = sizes(fb.partition.iid(600, n, 3), n)
    assert shares.max() - shares.min() <= 1


def test_iid_is_not_in_order() -> None:
    clients = fb.partition.iid(600, 2, 0)
    assert 200 < np.count_nonzero(clients[:300]) + np.count_nonzero(clients[300:] == 0) < 400


def test_dirichlet_follows_alpha() -> None:
    def spread(alpha: float) -> float:
        clients = fb.partition.dirichlet(LABELS, 10, alpha, 0)
        table = np.histogram2d(LABELS, clients, bins=(10, 10))[0] / 60
        return float(table.max(axis=1).mean())  # the largest share of a class: 1/10 when even, 1 when one has it all

    assert spread(1e6) < 0.12
    assert spread(1.0) < spread(0.1) < spread(0.01)
    assert spread(1e-3) > 0.8


def test_dirichlet_shares_have_the_right_mean_and_variance() -> None:
    alpha, n = 0.5, 4
    labels = np.zeros(2000, np.int64)
    shares = np.array([np.bincount(fb.partition.dirichlet(labels, n, alpha, s), minlength=n) for s in range(400)])
    p = shares[:, 0] / 2000
    variance = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert abs(p.mean() - 1 / n) < 4 * np.sqrt(variance / 400)
    assert abs(p.var() / variance - 1) < 0.3


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 200),
    n=st.integers(1, 40),
    least=st.integers(1, 6),
    classes=st.integers(1, 5),
    alpha=st.sampled_from([1e-320, 1e-8, 1e-3, 0.3, 100.0]),
    seed=st.integers(0, 2**64 - 1),
)
@example(rows=1, n=1, least=1, classes=1, alpha=0.3, seed=2**64 - 1)
def test_dirichlet_keeps_min_rows(rows: int, n: int, least: int, classes: int, alpha: float, seed: int) -> None:
    labels = np.arange(rows) % classes
    if rows < n * least:
        with pytest.raises(ValueError, match=rf"{rows} rows are too few for min_rows \* n_clients = {n * least}"):
            fb.partition.dirichlet(labels, n, alpha, seed, least)
    else:
        assert np.bincount(fb.partition.dirichlet(labels, n, alpha, seed, least), minlength=n).min() >= least


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"alpha": 0.0}, ValueError, "alpha: expected a number > 0, got 0.0"),
        ({"alpha": np.nan}, ValueError, "alpha: expected a number > 0, got nan"),
        ({"min_rows": 0}, ValueError, "min_rows: expected an int >= 1, got 0"),
        ({"labels": []}, ValueError, "labels: expected one value per row, got shape (0,)"),
        ({"labels": np.zeros((4, 2))}, ValueError, "labels: expected one value per row, got shape (4, 2)"),
        ({"labels": [0.0, 1.0, np.nan]}, ValueError, "labels: row 2 is NaN"),
    ],
)
def test_dirichlet_errors(change: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        fb.partition.dirichlet(**{"labels": LABELS, "n_clients": 2, "alpha": 1.0, "seed": 0, **change})
    assert str(caught.value) == text


def test_shards_bound_the_classes_of_a_client() -> None:
    shuffled = np.random.default_rng(0).permutation(LABELS)
    clients = fb.partition.shards(shuffled, 30, 2, 0)  # 60 shards of 10 rows, 6 a class
    assert (sizes(clients, 30) == 20).all()
    assert max(len(set(shuffled[clients == i])) for i in range(30)) == 2
    with pytest.raises(ValueError, match="shards_per_client: expected an int >= 1, got 0"):
        fb.partition.shards(LABELS, 3, 0, 0)


def test_by_column() -> None:
    assert fb.partition.by_column([7, 3, 7, -1]).tolist() == [2, 1, 2, 0]
    assert fb.partition.by_column(np.array(["b", "a"], dtype=object)).tolist() == [1, 0]
    assert fb.partition.by_column([0.5, 0.25]).dtype == np.int64
    with pytest.raises(TypeError, match="values: the values cannot be sorted"):
        fb.partition.by_column(np.array(["b", None], dtype=object))
    with pytest.raises(ValueError, match="values: row 1 is NaN"):
        fb.partition.by_column([0.5, np.nan])


# ---- classes per client, unequal sizes, whole writers ----


@pytest.mark.parametrize(("n", "each"), [(5, 2), (20, 3), (7, 10), (1, 10), (100, 1)])
def test_pathological_clients_have_so_many_classes(n: int, each: int) -> None:
    clients = fb.partition.pathological(LABELS, n, each, seed=1)
    owners = np.zeros((n, 10), int)
    np.add.at(owners, (clients, LABELS), 1)
    assert ((owners > 0).sum(axis=1) == each).all()
    per_class = (owners > 0).sum(axis=0)
    assert per_class.max() - per_class.min() <= 1
    for label in range(10):
        shares = owners[:, label][owners[:, label] > 0]
        assert shares.max() - shares.min() <= 1


def test_pathological_pairs_are_not_a_cycle() -> None:
    clients = fb.partition.pathological(LABELS, 60, 2, seed=0)
    pairs = {tuple(np.unique(LABELS[clients == client]).tolist()) for client in range(60)}
    assert len(pairs) > 20


def test_pathological_errors() -> None:
    with pytest.raises(ValueError, match="classes_per_client: expected an int below 11, got 11"):
        fb.partition.pathological(LABELS, 20, 11, 0)
    with pytest.raises(ValueError, match="n_clients: 3 clients of 2 classes leave some of 10 classes to nobody"):
        fb.partition.pathological(LABELS, 3, 2, 0)
    with pytest.raises(ValueError, match="n_clients: class 0 has 60 rows, too few for its 120 clients"):
        fb.partition.pathological(LABELS, 120, 10, 0)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e4]),
    sigma=st.sampled_from([0.0, 0.5, 3.0, 100.0]),
    least=st.integers(1, 10),
    seed=st.integers(0, 5),
)
def test_label_skew_deals_every_row_once(n: int, alpha: float, sigma: float, least: int, seed: int) -> None:
    shares = sizes(fb.partition.label_skew(LABELS, n, alpha, sigma, seed, min_rows=least), n)
    assert shares.sum() == 600 and shares.min() >= least
    if sigma == 0.0:
        assert shares.max() - shares.min() <= 1


def test_label_skew_follows_alpha_and_sigma() -> None:
    labels = np.repeat(np.arange(10), 2000)

    def largest_share(alpha: float) -> float:
        clients = fb.partition.label_skew(labels, 100, alpha, 0.0, seed=3)
        return float(np.mean([np.bincount(labels[clients == at]).max() / (clients == at).sum() for at in range(100)]))

    assert largest_share(0.05) > 0.7 > largest_share(1.0) > 0.2 > largest_share(1e3)
    logs = np.log(np.bincount(fb.partition.label_skew(labels, 400, 1.0, 0.8, seed=3)))
    assert 0.7 < logs.std() < 0.9


def test_label_skew_errors() -> None:
    with pytest.raises(ValueError, match="sigma: expected a number >= 0 and <= 100, got -1"):
        fb.partition.label_skew(LABELS, 5, 1.0, -1.0, 0)
    with pytest.raises(ValueError, match="n_clients: 600 rows are too few for min_rows"):
        fb.partition.label_skew(LABELS, 100, 1.0, 1.0, 0, min_rows=7)


def test_writers_stay_whole() -> None:
    writers = np.array([f"w{at % 23}" for at in range(600)])
    clients = fb.partition.by_writer(writers, 5, seed=2)
    owners = {writer: set(clients[writers == writer].tolist()) for writer in set(writers.tolist())}
    assert all(len(owner) == 1 for owner in owners.values())
    n_writers = np.bincount([owner.pop() for owner in owners.values()])
    assert n_writers.tolist() and n_writers.max() - n_writers.min() <= 1 and len(n_writers) == 5
    assert (fb.partition.by_writer(writers, 5, seed=3) != clients).any()
    with pytest.raises(ValueError, match="n_clients: 23 writers are too few for 24 clients"):
        fb.partition.by_writer(writers, 24, seed=0)
