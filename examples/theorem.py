"""The convergence theorem beside what happens: writes docs/theory.md with its tables and figures.

Usage: python examples/theorem.py [--quick] [--out FOLDER]

The bound on random configurations, its decay, what each argument does, where it breaks, and how much virtual time
buffering saves. It needs matplotlib. All of it takes some minutes on two cores; --quick takes seconds, with too few
numbers to say anything. Every number of the page is from this script, and the same at every run but for the times.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import fedbuff as fb

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import ticker

theory = fb.theory
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    configurations: int
    seeds: int
    most_local_steps: int  # of one configuration, over its seeds
    points: int  # of every sweep, at the most
    most_tau: int
    comparison_seeds: int
    comparison_clients: int
    comparison_arrivals: int  # after which a run has not reached the target


FULL = Scale(200, 8, 10_000_000, 7, 8, 5, 100, 12_000)
QUICK = Scale(4, 2, 100_000, 2, 1, 1, 20, 600)


# (a) The bound on random configurations


@dataclass(frozen=True)
class Case:
    kind: str
    found: theory.Verification


def random_quadratic(rng: np.random.Generator) -> tuple[fb.Problem, Any]:
    n, dim = int(rng.integers(2, 31)), int(rng.integers(1, 21))
    L = math.exp(rng.uniform(math.log(0.003), 0.0))
    centers = 10 ** rng.uniform(-1, 1) * rng.normal(size=(n, dim))
    form = rng.choice(["scalar", "diagonal", "dense"])
    curvature: Any = L
    if form == "diagonal":
        curvature = L * rng.uniform(size=dim)
        curvature[0] = L
    elif form == "dense":
        root = rng.normal(size=(dim, dim))
        curvature = root @ root.T
        curvature *= L / np.linalg.eigvalsh(curvature)[-1]
    noise = 0.0 if rng.random() < 0.1 else 10 ** rng.uniform(-2, 2)
    away = rng.normal(size=dim)
    w0 = centers.mean(axis=0) + 10 ** rng.uniform(-1, 1.5) * away / np.linalg.norm(away)
    return fb.Quadratic(centers, curvature, noise_variance=noise), w0


def random_logistic(rng: np.random.Generator) -> tuple[fb.Problem, Any]:
    """Two classes by a rule of each client's own, and the regulariser sum of w^2 / (1 + w^2): not convex."""
    n, rows, dim = int(rng.integers(2, 21)), int(rng.integers(5, 40)), int(rng.integers(2, 11))
    X = 10 ** rng.uniform(-1.3, 0) * rng.normal(size=(n, rows, dim))
    rules = rng.normal(size=dim) + 10 ** rng.uniform(-1, 1) * rng.normal(size=(n, dim))
    y = (np.einsum("ijk,ik->ij", X, rules) > 0).ravel()
    y[:2] = False, True  # both classes, whatever the draw
    size = float(np.square(X).mean())
    problem = fb.Logistic(
        X.reshape(-1, dim), y, np.repeat(np.arange(n), rows), nonconvex=size * 10 ** rng.uniform(-2, 0)
    )
    return problem, 3.0 * rng.normal(size=dim)


def bound_holds(scale: Scale) -> list[Case]:
    rng = np.random.default_rng(2024)
    cases: list[Case] = []
    while len(cases) < scale.configurations:
        kind = "nonconvex logistic" if len(cases) % 10 >= 7 else "quadratic"
        problem, w0 = (random_quadratic if kind == "quadratic" else random_logistic)(rng)
        Q, K = int(rng.choice([1, 2, 3, 5])), int(rng.choice([1, 2, 5, 10]))
        tau = int(rng.integers(0, 7))
        T = math.ceil(theory.min_server_steps(problem.constants().L.value, Q, tau) * rng.uniform(1.0, 3.0))
        arguments = {
            "b": [1, 4, None][int(rng.integers(3))],
            "staleness": str(rng.choice(["uniform", "max"])),
            "heterogeneity": str(rng.choice(["average", "uniform"])),
        }
        if scale.seeds * T * K * Q > scale.most_local_steps:
            continue
        found = theory.verify(problem, Q=Q, K=K, tau=tau, T=T, w0=w0, seeds=scale.seeds, **arguments)
        cases.append(Case(kind, found))
        tell(f"(a) {len(cases)} of {scale.configurations}")
    return cases


