"""What a backend is given and what it must do.

The three backends (`cpp`, `numba`, `reference`) are modules with the same names in them, listed in `Backend`; `cpp` has
those of `CompiledBackend` too. They trust their arguments: every check of a user's input is made once, above them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._rule.optimizers import LearningRate
from .._rule.strategies import Method, Rule

Vector = NDArray[np.floating]
Words = NDArray[np.unsignedinteger[Any]]  # uint32 or uint64
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# ---- problems ----


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One record of a network, as in csrc/core/kernels/network.hpp: a layer, or a mark of a residual block.

    A residual block is the records "residual", those of its body, "shortcut", those of its shortcut (none: the input
    itself) and "end_residual".
    """

    kind: str  # a name of LAYER_KINDS
    out: int = 0  # channels or outputs; group_norm: groups; embedding: features of a token; lstm, gru: width
    kernel: tuple[int, int] = (1, 1)  # height, width
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    groups: int = 1
    bias: bool = True  # norms: weight and bias are there; lstm, gru: two biases
    number: float = 0.0  # leaky_relu: slope; dropout: rate; norms: epsilon
    vocabulary: int = 0  # embedding: how many tokens there are


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    """Layers in sequence, from a row of x to the scores."""

    layers: tuple[LayerSpec, ...]
    # (channels, height, width) of a row of x. Vectors and rows of tokens are (features, 1, 1); sequences are images of
    # one channel, (1, time, features).
    input_shape: tuple[int, int, int]
    label_smoothing: float = 0.0  # softmax head: so much of a label is spread evenly over all outputs


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ProblemSpec:
    """n_clients objectives over one contiguous array of rows, as in csrc/core/kernels/problem.hpp.

    net: dense rows through zero or more hidden layers into a head. sparse: CSR rows, one output. quadratic:
    f_i(w) = (w - c_i)' A_i (w - c_i) / 2. layers: rows of one shape through the layers of a network.
    Arrays are C-contiguous; floating ones have the problem's dtype unless said.
    """

    family: Literal["net", "sparse", "quadratic", "layers"]
    dtype: np.dtype
    n_clients: int
    dim: int
    client_weight: NDArray[np.float64]  # (n_clients), sums to 1
    offsets: NDArray[np.int64] | None = None  # (n_clients + 1): client i owns rows offsets[i]:offsets[i + 1]
    # net, sparse and layers
    x: Vector | None = None  # (n_rows, n_features); sparse: the stored values
    token: NDArray[np.int32] | None = None  # (n_rows, n_features), layers that begin with an embedding: in x's place
    byte: NDArray[np.uint8] | None = None  # (n_rows, n_features), layers: in x's place; b is dtype(scale * b + shift)
    scale: float = 1.0
    shift: float = 0.0
    target: Vector | None = None  # (n_rows), squared and logistic heads (0 or 1); layers: (n_rows, outputs) for several
    label: NDArray[np.int32] | None = None  # (n_rows), softmax head
    column: NDArray[np.int32] | None = None  # sparse: the column of each stored value
    row_start: NDArray[np.int64] | None = None  # sparse: (n_rows + 1)
    sizes: tuple[int, ...] = ()  # n_features, hidden sizes, outputs
    intercept: bool = False
    activation: Literal["relu", "tanh"] = "relu"
    head: Literal["squared", "logistic", "softmax"] = "squared"
    l2: float = 0.0  # + l2 / 2 |w|^2
    nonconvex: float = 0.0  # + nonconvex * sum w^2 / (1 + w^2)
    network: NetworkSpec | None = None  # layers
    # quadratic
    center: Vector | None = None  # (n_clients, dim)
    curvature: Vector | None = None  # (1 | n_clients, 1 | dim | dim * dim): first axis 1 where shared
    curvature_form: Literal["scalar", "diagonal", "dense"] = "scalar"
    noise_variance: float = 0.0  # E|xi|^2 of one sample's gradient noise


_NO_FACTORS: Floats = np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class LocalSpec:
    """One task: steps times w <- w - lr v, v <- momentum v + g + weight_decay w + prox (w - w_start); v is zero at the
    start. lr is multiplied by the step's factor, where there are factors."""

    steps: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    lr_factors: Floats = field(default_factory=lambda: _NO_FACTORS)  # of the local steps, or (0,)
    steps_per_pass: int = 0  # above 0: batches go through the client's rows without replacement
    scale: float = 1.0  # of the delta


