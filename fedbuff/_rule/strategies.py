"""When the server steps, and what it computes then.

Every published server is one rule with four choices:

    contribution_j = s(staleness_j) * e_j * (base_j - w_end_j)
    direction      = sum_j contribution_j / norm
    w             <- optimizer(w, direction)

`Rule` is that rule; a strategy (`FedBuff`, `FedAsync`, `FedAvg`) carries one in `.rule`, beside what decides timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from .. import staleness as _staleness
from .._base.checks import (
    choice,
    count,
    list_of,
    number,
    share_of,
)
from .._base.html import fields_table
from ..staleness import StalenessFunction
from .delta_weight import DeltaWeight
from .hidden import HiddenModel
from .optimizers import SGD, LearningRate, Optimizer, optimizer_fields
from .own import OwnRule
from .secure_values import Gaussian, Simulate, secure_of
from .table import NO_TABLE, RING, RING_FIELDS, ClientTable

__all__ = ["TIMING", "FedAsync", "FedAvg", "FedBuff", "Rule", "plain_rule_of", "rule_of", "timing_of"]

INVERSE_FREQUENCY = "inverse_frequency"
PER_CLIENT = "per_client"
OF_SCHEDULE = (INVERSE_FREQUENCY, PER_CLIENT)  # weights that only a whole schedule tells

Base = Literal["start", "current"]
Norm = Literal["one", "arrivals", "weights", "scaled_weights", "clients"]
DelayLR = Literal["min", "divide"]
Method = Literal["sgd", "fednova", "scaffold", "feddyn"]
Trigger = Literal["buffer", "every_client", "ringleader"]
Refill = Literal["arrival", "step"] | int
Weighting = Literal["equal", "samples", "sqrt_samples", "log_samples", "inverse_frequency", "per_client"]


def check_hearing(trigger: Any, per_client: Any, stop_stale: Any) -> None:
    """Checks what makes a step, and which tasks it stops."""
    choice("trigger", trigger, get_args(Trigger))
    if not number("per_client", per_client) >= 1:
        raise ValueError(f"per_client: expected a number >= 1, got {per_client}")
    if stop_stale is not None:
        count("stop_stale", stop_stale)


class _KeepsFields:
    """A rule's place for what the compiled code takes, made once."""

    __slots__ = ("_fields",)
    _fields: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(_KeepsFields):
    """What the server computes. `norm` divides the sum of contributions:

    one: 1. arrivals: how many are in the buffer. weights: sum of e. scaled_weights: sum of s e. clients: n_clients.
    """

    buffer_size: int
    lr: float
    base: Base = "start"
    norm: Norm = "one"
    staleness: StalenessFunction = field(default_factory=_staleness.Constant)
    weighting: Weighting = "equal"
    weight_scale: float = 1.0
    optimizer: Optimizer = field(default_factory=SGD)
    max_staleness: int | None = None
    n_clients: int | None = None
    secure: Simulate | None = None
    privacy: Gaussian | None = None
    rate: LearningRate | None = None
    tau_c: int | None = None
    delay_lr: DelayLR = "min"
    table: ClientTable | None = None
    weight_by: DeltaWeight = field(default_factory=DeltaWeight)
    client_weights: tuple[float, ...] | None = None
    ring: int | None = None
    hidden: HiddenModel | None = None
    trigger: Trigger = "buffer"
    per_client: float = 1.0
    stop_stale: int | None = None
    method: Method = "sgd"
    alpha: float | None = None
    own: OwnRule | None = None

    def __post_init__(self) -> None:
        count("buffer_size", self.buffer_size)
        number("server_lr", self.lr, open_low=True)
        choice("base", self.base, get_args(Base))
        choice("norm", self.norm, get_args(Norm))
        choice("weights", self.weighting, get_args(Weighting))
        number("weight_scale", self.weight_scale, open_low=True)
        if not callable(self.staleness):
            kind = type(self.staleness).__name__
            raise TypeError(f"staleness: expected a function of an int, as in fedbuff.staleness, got {kind}")
        if not isinstance(self.optimizer, Optimizer):
            kind = type(self.optimizer).__name__
            raise TypeError(f"optimizer: expected one of fedbuff's, such as SGD or Adam, got {kind}")
        if self.rate is not None and not isinstance(self.rate, LearningRate):
            raise TypeError(f"server_lr: expected a number or fedbuff.LearningRate, got {type(self.rate).__name__}")
        if self.tau_c is not None:
            count("tau_c", self.tau_c, low=0)
        choice("delay_lr", self.delay_lr, get_args(DelayLR))
        if self.max_staleness is not None:
            count("max_staleness", self.max_staleness, low=0)
        if self.n_clients is not None:
            count("n_clients", self.n_clients)
        if self.norm == "clients" and self.n_clients is None:
            raise ValueError('n_clients: norm="clients" needs it')
        choice("method", self.method, get_args(Method))
        self._check_method()
        if self.table is not None:
            self._check_table()
        check_hearing(self.trigger, self.per_client, self.stop_stale)
        if self.client_weights is not None:
            self._check_client_weights()
        if self.ring is not None:
            self._check_ring()
        if self.own is not None:
            self._check_own()
        if self.hidden is not None:
            if not isinstance(self.hidden, HiddenModel):
                raise TypeError(f"hidden: expected fedbuff.HiddenModel, got {type(self.hidden).__name__}")
            if self.base != "start":
                raise ValueError('hidden: clients do not have the server\'s own model; it needs base="start"')
        if not isinstance(self.weight_by, DeltaWeight):
            raise TypeError(f"weight_by: expected fedbuff.DeltaWeight, got {type(self.weight_by).__name__}")
        if self.weighs_numbers and (self.secure is not None or self.privacy is not None):
            name = "privacy" if self.secure is None else "secure"
            raise ValueError(f"{name}: weight_by looks at single updates, which such a sum hides; leave out one")
        if self.secure is not None:
            self.secure.check_capacity(self.buffer_size)
        if self.privacy is not None and not isinstance(self.privacy, Gaussian):
            raise TypeError(f"privacy: expected fedbuff.secure.Gaussian, got {type(self.privacy).__name__}")
        if self.base == "current" and (self.secure is not None or self.privacy is not None):
            raise ValueError('base: a secure or private sum is of what clients send; it needs base="start"')
        if self.privacy is not None and self.norm in ("weights", "scaled_weights"):
            raise ValueError(
                f"norm: {self.norm!r} tells of the clients' weights; privacy needs one, arrivals or clients"
            )

    @property
    def weighs_numbers(self) -> bool:
        """Whether weights depend on the deltas."""
        return self.weight_by.by != "none" or self.weight_by.clip is not None

    @property
    def needs_start(self) -> bool:
        """Whether an arrival needs the model that its client downloaded."""
        return self.base == "current" or self.weight_by.needs_start or self.ring is not None

    @property
    def needs_client(self) -> bool:
        """Whether a server that is fed by hand must know whose delta an upload is."""
        given = (self.table, self.client_weights)
        return any(x is not None for x in given) or self.trigger != "buffer" or self.weighting == PER_CLIENT

    @property
    def clients(self) -> int:
        """How many clients the rule is made for; 0 where it does not look at them."""
        if not self.needs_client:
            return 0
        return self.n_clients or len(self.client_weights or ())

    @property
    def kept_rows(self) -> tuple[ClientTable, int] | None:
        """The table that the server keeps, and its rows: of clients, or of a ring of models."""
        if self.ring is not None:
            return RING, self.ring
        return None if self.table is None else (self.table, self.n_clients or 0)

    @property
    def too_stale(self) -> float:
        """From which staleness on a server that is fed by hand does not use an arrival."""
        dropped = math.inf if self.max_staleness is None else self.max_staleness + 1
        return min(dropped, math.inf if self.stop_stale is None else self.stop_stale)

    def _check_client_weights(self) -> None:
        given = list_of("client_weights", self.client_weights, "a list of one number per client")
        for weight in given:
            number("client_weights", weight, open_low=True)
        object.__setattr__(self, "client_weights", tuple(float(weight) for weight in given))
        if not given or (self.n_clients is not None and self.n_clients != len(given)):
            n = "at least one number" if not given else f"{self.n_clients} numbers, as n_clients says"
            raise ValueError(f"client_weights: expected {n}, got {len(given)}")
        if self.privacy is not None:
            raise ValueError("client_weights: the noise of a private sum is made for equal weights; leave one out")

    def _check_own(self) -> None:
        if not isinstance(self.own, OwnRule):
            raise TypeError(f"own: expected fedbuff.OwnRule, got {type(self.own).__name__}")
        plain = Rule(buffer_size=1, lr=1.0)
        for name in ("base", "norm", "optimizer", "weight_by", "table", "ring", "hidden"):
            if getattr(self, name) != getattr(plain, name):
                raise ValueError(f"{name}: the own rule makes the step; leave it out")
        if self.secure is not None or self.privacy is not None:
            name = "privacy" if self.secure is None else "secure"
            raise ValueError(f"{name}: an own rule sees single updates, which such a sum hides; leave out one")

    @property
    def holds_deltas(self) -> bool:
        """Whether a server keeps the deltas of a buffer until its step."""
        return self.weighting == PER_CLIENT or self.own is not None

    def _check_ring(self) -> None:
        count("ring", self.ring or 0)
        self._refuse_others("ring", "the model is the mean of the last models", ("buffer_size", 1), ("lr", 1.0))
        if self.secure is not None or self.privacy is not None:
            name = "privacy" if self.secure is None else "secure"
            raise ValueError(f"{name}: a ring keeps single models, which a secure or private sum hides; leave out one")

    def _refuse_others(self, option: str, why: str, *more: tuple[str, Any]) -> None:
        """ValueError where the rule has what would change how an arrival counts."""
        plain = Rule(buffer_size=1, lr=1.0)
        names = ("base", "staleness", "weighting", "weight_scale", "optimizer", "weight_by", "client_weights", "rate",
                 "tau_c", "hidden")  # fmt: skip
        expected = dict(more) | {name: getattr(plain, name) for name in names}
        if option == "ring":
            expected |= {"table": None, "norm": "one", "n_clients": None}
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise ValueError(f"{_NAMES.get(name, name)}: with {option} {why}; leave it out")

    @property
    def has_control(self) -> bool:
        """Whether the server keeps a control variate, the mean of a state that the clients keep."""
        return self.method in ("scaffold", "feddyn")

    @property
    def control_pull(self) -> float:
        """What the control variate is multiplied by before a step takes it off the model."""
        return 0.0 if self.alpha is None else 1.0 / self.alpha

    def _check_method(self) -> None:
        if self.method == "feddyn":
            if self.alpha is None:
                raise TypeError("alpha: feddyn needs it")
            number("alpha", self.alpha, open_low=True)
        elif self.alpha is not None:
            raise ValueError(f'alpha: it is for method="feddyn"; {self.method} has none')
        if not self.has_control:
            return
        if self.n_clients is None:
            raise ValueError(f"n_clients: {self.method} needs it, for the mean of the clients' states")
        for name in ("secure", "privacy", "table", "ring", "hidden", "own"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: {self.method} needs what each client changed; leave it out")
        if self.trigger != "buffer" or self.weighting == PER_CLIENT:
            name = "trigger" if self.trigger != "buffer" else "weights"
            raise ValueError(
                f"{name}: {self.method} steps with the arrivals of a buffer that count alike; leave it out"
            )

    def _check_table(self) -> None:
        if not isinstance(self.table, ClientTable):
            raise TypeError(f"table: expected fedbuff.ClientTable, got {type(self.table).__name__}")
        if self.n_clients is None:
            raise ValueError("n_clients: a rule with a table needs it")
        if self.table.keeps == "means":
            if self.trigger != "ringleader" or self.norm != "clients":
                raise ValueError('table: keeps="means" is for trigger="ringleader" and norm="clients"')
            self._refuse_others("means", "each delta counts as its client's others do")
        if self.secure is not None or self.privacy is not None:
            name = "privacy" if self.secure is None else "secure"
            raise ValueError(
                f"{name}: a table keeps single updates, which a secure or private sum hides; leave out one"
            )

    def sample_weight(self, n_samples: float) -> float:
        """e_j of an update made from n_samples samples; an error where only a schedule could tell."""
        if self.weighting == INVERSE_FREQUENCY:
            raise ValueError(f'weights: "{self.weighting}" is known from a whole schedule only, which `replay` has')
        return _RAW_WEIGHT[self.weighting](n_samples) * self.weight_scale

    def norm_of(self, arrivals: int, weight_sum: float, scaled_weight_sum: float) -> float:
        """What the sum of contributions is divided by, for a buffer with these sums of e and of s e."""
        return {
            "one": 1.0 if self.ring is None else float(self.ring),
            "arrivals": float(arrivals),
            "weights": weight_sum,
            "scaled_weights": scaled_weight_sum,
            "clients": float(self.n_clients or 1),
        }[self.norm]

    def c_fields(self) -> dict[str, float]:
        """The rule as the compiled code takes it: the fields of `fb_rule` in fedbuff.h that a rule decides."""
        try:
            made = self._fields
        except AttributeError:
            made = self._make_fields()
            object.__setattr__(self, "_fields", made)
        return made.copy()

    def _make_fields(self) -> dict[str, float]:
        return {
            "base": get_args(Base).index(self.base),
            "norm": get_args(Norm).index(self.norm),
            "buffer_size": self.buffer_size,
            "n_clients": self.n_clients or 0,
            "max_staleness": -1 if self.max_staleness is None else self.max_staleness,
            "lr": self.lr,
            "delay_lr": 0 if self.tau_c is None else 1 + get_args(DelayLR).index(self.delay_lr),
            "tau_c": self.tau_c or 0,
            **(self.rate or LearningRate(self.lr)).fields(),
            **optimizer_fields(self.optimizer),
            **self.weight_by.fields(),
            **(NO_TABLE if self.table is None else self.table.fields()),
            "trigger": get_args(Trigger).index(self.trigger) if self.n_clients is not None else 0,
            "per_client": self.per_client,
            "weight_shared": int(self.weighting == PER_CLIENT and self.n_clients is not None and self.base == "start"),
            "hidden_levels": 0 if self.hidden is None else self.hidden.levels,
            "hidden_seed": 0 if self.hidden is None else self.hidden.seed,
            "stop_stale": self.stop_stale or 0,
            **(self._ring_fields() if self.ring is not None else {}),
            "control": int(self.has_control),
            "control_pull": self.control_pull,
        }

    def _ring_fields(self) -> dict[str, float]:
        assert self.ring is not None
        return RING_FIELDS | {"n_clients": self.ring, "norm": get_args(Norm).index("clients")}

    def lr_of(self, version: int, staleness: int) -> float:
        """The step size of the step from `version`, with a buffer in which the largest staleness is this."""
        lr = self.lr if self.rate is None else self.rate.at(version)
        if self.tau_c is not None and staleness > self.tau_c:
            return min(lr, 1.0 / staleness) if self.delay_lr == "min" else lr / staleness
        return lr

    def staleness_weight(self, staleness: int) -> float:
        """s_j of an update that is this stale; an error where the function does not give a finite number >= 0."""
        weight = float(self.staleness(staleness))
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(
                f"staleness: expected a function that gives finite numbers >= 0, got {weight} for staleness {staleness}"
            )
        return weight


_NAMES = {"lr": "server_lr", "weighting": "weights", "rate": "server_lr"}  # of options, where the rule has another one

_RAW_WEIGHT: dict[str, Callable[[float], float]] = {
    "equal": lambda n_samples: 1.0,
    "per_client": lambda n_samples: 1.0,  # over the client's arrivals in the buffer
    "samples": float,
    "sqrt_samples": math.sqrt,
    "log_samples": lambda n_samples: math.log10(1.0 + n_samples),
}


class _KeepsRule:
    """A strategy's place for its rule, made once: to check it takes as long as a short replay takes for its steps."""

    __slots__ = ("_rule",)
    _rule: Rule


@dataclass(frozen=True, slots=True)
class FedBuff(_KeepsRule):
    """Sum `buffer_size` updates, then step (Nguyen et al.; the default is the form analysed by Toghani and Uribe).

    >>> import fedbuff as fb
    >>> fb.FedBuff(buffer_size=10).server_lr
    0.1
    >>> fb.FedBuff.preset("nguyen", buffer_size=10, server_lr=0.5).rule.norm
    'arrivals'

    server_lr      the server's step size, or a `LearningRate`; None is 1 / buffer_size for norm "one", else 1
    staleness      a function from `fedbuff.staleness`
    base           an update is "start" (model downloaded) or "current" (model now) minus the client's model
    norm           what the sum is divided by: "one", "arrivals", "weights", "scaled_weights" or "clients"
    weights        e_j: "equal", "samples", "sqrt_samples" or "log_samples", times weight_scale; or
                   "per_client", 1 / (arrivals of the client in the step), so that each client's mean counts once; or
                   "inverse_frequency", 1 / (n p_i) with p_i the client's share of the schedule's used arrivals, so that
                   fast clients do not pull the model to their own optimum
    optimizer      `SGD(momentum)`, `Nesterov(momentum)`, `DelayedNesterov(period)`, `Adam(...)`, `Adagrad(...)`,
                   `Yogi(...)` or `AMSGrad(...)`
    max_staleness  an arrival staler than this is dropped
    max_wait       also step at the ticks, every so many seconds from the last step on, where the buffer is not empty
    period         also step at the ticks, every so many seconds from time 0 on, where the buffer is not empty
    trigger        what makes a step: "buffer", buffer_size arrivals; "every_client", at least so many, and all clients
                   heard (Malenia); "ringleader", Ringleader's rounds, which do not look at buffer_size
    per_client     all clients are heard when the harmonic mean of their arrivals is at least this; 1: each once
    refill         when the slot of a task that ended starts the next one: at the "arrival", at the next server "step"
                   together with all others, or when this number of slots are open
    stop_stale     a task at work is stopped when a server step brings its staleness to this; its client starts again
    restart        "step": every server step stops all tasks at work, and their clients start again
    secure         "simulate", or `secure.Simulate(...)` or `secure.OneTimePad(...)`: the server sees sums only
    privacy        `secure.Gaussian(...)`: updates are clipped, and noise is added to each sum
    distinct_clients: an arrival whose client is in the buffer already waits for the next one
    tau_c          where the largest staleness in the buffer, tau, is above it, the step size is min(lr, 1 / tau), or
                   with delay_lr="divide" lr / tau (FADAS)
    weight_by      a `DeltaWeight`: q_j, a factor of weights made from norms and angles (AsyncFedED, PORT), or a clip
    table          a `ClientTable`: the server keeps every client's last update (CA2FL, FedStale); needs n_clients
    client_weights one number per client, by which e_j is multiplied
    ring           the model is the mean of the last `ring` models that came, at the start all of them the first one
                   (FedFa); for buffer_size=1, server_lr=1 and no other option that changes how an arrival counts
    hidden         a `HiddenModel`: what clients download is another model than the server's own (QAFeL)
    own            an `OwnRule`: a function of yours makes the steps, from all deltas of a buffer at once
    method         what the clients must do, the same as `LocalSGD(method=)`: a replay with another one is refused
    alpha          of FedDyn, the same as `LocalSGD(alpha=)`
    """

    kind: ClassVar[str] = "fedbuff"

    buffer_size: int
    server_lr: float | LearningRate | None = None
    staleness: StalenessFunction = field(default_factory=_staleness.Constant)
    base: Base = "start"
    norm: Norm = "one"
    weights: Weighting = "equal"
    weight_scale: float = 1.0
    optimizer: Optimizer = field(default_factory=SGD)
    max_staleness: int | None = None
    max_wait: float | None = None
    n_clients: int | None = None
    distinct_clients: bool = False
    secure: Simulate | Literal["simulate"] | None = None
    privacy: Gaussian | None = None
    tau_c: int | None = None
    delay_lr: DelayLR = "min"
    table: ClientTable | None = None
    weight_by: DeltaWeight = field(default_factory=DeltaWeight)
    period: float | None = None
    trigger: Trigger = "buffer"
    per_client: float = 1.0
    refill: Refill = "arrival"
    stop_stale: int | None = None
    restart: Literal["step"] | None = None
    client_weights: tuple[float, ...] | None = None
    ring: int | None = None
    hidden: HiddenModel | None = None
    own: OwnRule | None = None
    method: Method = "sgd"
    alpha: float | None = None

    def __post_init__(self) -> None:
        count("buffer_size", self.buffer_size)
        if self.server_lr is None:
            object.__setattr__(self, "server_lr", 1.0 / self.buffer_size if self.norm == "one" else 1.0)
        if self.max_wait is not None:
            number("max_wait", self.max_wait, open_low=True)
        object.__setattr__(self, "secure", secure_of(self.secure))
        self._check_timing()
        _ = self.rule

    def _check_timing(self) -> None:
        if self.period is not None:
            number("period", self.period, open_low=True)
        check_hearing(self.trigger, self.per_client, self.stop_stale)
        if self.per_client != 1 and self.trigger == "buffer":
            raise ValueError('per_client: trigger="buffer" does not look at it; leave it out')
        if isinstance(self.refill, str):
            choice("refill", self.refill, ("arrival", "step"))
        else:
            count("refill", self.refill)
        if self.restart is not None:
            choice("restart", self.restart, ("step",))
            if self.stop_stale is not None:
                raise ValueError("stop_stale, restart: expected one of them; restart stops every task at every step")
        ticks = {"max_wait": self.max_wait is not None, "period": self.period is not None}
        others = {"trigger": self.trigger != "buffer"}
        for name in (name for name, given in (ticks | others).items() if given):
            if self.secure is not None:
                raise ValueError(f"{name}: a secure sum is released for a full buffer only; leave it out")
        for name in (name for name, given in ticks.items() if given and self.trigger == "ringleader"):
            raise ValueError(f'{name}: trigger="ringleader" steps at arrivals only; leave it out')
        if self.trigger != "buffer" and self.distinct_clients:
            raise ValueError('distinct_clients: a buffer of which clients are heard needs trigger="buffer"')
        for name in (name for name, given in ticks.items() if given and self.ring is not None):
            raise ValueError(f"{name}: a ring of models steps at every arrival; leave it out")

    def _repr_html_(self) -> str:
        return fields_table(self)

    @property
    def rule(self) -> Rule:
        try:
            made: Rule = self._rule
        except AttributeError:
            made = self._make_rule()
            object.__setattr__(self, "_rule", made)
        return made

    def _make_rule(self) -> Rule:
        assert self.server_lr is not None
        return Rule(
            buffer_size=self.buffer_size,
            lr=_initial(self.server_lr),
            rate=_rate(self.server_lr),
            tau_c=self.tau_c,
            delay_lr=self.delay_lr,
            table=self.table,
            weight_by=self.weight_by,
            base=self.base,
            norm=self.norm,
            staleness=self.staleness,
            weighting=self.weights,
            weight_scale=self.weight_scale,
            optimizer=self.optimizer,
            max_staleness=self.max_staleness,
            n_clients=self.n_clients,
            secure=secure_of(self.secure),
            privacy=self.privacy,
            client_weights=self.client_weights,
            ring=self.ring,
            hidden=self.hidden,
            own=self.own,
            trigger=self.trigger,
            per_client=self.per_client,
            stop_stale=1 if self.restart is not None else self.stop_stale,
            method=self.method,
            alpha=self.alpha,
        )

    @staticmethod
    def preset(name: str, **options: Any) -> FedBuff:
        """The rule of a published system, by name: one of `FedBuff.presets()`. Options override its fields.

        appfl also takes alpha (0.9), n_clients and total_samples; flsim average_samples (1) for its example weights.
        """
        if name not in _PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(_PRESETS)}, got {name!r}")
        return _PRESETS[name](options)

    @staticmethod
    def presets() -> tuple[str, ...]:
        """The names that `preset` knows."""
        return tuple(_PRESETS)