def draw_holds(cases: list[Case], pictures: Pictures) -> None:
    axes = pictures.new("bound", "measured mean of |grad f|²", "the theorem's bound")
    for kind, marker, colour in (("quadratic", "o", BLUE), ("nonconvex logistic", "^", ORANGE)):
        chosen = [case.found for case in cases if case.kind == kind]
        axes.loglog(
            [f.measured for f in chosen],
            [f.bound.total for f in chosen],
            marker,
            color=colour,
            ms=4,
            mfc="none",
            label=kind,
        )
    values = [v for case in cases for v in (case.found.measured, case.found.bound.total)]
    ends = [min(values) / 2, max(values) * 2]
    axes.loglog(ends, ends, "k-", lw=1, label="measured = bound")
    axes.legend()
    pictures.save()


# (b) and (c) The decay, and what each argument does


def base_problem(spread: float = 1.0, n: int = 10) -> fb.Quadratic:
    """L = 0.2, gamma^2 = spread, sigma^2 = 1, eight dimensions; the clients' centers have mean 0."""
    centers = np.random.default_rng(5).normal(size=(n, 8))
    centers -= centers.mean(axis=0)
    L = 0.2
    centers *= math.sqrt(spread / (L**2 * (centers**2).sum(axis=1).mean()))
    return fb.Quadratic(centers, L, noise_variance=1.0)


@dataclass(frozen=True)
class Sweep:
    name: str
    label: str
    rate: theory.Rate


def sweeps(scale: Scale) -> tuple[dict[str, theory.Rate], list[Sweep]]:
    problem = base_problem()
    seeds, start = scale.seeds, np.zeros(8)  # the optimum: what is measured is noise, heterogeneity and delay
    least = theory.min_server_steps(0.2, 1, 2)
    lengths = [least * 2**k for k in range(scale.points)]
    tell("(b)")
    decay = {
        "from the optimum": theory.rate(problem, "T", lengths, K=5, tau=2, seeds=seeds, w0=start),
        "from far away": theory.rate(problem, "T", lengths, K=5, tau=2, seeds=seeds, w0=np.full(8, 40.0)),
    }
    longest = 2 * theory.min_server_steps(0.2, 1, scale.most_tau)
    fixed: dict[str, Any] = {"Q": 1, "K": 5, "tau": 2, "b": 1, "seeds": seeds, "w0": start, "T": 2 * least}

    def sweep(name: Any, label: str, values: Sequence[Any], make: Any = problem, **other: Any) -> Sweep:
        tell(f"(c) {name}")
        given = {key: value for key, value in {**fixed, **other}.items() if key != name}
        return Sweep(name, label, theory.rate(make, name, values[: scale.points], **given))

    for_local_steps = 2 * theory.min_server_steps(0.2, 16, 2)
    by_count: Callable[[int], fb.Quadratic] = lambda n: base_problem(n=n)  # noqa: E731
    return decay, [
        sweep("tau", "largest staleness", [0, 1, 2, 4, 6, 8], staleness="max", T=longest),
        sweep("K", "buffer size", [1, 2, 4, 8, 16, 32]),
        sweep("Q", "local steps", [1, 2, 4, 8, 16], T=for_local_steps),
        sweep("b", "batch size", [1, 2, 4, 8, 16, 32]),
        sweep("heterogeneity", "gamma²", [0.01, 0.1, 1.0, 10.0, 100.0], base_problem),
        sweep("n", "clients", [2, 5, 10, 20, 50], by_count),
    ]


@dataclass(frozen=True)
class Settled:
    """A run of the special case in which the stationary law is exact, from the optimum."""

    spread: float
    found: theory.Verification

    @property
    def law(self) -> float:
        return law_of(self.found)

    @property
    def expected(self) -> float:
        """The law's mean over t < T: at step t it has reached the share 1 - (1 - eta L)^(2 t)."""
        plan = self.found.plan
        kept = (1.0 - plan.eta * plan.L) ** 2
        return self.law * (1.0 - (1.0 - kept**plan.T) / (plan.T * (1.0 - kept)))