class LocalTask(NamedTuple):
    """What the batches of one task are drawn by."""

    client: int
    task: int
    seed: int
    batch: int  # 0: all rows
    rows: NDArray[np.int64] | None = None  # (steps, batch), within the client: the batches themselves
    shift: Vector | None = None  # taken off every gradient; there is no momentum and no weight decay then


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalPlan:
    """The tasks of all clients. Arrays have one number per client, or one for all."""

    steps: NDArray[np.int64]
    lr: NDArray[np.float64]
    batch: NDArray[np.int64]  # 0: all rows
    steps_per_pass: NDArray[np.int64]
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0
    version_rate: LearningRate | None = None  # lr is multiplied by that of the version that a task starts from
    lr_factors: Floats = field(default_factory=lambda: _NO_FACTORS)  # of the most local steps that are made, or (0,)
    scale: Floats = field(default_factory=lambda: np.ones(1))  # of deltas
    method: Method = "sgd"  # feddyn: alpha is prox
    compress: CompressNumbers | None = None

    def task(self, client: int, version: int) -> LocalSpec:
        """What a client does from a version on."""
        lr = float(_of(self.lr, client))
        if self.version_rate is not None:
            lr *= self.version_rate.at(version)
        return LocalSpec(
            int(_of(self.steps, client)), lr, self.momentum, self.weight_decay, self.prox, self.lr_factors,
            int(_of(self.steps_per_pass, client)), float(_of(self.scale, client)),
        )  # fmt: skip

    def batch_of(self, client: int) -> int:
        return int(_of(self.batch, client))

    @property
    def has_control_variates(self) -> bool:
        """Whether a client's state corrects its gradients: python/control.py."""
        return self.method in ("scaffold", "feddyn")

    @property
    def keeps_state(self) -> bool:
        """Whether tasks read and change a state of their client."""
        return self.has_control_variates or (self.compress is not None and self.compress.feedback)


def _of(array: NDArray[Any], client: int) -> Any:
    return array[0 if len(array) == 1 else client]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSpec:
    """What stands between updates and their sum, as in csrc/core/replay/secure_sum.hpp."""

    modulus: int = 0  # bits of a word; 0: sums in floating point
    range: float = 0.0  # numbers are cut to [-range, range]
    step: float = 1.0  # what one unit stands for
    stochastic: bool = False
    weight_unit: int = 1  # the integer that a weight of 1 stands for
    clip: float = 0.0  # updates are scaled down to this norm; 0: they are not
    deviation: float = 0.0  # of the noise in a sum
    system_noise: bool = False
    seed: int = 0  # of roundings and noise


class SumRoles(Protocol):
    """Those who make a sum under masks."""

    def add(self, client: int, task: int, version: int, step: int, weight: int, factor: float, delta: Vector) -> int:
        """Adds weight times the update, scaled by factor; returns how many numbers were out of range."""

    def finish(self, step: int, out: Vector) -> None:
        """The sum of what was added since the last call."""


class BoundProblem(Protocol):
    """A problem, made ready for one backend."""

    def local_sgd(self, local: LocalSpec, w: Vector, task: LocalTask, delta_out: Vector) -> None:
        """delta_out = local.scale (w - (w after local.steps steps)).

        batch 0 is the exact local gradient. `task.rows` gives the batches as row numbers within the client; without it
        they are `batch_rows`, or, with steps_per_pass n > 0, step q takes rows at q % n * batch and after, as
        many as there are, of pass q // n in the order of python/shuffle.py. A quadratic has no rows: its gradient of
        step q is A (w - c) plus, for batch > 0, sqrt(noise_variance / (dim * batch)) times `normals` of (client,
        task, q, GradientNoise).
        """

    def client_gradient(self, client: int, w: Vector, gradient_out: Vector | None) -> float:
        """The value of f_client at w; its gradient into gradient_out, unless None."""

    def gradient(self, w: Vector, gradient_out: Vector | None, threads: int) -> float:
        """The same for f = sum_i client_weight[i] f_i."""

    def count_correct(self, begin: int, end: int, w: Vector) -> int:
        """How many of rows begin:end are put in the right class (logistic: 1 where the score is above 0; softmax: the
        first largest score)."""


# ---- schedules ----