def _preset(**defaults: Any) -> Callable[[dict[str, Any]], FedBuff]:
    return lambda options: FedBuff(**{**defaults, **options})


def _preset_flsim(options: dict[str, Any]) -> FedBuff:
    options = dict(options)
    average = number("average_samples", options.pop("average_samples", 1), open_low=True)
    weights = options.get("weights", "equal")
    choice("weights", weights, get_args(Weighting))
    scale = 1.0 if weights in OF_SCHEDULE else 1.0 / _RAW_WEIGHT[weights](average)
    return FedBuff(**{"buffer_size": 1, "server_lr": 0.001, "norm": "one", "weight_scale": scale, **options})


def _preset_appfl(options: dict[str, Any]) -> FedBuff:
    options = dict(options)
    alpha = number("alpha", options.pop("alpha", 0.9), open_low=True)
    total = options.pop("total_samples", None)
    if options.get("weights", "equal") == "samples":
        if total is None:
            raise ValueError('total_samples: the appfl preset with weights="samples" needs it')
        scale = alpha / number("total_samples", total, open_low=True)
    else:
        if "n_clients" not in options:
            raise ValueError("n_clients: the appfl preset needs it, its updates are weighted by 1 / n_clients")
        scale = alpha / count("n_clients", options["n_clients"])
    defaults = {"server_lr": 1.0, "base": "current", "norm": "one", "weight_scale": scale}
    return FedBuff(**{**defaults, **options})


