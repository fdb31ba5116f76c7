"""Every kernel of every backend, at every dtype and CPU level, against the reference in float64.

A kernel is tested by `test_<its name>`; one without a test fails the collection of this file. A new backend joins by
its name in cases.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerance
from cases import Case, every_case, every_dtype
from error_bounds import Bounds, bounds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import cast, nets, specs, start, summands

import fedbuff as fb
from fedbuff._rule.optimizers import (
    Adagrad,
    Adam,
    AMSGrad,
    DelayedNesterov,
    Nesterov,
    Yogi,
    optimizer_fields,
)
from fedbuff._rule.strategies import rule_of
from fedbuff._schedule.options import ScheduleOptions
from fedbuff._schedule.plan import Request
from fedbuff.backends import reference
from fedbuff.backends.python.compression import BFLOAT16, QSGD, RANDOM_K, SIGN, TOP_K
from fedbuff.backends.python.philox import Stream
from fedbuff.backends.python.resolver import FULL
from fedbuff.backends.python.shuffle import shuffled
from fedbuff.backends.spec import (
    ROW_NAMES,
    Backend,
    BoundProblem,
    Columns,
    CompressNumbers,
    EncodeNumbers,
    EngineSpec,
    LocalPlan,
    LocalSpec,
    LocalTask,
    Plan,
    ProblemSpec,
    QuantizeNumbers,
    RunSpec,
    RunState,
    ScheduleChunk,
    StepNumbers,
    SumSpec,
    UsedRows,
    new_columns,
)

Array = NDArray[Any]

few = settings(max_examples=30, deadline=None, derandomize=True)
more = settings(few, max_examples=80)

words = st.integers(0, 2**32 - 1)
seeds = st.one_of(st.sampled_from([0, 1, 2**32, 2**64 - 1]), st.integers(0, 2**64 - 1))
dims = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1025])


def known_answers() -> list[list[int]]:
    text = (Path(__file__).parent / "philox_known_answers.txt").read_text()
    return [[int(word, 16) for word in line.split()] for line in text.splitlines() if not line.startswith("#")]


def vectors(seed: int, n: int, dim: int, dtype: str, spread: float = 3.0) -> list[Array]:
    """n vectors with entries of very different sizes."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(dim) * np.exp(spread * rng.standard_normal(dim))).astype(dtype) for _ in range(n)]


def wide(*arrays: Array) -> list[Array]:
    return [array.astype(np.float64) for array in arrays]


# Random numbers


@every_case
@pytest.mark.parametrize("answer", known_answers(), ids=lambda answer: f"{answer[0]:08x}")
def test_philox_known_answers(case: Case, answer: list[int]) -> None:
    counter, seed, output = answer[:4], answer[4] | answer[5] << 32, answer[6:]
    with case.use() as backend:
        got = backend.philox(seed, np.array([counter], np.uint32))
    tolerance.PHILOX.check(got, np.array([output], np.uint32))


@every_case
@given(seed=seeds, counter=st.lists(st.tuples(words, words, words, words), min_size=1, max_size=9))
@few
def test_philox(case: Case, seed: int, counter: list[tuple[int, int, int, int]]) -> None:
    array = np.array(counter, np.uint32)
    with case.use() as backend:
        tolerance.PHILOX.check(backend.philox(seed, array), reference.philox(seed, array))