class Plan(NamedTuple):
    """All that a resolver is told. Infinite times and -1 counts mean "none"."""

    mode: int
    n_clients: int
    n_slots: int  # slots of the closed loop; tasks started per round; unused in the open loop
    seed_low: np.uint64
    seed_high: np.uint64
    # open loop
    rate: float
    poisson: bool
    if_busy: int
    # which client is next
    selection: int
    probability: Floats  # (n_clients,) for WEIGHTED, or (0,)
    max_uses: int  # tasks that a client may start
    queues: bool  # a task sent to a busy client waits there
    # delays: a model (kinds, params, samples, speed) or recorded rows
    recorded: bool
    kinds: Integers  # (5,) of wait, download, compute, upload, server: indices into KINDS of python/portable_math.py
    params: Floats  # (5, 4)
    sample_offsets: Integers  # (6,) into samples
    samples: Floats
    speed: Floats  # (n_clients,) or (0,)
    row_offsets: Integers  # (n_clients + 1,)
    row_wait: Floats
    row_duration: Floats  # without the upload where there is an uplink
    row_upload: Floats  # where there is an uplink; else (0,)
    row_ok: NDArray[np.uint8]
    wrap: bool
    # availability
    availability_policy: int
    window_offsets: Integers  # (n_clients + 1,)
    window_begin: Floats
    window_end: Floats
    period: Floats  # (n_clients,), or (0,) where the windows do not repeat
    # server
    uplink: float  # transfers at full speed; infinite where uploads share nothing
    server_time: bool  # the server needs time for an upload, by the fifth law
    buffer_size: int  # arrivals that make a step; per round for ROUNDS
    max_staleness: int
    max_wait: float
    timeout: float
    distinct_clients: bool  # no client twice in a buffer
    trigger: int  # what makes a step: a full buffer, or all clients heard
    per_client: float  # the harmonic mean of arrivals at which all clients count as heard
    step_period: float  # of ticks from time 0 at which the server steps too
    refill: int  # open slots that are refilled together; 0: those that are open at a server step
    stop_stale: int  # the staleness at which a running task is stopped; 0: none is
    restart: bool  # running tasks are stopped at every server step and tick: stop_stale is 1
    # ends
    server_steps: int
    max_time: float
    arrivals: int
    stall_limit: int  # events without an arrival in the buffer after which the run gives up


class Columns(NamedTuple):
    """What a resolver fills: one row per ended task and one per server step."""

    client: NDArray[np.int32]
    task: NDArray[np.uint32]
    version: Integers
    step: Integers
    staleness: Integers
    start_time: Floats
    arrive_time: Floats
    status: NDArray[np.uint8]
    step_time: Floats
    started: Integers  # tasks started on the version that this step ended
    step_rows: Integers  # rows written when the step was made, over the whole run


COLUMN_TYPES: dict[str, type[np.generic]] = {
    "client": np.int32,
    "task": np.uint32,
    "version": np.int64,
    "step": np.int64,
    "staleness": np.int64,
    "start_time": np.float64,
    "arrive_time": np.float64,
    "status": np.uint8,
    "step_time": np.float64,
    "started": np.int64,
    "step_rows": np.int64,
}
ROW_NAMES = tuple(COLUMN_TYPES)[:8]  # the other columns have a number per step


def new_columns(rows: int, steps: int) -> Columns:
    """Empty columns with room for so many rows and steps."""
    return Columns(
        **{name: np.empty(rows if name in ROW_NAMES else steps, dtype) for name, dtype in COLUMN_TYPES.items()}
    )


class Resolver(Protocol):
    """The event loop of a plan; one `run` takes a bounded number of events, and may fill nothing."""

    def run(self, columns: Columns) -> tuple[int, int, int]:
        """Fills columns: rows, steps, and why it returned (FULL in python/resolver.py: there is more)."""

    def in_flight(self) -> tuple[NDArray[np.int32], NDArray[np.uint32], Integers, Floats]:
        """Client, task, version and start time of the tasks that had not ended."""

    @property
    def started(self) -> int:
        """Tasks started on the newest version so far."""

    @property
    def rows_needed(self) -> int:
        """The fewest rows that `run` can work with."""


class ScheduleChunk(NamedTuple):
    """The columns and numbers of a schedule, or of a chunk of it, that a replay depends on; C-contiguous."""

    client: NDArray[np.int32]
    version: Integers
    step: Integers
    staleness: Integers
    arrive_time: Floats
    status: NDArray[np.uint8]
    step_time: Floats
    step_started: Integers
    in_flight_client: NDArray[np.int32]
    in_flight_version: Integers
    n_clients: int
    first_step: int
    started_on_0: int