_INVERSE_SQRT = _staleness.Polynomial(0.5)
_PRESETS: dict[str, Callable[[dict[str, Any]], FedBuff]] = {
    "paper": _preset(),
    "nguyen": _preset(staleness=_INVERSE_SQRT, norm="arrivals", server_lr=1.0),
    "flsim": _preset_flsim,
    "flame": _preset(staleness=_INVERSE_SQRT, norm="arrivals", server_lr=1.0),
    "federatedscope": _preset(staleness=_staleness.Polynomial(1.0), weights="samples", norm="weights", server_lr=1.0),
    "nvflare": _preset(norm="arrivals", server_lr=1.0),
    "appfl": _preset_appfl,
    "fedscale": _preset(staleness=_INVERSE_SQRT, base="current", norm="scaled_weights", server_lr=1.0),
    "plato": _preset(base="current", norm="arrivals", server_lr=1.0),
    "flower_pr": _preset(base="current", weights="samples", norm="scaled_weights", server_lr=1.0),
}


@dataclass(frozen=True, slots=True)
class FedAsync:
    """Mix every update in as it comes: w <- (1 - a) w + a w_end, a = mixing * s(staleness) (Xie et al.)."""

    kind: ClassVar[str] = "fedasync"
    buffer_size: ClassVar[int] = 1
    max_wait: ClassVar[None] = None

    mixing: float = 0.9
    staleness: StalenessFunction = field(default_factory=_staleness.Constant)
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        number("mixing", self.mixing, high=1.0, open_low=True)
        _ = self.rule

    def _repr_html_(self) -> str:
        return fields_table(self)

    @property
    def rule(self) -> Rule:
        return Rule(
            buffer_size=1, lr=self.mixing, base="current", staleness=self.staleness, max_staleness=self.max_staleness
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Synchronous rounds: draw clients, wait for them, average (McMahan et al.).

    clients_per_round, or rate (a share of all clients); over_selection starts that share more and keeps the first to
    finish. weights "samples" averages by sample count.
    """

    kind: ClassVar[str] = "fedavg"

    clients_per_round: int | None = None
    rate: float | None = None
    over_selection: float = 0.0
    server_lr: float | LearningRate = 1.0
    weights: Weighting = "samples"
    optimizer: Optimizer = field(default_factory=SGD)

    def __post_init__(self) -> None:
        if (self.clients_per_round is None) == (self.rate is None):
            raise ValueError("clients_per_round, rate: expected exactly one of them")
        if self.clients_per_round is not None:
            count("clients_per_round", self.clients_per_round)
        if self.rate is not None:
            number("rate", self.rate, high=1.0, open_low=True)
        number("over_selection", self.over_selection)
        _ = self.rule

    def round_size(self, n_clients: int) -> int:
        """How many of n_clients a round waits for."""
        if self.clients_per_round is None:
            assert self.rate is not None
            return max(1, share_of(self.rate, n_clients))
        if self.clients_per_round > n_clients:
            raise ValueError(
                f"clients_per_round: expected at most {n_clients}, the clients there are, got {self.clients_per_round}"
            )
        return self.clients_per_round

    def _repr_html_(self) -> str:
        return fields_table(self)

    @property
    def rule(self) -> Rule:
        """The rule of a round; its buffer_size is a placeholder where only the rate is known."""
        return Rule(
            buffer_size=self.clients_per_round or 1,
            lr=_initial(self.server_lr),
            rate=_rate(self.server_lr),
            norm="weights",
            weighting=self.weights,
            optimizer=self.optimizer,
        )


def _initial(lr: float | LearningRate) -> float:
    return lr.lr if isinstance(lr, LearningRate) else lr


def _rate(lr: float | LearningRate) -> LearningRate | None:
    return lr if isinstance(lr, LearningRate) else None


# What decides when a strategy's server steps and its clients start. Of those that have one the default stands for all
# strategies that lack it.
TIMING: dict[str, Any] = {
    "buffer_size": None, "max_staleness": None, "max_wait": None, "clients_per_round": None, "rate": None,
    "over_selection": None, "distinct_clients": False, "period": None, "trigger": "buffer", "per_client": 1.0,
    "refill": "arrival", "stop_stale": None, "restart": None,
}  # fmt: skip


def timing_of(strategy: object) -> dict[str, Any]:
    """The fields of `TIMING` in which a strategy is not the default."""
    values = {name: getattr(strategy, name, default) for name, default in TIMING.items()}
    return {name: value for name, value in values.items() if value != TIMING[name]}


def plain_rule_of(strategy: object) -> Rule:
    """The rule of a strategy for a server that is fed by hand: it sees every update, and no schedule."""
    rule = rule_of(strategy)
    if rule.secure is not None or rule.privacy is not None:
        name = "privacy" if rule.secure is None else "secure"
        raise ValueError(f"{name}: this server sees every update; use fedbuff.secure.Server, or a replay")
    if rule.weighting == INVERSE_FREQUENCY:
        rule.sample_weight(1.0)  # raises, in the rule's own words
    if rule.needs_client and rule.clients == 0:
        name = f'trigger="{rule.trigger}"' if rule.trigger != "buffer" else 'weights="per_client"'
        raise ValueError(f"n_clients: {name} needs it here, where no schedule tells how many there are")
    if rule.weighting == PER_CLIENT:
        odd = {"base": rule.base != "start", "table": rule.table is not None, "weight_by": rule.weighs_numbers}
        for option in (option for option, given in odd.items() if given):
            raise ValueError(
                f'{option}: weights="per_client" keeps the deltas of a buffer, and weighs them at the step'
            )
    return rule


def rule_of(strategy: object) -> Rule:
    """The rule that a strategy carries; TypeError where it is none."""
    rule = getattr(strategy, "rule", None)
    if not isinstance(rule, Rule):
        raise TypeError(f"strategy: expected a strategy such as fedbuff.FedBuff, got {type(strategy).__name__}")
    return rule
