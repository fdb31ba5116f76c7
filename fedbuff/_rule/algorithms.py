"""Published algorithms by name: which strategy each one is, with its paper, formula and state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from .. import staleness as _staleness
from .._base.checks import choice, count, list_of, number
from .delta_weight import DeltaWeight
from .hidden import HiddenModel
from .optimizers import SGD, Adagrad, Adam, AMSGrad, DelayedNesterov, LearningRate, Nesterov, Yogi
from .strategies import FedAsync, FedAvg, FedBuff
from .table import ClientTable

__all__ = ["Algorithm", "algorithm", "algorithms"]

Strategy = FedBuff | FedAsync | FedAvg
Step = float | LearningRate
RowsOption = Literal["full", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What a name stands for: g is the direction of a step, K the buffer, n the clients, d the model's size."""

    name: str
    paper: str
    formula: str
    state: str  # what the server keeps beside the model and a sum
    memory: str  # of that, in numbers
    variant: str  # where papers and codes differ: what this is
    make: Callable[..., Strategy]

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments that `algorithm` takes for it."""
        return tuple(_parameters(self.make))


def algorithm(name: str, /, **options: Any) -> Strategy:
    """The strategy of a published algorithm; `algorithms()` lists them.

    >>> import fedbuff as fb
    >>> fb.algorithm("ca2fl", buffer_size=10, n_clients=100).table
    ClientTable(own=-1.0, mean=1.0, mean_over='clients', wait=False, rows='full', path=None, keeps='delta')

    options  those of the algorithm, with this library's names; what else the strategy has stays as it is by default
    """
    choice("name", name, tuple(_ALGORITHMS))
    make = _ALGORITHMS[name].make
    parameters = _parameters(make)
    for option in options:
        if option not in parameters:
            raise TypeError(f"{option}: expected an option of {name}: {', '.join(parameters)}")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise TypeError(f"{option}: {name} needs it")
    return make(**options)


def algorithms() -> Mapping[str, Algorithm]:
    """The published algorithms that this library has, by name.

    >>> import fedbuff as fb
    >>> fb.algorithms()["fadas"].state
    'm, v, largest v'
    """
    return MappingProxyType(_ALGORITHMS)


def _parameters(make: Callable[..., Strategy]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(make).parameters)


_ALGORITHMS: dict[str, Algorithm] = {}


def _entry(
    name: str, paper: str, formula: str, *, state: str = "none", memory: str = "0", variant: str = "the paper's"
) -> Callable[[Callable[..., Strategy]], Callable[..., Strategy]]:
    def note(make: Callable[..., Strategy]) -> Callable[..., Strategy]:
        _ALGORITHMS[name] = Algorithm(name, paper, formula, state, memory, variant, make)
        return make

    return note


_ROWS = {"state": "a row per client, their mean", "memory": "n d + 2 d"}
_ADAPTIVE = {
    "state": "m, v",
    "memory": "2 d",
    "variant": "Algorithm 2 of the paper, on buffers: no bias correction; epsilon outside the root; v starts at "
    "epsilon^2",
}


@_entry(
    "fedbuff",
    "Nguyen et al. 2022, arXiv 2106.06639; Toghani and Uribe 2022, arXiv 2210.01161",
    "w <- w - server_lr sum of K deltas",
    variant="that of Toghani and Uribe; FedBuff.preset has those of ten systems",
)
def _fedbuff(buffer_size: int, server_lr: Step | None = None, max_staleness: int | None = None) -> Strategy:
    return FedBuff(buffer_size, server_lr, max_staleness=max_staleness)


@_entry(
    "fedasync",
    "Xie, Koyejo and Gupta 2019, arXiv 1903.03934",
    "w <- (1 - a) w + a w_end, a = mixing (1 + staleness)^-exponent",
)
def _fedasync(mixing: float = 0.9, exponent: float = 0.5, max_staleness: int | None = None) -> Strategy:
    return FedAsync(mixing, _staleness.Polynomial(exponent), max_staleness)


@_entry("fedavg", "McMahan et al. 2017, arXiv 1602.05629", "w <- w - mean of the round's deltas, by samples")
def _fedavg(clients_per_round: int, server_lr: Step = 1.0, over_selection: float = 0.0) -> Strategy:
    return FedAvg(clients_per_round=clients_per_round, server_lr=server_lr, over_selection=over_selection)


def _round(clients_per_round: int, server_lr: Step, optimizer: Any) -> Strategy:
    return FedAvg(clients_per_round=clients_per_round, server_lr=server_lr, optimizer=optimizer)


@_entry(
    "fedavgm",
    "Hsu, Qi and Brown 2019, arXiv 1909.06335",
    "v <- momentum v + g; w <- w - server_lr v",
    state="v",
    memory="d",
    variant="the paper's, in rounds; for buffers use FedBuff(optimizer=SGD(momentum))",
)
def _fedavgm(clients_per_round: int, server_lr: Step = 1.0, momentum: float = 0.9) -> Strategy:
    return _round(clients_per_round, server_lr, SGD(momentum))


@_entry(
    "fedadam",
    "Reddi et al. 2021, arXiv 2003.00295",
    "m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; w <- w - server_lr m / (sqrt(v) + epsilon)",
    **_ADAPTIVE,
)
def _fedadam(
    buffer_size: int, server_lr: Step = 0.01, betas: tuple[float, float] = (0.9, 0.99), epsilon: float = 1e-3
) -> Strategy:
    optimizer = Adam(betas, epsilon, bias_correction=False, initial=number("epsilon", epsilon, open_low=True) ** 2)
    return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=optimizer)


@_entry(
    "fedyogi",
    "Reddi et al. 2021, arXiv 2003.00295",
    "m as FedAdam; v <- v - (1 - b2) g^2 sign(v - g^2); w <- w - server_lr m / (sqrt(v) + epsilon)",
    **_ADAPTIVE,
)
def _fedyogi(
    buffer_size: int, server_lr: Step = 0.01, betas: tuple[float, float] = (0.9, 0.99), epsilon: float = 1e-3
) -> Strategy:
    optimizer = Yogi(betas, epsilon, initial=number("epsilon", epsilon, open_low=True) ** 2)
    return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=optimizer)


@_entry(
    "fedadagrad",
    "Reddi et al. 2021, arXiv 2003.00295",
    "m <- beta m + (1 - beta) g; v <- v + g^2; w <- w - server_lr m / (sqrt(v) + epsilon)",
    **_ADAPTIVE,
)
def _fedadagrad(buffer_size: int, server_lr: Step = 0.01, beta: float = 0.0, epsilon: float = 1e-3) -> Strategy:
    optimizer = Adagrad(beta, epsilon, number("epsilon", epsilon, open_low=True) ** 2)
    return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=optimizer)


@_entry(
    "fadas",
    "Wang et al. 2024 (ICML), arXiv 2407.18365",
    "m, v as FedAdam; w <- w - lr_t m / (sqrt(largest v) + epsilon); lr_t = server_lr, or min(server_lr, 1 / tau) "
    "where the largest staleness in the buffer, tau, is above tau_c",
    state="m, v, largest v",
    memory="3 d",
    variant='"paper"; "sqrt_v" is a published code\'s: it divides by sqrt(v), and takes server_lr / tau',
)
def _fadas(
    buffer_size: int,
    server_lr: Step = 0.001,
    tau_c: int | None = None,
    betas: tuple[float, float] = (0.9, 0.99),
    epsilon: float = 1e-8,
    variant: Literal["paper", "sqrt_v"] = "paper",
) -> Strategy:
    choice("variant", variant, ("paper", "sqrt_v"))
    if variant == "paper":
        return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=AMSGrad(betas, epsilon), tau_c=tau_c)
    optimizer = Adam(betas, epsilon, bias_correction=False)
    return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=optimizer, tau_c=tau_c, delay_lr="divide")


@_entry(
    "delayed_nesterov",
    "Liu et al. 2024, arXiv 2401.09135",
    "each upload: x <- x + g; w <- w - server_lr (activation momentum m + g / N); each N-th: m <- momentum m + x / N; "
    "w <- w - server_lr ((1 - activation (N - 1)) momentum m + g / N); x <- 0; N = period",
    state="m, x",
    memory="2 d",
    variant="Algorithm 3 of the paper, without its dynamic local steps",
)
def _delayed_nesterov(period: int, server_lr: Step = 0.7, momentum: float = 0.9, activation: float = 0.0) -> Strategy:
    return FedBuff(1, server_lr, norm="arrivals", optimizer=DelayedNesterov(period, momentum, activation))


@_entry(
    "diloco",
    "Douillard et al. 2023, arXiv 2311.08105",
    "v <- momentum v + g; w <- w - server_lr (g + momentum v)",
    state="v",
    memory="d",
    variant="its outer step, on buffers; with buffer_size=1 the asynchronous one that Liu et al. 2024 compare with",
)
def _diloco(buffer_size: int, server_lr: Step = 0.7, momentum: float = 0.9) -> Strategy:
    return FedBuff(buffer_size, server_lr, norm="arrivals", optimizer=Nesterov(momentum))


@_entry(
    "delay_adaptive",
    "Koloskova, Stich and Jaggi 2022, arXiv 2206.08307; Mishchenko et al. 2022, arXiv 2206.07638",
    "w <- w - server_lr min(1, concurrency / staleness) delta",
)
def _delay_adaptive(concurrency: int, server_lr: Step = 1.0) -> Strategy:
    return FedBuff(1, server_lr, norm="arrivals", staleness=_staleness.DelayAdaptive(concurrency))


def _with_rows(
    buffer_size: int, server_lr: Step, n_clients: int, norm: Any, table: ClientTable, **more: Any
) -> Strategy:
    return FedBuff(buffer_size, server_lr, norm=norm, n_clients=count("n_clients", n_clients), table=table, **more)


@_entry(
    "ca2fl",
    "Wang et al. 2024 (ICLR), Tackling the data heterogeneity in asynchronous federated learning",
    "w <- w - server_lr (h + (1 / K) sum of (delta - h_i)); h_i <- delta; h = mean of all h_i",
    **_ROWS,
    variant='"paper"; "seen" divides the mean by the clients seen so far (a fork of FLGo); "mean" never forms the '
    "correction, and steps by the mean of the rows as they are after the buffer (AFL-Lib)",
)
def _ca2fl(
    buffer_size: int,
    n_clients: int,
    server_lr: Step = 1.0,
    variant: Literal["paper", "seen", "mean"] = "paper",
    table: RowsOption = "full",
    table_path: str | None = None,
) -> Strategy:
    choice("variant", variant, ("paper", "seen", "mean"))
    rows = ClientTable(mean_over="seen" if variant == "seen" else "clients", rows=table, path=table_path)
    return _with_rows(buffer_size, server_lr, n_clients, "clients" if variant == "mean" else "arrivals", rows)


@_entry(
    "ia2sgd",
    "Wang et al. 2025, incremental aggregated asynchronous SGD",
    "h <- h + (delta - h_i) / n; h_i <- delta; w <- w - server_lr h",
    **_ROWS,
    variant="as in the code of Ringmaster's authors, on deltas in the place of gradients",
)
def _ia2sgd(
    n_clients: int, server_lr: Step = 1.0, table: RowsOption = "full", table_path: str | None = None
) -> Strategy:
    return _with_rows(1, server_lr, n_clients, "clients", ClientTable(rows=table, path=table_path))


@_entry(
    "ace",
    "All-client engagement, 2025",
    "as ia2sgd; no step moves the model until every client has arrived once",
    **_ROWS,
    variant="from the paper's text: steps before all clients were heard count as versions",
)
def _ace(n_clients: int, server_lr: Step = 1.0, table: RowsOption = "full", table_path: str | None = None) -> Strategy:
    return _with_rows(1, server_lr, n_clients, "clients", ClientTable(wait=True, rows=table, path=table_path))


@_entry(
    "fedstale",
    "Rodio and Neglia 2024, arXiv 2405.04171",
    "w <- w - server_lr (beta h + sum over arrivals of (delta - beta h_i) / (n p)); h_i <- delta; h = mean of all h_i",
    **_ROWS,
    variant="clients count equally; participation is one number, or, None, each client's share of the schedule's "
    "arrivals times K",
)
def _fedstale(
    buffer_size: int,
    n_clients: int,
    server_lr: Step = 1.0,
    beta: float = 0.5,
    participation: float | None = None,
    table: RowsOption = "full",
    table_path: str | None = None,
) -> Strategy:
    number("beta", beta, high=1.0)
    rows = ClientTable(own=-beta, mean=beta, rows=table, path=table_path)
    if participation is None:
        return _with_rows(buffer_size, server_lr, n_clients, "arrivals", rows, weights="inverse_frequency")
    scale = 1.0 / number("participation", participation, high=1.0, open_low=True)
    return _with_rows(buffer_size, server_lr, n_clients, "clients", rows, weight_scale=scale)


@_entry(
    "fednova",
    "Wang et al. 2020 (NeurIPS), arXiv 2007.07481",
    "w <- w - server_lr sum over arrivals of e_i (Q / Q_i) delta_i / sum of e_i; Q_i the client's local steps",
    variant='on buffers; the clients\' half is LocalSGD(method="fednova"), which knows Q_i and the common Q',
)
def _fednova(buffer_size: int, server_lr: Step = 1.0, weights: Literal["equal", "samples"] = "equal") -> Strategy:
    return FedBuff(buffer_size, server_lr, norm="weights", weights=weights, method="fednova")


@_entry(
    "scaffold",
    "Karimireddy et al. 2020 (ICML), arXiv 1910.06378",
    "clients: gradient + c - c_i; c_i <- c_i - c + delta / (Q lr); w <- w - server_lr mean of K deltas; "
    "c <- c + sum of the changes of c_i / n",
    state="c; a c_i at each client",
    memory="2 d; n d at the clients",
    variant="option II of the paper, on buffers: c is that of the version that the task began on; the clients' half is "
    'LocalSGD(method="scaffold")',
)
def _scaffold(buffer_size: int, n_clients: int, server_lr: Step = 1.0) -> Strategy:
    return FedBuff(buffer_size, server_lr, norm="arrivals", n_clients=n_clients, method="scaffold")


@_entry(
    "feddyn",
    "Acar et al. 2021 (ICLR), arXiv 2111.04263",
    "clients: gradient - c_i + alpha (w - w_start); c_i <- c_i + alpha delta; c <- c + sum of the changes of c_i / n; "
    "w <- w - server_lr mean of K deltas - c / alpha",
    state="c; a c_i at each client",
    memory="2 d; n d at the clients",
    variant="on buffers: the mean of K deltas in the place of the mean of the round's models; the clients' half is "
    'LocalSGD(method="feddyn")',
)
def _feddyn(buffer_size: int, n_clients: int, alpha: float, server_lr: Step = 1.0) -> Strategy:
    return FedBuff(buffer_size, server_lr, norm="arrivals", n_clients=n_clients, method="feddyn", alpha=alpha)


@_entry(
    "asyncfeded",
    "Wang et al. 2022, arXiv 2205.13797",
    "w <- w - server_lr / (|w - start| / |delta| + epsilon) delta",
    state="models that clients downloaded",
    memory="d for each of their versions",
    variant="without the adaptation of the clients' local steps, by which timing would depend on the model",
)
def _asyncfeded(server_lr: Step = 1.0, epsilon: float = 1.0, max_staleness: int | None = None) -> Strategy:
    weight_by = DeltaWeight("ratio", epsilon)
    return FedBuff(1, server_lr, norm="arrivals", weight_by=weight_by, max_staleness=max_staleness)


@_entry(
    "port",
    "Su and Li 2022, How asynchronous can federated learning be?",
    "w <- w - server_lr sum p_j delta_j / sum p_j, p_j = e_j omega / (staleness + omega) "
    "(1 + cos(delta_j, last server step)) / 2",
    state="last server step",
    memory="d",
    variant="staleness and angle multiplied; AFL-Lib adds the two. Clients are not hurried when they are late",
)
def _port(
    buffer_size: int, server_lr: Step = 1.0, omega: float = 5.0, weights: Literal["equal", "samples"] = "samples"
) -> Strategy:
    slope = 1.0 / number("omega", omega, open_low=True)  # 1 / (slope staleness + 1) = omega / (staleness + omega)
    return FedBuff(
        buffer_size,
        server_lr,
        norm="scaled_weights",
        staleness=_staleness.Hinge(slope, 0.0),
        weights=weights,
        weight_by=DeltaWeight("last_step"),
    )


@_entry(
    "rennala",
    "Tyurin and Richtarik 2023, arXiv 2305.12387",
    "w <- w - server_lr mean of K deltas, all of the present version",
    variant='"discard": what began on an older version is dropped when it arrives; "restart": every step stops all '
    "tasks and starts their clients again",
)
def _rennala(buffer_size: int, server_lr: Step = 1.0, variant: Literal["discard", "restart"] = "discard") -> Strategy:
    choice("variant", variant, ("discard", "restart"))
    if variant == "restart":
        return FedBuff(buffer_size, server_lr, norm="arrivals", max_staleness=0, restart="step")
    return FedBuff(buffer_size, server_lr, norm="arrivals", max_staleness=0)


@_entry(
    "ringmaster",
    "Maranjyan, Tyurin and Richtarik 2025 (ICML), arXiv 2501.16168",
    "w <- w - server_lr delta, of a staleness below stop_stale",
    variant='"stop": a task whose staleness reaches stop_stale is stopped, and its client starts again; "drop": such a '
    "delta is dropped when it arrives",
)
def _ringmaster(stop_stale: int, server_lr: Step = 1.0, variant: Literal["stop", "drop"] = "stop") -> Strategy:
    choice("variant", variant, ("stop", "drop"))
    count("stop_stale", stop_stale)
    if variant == "stop":
        return FedBuff(1, server_lr, norm="arrivals", stop_stale=stop_stale)
    return FedBuff(1, server_lr, norm="arrivals", max_staleness=stop_stale - 1)


@_entry(
    "malenia",
    "Tyurin and Richtarik 2023, arXiv 2305.12387",
    "w <- w - server_lr mean over clients of the mean of their deltas, all of the present version",
    variant="steps when the harmonic mean of the clients' counts is at least per_client, S / n in the paper; all "
    "clients then start again",
)
def _malenia(n_clients: int, server_lr: Step = 1.0, per_client: float = 1.0) -> Strategy:
    return FedBuff(
        count("n_clients", n_clients),
        server_lr,
        norm="clients",
        weights="per_client",
        n_clients=n_clients,
        trigger="every_client",
        per_client=per_client,
        restart="step",
    )


@_entry(
    "ringleader",
    "Maranjyan and Richtarik 2025, Ringleader ASGD, arXiv 2509.22860",
    "each client's next arrival, once all were heard: h_i <- mean of the client's deltas with it; w <- w - server_lr "
    "mean of all h_i; others count for the next round",
    state="two tables of means and counts, their sums",
    memory="2 n d + 2 d",
    variant="as in the code of Ringmaster's authors, on deltas in the place of gradients; all clients are heard when "
    "the harmonic mean of their counts is at least per_client",
)
def _ringleader(n_clients: int, server_lr: Step = 1.0, per_client: float = 1.0) -> Strategy:
    return _with_rows(
        1, server_lr, n_clients, "clients", ClientTable(keeps="means"), trigger="ringleader", per_client=per_client
    )


_MOST_ARRIVALS = 2**31 - 1  # in a window of which time alone decides


@_entry(
    "mindflayer",
    "Maranjyan, Shaikh Omar and Richtarik 2024, arXiv 2410.04285",
    "every window seconds: w <- w - server_lr / (1 - empty) mean of what began and arrived in the window",
    variant="the window of the code of Ringmaster's authors; empty is the chance that a window has no arrival. All "
    "tasks are stopped at its end and their clients start again. The paper's trials are not there",
)
def _mindflayer(window: float, server_lr: float = 1.0, empty: float = 0.0) -> Strategy:
    scale = number("server_lr", server_lr, open_low=True)
    if number("empty", empty) >= 1:
        raise ValueError(f"empty: expected a number below 1, got {empty}")
    period = number("window", window, open_low=True)
    return FedBuff(_MOST_ARRIVALS, scale / (1.0 - empty), norm="arrivals", period=period, restart="step")


@_entry(
    "generalized_asyncsgd",
    "Leconte, Jonckheere, Samsonov and Moulines 2024, arXiv 2402.07771",
    "w <- w - server_lr / (n p_i) delta, p_i = probabilities[i]",
    variant="the paper's; the schedule sends tasks with the same probabilities to clients that have queues: "
    "fb.schedule(..., queues=True, selection=probabilities)",
)
def _generalized_asyncsgd(probabilities: tuple[float, ...], server_lr: Step = 1.0) -> Strategy:
    given = list_of("probabilities", probabilities, "a list of one number per client")
    total = sum(number("probabilities", p, open_low=True) for p in given)
    weights = tuple(total / (len(given) * p) for p in given)
    return FedBuff(1, server_lr, norm="arrivals", client_weights=weights)


@_entry(
    "fedfa",
    "Xu et al. 2024 (IJCAI), arXiv 2404.11015",
    "w <- mean of the last K client models, at every arrival; K = buffer_size",
    state="a ring of K models",
    memory="K d + 3 d",
    variant="all models count equally; the ring begins with K copies of the first model, where codes wait for K models",
)
def _fedfa(buffer_size: int, max_staleness: int | None = None) -> Strategy:
    return FedBuff(1, ring=count("buffer_size", buffer_size), max_staleness=max_staleness)


@_entry(
    "qafel",
    "Ortega and Jafarkhani 2024, arXiv 2410.00242",
    "w <- w - server_lr g; clients download h, and h <- h + Q(w - h), Q to `levels` levels",
    state="w, beside h",
    memory="d",
    variant="Q is QSGD; the server's half: uploads are as the clients' local steps make them. h is the model that a "
    "replay evaluates, and Server.w",
)
def _qafel(
    buffer_size: int, server_lr: Step = 1.0, levels: int = 127, max_staleness: int | None = None, seed: int = 0
) -> Strategy:
    hidden = HiddenModel(levels, seed)
    return FedBuff(buffer_size, server_lr, norm="arrivals", hidden=hidden, max_staleness=max_staleness)