class ScheduleCheck(Protocol):
    """The check of a stream of chunks."""

    @property
    def n_chunks(self) -> int:
        """Chunks without a fault so far."""

    def add(self, chunk: ScheduleChunk) -> tuple[int, int]:
        """Checks the next chunk: the number of the first fault (FAULTS in _schedule/check.py), and where;
        (0, -1) where there is none."""


Moments = tuple[Vector, ...]  # of an optimizer


class StepNumbers(NamedTuple):
    """The numbers of a server step, which is counted from 1."""

    lr: float
    norm: float
    momentum: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    weight_decay: float = 0.0
    step: int = 1
    period: int = 1
    activation: float = 0.0


class EncodeNumbers(NamedTuple):
    """The numbers of `Backend.encode_add`."""

    weight: int
    clip: float
    step: float
    factor: float = 1.0
    rounding: tuple[int, int, int] | None = None  # seed, client, task


class CompressNumbers(NamedTuple):
    """The numbers of `Backend.compress`: those of csrc/core/clients/compression.hpp."""

    kind: int  # TOP_K and so on in python/compression.py
    kept: int = 0
    levels: float = 0.0
    feedback: bool = False  # whether what is not sent is a state of the client


class QuantizeNumbers(NamedTuple):
    """The numbers of `Backend.quantize`: the vector's length, the levels, and where its words come from."""

    norm: float
    levels: int
    seed: int
    first: int  # of the counter: client, or the low word of a step
    second: int  # task, or the high word
    stream: int


# ---- replays ----


@dataclass(frozen=True, slots=True)
class ClientFunction:
    """A client's work in Python.

    call   (client, task, w) gives the delta of one task, where batch is 0; else (clients, tasks, W) those of a group
    check  (what `call` gave, shape, dtype) gives the array, or says why it is none
    batch  how many tasks a group has at most: `size_of_group` in python/groups.py
    """

    call: Callable[[Any, Any, Vector], Any]
    check: Callable[[Any, tuple[int, ...], Any], Vector]
    batch: int = 0


CompiledGradient = tuple[int, int, Integers]  # addresses of function and context, samples per client


class UsedRows(NamedTuple):
    """Columns of rows that a server step uses: those of the schedule, and the two factors of their weights.

    Where clients keep a state, rows whose s is below 0 are among them: no step uses their delta, but the state changes.
    Their step is that of the used row after them.
    """

    client: NDArray[Any]
    task: NDArray[Any]
    version: NDArray[Any]
    step: NDArray[Any]
    s: NDArray[Any]
    e: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What an engine replays. `bound` and `local` are local SGD on a problem; `function` is what a client does in
    Python, or a compiled gradient."""

    rule: Rule
    w0: Vector
    bound: BoundProblem | None = None
    function: ClientFunction | CompiledGradient | None = None
    local: LocalPlan | None = None
    seed: int = 0
    window_bytes: int
    sums: SumSpec
    roles: SumRoles | None = None


class ReplayEngine(Protocol):
    """Replays rows of a schedule, step by step."""

    def add(self, rows: UsedRows, references: NDArray[Any], unused: NDArray[Any]) -> None: ...
    def set_table(self, memory: NDArray[Any]) -> None:
        """Memory for the rows of the rule's table, (n_clients, dim), before the first step."""

    def run(self, max_steps: int, threads: int) -> int: ...
    def record_gradients(self, every: int, offset: int) -> None: ...
    def gradients(self) -> NDArray[np.float64]: ...
    def version(self) -> int: ...
    def w(self) -> Vector: ...
    def rule_state(self) -> dict[str, NDArray[Any]]:
        """What the rule keeps between two steps, as `_rule/state.py` lists it; and where clients have a state
        state_client, int64 (m) ascending, and state_rows (m, dim)."""

    def divergence(self) -> tuple[int, int]: ...
    def stats(self) -> dict[str, Any]: ...
    def check(self) -> None: ...
    def live_versions(self) -> list[int]: ...
    def model(self, version: int) -> Vector:
        """(dim), or with a control variate (2 dim): the model, then that of the version."""

    def pieces(self) -> int: ...
    def waiting_deltas(self) -> Vector:
        """(n, dim): deltas of the first n rows after the made steps, where their group has rows in those steps. They
        are part of the state that `restore` gets."""

    def pass_over(self, version: int) -> None: ...
    def restore(
        self, w: Vector, live: list[int], models: Vector, rule_state: dict[str, NDArray[Any]], deltas: Vector
    ) -> int: ...


