"""The published algorithms by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._study.build import make_strategy
from fedbuff.backends import reference
from fedbuff.backends.python.philox import Stream
from fedbuff.backends.spec import QuantizeNumbers

# Arguments for those that need some.
NEEDED: dict[str, dict[str, Any]] = {
    "buffer_size": {"buffer_size": 2},
    "n_clients": {"n_clients": 4},
    "clients_per_round": {"clients_per_round": 3},
    "period": {"period": 3},
    "concurrency": {"concurrency": 4},
    "stop_stale": {"stop_stale": 3},
    "window": {"window": 0.8},
    "probabilities": {"probabilities": (0.1, 0.2, 0.3, 0.4)},
    "alpha": {"alpha": 0.5},
}


def needed(name: str) -> dict[str, Any]:
    options = fb.algorithms()[name].options
    return {key: value for option in options for key, value in NEEDED.get(option, {}).items()}


@pytest.mark.parametrize("name", fb.algorithms())
def test_all_run(name: str) -> None:
    """Each is complete: described, made, written as TOML, resolved and replayed."""
    entry = fb.algorithms()[name]
    assert entry.name == name and all((entry.paper, entry.formula, entry.state, entry.memory, entry.variant))
    made: Any = fb.algorithm(name, **needed(name))
    assert make_strategy({"kind": name, **needed(name)}).rule.norm == made.rule.norm
    problem = fb.Quadratic(np.arange(8.0).reshape(4, 2))
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0))
    schedule = fb.schedule(delays, made, server_steps=40, seed=1)
    local = fb.LocalSGD(steps=2, lr=0.1, method=made.rule.method, alpha=made.rule.alpha)  # the clients' half
    run = fb.replay(problem, schedule, local, strategy=made, w0=np.full(2, 9.0))
    assert run.version == 40 and np.isfinite(run.w).all() and np.linalg.norm(run.w - [3, 4]) < np.linalg.norm([6, 5])


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match=r"^name: expected one of fedbuff, "):
        fb.algorithm("fedprox")
    with pytest.raises(TypeError, match=r"^momentum: expected an option of ca2fl: buffer_size, n_clients"):
        fb.algorithm("ca2fl", buffer_size=2, n_clients=4, momentum=0.9)
    with pytest.raises(TypeError, match=r"^n_clients: ca2fl needs it"):
        fb.algorithm("ca2fl", buffer_size=2)
    with pytest.raises(ValueError, match=r"^variant: "):
        fb.algorithm("ca2fl", buffer_size=2, n_clients=4, variant="other")
    with pytest.raises(TypeError):
        fb.algorithms()["mine"] = fb.algorithms()["fedbuff"]  # type: ignore[index]


def test_fadas_as_the_paper_has_it() -> None:
    """Its Algorithm 2, with the step size of its delay-adaptive form."""
    rng = np.random.default_rng(2)
    server = fb.Server(np.zeros(3), fb.algorithm("fadas", buffer_size=2, server_lr=0.4, tau_c=1, epsilon=1e-3))
    w, m, v, largest = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3)
    for t in range(12):
        for _ in range(12):
            server.download()
        ages, deltas = [min(t, int(age)) for age in rng.integers(0, 5, 2)], rng.standard_normal((2, 3))
        for age, delta in zip(ages, deltas, strict=True):
            server.upload(delta, t - age)
        g = deltas.mean(axis=0)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        largest = np.maximum(largest, v)
        lr = 0.4 if max(ages) <= 1 else min(0.4, 1 / max(ages))
        w = w - lr * m / (np.sqrt(largest) + 1e-3)
    np.testing.assert_allclose(server.w, w, rtol=0, atol=1e-10)


def test_a_table_with_participation_from_the_schedule() -> None:
    """FedStale in a replay: p_i is what the schedule says, K times the client's share of its arrivals."""
    problem = fb.Quadratic(np.arange(8.0).reshape(4, 2))
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 3.0, 6.0]))
    strategy = fb.algorithm("fedstale", buffer_size=2, n_clients=4, server_lr=0.5, beta=0.3)
    schedule = fb.schedule(delays, strategy, server_steps=30, seed=1)
    local = fb.LocalSGD(steps=2, lr=0.1)
    models, h = [np.zeros(2)], np.zeros((4, 2))
    used = schedule.status == fb.Status.USED
    share = np.bincount(schedule.client[used], minlength=4) / used.sum()
    for t in range(30):
        direction = 0.3 * h.mean(axis=0)
        rows = np.flatnonzero(used & (schedule.step == t))
        for row in rows:
            client, version = int(schedule.client[row]), int(schedule.version[row])
            delta = problem.delta(models[version], client, local, task=int(schedule.task[row]), seed=0)
            direction = direction + (delta - 0.3 * h[client]) / (4 * 2 * share[client])
            h[client] = delta
        models.append(models[-1] - 0.5 * direction)
    run = fb.replay(problem, schedule, local, strategy=strategy, w0=np.zeros(2))
    np.testing.assert_allclose(run.w, models[-1], rtol=0, atol=1e-10)