def law_of(found: theory.Verification) -> float:
    plan = found.plan
    gamma2, sigma2 = plan.constants.gamma2.value, plan.constants.sigma2.value
    return theory.stationary_gradient(plan.L, plan.eta, plan.K, gamma2, sigma2, plan.b)


def settled(scale: Scale) -> list[Settled]:
    """tau = 0 and Q = 1 on the quadratic of (b), whose Hessian is 0.2 times the identity."""
    given = [(1, 1, 1.0), (5, 1, 1.0), (32, 1, 1.0), (5, 32, 1.0), (5, 1, 0.01), (5, 1, 100.0)]
    found = []
    for K, b, spread in given[: scale.points]:
        tell(f"(c) the law, K = {K}, b = {b}, gamma2 = {spread:g}")
        T = 100 * theory.min_server_steps(0.2, 1, 0)
        run = theory.verify(base_problem(spread), K=K, tau=0, b=b, T=T, seeds=scale.seeds, w0=np.zeros(8))
        found.append(Settled(spread, run))
    return found


def draw_rate(axes: Any, rate: theory.Rate, label: str, colour: str, marker: str, shift: float = 0.0) -> None:
    x = np.array(rate.values) + shift
    low, high = (np.array([getattr(one, name) for one in rate.found]) for name in ("low", "high"))
    error = np.maximum(0.0, [rate.measured - low, high - rate.measured])
    axes.errorbar(
        x, rate.measured, yerr=error, fmt=f"{marker}-", color=colour, ms=4, capsize=2, label=f"measured{label}"
    )
    axes.loglog(x, rate.bounds, "--", color=colour, marker=marker, ms=4, mfc="none", label=f"bound{label}")
    axes.set_xticks(x)


def draw_sweeps(decay: dict[str, theory.Rate], found: list[Sweep], pictures: Pictures) -> None:
    axes = pictures.new("decay", "server steps T", "mean of |grad f|²")
    for (label, rate), colour, marker in zip(decay.items(), (BLUE, ORANGE), "os", strict=True):
        draw_rate(axes, rate, f", {label}", colour, marker)
    x = np.array(next(iter(decay.values())).values)
    axes.loglog(
        x, 0.3 * next(iter(decay.values())).measured[0] * np.sqrt(x[0] / x), "k:", lw=1.2, label="T to the power -1/2"
    )
    axes.set_ylim(bottom=1e-7)
    axes.legend(loc="lower left", ncols=2)
    pictures.save()
    for sweep in found:
        shift = 1.0 if sweep.name == "tau" else 0.0
        name = "tau + 1" if shift else sweep.name
        axes = pictures.new(
            sweep.name,
            f"{sweep.label}" + ("" if sweep.name in ("heterogeneity", "n") else f", {name}"),
            "mean of |grad f|²",
        )
        draw_rate(axes, sweep.rate, "", BLUE, "o", shift)
        axes.legend()
        pictures.save()


# (d) Where it breaks


@dataclass(frozen=True)
class Floor:
    T: int
    demanded: int
    bound: float
    unequal: float
    corrected: float
    uniform: float

    @property
    def is_covered(self) -> bool:
        """Whether T is as large as the theorem demands."""
        return self.demanded <= self.T


TWO_SPEEDS = fb.Trace(client=[0, 1], compute=[1.0, 10.0])


def floors(scale: Scale) -> list[Floor]:
    """Two clients at constant delays 1 and 10, K = 1, L = 0.02, exact gradients, from the optimum of f."""
    problem = fb.Quadratic(np.array([[-1.0], [1.0]]), 0.02)
    corrected = fb.FedBuff(1, weights="inverse_frequency")
    tau = fb.schedule(TWO_SPEEDS, fb.FedBuff(1), server_steps=1000).tau
    demanded = theory.min_server_steps(0.02, 1, tau)
    found = []
    for k in range(-3, scale.points - 3):
        T = math.ceil(demanded * 2.0**k)
        tell(f"(d) T = {T}")

        def schedule(seed: int, T: int = T) -> fb.Schedule:
            return fb.schedule(TWO_SPEEDS, fb.FedBuff(1), server_steps=T, seed=seed)

        options: dict[str, Any] = {"b": None, "seeds": 2, "allow_outside": True}
        unequal = theory.verify(problem, schedule=schedule, **options)
        mended = theory.verify(problem, schedule=schedule, strategy=corrected, **options)
        uniform = theory.verify(problem, K=1, tau=tau, T=T, b=None, seeds=scale.seeds, allow_outside=True)
        found.append(Floor(T, demanded, unequal.bound.total, unequal.measured, mended.measured, uniform.measured))
    return found