METRICS = ("loss", "grad_norm_sq", "accuracy", "distance", "step_norm")  # RunMetric in csrc/core/replay/run.hpp
PROBLEM_METRICS = METRICS[:3]  # those that a problem gives: a host may evaluate them, and limits may be of them


class RunState(IntEnum):
    """Why a run came back: an end, or a question to its host. The numbers are those of csrc/core/replay/run.hpp."""

    SCHEDULE_END = 0
    SERVER_STEPS = 1
    TIME = 2
    UPDATES = 3
    LOSS = 4
    GRAD_NORM_SQ = 5
    ACCURACY = 6
    DIVERGED = 7  # the next model would not be finite; the engine says where
    NEED_ROWS = 8  # `add` more rows, or `close`
    EVALUATE = 9  # the host evaluates the model: `note` its values
    EVALUATED = 10  # the history has a new row
    CHECKPOINT = 11  # this version is to be saved
    ANNOUNCE = 12  # the steps up to `announced` are made next: `allow` them
    SLICE = 13  # the steps that were asked for are made, or the time is up

    @property
    def is_end(self) -> bool:
        return self < RunState.NEED_ROWS


class RunLimits(Protocol):
    """Where a run stops; None is no limit. The last three are compared with evaluations that were due."""

    @property
    def server_steps(self) -> int | None: ...
    @property
    def time(self) -> float | None: ...
    @property
    def updates(self) -> int | None: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def grad_norm_sq(self) -> float | None: ...
    @property
    def accuracy(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What a run does beside its steps, as in csrc/core/replay/run.hpp."""

    eval_every: int = 0  # server steps; also at the start and the end. 0: at neither
    metrics: tuple[str, ...] = ()  # of loss, grad_norm_sq, accuracy, distance, step_norm
    problem: BoundProblem | None = None  # None: the host evaluates the first three
    held_out: BoundProblem | None = None  # for the accuracy; None: the problem's own rows
    accuracy_rows: int = 0  # of the one that the accuracy is of
    stop: RunLimits | None = None
    show_rows: bool = False  # come back with EVALUATED
    secure: bool = False  # the history says what secure sums cut and how long they took
    announce: bool = False  # come back with ANNOUNCE before steps are made
    checkpoint_every: int = 0  # 0: never come back with CHECKPOINT


class ReplayRun(Protocol):
    """A run: rows are fed to an engine, the model is evaluated on the way, and limits stop it."""

    def add(
        self,
        rows: UsedRows,
        references: NDArray[np.int64],
        unused: NDArray[np.int64],
        step_time: NDArray[np.float64],
        marks: NDArray[np.uint64] | None,
    ) -> None:
        """More rows, as the engine takes them, and for every step that is complete with them its time and a number that
        is summed up in `mark`."""

    def close(self) -> None:
        """There are no more rows."""

    def advance(self, max_steps: int, seconds: float, threads: int) -> int:
        """Goes on to the next point where the host is asked: a RunState. SLICE comes after max_steps, or about so many
        seconds."""

    def note(self, values: list[float], seconds: float) -> None:
        """The answer to EVALUATE: loss, grad_norm_sq and accuracy, those among the metrics, and what they took."""

    def announced(self) -> int: ...
    def allow(self, version: int) -> None: ...

    def pass_over(self, version: int) -> None:
        """A run that goes on from a checkpoint at `version`: then `add` until its steps are known, `skip_to` the last
        evaluation and `resume`, `skip_to` the version, the engine's `restore`, and `resumed`."""

    def skip_to(self, version: int) -> None: ...
    def resume(
        self,
        n_rows: int,
        values: list[float],
        mean: float,
        evaluated: Vector | None,
        cut: int,
        secure_seconds: float,
    ) -> None:
        """The history has n_rows, and `values` are the metrics of the newest, `mean` its grad_norm_sq_mean, `evaluated`
        its model; cut numbers and seconds are those of secure sums so far."""

    def resumed(self, previous: Vector | None) -> None:
        """`previous` is the model before this version, where it is to be evaluated yet."""

    def version(self) -> int: ...
    def time(self) -> float: ...
    def updates(self) -> int: ...
    def mark(self) -> int: ...
    def steps_known(self) -> int: ...
    def rows_known(self) -> int: ...
    def pieces(self) -> int:
        """Calls of `add` that came to their end."""

    def n_rows(self) -> int: ...
    def rows(self, first: int) -> list[list[float]]:
        """The rows of the history from number `first` on: step, time, updates, mean and largest staleness since the row
        before, the metrics, cut numbers and seconds of secure sums, and the mean of grad_norm_sq; the last three where
        there are such."""

    def eval_seconds(self) -> float: ...
    def cut(self) -> int: ...
    def secure_seconds(self) -> float: ...
    def evaluated(self) -> Vector | None:
        """The model of the newest row of the history, where the distance is a metric."""

    def previous(self) -> Vector | None:
        """The model before this version, where the step's norm is a metric."""


# ---- objects of single arrivals ----


class ServerLike(Protocol):
    """`fedbuff.Server`."""

    def __init__(self, w0: Any, strategy: object, *, unit: float | None = None) -> None: ...
    @property
    def unit(self) -> float | None:
        """What whole-number deltas are multiples of, or None."""

    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.floating[Any]]: ...
    @property
    def version(self) -> int:
        """Server steps so far."""

    @property
    def fill(self) -> int:
        """Deltas in the buffer."""

    @property
    def dropped(self) -> int:
        """Deltas that were too stale."""

    @property
    def outstanding(self) -> int:
        """Downloads whose upload is due."""

    @property
    def live_versions(self) -> int:
        """Models that are kept in memory."""

    @property
    def overdue(self) -> dict[int, int]:
        """How many tasks the rule stops, by version."""

    @property
    def w(self) -> Vector: ...
    def download(self) -> Any:
        """(version, model), and the control variates where the rule has them."""

    def take_ticket(self) -> int: ...
    def cancel_ticket(self, ticket: int) -> None: ...
    def upload(
        self,
        delta: Any,
        version: int,
        n_samples: float = 1.0,
        *,
        client: int | None = None,
        change: Any = None,
        ticket: int | None = None,
    ) -> bool:
        """Whether the server stepped."""

    def _upload_models(
        self, replies: Sequence[tuple[Vector, Sequence[Vector], int, float]]
    ) -> list[bool | Exception | None]:
        """An upload of start - model for each (start, parts of the model, version, n_samples): what it returned or
        raised, None where it was too stale."""

    def step(self) -> bool:
        """Steps with what is in the buffer; False where nothing is."""

    def cancel(self, version: int) -> None:
        """Gives up an upload that is due."""

    def close(self) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    @classmethod
    def load(cls, path: str | os.PathLike[str], strategy: object | None = None) -> Self: ...


