# mypy: allow-untyped-defs, allow-untyped-calls
"""A problem, made ready for the compiled loops of its family.

Each family has two entries: its local SGD loop and its objective (value and gradient over a range of clients). They are
compiled once per dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..spec import BoundProblem, LocalSpec, LocalTask, ProblemSpec, Vector
from .compile import or_empty, reads
from .net import RELU, TANH, Net, net_count_correct, net_local_sgd, net_objective
from .quadratic import DENSE, DIAGONAL, SCALAR, Quadratic, quadratic_local_sgd, quadratic_objective
from .random import key_words
from .shared import LOGISTIC, SOFTMAX, SQUARED, Local, Task
from .sparse import Sparse, sparse_count_correct, sparse_local_sgd, sparse_objective


class _Bound:
    def __init__(self, spec: ProblemSpec, problem: NamedTuple, local_sgd: Any, objective: Any, correct: Any) -> None:
        self._dtype = spec.dtype
        self._weights = reads(spec.client_weight)
        self._one = reads(np.ones(1))
        self._problem = problem
        self._local_sgd = local_sgd
        self._objective = objective
        self._count_correct = correct
        self._no_rows = reads(np.empty((0, 0), np.int64))
        self._no_gradient = np.empty(0, spec.dtype)

    def local_sgd(self, local: LocalSpec, w: Vector, task: LocalTask, delta_out: Vector) -> None:
        if task.shift is not None:
            raise ValueError(
                "local: scaffold and feddyn are not in the numba backend; FEDBUFF_BACKEND=cpp or reference has them"
            )
        if len(local.lr_factors) > 0 or (local.steps_per_pass > 0 and task.batch > 0):
            raise ValueError(
                f"local: {'lr_by_step' if len(local.lr_factors) > 0 else 'epochs'} is not in the numba backend; "
                "FEDBUFF_BACKEND=cpp or reference has it"
            )
        t = self._dtype.type
        numbers = Local(local.steps, t(local.lr), t(local.momentum), t(local.weight_decay), t(local.prox))
        given = self._no_rows if task.rows is None else reads(task.rows)
        draws = Task(*key_words(task.seed), task.client, task.task, task.batch)
        self._local_sgd(self._problem, numbers, draws, reads(w), given, delta_out)
        if local.scale != 1.0:
            delta_out *= t(local.scale)

    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        out = self._no_gradient if gradient_out is None else gradient_out
        return float(self._objective(self._problem, client, self._one, reads(w), out))

    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        out = self._no_gradient if gradient_out is None else gradient_out
        return float(self._objective(self._problem, 0, self._weights, reads(w), out))

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        return int(self._count_correct(self._problem, begin, end, reads(w)))


def bind(spec: ProblemSpec) -> BoundProblem:
    if spec.family == "layers":
        raise ValueError(
            "problem: the numba backend has no Network; install fedbuff where there is a C++ compiler, or set "
            "FEDBUFF_BACKEND=reference, which is slow"
        )
    t = spec.dtype.type
    head = {"squared": SQUARED, "logistic": LOGISTIC, "softmax": SOFTMAX}[spec.head]
    if spec.family == "quadratic":
        quadratic = Quadratic(
            center=or_empty(spec.center, spec.dtype, 2),
            curvature=or_empty(spec.curvature, spec.dtype, 2),
            form={"scalar": SCALAR, "diagonal": DIAGONAL, "dense": DENSE}[spec.curvature_form],
            noise_variance=float(spec.noise_variance),
        )
        return _Bound(spec, quadratic, quadratic_local_sgd, quadratic_objective, lambda *_: 0)
    if spec.family == "sparse":
        sparse = Sparse(
            x=or_empty(spec.x, spec.dtype),
            column=or_empty(spec.column, np.int32),
            row_start=or_empty(spec.row_start, np.int64),
            target=or_empty(spec.target, spec.dtype),
            offsets=or_empty(spec.offsets, np.int64),
            intercept=spec.intercept,
            head=head,
            l2=t(spec.l2),
            nonconvex=t(spec.nonconvex),
        )
        return _Bound(spec, sparse, sparse_local_sgd, sparse_objective, sparse_count_correct)
    net = Net(
        x=or_empty(spec.x, spec.dtype, 2),
        target=or_empty(spec.target, spec.dtype),
        label=or_empty(spec.label, np.int32),
        offsets=or_empty(spec.offsets, np.int64),
        sizes=reads(np.array(spec.sizes, np.int64)),
        widest=max(spec.sizes[1:]),
        n_values=sum(spec.sizes[1:]),
        intercept=spec.intercept,
        activation=TANH if spec.activation == "tanh" else RELU,
        head=head,
        l2=t(spec.l2),
        nonconvex=t(spec.nonconvex),
    )
    return _Bound(spec, net, net_local_sgd, net_objective, net_count_correct)