@every_case
@given(seed=seeds, client=words, task=words, step=words, n_rows=st.integers(1, 2**32 - 1), batch=st.integers(1, 70))
@few
def test_batch_rows(case: Case, seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> None:
    with case.use() as backend:
        got = backend.batch_rows(seed, client, task, step, n_rows, batch)
    tolerance.BATCH_ROWS.check(got, reference.batch_rows(seed, client, task, step, n_rows, batch))
    assert got.min() >= 0 and got.max() < n_rows


@every_case
@given(seed=seeds, counter=st.tuples(words, words, words), stream=st.integers(0, 5), n=st.integers(1, 300))
@few
def test_normals(case: Case, seed: int, counter: tuple[int, int, int], stream: int, n: int) -> None:
    with case.use() as backend:
        got = backend.normals(seed, *counter, stream, n)
    tolerance.NORMALS.check(got, reference.normals(seed, *counter, stream, n))


# Problems


def rows_of(spec: ProblemSpec, client: int) -> Array:
    return np.empty(0, np.int64) if spec.offsets is None else np.arange(spec.offsets[client], spec.offsets[client + 1])


def step_gradient(spec: ProblemSpec, w: Array, client: int, rows: Array | None, noise: Array) -> Array:
    """The gradient of one local step in float64; rows within the client, None for all."""
    exact = cast(spec, np.float64)
    delta = np.empty(spec.dim)
    given_rows = None if rows is None or spec.family == "quadratic" else rows[np.newaxis]
    batch = 0 if given_rows is None else given_rows.size
    problem, model = reference.bind(exact), w.astype(np.float64)
    problem.local_sgd(LocalSpec(1, 1.0), model, LocalTask(client, 0, 0, batch, given_rows), delta)
    return delta + noise


@every_case
@every_dtype
@given(
    data=st.data(),
    batch=st.sampled_from([0, 1, 3, 4, 5, 9, 70]),
    steps=st.integers(1, 4),
    momentum=st.sampled_from([0.0, 0.5]),
    weight_decay=st.sampled_from([0.0, 0.25]),
    prox=st.sampled_from([0.0, 0.5]),
    explicit=st.booleans(),
    seed=seeds,
)
@more
def test_local_sgd(
    case: Case,
    dtype: str,
    data: st.DataObject,
    batch: int,
    steps: int,
    momentum: float,
    weight_decay: float,
    prox: float,
    explicit: bool,
    seed: int,
) -> None:
    spec = data.draw(specs(dtype))
    client = data.draw(st.integers(0, spec.n_clients - 1))
    w0 = start(spec, data.draw(words))
    local = LocalSpec(steps, 1.0, momentum, weight_decay, prox)
    check_local_sgd(case, spec, w0, local, client, data.draw(words), seed, batch, explicit)


def check_local_sgd(
    case: Case,
    spec: ProblemSpec,
    w0: Array,
    local: LocalSpec,
    client: int,
    task: int,
    seed: int,
    batch: int,
    explicit: bool,
) -> None:
    """Every step from the state before it, with a learning rate that suits the problem."""
    dtype, (steps, momentum) = spec.dtype, (local.steps, local.momentum)
    weight_decay, prox, per_pass = local.weight_decay, local.prox, local.steps_per_pass
    factors = local.lr_factors if len(local.lr_factors) else np.ones(steps)
    owned = rows_of(spec, client)
    quadratic = spec.family == "quadratic"

    batches: list[Array] | None = None
    if batch > 0 and not quadratic and per_pass > 0:
        passes = [shuffled(seed, client, task, p, len(owned), np.arange(len(owned))) for p in range(steps)]
        batches = [passes[q // per_pass][q % per_pass * batch :][:batch] for q in range(steps)]
    elif batch > 0 and not quadratic:
        drawn = [reference.batch_rows(seed, client, task, q, len(owned), batch) for q in range(steps)]
        batches = [rows[::-1] for rows in drawn] if explicit else drawn
    noise = [np.zeros(spec.dim)] * steps
    if batch > 0 and quadratic:
        deviation = math.sqrt(spec.noise_variance / (spec.dim * batch))
        noise = [deviation * reference.normals(seed, client, task, q, 3, spec.dim) for q in range(steps)]

    def gradient(q: int, w: Array) -> Array:
        return step_gradient(spec, w, client, None if batches is None else batches[q], noise[q])

    steepest = max(float(np.abs(gradient(q, w0)).max()) for q in range(steps)) + weight_decay + 0.01
    lr = 2.0 ** math.floor(math.log2(np.abs(w0).min() / (8 * steps * steepest)))
    given = batches if explicit else None
    with case.use() as backend:
        problem = backend.bind(spec)
        states = [w0]
        for q in range(1, steps + 1):
            delta = np.full_like(w0, np.nan)
            problem.local_sgd(
                LocalSpec(q, lr, momentum, weight_decay, prox, local.lr_factors[:q], per_pass),
                w0,
                LocalTask(client, task, seed, batch, None if given is None else np.array(given[:q])),
                delta,
            )
            assume(np.all(np.abs(delta) <= np.abs(w0) / 2))  # so that the state can be had from the delta exactly
            states.append(w0 - delta)

    for q in range(steps):
        before, w, after, origin = wide(states[max(q - 1, 0)], states[q], states[q + 1], w0)
        rows = owned if batches is None else owned[0] + batches[q]
        limit = bounds(spec, w, rows, client)
        n = summands(spec, len(rows))
        if limit.safe <= tolerance.IN_DOUBT.allowed(1.0, n, dtype):
            break
        direction = gradient(q, w) + weight_decay * w + prox * (w - origin)
        want = w - lr * factors[q] * direction - momentum * factors[q] / factors[max(q - 1, 0)] * (before - w)
        terms = np.abs(w) + np.abs(before) + np.abs(origin)
        terms += lr * (limit.gradient + np.abs(noise[q]) + weight_decay * np.abs(w) + prox * terms)
        tolerance.LOCAL_SGD.check(after, want, terms=terms, n=n, dtype=dtype)


@every_case
@every_dtype
@given(
    data=st.data(),
    batch=st.sampled_from([0, 1, 3, 4, 70]),
    passes=st.integers(1, 3),
    drop_last=st.booleans(),
    momentum=st.sampled_from([0.0, 0.5]),
    l2=st.sampled_from([None, 0.5]),
    halving=st.booleans(),
    seed=seeds,
)
@more
def test_local_sgd_of_passes(
    case: Case,
    dtype: str,
    data: st.DataObject,
    batch: int,
    passes: int,
    drop_last: bool,
    momentum: float,
    l2: float | None,
    halving: bool,
    seed: int,
) -> None:
    """Rows in shuffled order, last batches that are not full or left out, and a factor for each step."""
    spec = data.draw(specs(dtype))
    client = data.draw(st.integers(0, spec.n_clients - 1))
    n = len(rows_of(spec, client))
    per_pass = 1 if batch == 0 else n // batch if drop_last else -(-n // batch)
    assume(0 < per_pass <= 6 and spec.family != "quadratic")
    spec = spec if l2 is None else replace(spec, l2=l2)
    steps = passes * per_pass
    factors = 0.5 ** (np.arange(steps) % 3) if halving else np.empty(0)
    local = LocalSpec(steps, 1.0, momentum, 0.0, 0.0, factors, per_pass)
    w0, task = start(spec, data.draw(words)), data.draw(words)
    check_local_sgd(case, spec, w0, local, client, task, seed, batch, False)


@every_case
@every_dtype
@given(data=st.data(), seed=seeds, threads=st.integers(1, 2))
@few
def test_local_sgd_from_zero(case: Case, dtype: str, data: st.DataObject, seed: int, threads: int) -> None:
    """From a model of zeros the delta of one step is lr times the gradient, without the rounding of w - (w - g)."""
    spec = data.draw(specs(dtype))
    w = np.zeros(spec.dim, dtype)
    delta = np.empty_like(w)
    with case.use() as backend:
        backend.bind(spec).local_sgd(LocalSpec(1, 0.5), w, LocalTask(0, 0, seed, 0), delta)
    rows = rows_of(spec, 0)
    limit = bounds(spec, w, rows)
    want = 0.5 * step_gradient(spec, w, 0, None, np.zeros(spec.dim))
    tolerance.LOCAL_SGD.check(delta, want, terms=limit.gradient, n=summands(spec, len(rows)), dtype=dtype)


def check_objective(
    spec: ProblemSpec, w: Array, client: int | None, value: float, gradient: Array, declared: tolerance.Backward
) -> None:
    truth = reference.bind(cast(spec, np.float64))
    want = np.empty(spec.dim)
    if client is None:
        want_value = truth.gradient(w.astype(np.float64), want, 1)
        parts = [bounds(spec, w, rows_of(spec, i), i) for i in range(spec.n_clients)]
        weights = spec.client_weight
    else:
        want_value = truth.client_gradient(client, w.astype(np.float64), want)
        parts, weights = [bounds(spec, w, rows_of(spec, client), client)], np.ones(1)
    n = summands(spec, max(len(rows_of(spec, i)) for i in range(spec.n_clients)))
    limit = weighted(parts, weights)
    declared.check(value, want_value, terms=limit.value, n=n, dtype=w.dtype)
    if limit.safe < math.inf:  # there is a relu
        assume(limit.safe > tolerance.IN_DOUBT.allowed(1.0, n, w.dtype))
    declared.check(gradient, want, terms=limit.gradient, n=n, dtype=w.dtype)


def weighted(parts: list[Bounds], weights: Array) -> Bounds:
    return Bounds(
        value=float(sum(weight * part.value for weight, part in zip(weights, parts, strict=True))),
        gradient=sum((weight * part.gradient for weight, part in zip(weights, parts, strict=True)), np.zeros(1)),
        safe=min(part.safe for part in parts),
        margin=np.concatenate([part.margin for part in parts]),
    )


@every_case
@every_dtype
@given(data=st.data(), seed=words)
@more
def test_client_gradient(case: Case, dtype: str, data: st.DataObject, seed: int) -> None:
    spec = data.draw(specs(dtype))
    client = data.draw(st.integers(0, spec.n_clients - 1))
    w = start(spec, seed)
    gradient = np.full_like(w, np.nan)
    with case.use() as backend:
        problem = backend.bind(spec)
        value = problem.client_gradient(client, w, gradient)
        value_alone = problem.client_gradient(client, w, None)
    tolerance.PREFIX.check(value_alone, value)
    check_objective(spec, w, client, value, gradient, tolerance.CLIENT_GRADIENT)


@every_case
@every_dtype
@given(data=st.data(), seed=words, threads=st.integers(1, 2))
@few
def test_gradient(case: Case, dtype: str, data: st.DataObject, seed: int, threads: int) -> None:
    spec = data.draw(specs(dtype))
    w = start(spec, seed)
    gradient = np.full_like(w, np.nan)
    with case.use() as backend:
        problem = backend.bind(spec)
        value = problem.gradient(w, gradient, threads)
        value_alone = problem.gradient(w, None, threads)
    tolerance.PREFIX.check(value_alone, value)
    check_objective(spec, w, None, value, gradient, tolerance.GRADIENT)


def linear(
    dtype: str,
    head: Any,
    n_features: int,
    counts: list[int],
    *,
    seed: int = 0,
    intercept: bool = False,
    weighted: bool = False,
    **regularisers: float,
) -> ProblemSpec:
    """A linear model of one output."""
    rng = np.random.default_rng(seed)
    n_rows = sum(counts)
    target = rng.standard_normal(n_rows) if head == "squared" else rng.integers(0, 2, n_rows)
    weights = rng.uniform(0.5, 1.5, len(counts)) if weighted else np.array(counts, np.float64)
    return ProblemSpec(
        family="net",
        dtype=np.dtype(dtype),
        n_clients=len(counts),
        dim=n_features + intercept,
        client_weight=weights / weights.sum(),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        x=rng.standard_normal((n_rows, n_features)).astype(dtype),
        target=target.astype(dtype),
        sizes=(n_features, 1),
        intercept=intercept,
        head=head,
        **regularisers,
    )


both_heads = pytest.mark.parametrize("head", ["squared", "logistic"])


@every_case
@every_dtype
@both_heads
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["moderate", "extreme"])
def test_gradient_of_narrow_rows(case: Case, dtype: str, head: str, scale: float) -> None:
    """Around every vector width; clients of one row, of less than a block and of more; all weights of rows or none
    alike; with and without intercept and regularisers."""
    for n_features in (*range(1, 10), 12, 15, 16, 17, 20, 24, 25, 31, 32, 33, 48, 49, 63, 64, 65):
        counts = [[1], [1, 1, 1, 7, 130, 2], [300, 1], [5] * 60][n_features % 4]
        for weighted in (False, True):
            intercept = (n_features + weighted) % 3 == 0
            regularisers = {"l2": 0.125, "nonconvex": 0.25} if n_features % 2 else {}
            spec = linear(dtype, head, n_features, counts, intercept=intercept, weighted=weighted, **regularisers)
            w = (start(spec, n_features) * scale).astype(dtype)
            one, two = np.full_like(w, np.nan), np.full_like(w, np.nan)
            with case.use() as backend:
                problem = backend.bind(spec)
                value = problem.gradient(w, one, 1)
                tolerance.PREFIX.check(problem.gradient(w, two, 2), value)
                tolerance.PREFIX.check(problem.gradient(w, None, 1), value)
            tolerance.PREFIX.check(two, one)
            check_objective(spec, w, None, value, one, tolerance.GRADIENT)


@every_case
@every_dtype
@both_heads
@pytest.mark.parametrize("n_features", [1, 7, 20, 33, 64, 100])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gradient_shows_what_is_not_finite(case: Case, dtype: str, head: str, n_features: int, bad: float) -> None:
    """In the value and the gradient of the client that has it, wherever it stands; and in no other's."""
    counts = [3, 130, 3]
    for row, column in ((3, 0), (132, n_features - 1), (70, n_features // 2)):
        spec = linear(dtype, head, n_features, counts)
        assert spec.x is not None
        spec.x[row, column] = bad
        w = start(spec, 1)
        gradient = np.empty_like(w)
        with case.use() as backend, np.errstate(all="ignore"):
            problem = backend.bind(spec)
            finite = []
            for client in range(3):
                value = problem.client_gradient(client, w, gradient)
                finite.append(math.isfinite(value) and bool(np.isfinite(gradient).all()))
            tolerance.FINITE.check(np.array(finite), np.array([True, False, True]))
            problem.gradient(w, gradient, 2)
        assert not np.isfinite(gradient).all()


@every_case
@every_dtype
def test_small_losses_keep_their_digits(case: Case, dtype: str) -> None:
    """log(1 + exp(z)) for scores far below zero: no digits are lost beside the 1."""
    for counts, weighted in (([200], False), ([3, 5] * 20, True)):
        spec = linear(dtype, "logistic", 1, counts, weighted=weighted)
        assert spec.x is not None and spec.target is not None
        spec.x[:] = 1
        spec.target[:] = 0
        with case.use() as backend:
            value = backend.bind(spec).gradient(np.array([-40.0], dtype), None, 1)
        tolerance.GRADIENT.check(value, math.exp(-40.0), terms=math.exp(-40.0), n=64, dtype=dtype)


@every_case
@every_dtype
@given(data=st.data(), seed=words)
@few
def test_count_correct(case: Case, dtype: str, data: st.DataObject, seed: int) -> None:
    heads = ("logistic", "softmax")
    spec = data.draw(st.one_of(nets(dtype, heads=heads), nets(dtype, sparse=True, heads=heads)))
    assert spec.offsets is not None
    n_rows = int(spec.offsets[-1])
    begin = data.draw(st.integers(0, n_rows))
    end = data.draw(st.integers(begin, n_rows))
    w = start(spec, seed)
    with case.use() as backend:
        got = backend.bind(spec).count_correct(begin, end, w)
    want = reference.bind(cast(spec, np.float64)).count_correct(begin, end, w.astype(np.float64))
    if begin < end:
        margin = bounds(spec, w, np.arange(begin, end)).margin
        doubtful = margin > 0  # a score of exactly 0, as of a row without entries, is not in doubt
        assume(not np.any(doubtful & (margin <= tolerance.IN_DOUBT.allowed(1.0, summands(spec, 1), dtype))))
    tolerance.COUNT_CORRECT.check(got, want)


@every_case
@every_dtype
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_ties(case: Case, dtype: str, activation: Any) -> None:
    """relu'(0) = 0, a score of 0 is not above 0, and the first of equal scores wins."""
    x = np.array([[1.0, -1.0], [2.0, 2.0], [0.0, 0.0]], dtype)
    common: dict[str, Any] = {
        "family": "net",
        "dtype": np.dtype(dtype),
        "n_clients": 1,
        "client_weight": np.ones(1),
        "offsets": np.array([0, 3]),
        "x": x,
        "activation": activation,
    }
    labels = np.array([0, 0, 1], np.int32)
    softmax = ProblemSpec(dim=4, sizes=(2, 2), head="softmax", label=labels, **common)
    logistic = ProblemSpec(dim=2, sizes=(2, 1), head="logistic", target=np.array([0, 0, 1], dtype), **common)
    hidden = ProblemSpec(dim=3, sizes=(2, 1, 1), head="squared", target=np.ones(3, dtype), **common)
    with case.use() as backend:
        assert backend.bind(softmax).count_correct(0, 3, np.ones(4, dtype)) == 2
        assert backend.bind(logistic).count_correct(0, 3, np.zeros(2, dtype)) == 2
        gradient = np.empty(3, dtype)
        backend.bind(hidden).client_gradient(0, np.array([0.0, 0.0, 1.0], dtype), gradient)
    tolerance.FINITE.check(gradient[:2] == 0, np.array([activation == "relu"] * 2))


@every_case
@every_dtype
@pytest.mark.parametrize("size", [1e3, 1e30])
def test_heads_are_stable(case: Case, dtype: str, size: float) -> None:
    """Scores whose exponential overflows give the right loss and slope."""
    common: dict[str, Any] = {
        "family": "net",
        "dtype": np.dtype(dtype),
        "n_clients": 1,
        "client_weight": np.ones(1),
        "offsets": np.array([0, 2]),
        "x": np.array([[1.0], [-1.0]], dtype),
    }
    logistic = ProblemSpec(dim=1, sizes=(1, 1), head="logistic", target=np.array([0, 0], dtype), **common)
    softmax = ProblemSpec(dim=2, sizes=(1, 2), head="softmax", label=np.array([1, 1], np.int32), **common)
    with case.use() as backend:
        for spec, w in ((logistic, [size]), (softmax, [size, 0.0])):
            gradient = np.empty(spec.dim, dtype)
            value = backend.bind(spec).client_gradient(0, np.array(w, dtype), gradient)
            want = np.array([0.5, -0.5][: spec.dim])
            tolerance.CLIENT_GRADIENT.check(value, size / 2, terms=size, n=2, dtype=dtype)
            tolerance.CLIENT_GRADIENT.check(gradient, want, terms=np.ones(spec.dim), n=2, dtype=dtype)


# The server's side


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    weight=st.sampled_from([1.0, 0.1, -3.0, 0.0]),
    moved=st.booleans(),
    bad=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
@few
def test_accumulate(case: Case, dtype: str, seed: int, dim: int, weight: float, moved: bool, bad: float | None) -> None:
    total, delta, current, begin = vectors(seed, 4, dim, dtype)
    if bad is not None:
        delta[seed % dim] = bad
    model: tuple[Array | None, Array | None] = (current, begin) if moved else (None, None)
    out, alias = np.full_like(total, np.nan), total.copy()
    with case.use() as backend:
        finite = backend.accumulate(total, delta, weight, *model, out)
        backend.accumulate(alias, delta, weight, *model, alias)
    assert finite is (bad is None)
    tolerance.PREFIX.check(alias, out)
    good = np.isfinite(delta)
    t, d, c, s = (array[good] for array in wide(total, delta, current, begin))
    step = d + (c - s) if moved else d
    size = np.abs(d) + (np.abs(c) + np.abs(s) if moved else 0.0)
    terms = np.abs(t) + abs(weight) * size
    tolerance.ACCUMULATE.check(out[good], t + weight * step, terms=terms, n=4, dtype=dtype)


@every_case
@every_dtype
@given(seed=words, dim=dims, n_deltas=st.integers(1, 23), scale=st.sampled_from([1.0, 0.1, -2.5]))
@few
def test_aggregate(case: Case, dtype: str, seed: int, dim: int, n_deltas: int, scale: float) -> None:
    w, *deltas = vectors(seed, n_deltas + 1, dim, dtype)
    weights = vectors(seed + 1, 1, n_deltas, dtype)[0]
    out, alias = np.full_like(w, np.nan), w.copy()
    with case.use() as backend:
        backend.aggregate(w, deltas, weights, scale, out, 1)
        backend.aggregate(alias, deltas, weights, scale, alias, 2)
    tolerance.PREFIX.check(alias, out)
    products = [weight * delta for weight, delta in zip(weights.astype(np.float64), wide(*deltas), strict=True)]
    want = w.astype(np.float64) - scale * np.sum(products, axis=0)
    terms = np.abs(w.astype(np.float64)) + abs(scale) * np.sum(np.abs(products), axis=0)
    tolerance.AGGREGATE.check(out, want, terms=terms, n=n_deltas + 3, dtype=dtype)


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    lr=st.sampled_from([1.0, 0.1]),
    norm=st.sampled_from([1.0, 10.0, 0.3]),
    momentum=st.sampled_from([0.0, 0.9]),
)
@few
def test_sgd_step(case: Case, dtype: str, seed: int, dim: int, lr: float, norm: float, momentum: float) -> None:
    w, total, velocity = vectors(seed, 3, dim, dtype)
    old_velocity, alias, other_velocity = velocity.copy(), w.copy(), velocity.copy()
    out = np.full_like(w, np.nan)
    with case.use() as backend:
        backend.sgd_step(w, total, lr, norm, momentum, velocity if momentum else None, out)
        backend.sgd_step(alias, total, lr, norm, momentum, other_velocity if momentum else None, alias)
    tolerance.PREFIX.check(alias, out)
    w_, t, v = wide(w, total, old_velocity)
    want_velocity = momentum * v + t / norm
    terms = momentum * np.abs(v) + np.abs(t) / norm
    if momentum:
        tolerance.SGD_STEP.check(velocity, want_velocity, terms=terms, n=4, dtype=dtype)
    else:
        tolerance.PREFIX.check(velocity, old_velocity)
    tolerance.SGD_STEP.check(out, w_ - lr * want_velocity, terms=np.abs(w_) + lr * terms, n=6, dtype=dtype)


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    step=st.sampled_from([1, 2, 10, 1000]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    norm=st.sampled_from([1.0, 10.0]),
)
@few
def test_adam_step(case: Case, dtype: str, seed: int, dim: int, step: int, weight_decay: float, norm: float) -> None:
    w, total, first, root = vectors(seed, 4, dim, dtype, spread=1.0)
    second = root * root
    lr, (b1, b2), epsilon = 0.1, (0.9, 0.999), 1e-8
    numbers = StepNumbers(lr, norm, 0.0, b1, b2, epsilon, weight_decay, step)
    w_, t, m, v = wide(w, total, first, second)
    out, alias, moments = np.full_like(w, np.nan), w.copy(), (first.copy(), second.copy())
    with case.use() as backend:
        backend.adam_step(w, total, numbers, (first, second), out)
        backend.adam_step(alias, total, numbers, moments, alias)
    tolerance.PREFIX.check(alias, out)
    gradient, size = t / norm + weight_decay * w_, np.abs(t) / norm + weight_decay * np.abs(w_)
    # 1 - b is rounded from the float64 difference: its own error is a few eps of itself
    want_first, want_second = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
    first_terms = b1 * np.abs(m) + (1 - b1) * size
    second_terms = b2 * v + (1 - b2) * (gradient**2 + 2 * np.abs(gradient) * size)
    tolerance.ADAM_STEP.check(first, want_first, terms=first_terms, n=4, dtype=dtype)
    tolerance.ADAM_STEP.check(second, want_second, terms=second_terms, n=4, dtype=dtype)
    rate, scale = lr / (1 - b1**step), np.sqrt(want_second / (1 - b2**step)) + epsilon
    terms = np.abs(w_) + rate * (first_terms + np.abs(want_first) * (1 + second_terms / want_second)) / scale
    tolerance.ADAM_STEP.check(out, w_ - rate * want_first / scale, terms=terms, n=8, dtype=dtype)


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    optimizer=st.sampled_from(
        [
            Nesterov(0.8),
            DelayedNesterov(3, 0.9, 0.2),
            Adam((0.9, 0.99), 1e-3, 0.1, bias_correction=False),
            Adagrad(0.5),
            Yogi(),
            AMSGrad(),
        ]
    ),
    step=st.sampled_from([1, 3]),
    norm=st.sampled_from([1.0, 10.0]),
)
@few
def test_optimizer_step(case: Case, dtype: str, seed: int, dim: int, optimizer: Any, step: int, norm: float) -> None:
    w, total, first, root, last = vectors(seed, 5, dim, dtype, spread=1.0)
    second = root if isinstance(optimizer, DelayedNesterov) else root * root
    moments = (first, second, last * last)[: len(optimizer.moments)]
    given = optimizer_fields(optimizer)
    numbers = StepNumbers(lr=0.1, norm=norm, step=step, **{k: given[k] for k in StepNumbers._fields if k in given})
    # The reference in float64 is what the others are near to; errors of a moment come into the model by its slope.
    wanted, want = tuple(moment.astype(np.float64) for moment in moments), np.empty(dim)
    reference.optimizer_step(optimizer.code, *wide(w, total), numbers, wanted, want)
    out, alias = np.full_like(w, np.nan), w.copy()
    again = tuple(moment.copy() for moment in moments)
    with case.use() as backend:
        backend.optimizer_step(optimizer.code, w, total, numbers, moments, out)
        backend.optimizer_step(optimizer.code, alias, total, numbers, again, alias)
    tolerance.PREFIX.check(alias, out)
    size = np.abs(total.astype(np.float64)) / norm + np.abs(w.astype(np.float64))
    terms = size + np.abs(first) + size**2 + np.abs(root) + root.astype(np.float64) ** 2
    for got, moment in zip(moments, wanted, strict=True):
        tolerance.OPTIMIZER_STEP.check(got, moment, terms=terms + np.abs(moment), n=8, dtype=dtype)
    slope = 1.0
    if len(moments) > 1 and not isinstance(optimizer, DelayedNesterov):
        scale = np.sqrt(wanted[-1]) + given["epsilon"]
        slope = (1 + (np.abs(wanted[0]) + 1) * (1 + terms / np.maximum(wanted[-1], 1e-300))) / scale
    tolerance.OPTIMIZER_STEP.check(out, want, terms=np.abs(w) + terms * slope, n=8, dtype=dtype)


@every_case
@every_dtype
@given(seed=words, dim=dims)
@few
def test_dot(case: Case, dtype: str, seed: int, dim: int) -> None:
    x, y = vectors(seed, 2, dim, dtype)
    with case.use() as backend:
        got = backend.dot(x, y)
    products = [a * b for a, b in zip(x.astype(float).tolist(), y.astype(float).tolist(), strict=True)]
    tolerance.DOT.check(got, math.fsum(products), terms=math.fsum(map(abs, products)), n=dim + 1, dtype=np.float64)


# Fixed point


word_types = st.sampled_from([np.uint32, np.uint64])


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    word=word_types,
    bits=st.integers(2, 31),
    clip=st.sampled_from([1.0, 0.75, float(np.float32(0.1)), 1024.0]),
    factor=st.sampled_from([1.0, 0.3]),
    weight=st.sampled_from([1, 2, 7]),
    stochastic=st.booleans(),
    empty=st.booleans(),
    bad=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
@more
def test_encode_add(
    case: Case,
    dtype: str,
    seed: int,
    dim: int,
    word: Any,
    bits: int,
    clip: float,
    factor: float,
    weight: int,
    stochastic: bool,
    empty: bool,
    bad: float | None,
) -> None:
    step = 2.0 ** (math.ceil(math.log2(clip)) - (bits - 1))
    (delta,) = vectors(seed, 1, dim, dtype, spread=1.0)
    ties = np.arange(dim) % 5 == 0
    delta[ties] = (np.rint(delta[ties] / step) + 0.5) * step
    if bad is not None:
        delta[seed % dim] = bad
    total = np.random.default_rng(seed).integers(0, np.iinfo(word).max, dim, word, endpoint=True)
    how = EncodeNumbers(weight, clip, step, factor, (seed, seed ^ 5, seed ^ 9) if stochastic else None)
    want = np.empty(dim, word)
    want_cut = reference.encode_add(None if empty else total, delta, how, want)
    got, alias = np.zeros(dim, word), total.copy()
    with case.use() as backend:
        cut = backend.encode_add(None if empty else total, delta, how, got)
        backend.encode_add(None if empty else alias, delta, how, alias)
    assert cut == want_cut
    tolerance.ENCODE_ADD.check(got, want)
    tolerance.PREFIX.check(alias, want)


@every_case
@given(seed=words, dim=dims, word=word_types, weight=st.sampled_from([0, 1, 2, 1000, -1]))
@few
def test_add_words(case: Case, seed: int, dim: int, word: Any, weight: int) -> None:
    total, more_words = np.random.default_rng(seed).integers(0, np.iinfo(word).max, (2, dim), word, endpoint=True)
    factor = weight % (int(np.iinfo(word).max) + 1)
    want = [
        (a + factor * b) % (int(np.iinfo(word).max) + 1)
        for a, b in zip(total.tolist(), more_words.tolist(), strict=True)
    ]
    got, alias = np.zeros(dim, word), more_words.copy()
    with case.use() as backend:
        backend.add_words(total, more_words, factor, got)
        backend.add_words(total, alias, factor, alias)
    tolerance.ADD_WORDS.check(got, np.array(want, word))
    tolerance.PREFIX.check(alias, got)


@every_case
@every_dtype
@given(seed=words, dim=dims, word=word_types, scale=st.sampled_from([1.0, 2.0**-19, 0.1]))
@few
def test_decode(case: Case, dtype: str, seed: int, dim: int, word: Any, scale: float) -> None:
    encoded = np.random.default_rng(seed).integers(0, np.iinfo(word).max, dim, word, endpoint=True)
    got, want = np.empty(dim, dtype), np.empty(dim, dtype)
    reference.decode(encoded, scale, want)
    with case.use() as backend:
        backend.decode(encoded, scale, got)
    tolerance.DECODE.check(got, want)


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    levels=st.sampled_from([1, 3, 15, 255, 2**20]),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e6]),
    stream=st.sampled_from([Stream.COMPRESSION, Stream.HIDDEN_MODEL]),
    bad=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