class DeltaBufferLike(Protocol):
    """`fedbuff.DeltaBuffer`."""

    def __init__(self, dim: int, dtype: DTypeLike = ..., *, unit: float | None = None) -> None: ...
    @property
    def unit(self) -> float | None:
        """What whole-number deltas are multiples of, or None."""

    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.floating[Any]]: ...
    @property
    def count(self) -> int:
        """Deltas in the sum."""

    @property
    def sum(self) -> NDArray[Any]: ...
    def take_ticket(self) -> int: ...
    def cancel_ticket(self, ticket: int) -> None: ...
    def add(self, delta: Any, weight: float = 1.0, *, ticket: int | None = None) -> None:
        """sum + weight * delta."""

    def clear(self) -> None: ...
    def close(self) -> None: ...
    def step(self, w: Any, lr: float, out: Vector | None = None) -> Vector:
        """w - lr * sum, into out (which may be w) or a new array; empties the buffer."""

    def __len__(self) -> int: ...


class EventQueueLike(Protocol):
    """`fedbuff.EventQueue`."""

    def __init__(self) -> None: ...
    def push(self, time: float, item: int, kind: int = 0) -> None: ...
    def pop(self) -> tuple[float, int, int]: ...
    def peek(self) -> tuple[float, int, int]: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...