def test_variants_of_ca2fl_differ_as_said() -> None:
    """On three arrivals of two clients, worked out by hand; n = 4, K = 1, lr = 1."""
    want = {
        "paper": [1.0, 1 + (1 / 4 + 2 - 0), 3.25 + ((1 + 2) / 4 + 4 - 1)],
        "seen": [1.0, 1 + (1 / 1 + 2), 4 + ((1 + 2) / 2 + 4 - 1)],
        "mean": [1 / 4, 1 / 4 + 3 / 4, 1 + 6 / 4],
    }
    for variant, path in want.items():
        server = fb.Server(np.zeros(1), fb.algorithm("ca2fl", buffer_size=1, n_clients=4, variant=variant))
        for (client, value), total in zip([(0, 1.0), (1, 2.0), (0, 4.0)], path, strict=True):
            version, _ = server.download()
            server.upload(np.array([value]), version, client=client)
            assert math.isclose(server.w[0], -total)


def test_the_documentation_has_each_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    for entry in fb.algorithms().values():
        options = ", ".join(f"`{option}`" for option in entry.options)
        assert f"| `{entry.name}` | {options} | {entry.formula} | {entry.memory} |" in text
        assert f"| `{entry.name}` | {entry.paper} | {entry.variant} |" in text
    tables = text.partition("<!-- study: ")[0]  # whose tables have rows of the same form
    assert tables.count("\n| `") == 2 * len(fb.algorithms())


def test_weights_per_client_are_means_of_each_clients_deltas() -> None:
    """Malenia's direction: the mean over clients of the mean of their deltas in the step."""
    problem = fb.Quadratic(np.arange(6.0).reshape(3, 2))
    delays = fb.DelayModel(n_clients=3, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 5.0]))
    strategy = fb.FedBuff(6, 0.5, norm="clients", n_clients=3, weights="per_client")
    schedule = fb.schedule(delays, strategy, server_steps=12, seed=1)
    local, models = fb.LocalSGD(steps=2, lr=0.1), [np.zeros(2)]
    for t in range(12):
        of_client: dict[int, list[Any]] = {}
        for row in np.flatnonzero((schedule.status == fb.Status.USED) & (schedule.step == t)):
            client, w = int(schedule.client[row]), models[schedule.version[row]]
            delta = problem.delta(w, client, local, task=int(schedule.task[row]), seed=0)
            of_client.setdefault(client, []).append(delta)
        models.append(models[-1] - 0.5 * sum(np.mean(deltas, axis=0) for deltas in of_client.values()) / 3)
    assert max(len(deltas) for deltas in of_client.values()) > 1
    run = fb.replay(problem, schedule, local, strategy=strategy, w0=np.zeros(2))
    np.testing.assert_allclose(run.w, models[-1], rtol=0, atol=1e-10)
    chunks = fb.iter_schedule(delays, strategy, server_steps=12, seed=1)
    with pytest.raises(ValueError, match=r'^schedule: weights="per_client" counts its arrivals'):
        fb.replay(problem, chunks, local, strategy=strategy)


def replayed(strategy: Any, delays: Any, steps: int, server: Any = None) -> tuple[fb.Schedule, np.ndarray]:
    problem = fb.Quadratic(np.arange(8.0).reshape(4, 2))
    schedule = fb.schedule(delays, strategy, server_steps=steps, seed=3)
    local = fb.LocalSGD(steps=2, lr=0.1)
    return schedule, fb.replay(problem, schedule, local, strategy=server or strategy, w0=np.zeros(2)).w


def test_rennala_uses_fresh_arrivals_and_is_fedavg_where_all_are_equally_fast() -> None:
    random, equal = (fb.DelayModel(n_clients=4, compute=law) for law in (fb.Exponential(1.0), fb.Constant(1.0)))
    for variant in ("discard", "restart"):
        strategy = fb.algorithm("rennala", buffer_size=3, variant=variant)
        schedule, _ = replayed(strategy, random, 30)
        assert schedule.staleness[schedule.status == fb.Status.USED].max() == 0
        _, w = replayed(fb.algorithm("rennala", buffer_size=4, variant=variant), equal, 10)
        _, rounds = replayed(fb.FedAvg(clients_per_round=4, weights="equal"), equal, 10)
        np.testing.assert_allclose(w, rounds, rtol=0, atol=1e-13)