@more
def test_quantize(
    case: Case, dtype: str, seed: int, dim: int, levels: int, scale: float, stream: Stream, bad: float | None
) -> None:
    (x,) = vectors(seed, 1, dim, dtype, spread=1.0)
    x = (scale * x).astype(dtype)
    if bad is not None:
        x[seed % dim] = bad
    numbers = QuantizeNumbers(math.sqrt(reference.dot(x, x)), levels, seed << 7, seed ^ 5, seed ^ 9, stream)
    want, got, alias = np.empty_like(x), np.empty_like(x), x.copy()
    reference.quantize(x, numbers, want)
    with case.use() as backend:
        backend.quantize(x, numbers, got)
        backend.quantize(alias, numbers, alias)
    tolerance.QUANTIZE.check(got, want)
    tolerance.PREFIX.check(alias, want)
    assert bad is None or not np.isfinite(want).any()


@every_case
@every_dtype
@given(
    seed=words,
    dim=dims,
    kind=st.sampled_from([TOP_K, RANDOM_K, QSGD, SIGN, BFLOAT16]),
    share=st.sampled_from([1e-9, 0.01, 0.3, 1.0]),
    feedback=st.booleans(),
    whole=st.booleans(),
    bad=st.sampled_from([None, np.nan, np.inf, -np.inf]),
)
@more
def test_compress(
    case: Case, dtype: str, seed: int, dim: int, kind: int, share: float, feedback: bool, whole: bool, bad: float | None
) -> None:
    (x,) = vectors(seed, 1, dim, dtype, spread=1.0)
    x = np.rint(2 * x).astype(dtype) if whole else x  # ties
    if bad is not None:
        x[seed % dim] = bad
    numbers = CompressNumbers(kind, max(1, round(share * dim)), 7.0, feedback)
    key = (seed << 7, seed ^ 5, seed ^ 9)
    want, got, alias = np.empty_like(x), np.empty_like(x), x.copy()
    reference.compress(x, numbers, *key, want)
    with case.use() as backend:
        backend.compress(x, numbers, *key, got)
        backend.compress(alias, numbers, *key, alias)
        if kind == QSGD:
            reference.quantize(x, QuantizeNumbers(math.sqrt(backend.dot(x, x)), 7, *key, Stream.COMPRESSION), want)
    tolerance.COMPRESS.check(got, want)
    tolerance.PREFIX.check(alias, want)
    assert bad is None or not np.isfinite(want).all()


