# mypy: allow-untyped-defs, allow-untyped-calls
"""A problem, made ready for the compiled loops of its family.

Each family has two entries: its local SGD loop and its objective (value and gradient over a range of clients). They are
compiled once per dtype.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..spec import BoundProblem, LocalSpec, LocalTask, NetworkSpec, ProblemSpec, Vector
from .compile import or_empty, reads
from .layers import Layers, layers_count_correct, layers_local_sgd, layers_objective
from .local_step import MERGE, Local, Scratch, Task
from .losses import LOGISTIC, SOFTMAX, SQUARED
from .net import BLOCK, RELU, TANH, Net, net_count_correct, net_local_sgd, net_objective
from .program import Program, is_recurrent, program_of
from .quadratic import (
    DENSE,
    DIAGONAL,
    SCALAR,
    Quadratic,
    quadratic_count_correct,
    quadratic_local_sgd,
    quadratic_objective,
)
from .random import key_words
from .sparse import Sparse, sparse_count_correct, sparse_local_sgd, sparse_objective
from .threads import on_threads

_PARTS = 16  # of a sum over all clients
_PART_BYTES = 1 << 26  # of all their gradients

NO_ROWS = reads(np.empty((0, 0), np.int64))

said_slow: list[bool] = []  # that recurrent layers run in NumPy


class Loops(NamedTuple):
    """The compiled functions of a family."""

    local_sgd: Any
    objective: Any
    count_correct: Any


NET = Loops(net_local_sgd, net_objective, net_count_correct)
SPARSE = Loops(sparse_local_sgd, sparse_objective, sparse_count_correct)
LAYERS = Loops(layers_local_sgd, layers_objective, layers_count_correct)
QUADRATIC = Loops(quadratic_local_sgd, quadratic_objective, quadratic_count_correct)


class BoundLoops:
    """A problem with the compiled loops of its family."""

    def __init__(self, spec: ProblemSpec, problem: NamedTuple, loops: Loops, program: Program | None = None) -> None:
        self.problem, self.loops, self._program = problem, loops, program
        self._spec = spec
        self._weights = reads(spec.client_weight)
        self._one = reads(np.ones(1))
        self._most_rows = 0 if spec.offsets is None else int(np.diff(spec.offsets).max(initial=0))

    def scratch(self, most: int, batch: int) -> Scratch:
        """Room for one task of at most so many rows at a time, and batches of this size."""
        spec, program = self._spec, self._program
        n_values, widest = BLOCK * sum(spec.sizes[1:]), max(spec.sizes[1:], default=1)
        if program is not None:
            n_values, widest = program.block * program.size, program.widest
        most = max(most, BLOCK) + 4
        return Scratch(
            rows=np.zeros(most, np.int64),
            counts=np.zeros(most, spec.dtype),
            place=np.full(min(self._most_rows, MERGE * batch), -1, np.int32),
            identity=np.arange(max(BLOCK, widest) + 4),
            values=np.empty((2, n_values), spec.dtype),
            turned=np.empty(max(BLOCK * widest, most, spec.dim if spec.family == "quadratic" else 0), spec.dtype),
            gradient=np.empty(spec.dim, spec.dtype),
            velocity=np.empty(spec.dim, spec.dtype),
            noise=np.empty(spec.dim if spec.family == "quadratic" else 0, np.float64),
            choice=np.empty(0 if program is None else n_values, np.int32),
            windows=np.empty(0 if program is None else program.windows, spec.dtype),
            factors=np.empty(0 if program is None else program.factors, spec.dtype),
        )

    def task_scratch(self, batches: NDArray[np.int64]) -> Scratch:
        """Room for tasks with these batches, 0 for all rows of a client."""
        batch = int(batches.max(initial=0))
        return self.scratch(max(batch, self._most_rows if (batches == 0).any() else 0), batch)

    def local_sgd(self, local: LocalSpec, w: Vector, task: LocalTask, delta_out: Vector) -> None:
        t = self._spec.dtype.type
        numbers = Local(
            local.steps, float(local.lr), t(local.momentum), t(local.weight_decay), t(local.prox),
            reads(local.lr_factors), local.steps_per_pass, float(local.scale),
            or_empty(task.shift, self._spec.dtype),
        )  # fmt: skip
        given = NO_ROWS if task.rows is None else reads(task.rows)
        draws = Task(*key_words(task.seed), task.client, task.task, task.batch)
        scratch = self.task_scratch(np.array([task.batch]))
        self.loops.local_sgd(self.problem, numbers, draws, reads(w), given, scratch, delta_out)

    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        return self._value([client], self._one, w, gradient_out, 1)

    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        n = self._spec.n_clients
        parts = min(n, _PARTS, max(_PART_BYTES // (8 * self._spec.dim), 1))  # whatever the threads are
        firsts = [n * part // parts for part in range(parts)]
        return self._value(firsts, self._weights, w, gradient_out, threads)

    def _value(
        self, firsts: list[int], weights: NDArray[np.float64], w: Vector, gradient_out: Vector | None, threads: int
    ) -> float:
        """The sum over clients from firsts[0] on, in parts that begin with these clients."""
        totals = np.zeros((len(firsts), 0 if gradient_out is None else w.size))
        values = [0.0] * len(firsts)
        ends = [*firsts[1:], firsts[0] + len(weights)]
        left = iter(range(len(firsts)))

        def work() -> None:
            scratch, seen = self.scratch(0, 0), reads(w)
            for part in left:  # an iterator gives each number once, also to several threads
                mine = weights[firsts[part] - firsts[0] : ends[part] - firsts[0]]
                values[part] = self.loops.objective(self.problem, firsts[part], mine, seen, scratch, totals[part])

        on_threads(work, min(threads, len(firsts)))
        if gradient_out is not None:
            gradient_out[:] = totals[0] if len(totals) == 1 else totals.sum(axis=0)
        return float(sum(values))

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        return int(self.loops.count_correct(self.problem, begin, end, reads(w), self.scratch(0, 0)))


def bind(spec: ProblemSpec) -> BoundProblem:
    if spec.family == "layers" and is_recurrent(_network_of(spec)):
        if not said_slow:
            said_slow.append(True)
            warnings.warn(
                "LSTM and GRU are not compiled in the numba backend: they run in NumPy, which is slow. Install fedbuff "
                "where there is a C++ compiler.",
                RuntimeWarning,
                stacklevel=2,
            )
        return reference.bind(spec)
    t = spec.dtype.type
    head = {"squared": SQUARED, "logistic": LOGISTIC, "softmax": SOFTMAX}[spec.head]
    if spec.family == "quadratic":
        quadratic = Quadratic(
            center=or_empty(spec.center, spec.dtype, 2),
            curvature=or_empty(spec.curvature, spec.dtype, 2),
            form={"scalar": SCALAR, "diagonal": DIAGONAL, "dense": DENSE}[spec.curvature_form],
            noise_variance=float(spec.noise_variance),
        )
        return BoundLoops(spec, quadratic, QUADRATIC)
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
        return BoundLoops(spec, sparse, SPARSE)
    if spec.family == "layers":
        return _bind_layers(spec, head)
    net = Net(
        x=or_empty(spec.x, spec.dtype, 2),
        target=or_empty(spec.target, spec.dtype),
        label=or_empty(spec.label, np.int32),
        offsets=or_empty(spec.offsets, np.int64),
        sizes=reads(np.array(spec.sizes, np.int64)),
        n_values=sum(spec.sizes[1:]),
        intercept=spec.intercept,
        activation=TANH if spec.activation == "tanh" else RELU,
        head=head,
        l2=t(spec.l2),
        nonconvex=t(spec.nonconvex),
    )
    return BoundLoops(spec, net, NET)


def _network_of(spec: ProblemSpec) -> NetworkSpec:
    assert spec.network is not None
    return spec.network


def _bind_layers(spec: ProblemSpec, head: int) -> BoundProblem:
    network, t = _network_of(spec), spec.dtype.type
    of_byte = None if spec.byte is None else (spec.scale * np.arange(256.0) + spec.shift).astype(spec.dtype)
    program = program_of(network)
    layers = Layers(
        x=or_empty(spec.x, spec.dtype, 2),
        byte=or_empty(spec.byte, np.uint8, 2),
        of_byte=or_empty(of_byte, spec.dtype),
        token=or_empty(spec.token, np.int32, 2),
        target=or_empty(None if spec.target is None else spec.target.reshape(-1), spec.dtype),
        label=or_empty(spec.label, np.int32),
        offsets=or_empty(spec.offsets, np.int64),
        program=program._replace(operations=reads(program.operations), numbers=reads(program.numbers)),
        head=head,
        smoothing=t(network.label_smoothing),
        l2=t(spec.l2),
        nonconvex=t(spec.nonconvex),
    )
    return BoundLoops(spec, layers, LAYERS, program)