@dataclass(frozen=True)
class Limit:
    tau: int
    proof: float
    exact: float
    seen: float


def largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest eta in between for which it holds, to one part in a thousand."""
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def limits(scale: Scale) -> list[Limit]:
    """Step sizes for K = Q = L = 1 and staleness constantly tau: what the proof allows, and where it diverges."""
    problem = fb.Quadratic(np.zeros((1, 1)))
    found = []
    for tau in range(scale.most_tau + 1):
        steps = 3000 * (tau + 1)
        count = np.arange(steps)
        log = fb.ArrivalLog(np.zeros(steps, int), count + 1.0, version=np.maximum(0, count - tau), clients=1)
        schedule = fb.schedule(log, fb.FedBuff(1))

        def is_stable(eta: float, schedule: fb.Schedule = schedule) -> bool:
            replay = fb.Replay(problem, schedule, fb.LocalSGD(1, eta), w0=np.ones(1), threads=1)
            return replay.run() != fb.ExitReason.DIVERGED and abs(float(replay.w[0])) < 1.0

        def is_proven(eta: float, tau: int = tau) -> bool:
            return all(c.holds for c in theory.conditions(L=1.0, T=None, Q=1, tau=tau, eta=eta).values())

        exact = 2.0 * math.sin(math.pi / (2 * (2 * tau + 1)))
        tell(f"(d) tau = {tau}")
        found.append(Limit(tau, largest(is_proven, 1e-6, 1.0), exact, largest(is_stable, 1e-3, 4.0)))
    return found


def draw_breaks(found: list[Floor], steps: list[Limit], pictures: Pictures) -> None:
    axes = pictures.new("floor", "server steps T", "mean of |grad f|²")
    T = [one.T for one in found]
    demanded = found[0].demanded
    axes.axvspan(T[0] / 1.3, demanded, color="0.9", lw=0, label=f"outside: T below {demanded}")
    axes.set_xlim(T[0] / 1.3, T[-1] * 1.3)
    axes.loglog(T, [one.bound for one in found], "k--", label="the theorem's bound")
    axes.loglog(T, [one.unequal for one in found], "s-", color=ORANGE, ms=5, label="delays 1 and 10")
    axes.loglog(T, [one.corrected for one in found], "^-", color=BLUE, ms=5, label="delays 1 and 10, inverse frequency")
    axes.loglog(T, [one.uniform for one in found], "o:", color=GREY, ms=4, label="uniform arrivals")
    axes.set_xticks(T)
    axes.set_ylim(bottom=1e-13)
    axes.legend(loc="lower left")
    pictures.save()
    axes = pictures.new("stability", "staleness tau", "eta L")
    tau = [one.tau for one in steps]
    axes.semilogy(tau, [one.exact for one in steps], "k-", lw=1, label="2 sin(π / (2 (2 tau + 1)))")
    axes.semilogy(tau, [one.seen for one in steps], "s", color=ORANGE, ms=5, label="largest that did not diverge")
    axes.semilogy(tau, [one.proof for one in steps], "o--", color=BLUE, ms=4, label="largest that the proof allows")
    axes.legend()
    pictures.save()


# (e) Virtual time to a target


@dataclass(frozen=True)
class Race:
    delays: str
    algorithm: str
    step_size: float
    time: float
    updates: float
    staleness: float


DELAYS: dict[str, Callable[[int], fb.DelayModel]] = {
    "constant": lambda n: fb.DelayModel(n, compute=fb.Constant(1.0)),
    "half-normal": lambda n: fb.DelayModel(n, compute=fb.HalfNormal(1.0)),
    "exponential": lambda n: fb.DelayModel(n, compute=fb.Exponential(1.0)),
    "log-normal, sigma 1": lambda n: fb.DelayModel(n, compute=fb.LogNormal(0.0, 1.0)),
    "exponential, client speeds log-normal, sigma 1": lambda n: fb.DelayModel(
        n, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 1.0)
    ),
    "Pareto, shape 1.5": lambda n: fb.DelayModel(n, compute=fb.Pareto(1.5)),
}
LOCAL = fb.LocalSGD(steps=5, lr=0.1, batch_size=8)


TRIES = 4  # by how many steps of the grid it is widened at the most


def best_of_a_grid(
    attempt: Callable[[float], tuple[float, float, float]], sizes: Sequence[float]
) -> tuple[float, tuple[float, float, float]]:
    """The step size with the least time, and what it gave. Sizes grow by a factor; where the best is the first or the
    last, the grid goes on beyond it by that factor."""
    factor = sizes[1] / sizes[0]
    seen = {size: attempt(size) for size in sizes}
    for _ in range(TRIES):
        best = min(seen, key=lambda size: seen[size][0])
        if math.isinf(seen[best][0]) or min(seen) < best < max(seen):
            break
        beyond = best * factor if best == max(seen) else best / factor
        seen[beyond] = attempt(beyond)
    best = min(seen, key=lambda size: seen[size][0])
    return best, seen[best]


def mixing(size: float) -> fb.FedAsync:
    """FedAsync whose update counts size / sqrt(1 + staleness). FedAsync's own mixing ends at 1: beyond it the staleness
    function is scaled instead, by sqrt(1 + average)."""
    return fb.FedAsync(min(size, 1.0), staleness=fb.staleness.Polynomial(0.5, average=max(size, 1.0) ** 2 - 1.0))


def race_problem(n: int) -> tuple[fb.Softmax, float]:
    """Ten classes, few of them at each client; and the target: 98 % of the way from f(0) to the least loss."""
    rng = np.random.default_rng(7)
    centers = rng.normal(size=(10, 20))
    labels = np.concatenate([rng.choice(10, 40, p=rng.dirichlet(np.full(10, 0.3))) for _ in range(n)])
    X = centers[labels] + 1.5 * rng.normal(size=(len(labels), 20))
    problem = fb.Softmax(X.astype(np.float32), labels, np.repeat(np.arange(n), 40), l2=1e-3)
    w = problem.init()
    for _ in range(1500):
        w -= np.float32(0.5) * problem.grad(w)
    return problem, problem.loss(w) + 0.02 * (problem.loss(problem.init()) - problem.loss(w))


def races(scale: Scale) -> list[Race]:
    n = scale.comparison_clients
    at_work = 3 * n // 10
    problem, target = race_problem(n)
    fewer = round(at_work / 1.3)

    def rounds(clients: int, over: float) -> Callable[[float], fb.FedAvg]:
        return lambda lr: fb.FedAvg(clients_per_round=clients, over_selection=over, server_lr=lr, weights="equal")

    makers: dict[str, tuple[Callable[[float], Any], tuple[float, ...]]] = {
        "FedBuff, K = 10": (lambda lr: fb.FedBuff(10, server_lr=lr), (0.05, 0.1, 0.2, 0.4)),
        "FedAsync": (mixing, (0.125, 0.25, 0.5, 1.0)),
        "FedAvg": (rounds(at_work, 0.0), (2.0, 4.0, 8.0, 16.0)),
        "FedAvg, 30 % over-selected": (rounds(fewer, 0.3), (2.0, 4.0, 8.0, 16.0)),
    }
    found = []
    for delays, model in list(DELAYS.items())[: scale.points]:
        for algorithm, (make, sizes) in makers.items():
            tell(f"(e) {delays}, {algorithm}")

            def attempt(size: float, model: Any = model, make: Any = make) -> tuple[float, float, float]:
                return race_once(problem, target, model(n), make(size), at_work, scale)

            size, result = best_of_a_grid(attempt, sizes)
            found.append(Race(delays, algorithm, size, *result))
    return found


def race_once(
    problem: fb.Problem, target: float, delays: fb.DelayModel, strategy: Any, at_work: int, scale: Scale
) -> tuple[float, float, float]:
    """Mean time, updates and staleness until the loss was at the target, over seeds; infinite where one never was."""
    seen = []
    for seed in range(scale.comparison_seeds):
        slots = None if isinstance(strategy, fb.FedAvg) else at_work
        schedule = fb.schedule(delays, strategy, slots, arrivals=scale.comparison_arrivals, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a step size that diverges is one that never gets there
            run = fb.replay(
                problem,
                schedule,
                LOCAL,
                strategy=strategy,
                seed=seed,
                eval_every=5 if isinstance(strategy, fb.FedAsync) else 1,
                stop=fb.Stop(loss=target),
                progress=False,
            )
        used = schedule.staleness[(schedule.step >= 0) & (schedule.step < run.version)]
        when = run.time_to("loss", target)
        spent = np.inf if when is None else np.count_nonzero(schedule.arrive_time <= when)
        seen.append((np.inf if when is None else when, float(spent), float(used.mean()) if used.size else 0.0))
    a, b, c = np.mean(seen, axis=0)
    return float(a), float(b), float(c)


# The page

BLUE, ORANGE, GREY = "#1f5a99", "#d9822b", "#777777"


class Pictures:
    """One small figure after the other, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        plt.rcParams.update(
            {"font.size": 9, "svg.hashsalt": "fedbuff", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3,
             "legend.fontsize": 8, "legend.framealpha": 0.9, "errorbar.capsize": 2}
        )  # fmt: skip

    def new(self, name: str, x: str, y: str) -> Any:
        self._figure, axes = plt.subplots(figsize=(5.4, 3.4))
        self._figure.subplots_adjust(left=0.15, right=0.97, bottom=0.14, top=0.97)
        self._path = self._folder / f"theory_{name}.svg"
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return axes

    def save(self) -> None:
        plain = ticker.FuncFormatter(lambda value, _: f"{value:g}")
        for axis in (self._figure.axes[0].xaxis, self._figure.axes[0].yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(plain)
                axis.set_minor_formatter(ticker.NullFormatter())
        self._figure.savefig(self._path, metadata={"Date": None})
        plt.close(self._figure)


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def short(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.3g}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The convergence theorem beside what happens.")
    parser.add_argument("--quick", action="store_true", help="a few seconds, too few numbers to say anything")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs", help="where theory.md goes (docs)")
    options = parser.parse_args(arguments)
    scale = QUICK if options.quick else FULL
    pictures = Pictures(options.out / "figures")
    began = time.perf_counter()
    cases = bound_holds(scale)
    seconds = time.perf_counter() - began
    draw_holds(cases, pictures)
    decay, found = sweeps(scale)
    draw_sweeps(decay, found, pictures)
    exact = settled(scale)
    broken, steps = floors(scale), limits(scale)
    draw_breaks(broken, steps, pictures)
    raced = races(scale)
    page = write_page(scale, cases, decay, found, exact, broken, steps, raced)
    (options.out / "theory.md").write_text(page, encoding="utf-8")
    tell(f"part (a): {seconds:.0f} s; all: {time.perf_counter() - began:.0f} s")


def holds_table(cases: list[Case]) -> str:
    rows = []
    for kind in ("quadratic", "nonconvex logistic"):
        chosen = [case.found for case in cases if case.kind == kind]
        if chosen:
            loose = np.array([one.looseness for one in chosen])
            rows.append(
                [
                    kind,
                    len(chosen),
                    sum(one.violated for one in chosen),
                    *(short(np.quantile(loose, q)) for q in (0, 0.5, 1)),
                ]
            )
    return table(["problem", "configurations", "violations", "least looseness", "median", "largest"], rows)


def sweep_table(decay: dict[str, theory.Rate], found: list[Sweep]) -> str:
    rows = [[f"T, {label}", *slopes(rate, has_law=label == "from the optimum")] for label, rate in decay.items()]
    rows += [
        [f"{s.label} ({'tau + 1' if s.name == 'tau' else s.name})", *slopes(s.rate, has_law=s.name != "Q")]
        for s in found
    ]
    head = ["argument", "values", "measured ~ value to the", "law ~ value to the", "measured / law, first to last"]
    return table([*head, "bound, first to last", "looseness, first to last"], rows)


def slopes(rate: theory.Rate, has_law: bool) -> list[str]:
    ends = rate.found[0], rate.found[-1]
    x = np.log(np.array(rate.values) + (1.0 if rate.over == "tau" else 0.0))
    law = np.log([law_of(one) for one in rate.found]) if has_law else None
    return [
        f"{rate.values[0]:g} to {rate.values[-1]:g}",
        f"{rate.slope:.2f} ± {rate.slope_error:.2f}",
        "-" if law is None else f"{round(np.polyfit(x, law, 1)[0], 2) + 0.0:.2f}",
        "-" if law is None else " to ".join(short(one.measured / law_of(one)) for one in ends),
        " to ".join(short(one.bound.total) for one in ends),
        " to ".join(short(one.looseness) for one in ends),
    ]


def law_table(exact: list[Settled]) -> str:
    rows = []
    for one in exact:
        plan, found = one.found.plan, one.found
        interval = f"{short(found.low / one.expected)} to {short(found.high / one.expected)}"
        values = [short(value) for value in (one.law, one.expected, found.measured, found.measured / one.expected)]
        rows.append([plan.K, f"{plan.b:g}", f"{one.spread:g}", *values, interval])
    head = ["K", "b", "gamma²", "law", "its mean over t < T", "measured", "measured / that mean", "99 % interval"]
    return table(head, rows)


def race_tables(raced: list[Race]) -> tuple[str, str]:
    rows, factors = [], []
    for delays in dict.fromkeys(one.delays for one in raced):
        here = {one.algorithm: one for one in raced if one.delays == delays}
        for one in here.values():
            rows.append(
                [delays, one.algorithm, f"{one.step_size:g}", short(one.staleness), short(one.time), short(one.updates)]
            )
        ours = here["FedBuff, K = 10"]
        factors.append(
            [
                delays,
                *(
                    f"{short(o.time / ours.time)} ({short(o.updates / ours.updates)})"
                    for o in here.values()
                    if o is not ours
                ),
            ]
        )
    names = [one.algorithm for one in raced if one.delays == raced[0].delays][1:]
    return (
        table(["delays", *(f"{name} / FedBuff" for name in names)], factors),
        table(["delays", "algorithm", "step size", "mean staleness", "time", "client updates"], rows),
    )


def write_page(
    scale: Scale,
    cases: list[Case],
    decay: dict[str, theory.Rate],
    found: list[Sweep],
    exact: list[Settled],
    broken: list[Floor],
    steps: list[Limit],
    raced: list[Race],
) -> str:
    everything = [case.found for case in cases]
    violated = sum(one.violated for one in everything)
    factors, times = race_tables(raced)
    covered = [one for one in broken if one.is_covered]
    above = [one.T for one in covered if one.unequal > one.bound]
    return (HERE / "theorem.md").read_text(encoding="utf-8").format(
        configurations=len(cases),
        seeds=scale.seeds,
        violated=violated,
        holds=holds_table(cases),
        sweeps=sweep_table(decay, found),
        floors=table(
            ["T", "is T enough?", "bound", "delays 1 and 10", "inverse frequency", "uniform arrivals"],
            [
                [one.T, "yes" if one.is_covered else "no: outside",
                 *(short(v) for v in (one.bound, one.unequal, one.corrected, one.uniform))]
                for one in broken
            ],
        ),
        demanded=broken[0].demanded,
        crossing=f"at {len(above)} of the {len(covered)} T that are large enough for the theorem",
        law=law_table(exact),
        limits=table(
            ["tau", "the proof allows", "limit", "largest that did not diverge", "limit / proof"],
            [
                [one.tau, *(short(value) for value in (one.proof, one.exact, one.seen, one.exact / one.proof))]
                for one in steps
            ],
        ),
        factors=factors,
        times=times,
        race_seeds=scale.comparison_seeds,
        race_clients=scale.comparison_clients,
        at_work=3 * scale.comparison_clients // 10,
        table_1=table(
            ["algorithm", "analysis", "asynchronous", "buffered", "gradients may be unbounded", "rate"],
            [
                [row.algorithm, row.reference, yes(row.asynchronous), yes(row.buffered), yes(row.unbounded_gradient),
                 " + ".join(power(term) for term in row.rate) or "-"]
                for row in theory.TABLE_1
            ],
        ),
    )  # fmt: skip


def yes(answer: bool | None) -> str:
    return "-" if answer is None else "yes" if answer else "no"


def power(term: theory.RateTerm) -> str:
    root = "1 / sqrt(T)" if term.T == -0.5 else "1 / T"
    return f"O({root})" if term.tau == 0 else f"O(tau^{term.tau:g} / T)"


if __name__ == "__main__":
    main()