# Schedules and replays: the same rows, and models of the reference's arithmetic


def _plan(**changes: Any) -> Plan:
    model = fb.DelayModel(n_clients=9, wait=fb.Pareto(3.0, 0.1), compute=fb.Exponential(1.0), upload=fb.Constant(0.2))
    request = Request(model, fb.FedBuff(3), ScheduleOptions(concurrency=5, server_steps=20), 7)
    return request.plan._replace(**changes)


def _resolved(backend: Any, plan: Plan) -> tuple[list[list[Any]], list[list[Any]], int, int]:
    """Rows and steps, tasks in flight, those started on the last version, and why it ended."""
    resolver = backend.make_resolver(plan)
    columns = new_columns(2000, 202)
    rows = steps = 0
    reason = FULL
    while reason == FULL:
        space = Columns(*(c[rows if name in ROW_NAMES else steps :] for name, c in columns._asdict().items()))
        more_rows, more_steps, reason = resolver.run(space)
        assert more_rows + more_steps > 0 or reason != FULL
        rows, steps = rows + more_rows, steps + more_steps
    made = [c[: rows if name in ROW_NAMES else steps].tolist() for name, c in columns._asdict().items()]
    flying = sorted(zip(*(column.tolist() for column in resolver.in_flight()), strict=True))
    return made, flying, resolver.started, reason