class LocalSGDLike(Protocol):
    """A client's work on a problem, by its address in compiled loops."""

    def __init__(self, problem: object, local: object, *, seed: int = 0) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def n_clients(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[np.floating[Any]]: ...
    def delta(self, client: int, task: int, w: Any, out: Vector | None = None) -> Vector: ...


# ---- backends ----


class Backend(Protocol):
    """What every backend has."""

    @property
    def name(self) -> str: ...
    @property
    def Server(self) -> type[ServerLike]: ...
    @property
    def DeltaBuffer(self) -> type[DeltaBufferLike]: ...
    @property
    def EventQueue(self) -> type[EventQueueLike]: ...

    def make_resolver(self, plan: Plan) -> Resolver: ...

    def uniform_arrivals(
        self, n_clients: int, buffer_size: int, max_staleness: int, oldest: bool, seed: int, columns: Columns
    ) -> None:
        """Fills buffer_size rows for every step of the columns; the rules are in python/uniform_arrivals.py."""

    def schedule_check(self) -> ScheduleCheck: ...

    def replay_engine(self, spec: EngineSpec) -> ReplayEngine:
        """The replay of local SGD on a bound problem, or on a compiled gradient, or of a client's function."""

    def replay_run(self, engine: ReplayEngine, spec: RunSpec) -> ReplayRun:
        """The run of a new engine."""

    def philox(self, seed: int, counter: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Philox4x32-10 of each row of counter (n, 4), with the 64-bit seed as key (low word first)."""

    def batch_rows(self, seed: int, client: int, task: int, step: int, n_rows: int, batch: int) -> NDArray[np.int64]:
        """Row j of the batch: multiply-high of word j % 4 of counter (client, task, step, Batches << 28 | j // 4) and
        n_rows."""

    def normals(self, seed: int, c0: int, c1: int, c2: int, stream: int, n: int) -> NDArray[np.float64]:
        """n standard normals: Box-Muller of counter (c0, c1, c2, stream << 28 | block), two a block.

        u = 1 - unit_double(word 0, word 1), v = unit_double(word 2, word 3), r = sqrt(-2 log u); the first is
        r cos(2 pi v), the second r sin(2 pi v), with the portable log and sincos: the same bits on every backend.
        """

    def bind(self, spec: ProblemSpec) -> BoundProblem: ...

    def accumulate(
        self, total: Vector, delta: Vector, weight: float, current: Vector | None, start: Vector | None, out: Vector
    ) -> bool:
        """out = total + weight * (delta + (current - start)), the bracket only where start is given. Returns whether
        out is finite, which it is not where the delta is not. out may be total."""

    def aggregate(
        self, w: Vector, deltas: list[Vector], weights: Vector, scale: float, out: Vector, threads: int
    ) -> None:
        """out = w - scale * sum_k weights[k] * deltas[k], added in the order of k. out may be w."""

    def sgd_step(
        self, w: Vector, total: Vector, lr: float, norm: float, momentum: float, velocity: Vector | None, out: Vector
    ) -> None:
        """velocity <- momentum velocity + total / norm; out = w - lr velocity.

        momentum 0: out = w - (lr / norm) total.
        """

    def adam_step(self, w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector) -> None:
        """Adam on g = total / norm + weight_decay w with moments (first, second), changed in place:

        first <- b1 first + (1 - b1) g; second <- b2 second + (1 - b2) g^2;
        out = w - (lr / (1 - b1^step)) first / (sqrt(second / (1 - b2^step)) + epsilon).
        """

    def optimizer_step(
        self, code: int, w: Vector, total: Vector, numbers: StepNumbers, moments: Moments, out: Vector
    ) -> None:
        """The step of the optimizer with this code in `_rule/optimizers.py`, but SGD's and Adam's with bias correction,
        on g = total / norm; moments are changed in place. out may be w."""

    def dot(self, x: Vector, y: Vector) -> float:
        """sum of x[j] y[j], in float64."""

    def encode_add(self, total: Words | None, delta: Vector, numbers: EncodeNumbers, out: Words) -> int:
        """out = total + weight * (delta in fixed point), modulo 2^32 or 2^64 by the dtype of out; total None is zero.

        A number is multiplied by factor, in its dtype; cut to [-clip, clip], a NaN to -clip; divided by step, a power
        of two; and rounded to the nearest whole number x', ties to even. With rounding (seed, client, task) it goes on
        to the whole number on the other side of it where (word + 1/2) / 2^32 < |x - x'|, with word j % 4 of the counter
        (client, task, block >> 28, Rounding << 28 | block), block = j // 4. Returns how many were cut. out may be
        total. clip is a float32 number, clip / step at most 2^30 for uint32 and 2^50 for uint64.
        """

    def add_words(self, total: Words, words: Words, weight: int, out: Words) -> None:
        """out = total + weight * words, modulo 2^32 or 2^64; 0 <= weight < that. out may be total or words."""

    def decode(self, words: Words, scale: float, out: Vector) -> None:
        """out = scale * words, taken as signed numbers; the product is made in float64."""

    def compress(self, x: Vector, numbers: CompressNumbers, seed: int, client: int, task: int, out: Vector) -> None:
        """out is what x is sent as; out may be x.

        TOP_K: the `kept` largest numbers, of equals the first; the others are 0. RANDOM_K: the numbers at the first
        `kept` places of `shuffled` by the stream COMPRESSION, pass 0, times dim / kept unless there is feedback. QSGD:
        `quantize` by its own norm, words of (client, task). SIGN: the mean of all sizes, summed as in
        python/compression.py, negative for numbers below 0. BFLOAT16: the nearest, ties to even. Where x is not finite
        out is not.
        """

    def quantize(self, x: Vector, numbers: QuantizeNumbers, out: Vector) -> None:
        """QSGD: out[j] = sign(x) k norm / levels, without bias.

        u = |x| (levels / norm) in float64; k = floor(u), or floor(u) + 1 where (word + 1/2) / 2^32 < u - floor(u), at
        most levels; k (norm / levels) in float64, then rounded to the dtype. Word j % 4 of the counter (first, second,
        block >> 28, stream << 28 | block), block = j // 4. out may be x. A norm of 0 gives zeros; one that is not
        finite, numbers that are not. levels is at most 2^20.
        """


class Limits(NamedTuple):
    """Loops that measure the machine at the level in force, repeated: seconds, and operations where there is a pair."""

    read: Callable[[list[Vector], int], float]  # vectors side by side
    write: Callable[[Vector, bool, int], float]  # True: past the caches
    copy: Callable[[Vector, Vector, bool, int], float]
    multiply_add: Callable[[int], tuple[float, float]]
    additions: Callable[[int], tuple[float, float]]  # each waits for the one before it: a clock cycle each
    lanes: Callable[[], int]  # numbers in a vector of the level in force


class PackedEnd(IntEnum):
    """What a packed run came to. The numbers are those of csrc/core/replay/packed_runs.hpp."""

    ENDED = 0
    STALLED = 1  # the schedule
    SHORT_TABLE = 2  # the staleness that is given is beyond the arm's table
    CANCELLED = 3
    FAILED = 4  # with what was raised


# PackedEnd, RunState, version, updates, staleness, time, seconds, w, history, and what was raised
PackedRun = tuple[int, int, int, int, int, float, float, Vector, NDArray[np.float64], BaseException | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmSpec:
    """An arm of a sweep: what its runs train, evaluate and stop at."""

    rule: Rule
    problem: BoundProblem
    held_out: BoundProblem | None  # for the accuracy
    local: LocalPlan
    s: NDArray[np.float64]  # weights by staleness
    e: NDArray[np.float64]  # weights by client
    window_bytes: int
    eval_every: int
    metrics: tuple[str, ...]
    stop: RunLimits | None


class PackedArm(Protocol):
    """An arm of a sweep, ready for `PackedRuns`; it has nothing to call."""


class PackedRuns(Protocol):
    """Whole runs, many to a call; one thread at a time may use it."""

    def run(
        self, plans: Sequence[Plan], expected_rows: int, w0: Vector, arms: Sequence[Sequence[PackedArm]]
    ) -> list[PackedRun]:
        """Runs of arms[i] along plans[i] from w0[i], in this order."""


class CompiledBackend(Backend, Protocol):
    """What `cpp` has beside that: CPU levels, compiled gradients, whole runs, and the machine's limits."""

    @property
    def LocalSGD(self) -> type[LocalSGDLike]: ...

    def level(self) -> str:
        """The CPU level in force."""

    def available_levels(self) -> list[str]:
        """The levels that were compiled and that this CPU runs, best first."""

    def force_level(self, level: str) -> None:
        """Runs the kernels of this level from now on; ValueError where it is not available."""

    def limits(self, dtype: DTypeLike) -> Limits: ...

    def custom_gradient(
        self,
        gradient: int,
        context: int,
        samples: NDArray[np.int64],
        weight: NDArray[np.float64],
        w: Vector,
        out: Vector,
    ) -> None:
        """out = sum_i weight[i] times client i's full gradient at w, by the compiled function at this address."""

    def packed_arm(self, spec: ArmSpec) -> PackedArm: ...

    def packed_runs(self, threads: int, cancel: NDArray[np.uint8]) -> PackedRuns:
        """Runs end early once cancel[0] is not 0."""
