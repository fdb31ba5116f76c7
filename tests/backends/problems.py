"""Problems of odd shapes, made by Hypothesis: one row, one client, ragged clients, no rows stored, deep nets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from networks import largest_fan, longest_sum

from fedbuff.backends.spec import ProblemSpec

FLOATING = ("x", "target", "center", "curvature")


def cast(spec: ProblemSpec, dtype: Any) -> ProblemSpec:
    """The same numbers in another dtype."""
    arrays = {name: getattr(spec, name) for name in FLOATING if getattr(spec, name) is not None}
    return replace(spec, dtype=np.dtype(dtype), **{name: array.astype(dtype) for name, array in arrays.items()})


def densify(spec: ProblemSpec) -> ProblemSpec:
    """A sparse problem as a net without hidden layers."""
    assert spec.x is not None and spec.row_start is not None and spec.column is not None
    x = np.zeros((len(spec.row_start) - 1, spec.sizes[0]), spec.dtype)
    owner = np.repeat(np.arange(len(x)), np.diff(spec.row_start))
    np.add.at(x, (owner, spec.column), spec.x)
    return replace(spec, family="net", x=x, row_start=None, column=None)


def dimension(sizes: tuple[int, ...], intercept: bool) -> int:
    return sum(n_out * (n_in + intercept) for n_in, n_out in pairwise(sizes))


@st.composite
def row_counts(draw: st.DrawFn) -> list[int]:
    """Rows of each client; 70 is more than any backend takes at once."""
    return draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 70]), min_size=1, max_size=4))


@st.composite
def nets(
    draw: st.DrawFn, dtype: Any, sparse: bool = False, heads: tuple[Any, ...] = ("squared", "logistic", "softmax")
) -> ProblemSpec:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = draw(row_counts())
    head: Any = draw(st.sampled_from([head for head in heads if not (sparse and head == "softmax")]))
    n_features = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 17, 33]))
    hidden = [] if sparse else draw(st.lists(st.sampled_from([1, 2, 5, 8, 11]), max_size=3))
    outputs = draw(st.sampled_from([2, 3, 5, 10])) if head == "softmax" else 1
    sizes = (n_features, *hidden, outputs)
    intercept = draw(st.booleans())
    n_rows = sum(counts)
    weights = rng.uniform(0.5, 1.5, len(counts)) if draw(st.booleans()) else np.ones(len(counts))
    values: dict[str, Any] = {}
    x = rng.standard_normal((n_rows, n_features))
    if sparse:
        present = rng.random((n_rows, n_features)) < draw(st.sampled_from([0.1, 0.5, 1.0]))
        values["column"] = np.nonzero(present)[1].astype(np.int32)
        values["row_start"] = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
        x = x[present]
    if head == "softmax":
        values["label"] = rng.integers(0, outputs, n_rows).astype(np.int32)
    elif head == "logistic":
        values["target"] = rng.integers(0, 2, n_rows).astype(dtype)
    else:
        values["target"] = rng.standard_normal(n_rows).astype(dtype)
    return ProblemSpec(
        family="sparse" if sparse else "net",
        dtype=np.dtype(dtype),
        n_clients=len(counts),
        dim=dimension(sizes, intercept),
        client_weight=weights / weights.sum(),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        x=np.ascontiguousarray(x.astype(dtype)),
        sizes=sizes,
        intercept=intercept,
        activation=draw(st.sampled_from(["relu", "tanh"])),
        head=head,
        l2=draw(st.sampled_from([0.0, 0.125])),
        nonconvex=draw(st.sampled_from([0.0, 0.25])),
        **values,
    )


@st.composite
def quadratics(draw: st.DrawFn, dtype: Any, noise: bool = True) -> ProblemSpec:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_clients = draw(st.integers(1, 4))
    dim = draw(st.sampled_from([1, 2, 3, 8, 9, 17]))
    form: Any = draw(st.sampled_from(["scalar", "diagonal", "dense"]))
    n_shapes = 1 if draw(st.booleans()) else n_clients
    if form == "dense":
        root = rng.standard_normal((n_shapes, dim, dim))
        curvature = (root @ root.transpose(0, 2, 1) / dim).reshape(n_shapes, dim * dim)
    else:
        curvature = rng.uniform(0.0, 2.0, (n_shapes, dim if form == "diagonal" else 1))
    return ProblemSpec(
        family="quadratic",
        dtype=np.dtype(dtype),
        n_clients=n_clients,
        dim=dim,
        client_weight=np.full(n_clients, 1.0 / n_clients),
        center=rng.standard_normal((n_clients, dim)).astype(dtype),
        curvature=curvature.astype(dtype),
        curvature_form=form,
        noise_variance=draw(st.sampled_from([0.0, 0.5])) if noise else 0.0,
    )


def specs(dtype: Any) -> st.SearchStrategy[ProblemSpec]:
    return st.one_of(nets(dtype), nets(dtype, sparse=True), quadratics(dtype))


def start(spec: ProblemSpec, seed: int) -> Any:
    """A model whose weights are well away from 0, so that w - (w - small) is exact, and scores of moderate size."""
    rng = np.random.default_rng(seed)
    fan = largest_fan(spec) if spec.family == "layers" else max(spec.sizes, default=1)
    scale = 0.5 ** round(np.log2(fan) / 2)
    return (scale * rng.uniform(0.5, 1.0, spec.dim) * rng.choice([-1.0, 1.0], spec.dim)).astype(spec.dtype)


def summands(spec: ProblemSpec, n_rows: int) -> int:
    """n of the backward class: no sum of this problem is longer."""
    if spec.family == "layers":
        return longest_sum(spec, n_rows)
    return 16 + n_rows + sum(spec.sizes) + (spec.dim if spec.family == "quadratic" else 0)