@every_case
@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"timeout": 0.8}, {"max_wait": 0.5}, {"distinct_clients": True}),
        *({"refill": 0}, {"refill": 2, "step_period": 0.7}, {"stop_stale": 2}),
        {"stop_stale": 1, "restart": True, "step_period": 1.5},
        *({"trigger": 1}, {"trigger": 2, "per_client": 1.5}),
    ],
    ids=str,
)
def test_make_resolver(case: Case, changes: dict[str, Any]) -> None:
    plan = _plan(**changes)
    with case.use() as backend:
        assert _resolved(backend, plan) == _resolved(reference, plan)


@every_case
@pytest.mark.parametrize("oldest", [False, True])
def test_uniform_arrivals(case: Case, oldest: bool) -> None:
    got, want = new_columns(60, 20), new_columns(60, 20)
    with case.use() as backend:
        backend.uniform_arrivals(7, 3, 4, oldest, 11, got)
    reference.uniform_arrivals(7, 3, 4, oldest, 11, want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@every_case
def test_schedule_check(case: Case) -> None:
    whole = fb.uniform_arrivals(7, 3, 4, 20, seed=11)
    sound = ScheduleChunk(**{name: getattr(whole, name) for name in ScheduleChunk._fields})
    late = whole.version.copy()
    late[30] = 19
    with case.use() as backend:
        check = backend.schedule_check()
        assert check.add(sound) == (0, -1) and check.n_chunks == 1
        faulty = sound._replace(version=late)
        assert backend.schedule_check().add(faulty) == reference.schedule_check().add(faulty) != (0, -1)


PLAN = LocalPlan(
    steps=np.array([2]), lr=np.array([0.1]), batch=np.zeros(1, np.int64), steps_per_pass=np.zeros(1, np.int64)
)


def _engine(backend: Any, dtype: str) -> tuple[Any, Any]:
    """A new engine of a small quadratic, and the problem."""
    rng = np.random.default_rng(0)
    spec = ProblemSpec(
        family="quadratic",
        dtype=np.dtype(dtype),
        n_clients=3,
        dim=5,
        client_weight=np.full(3, 1 / 3),
        center=rng.standard_normal((3, 5)).astype(dtype),
        curvature=np.ones((1, 1), dtype),
    )
    bound = backend.bind(spec)
    engine = backend.replay_engine(
        EngineSpec(
            rule=rule_of(fb.FedBuff(2)), w0=np.zeros(5, dtype), bound=bound, local=PLAN, seed=3,
            window_bytes=1 << 20, sums=SumSpec(seed=3),
        )
    )  # fmt: skip
    return engine, bound


def _rows_of(schedule: fb.Schedule) -> tuple[Any, ...]:
    """The rows of a schedule whose arrivals are all used, each with weight 1, as an engine takes them."""
    started = np.append(schedule.started_on_0, schedule.step_started)[: schedule.n_steps]
    ones = np.ones(schedule.n_arrivals)
    rows = UsedRows(schedule.client, schedule.task, schedule.version, schedule.step, ones, ones)
    return rows, started, np.zeros(0, np.int64)


def _replayed(backend: Any, dtype: str) -> Array:
    engine, _ = _engine(backend, dtype)
    engine.add(*_rows_of(fb.uniform_arrivals(3, 2, 2, 6, seed=1)))
    engine.run(6, 1)
    assert engine.version() == 6
    return np.array(engine.w())


def _history(backend: Any, dtype: str) -> Array:
    """The rows of a run's history, and the model at its end."""
    schedule = fb.uniform_arrivals(3, 2, 2, 6, seed=1)
    engine, bound = _engine(backend, dtype)
    metrics = ("loss", "grad_norm_sq", "distance", "step_norm")
    run = backend.replay_run(engine, RunSpec(eval_every=2, metrics=metrics, problem=bound))
    run.add(*_rows_of(schedule), schedule.step_time, None)
    run.close()
    assert run.advance(100, 60.0, 1) == RunState.SCHEDULE_END
    assert (run.version(), run.updates(), run.time()) == (6, 12, schedule.step_time[-1])
    return np.append(np.ravel(run.rows(0)), engine.w())


@every_case
@every_dtype
def test_replay_engine(case: Case, dtype: str) -> None:
    with case.use() as backend:
        got = _replayed(backend, dtype)
    np.testing.assert_allclose(got, _replayed(reference, dtype), rtol=64 * np.finfo(dtype).eps)


@every_case
@every_dtype
def test_replay_run(case: Case, dtype: str) -> None:
    with case.use() as backend:
        got = _history(backend, dtype)
    np.testing.assert_allclose(got, _history(reference, dtype), rtol=256 * np.finfo(dtype).eps)


# What every backend must have


@every_case
def test_names(case: Case) -> None:
    with case.use() as backend:
        assert backend.name == case.backend
        missing = [name for name in kernel_names(Backend) if not callable(getattr(backend, name, None))]
        assert not missing
        assert not [
            name for name in ("Server", "DeltaBuffer", "EventQueue") if not isinstance(getattr(backend, name), type)
        ]
        problem = backend.bind(_tiny())
        assert not [name for name in kernel_names(BoundProblem) if not callable(getattr(problem, name, None))]


def _tiny() -> ProblemSpec:
    one = np.ones((1, 1), np.float32)
    return ProblemSpec(
        family="quadratic",
        dtype=np.dtype(np.float32),
        n_clients=1,
        dim=1,
        client_weight=np.ones(1),
        center=one,
        curvature=one,
    )


def kernel_names(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]


_UNTESTED = [
    name
    for name in [*kernel_names(Backend), *kernel_names(BoundProblem)]
    if name != "bind" and f"test_{name}" not in globals()
]
if _UNTESTED:
    raise NotImplementedError(f"no conformance test for {', '.join(_UNTESTED)}; see the recipe in CONTRIBUTING")