def test_ringmaster_without_a_limit_is_asynchronous_sgd() -> None:
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 9.0]))
    _, plain = replayed(fb.FedBuff(1, server_lr=0.4, norm="arrivals"), delays, 50)
    for variant in ("stop", "drop"):
        _, w = replayed(fb.algorithm("ringmaster", stop_stale=10**6, server_lr=0.4, variant=variant), delays, 50)
        np.testing.assert_array_equal(w, plain)
        schedule, _ = replayed(fb.algorithm("ringmaster", stop_stale=4, variant=variant), delays, 50)
        assert schedule.staleness[schedule.status == fb.Status.USED].max() < 4


def used_rows(schedule: fb.Schedule, step: int) -> list[tuple[int, int, int]]:
    """Client, task and version of the arrivals of a step."""
    rows = np.flatnonzero((schedule.status == fb.Status.USED) & (schedule.step == step))
    columns = (schedule.client, schedule.task, schedule.version)
    return [(int(columns[0][r]), int(columns[1][r]), int(columns[2][r])) for r in rows]


UNEQUAL = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 5.0]))
PROBLEM, LOCAL = fb.Quadratic(np.arange(8.0).reshape(4, 2)), fb.LocalSGD(steps=2, lr=0.1)


@pytest.mark.parametrize("per_client", [1.0, 1.6])
def test_ringleader_as_the_paper_has_it(per_client: float) -> None:
    """Its two phases, with sums and counts in two tables, written from the paper."""
    n, lr = 4, 0.3
    strategy = fb.algorithm("ringleader", n_clients=n, server_lr=lr, per_client=per_client)
    schedule, got = replayed(strategy, UNEQUAL, 30)
    models = [np.zeros(2)]
    total, count = np.zeros((n, 2)), np.zeros(n)  # the present table
    later, counts_later = np.zeros((n, 2)), np.zeros(n)  # that of the next round
    to_step: set[int] = set()  # of the second phase; empty in the first
    for t in range(30):
        made = 0
        for client, task, version in used_rows(schedule, t):
            delta = PROBLEM.delta(models[version], client, LOCAL, task=task, seed=0)
            if not to_step:  # phase one
                total[client] += delta
                count[client] += 1
                if (count > 0).all() and n / (1 / count).sum() >= per_client - 1e-9:
                    to_step = set(range(n))
            elif client in to_step:
                total[client] += delta
                count[client] += 1
                models.append(models[-1] - lr * (total / count[:, None]).mean(axis=0))
                made += 1
                to_step.remove(client)
                if not to_step:
                    total, count, later, counts_later = later, counts_later, np.zeros((n, 2)), np.zeros(n)
                    if (count > 0).all() and n / (1 / count).sum() >= per_client - 1e-9:
                        to_step = set(range(n))
            else:
                later[client] += delta
                counts_later[client] += 1
        assert made == 1
    np.testing.assert_allclose(got, models[-1], rtol=0, atol=1e-10)


def test_fedfa_is_the_mean_of_the_last_models() -> None:
    schedule, got = replayed(fb.algorithm("fedfa", buffer_size=3), UNEQUAL, 40)
    ring, models = [np.zeros(2)] * 3, [np.zeros(2)]
    for t in range(40):
        ((client, task, version),) = used_rows(schedule, t)
        end = models[version] - PROBLEM.delta(models[version], client, LOCAL, task=task, seed=0)
        ring = [*ring[1:], end]
        models.append(np.mean(ring, axis=0))
    np.testing.assert_allclose(got, models[-1], rtol=0, atol=1e-10)


def test_fedfa_with_one_model_is_that_model() -> None:
    """A ring of one is FedAsync that mixes all of it in, at any staleness."""
    _, ring = replayed(fb.algorithm("fedfa", buffer_size=1), UNEQUAL, 40)
    _, mixed = replayed(fb.algorithm("fedasync", mixing=1.0, exponent=0.0), UNEQUAL, 40)
    np.testing.assert_allclose(ring, mixed, rtol=0, atol=1e-13)


def test_qafel_as_the_paper_has_it() -> None:
    """Q is told by its definition: norm / levels times whole numbers, of which the hidden model's way is made."""
    strategy = fb.algorithm("qafel", buffer_size=2, server_lr=0.5, levels=5, seed=9)
    schedule, got = replayed(strategy, UNEQUAL, 30)
    own, hidden = np.zeros(2), [np.zeros(2)]
    for t in range(30):
        deltas = [PROBLEM.delta(hidden[v], c, LOCAL, task=k, seed=0) for c, k, v in used_rows(schedule, t)]
        own = own - 0.5 * np.mean(deltas, axis=0)
        difference, moved = own - hidden[-1], np.empty(2)
        norm = math.sqrt(float(difference @ difference))
        numbers = QuantizeNumbers(norm, 5, 9, t, 0, Stream.HIDDEN_MODEL)
        reference.quantize(difference, numbers, moved)
        whole = moved / (norm / 5)
        assert (np.abs(moved - difference) <= norm / 5 + 1e-12).all() and np.allclose(whole, np.rint(whole))
        hidden.append(hidden[-1] + moved)
    np.testing.assert_allclose(got, hidden[-1], rtol=0, atol=1e-10)


def test_qafel_with_many_levels_is_fedbuff() -> None:
    _, plain = replayed(fb.FedBuff(2, 0.5, norm="arrivals"), UNEQUAL, 30)
    _, fine = replayed(fb.algorithm("qafel", buffer_size=2, server_lr=0.5, levels=2**20), UNEQUAL, 30)
    np.testing.assert_allclose(fine, plain, rtol=0, atol=1e-4)
    assert (fine != plain).any()


def test_generalized_asyncsgd_weighs_by_probability() -> None:
    p = np.array([0.1, 0.2, 0.3, 0.4])
    strategy = fb.algorithm("generalized_asyncsgd", probabilities=tuple(p), server_lr=0.2)
    schedule = fb.schedule(UNEQUAL, strategy, server_steps=40, seed=3, concurrency=4, queues=True, selection=p.tolist())
    got = fb.replay(PROBLEM, schedule, LOCAL, strategy=strategy, w0=np.zeros(2)).w
    models = [np.zeros(2)]
    for t in range(40):
        ((client, task, version),) = used_rows(schedule, t)
        delta = PROBLEM.delta(models[version], client, LOCAL, task=task, seed=0)
        models.append(models[-1] - 0.2 / (4 * p[client]) * delta)
    np.testing.assert_allclose(got, models[-1], rtol=0, atol=1e-10)


def test_mindflayer_steps_at_the_ends_of_windows() -> None:
    strategy = fb.algorithm("mindflayer", window=0.8, server_lr=0.3, empty=0.25)
    schedule, got = replayed(strategy, UNEQUAL, 30)
    used = schedule.status == fb.Status.USED
    windows = np.rint(schedule.step_time / 0.8)
    np.testing.assert_allclose(schedule.step_time, 0.8 * windows, atol=1e-9)
    assert (np.floor(schedule.start_time[used] / 0.8 + 1e-9) == windows[schedule.step[used]] - 1).all()
    w = np.zeros(2)
    for t in range(30):
        deltas = [PROBLEM.delta(w, c, LOCAL, task=k, seed=0) for c, k, v in used_rows(schedule, t) if v == t]
        assert len(deltas) == len(used_rows(schedule, t))
        w = w - 0.3 / 0.75 * np.mean(deltas, axis=0)
    np.testing.assert_allclose(got, w, rtol=0, atol=1e-10)


def test_malenia_as_the_paper_has_it() -> None:
    """Every used delta is of the present version; each client's mean counts once."""
    problem, local = fb.Quadratic(np.arange(8.0).reshape(4, 2)), fb.LocalSGD(steps=2, lr=0.1)
    delays = fb.DelayModel(n_clients=4, compute=fb.Exponential(1.0), client_speed=np.array([1.0, 1.0, 2.0, 5.0]))
    strategy = fb.algorithm("malenia", n_clients=4, server_lr=0.5, per_client=1.5)
    schedule, got = replayed(strategy, delays, 12)
    w = np.zeros(2)
    for t in range(12):
        rows = np.flatnonzero((schedule.status == fb.Status.USED) & (schedule.step == t))
        means = []
        for client in range(4):
            own = [row for row in rows if schedule.client[row] == client]
            deltas = [problem.delta(w, client, local, task=int(schedule.task[row]), seed=0) for row in own]
            assert len(deltas) > 0 and all(schedule.version[row] == t for row in own)
            means.append(np.mean(deltas, axis=0))
        w = w - 0.5 * np.mean(means, axis=0)
    np.testing.assert_allclose(got, w, rtol=0, atol=1e-10)


def test_a_hidden_model_and_weights_of_clients_are_written_as_tables() -> None:
    table = {"kind": "fedbuff", "buffer_size": 2, "hidden": {"levels": 7, "seed": 3}, "client_weights": [1, 2.5]}
    made: Any = make_strategy(table)
    assert made.hidden == fb.HiddenModel(7, 3) and made.rule.client_weights == (1.0, 2.5)
