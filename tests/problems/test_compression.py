"""Compressed uploads: what is sent, without bias where that is said, and what error feedback keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends
from fedbuff._rule.strategies import rule_of
from fedbuff.backends.python.shuffle import Stream, shuffled

N, DIM = 6, 23
compiled = pytest.mark.skipif(backends.compiled() is None, reason="needs the compiled backend")

KINDS: dict[str, fb.Compression] = {
    "top_k": fb.Compression("top_k", share=0.2),
    "random_k": fb.Compression("random_k", share=0.2),
    "qsgd": fb.Compression("qsgd", levels=3),
    "sign": fb.Compression("sign"),
    "bfloat16": fb.Compression("bfloat16"),
    "top_k feedback": fb.Compression("top_k", share=0.2, error_feedback=True),
    "random_k feedback": fb.Compression("random_k", share=0.2, error_feedback=True),
    "sign feedback": fb.Compression("sign", error_feedback=True),
    "bfloat16 feedback": fb.Compression("bfloat16", error_feedback=True),
}
FEEDBACK = [name for name in KINDS if name.endswith("feedback")]
PLAIN = [name for name in KINDS if name not in FEEDBACK]


def problem(dtype: Any = np.float64) -> fb.Quadratic:
    return fb.Quadratic(np.random.default_rng(2).standard_normal((N, DIM)).astype(dtype), curvature=0.7)


def local(how: fb.Compression | None, **options: Any) -> fb.LocalSGD:
    return fb.LocalSGD(**{"steps": 3, "lr": 0.1, "compress": how, **options})


def sent(how: fb.Compression, x: Any, seed: int, client: int, task: int) -> Any:
    """By the formulas, number by number."""
    d = len(x)
    k = how.kept(d)
    if how.kind == "top_k":
        order = sorted(range(d), key=lambda j: (-abs(x[j]), j))
        return np.array([x[j] if j in order[:k] else 0.0 for j in range(d)])
    if how.kind == "random_k":
        places = shuffled(seed, client, task, 0, d, np.arange(k), Stream.COMPRESSION)
        assert len(set(places.tolist())) == k
        out = np.zeros(d)
        out[places] = x[places] * (1 if how.error_feedback else d / k)
        return out
    if how.kind == "qsgd":
        word = backends.current().philox(seed, _counters(client, task, d)).ravel()[:d]
        length = np.sqrt(np.sum(x * x))
        units = np.abs(x) * how.levels / length
        level = np.floor(units) + ((word + 0.5) / 2.0**32 < units - np.floor(units))
        return np.sign(x) * level * length / how.levels
    if how.kind == "sign":
        return np.where(x < 0, -1.0, 1.0) * np.mean(np.abs(x))
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return kept.astype(np.uint32).view(np.float32).astype(np.float64)


def _counters(client: int, task: int, d: int) -> Any:
    blocks = np.arange(-(-d // 4), dtype=np.uint32)
    return np.stack([np.full_like(blocks, client), np.full_like(blocks, task), 0 * blocks, (9 << 28) + blocks], axis=1)


# ---- what is sent


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_sent(name: str) -> None:
    how, made = KINDS[name], problem()
    for client, task in ((0, 0), (3, 7)):
        w = np.linspace(-1, 1, DIM)
        x = made.delta(w, client, local(None), task=task, seed=11)
        got = made.delta(w, client, local(how), task=task, seed=11)
        np.testing.assert_allclose(got, sent(how, x, 11, client, task), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", FEEDBACK)
def test_error_feedback_sends_what_was_left(name: str) -> None:
    how, made = KINDS[name], problem()
    state, error, total, whole = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for task in range(30):
        w = np.linspace(-1, 1, DIM) * (1 + task)
        x = made.delta(w, 2, local(None), task=task, seed=5)
        got = made.delta(w, 2, local(how), task=task, seed=5, state=state)
        want = sent(how, x + error, 5, 2, task)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        error = x + error - want
        np.testing.assert_allclose(state, error, rtol=0, atol=1e-11)
        total, whole = total + got, whole + x
    np.testing.assert_allclose(total + state, whole, rtol=0, atol=1e-10)  # nothing is lost


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 7, 64, 5000, 100_003])
def test_the_largest_are_found_whatever_their_number_and_ties(dim: int, dtype: str) -> None:
    from fedbuff.backends.spec import CompressNumbers

    rng = np.random.default_rng(dim)
    spread = (rng.standard_normal(dim) ** 5).astype(dtype)
    few = rng.integers(-3, 4, dim).astype(dtype)  # many ties, and zeros
    stretch = np.where(np.arange(dim) % 64 == np.arange(dim) // 64 % 64, 1e3, 1.0).astype(dtype)  # misleads the guess
    for x in (spread, few, np.zeros(dim, dtype), np.sort(spread), stretch):
        for kept in {1, min(2, dim), max(1, dim // 100), max(1, dim // 2), max(1, dim - 1), dim}:
            out = np.empty_like(x)
            backends.current().compress(x, CompressNumbers(1, kept), 0, 0, 0, out)
            places = np.argsort(-np.abs(x), kind="stable")[:kept]
            want = np.zeros_like(x)
            want[places] = x[places]
            assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", range(1, 6))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden(kind: int, bad: float) -> None:
    from fedbuff.backends.spec import CompressNumbers

    x = np.linspace(-1, 1, 200)
    x[131] = bad
    out = np.empty_like(x)
    backends.current().compress(x, CompressNumbers(kind, 2, 3.0), 1, 2, 3, out)
    assert not np.isfinite(out).all()


# ---- without bias


@pytest.mark.parametrize("name", ["random_k", "qsgd"])
def test_the_mean_is_the_delta(name: str) -> None:
    """4,000 tasks: each number's mean is within 4.5 standard errors, and all together give a plausible statistic."""
    how = KINDS[name]
    assert how.is_unbiased and not KINDS["top_k"].is_unbiased and not KINDS["random_k feedback"].is_unbiased
    made, w = problem(), np.linspace(-1, 1, DIM)
    x = made.delta(w, 1, local(None))
    draws = np.array([made.delta(w, 1, local(how), task=task, seed=7) for task in range(4000)])
    deviation = draws.std(axis=0) / np.sqrt(len(draws))
    z = (draws.mean(axis=0) - x) / np.maximum(deviation, 1e-12)
    assert np.abs(z).max() < 4.5 and abs(np.mean(z**2) - 1) < 4 * np.sqrt(2 / DIM)
    k = how.kept(DIM)
    if name == "random_k":
        np.testing.assert_allclose(draws.var(axis=0), x**2 * (DIM / k - 1), rtol=0.15)
    else:
        step = np.linalg.norm(x) / 3
        part = np.abs(x) / step % 1
        np.testing.assert_allclose(draws.var(axis=0), step**2 * part * (1 - part), rtol=0.2, atol=1e-3)


def test_places_are_drawn_evenly() -> None:
    made, w = problem(), np.ones(DIM)
    how = local(KINDS["random_k"])
    counts = sum((made.delta(w, 1, how, task=task, seed=3) != 0).astype(int) for task in range(3000))
    expected = 3000 * KINDS["random_k"].kept(DIM) / DIM
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (DIM - 1)) < 4 * np.sqrt(2 * (DIM - 1))


# ---- in replays

DELAYS = fb.DelayModel(N, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 1.0))
RULE = fb.FedBuff(3, max_staleness=2)


def make_schedule(steps: int = 40) -> fb.Schedule:
    made = fb.schedule(DELAYS, RULE, server_steps=steps, seed=4)
    assert isinstance(made, fb.Schedule)
    return made


def rows(dtype: Any) -> fb.LeastSquares:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, DIM)).astype(dtype)
    return fb.LeastSquares(X, X[:, 0] - X[:, 3], np.repeat(np.arange(N), 10))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KINDS)
def test_threads_pieces_streams_and_resumes_do_not_show(name: str, dtype: str, tmp_path: Path) -> None:
    made, work, schedule = rows(np.dtype(dtype)), local(KINDS[name], batch_size=3), make_schedule()
    assert (schedule.status == fb.Status.TOO_STALE).any()
    expected = fb.replay(made, schedule, work, strategy=RULE, seed=3, threads=1).w.tolist()
    for threads in (2, 4):
        assert fb.replay(made, schedule, work, strategy=RULE, seed=3, threads=threads).w.tolist() == expected
    chunks = fb.iter_schedule(DELAYS, RULE, server_steps=40, seed=4, chunk=16)
    assert fb.replay(made, chunks, work, strategy=RULE, seed=3).w.tolist() == expected
    part = fb.Replay(made, schedule, work, strategy=RULE, seed=3, threads=3)
    part.run(max_steps=13)
    part.save(tmp_path / "part.npz")
    resumed = fb.Replay.load(tmp_path / "part.npz", made, schedule)
    resumed.run()
    assert resumed.w.tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KINDS)
def test_a_server_fed_by_hand_gives_the_replay(name: str, dtype: str) -> None:
    how, made, schedule = KINDS[name], rows(np.dtype(dtype)), make_schedule(15)
    work = local(how, batch_size=3)
    server = fb.Server(made.init(3), RULE)
    models = {0: made.init(3)}
    starts = np.bincount(schedule.version, minlength=16)
    for _ in range(starts[0]):
        server.download()
    states = {client: np.zeros(DIM, dtype) for client in range(N)}
    columns = (schedule.client, schedule.task, schedule.version, schedule.status)
    for client, task, version, status in zip(*(column.tolist() for column in columns), strict=True):
        if status not in (fb.Status.USED, fb.Status.TOO_STALE):
            continue
        state = {"state": states[client]} if how.error_feedback else {}
        delta = made.delta(models[version], client, work, task=task, seed=3, version=version, **state)
        if server.upload(delta, version):
            models[server.version] = server.w
            for _ in range(starts[server.version]):
                server.download()
        if server.version == 15:
            break
    assert server.w.tolist() == fb.replay(made, schedule, work, strategy=RULE, seed=3).w.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_the_reference_agrees(name: str) -> None:
    from fedbuff._replay.feed import _Feed
    from fedbuff.backends import reference
    from fedbuff.backends.spec import EngineSpec, RunSpec, RunState, SumSpec

    work, made, schedule = local(KINDS[name]), problem(), make_schedule(20)
    spec = EngineSpec(
        rule=rule_of(RULE), w0=made.init(3), bound=reference.bind(made._spec), local=work.plan(made), seed=3,
        window_bytes=0, sums=SumSpec(),
    )  # fmt: skip
    engine = reference.replay_engine(spec)
    run = reference.replay_run(engine, RunSpec())
    feed = _Feed(schedule, rule_of(RULE), np.ones(N), N, work.keeps_state)
    while (state := run.advance(100, 10.0, 1)) != RunState.SCHEDULE_END:
        if state == RunState.NEED_ROWS and not feed.give(run):
            run.close()
    got = fb.replay(made, schedule, work, strategy=RULE, seed=3).w
    # Near a half a bfloat16 may go the other way, and then stays so.
    np.testing.assert_allclose(got, engine.w(), rtol=0, atol=0.02 if "bfloat16" in name else 1e-12)


@pytest.mark.parametrize("name", ["top_k", "random_k", "sign"])
def test_error_feedback_reaches_what_compression_alone_misses(name: str) -> None:
    """Clients pull in different directions: what is cut off does not cancel, unless it is sent later."""
    made = problem()
    optimum = np.mean([-made.client_grad(client, np.zeros(DIM)) / 0.7 for client in range(N)], axis=0)
    rule = fb.FedBuff(N, 0.3, norm="arrivals", refill="step")
    schedule = fb.schedule(DELAYS, rule, server_steps=1500, seed=0)
    far = {}
    for kind in (name, f"{name} feedback"):
        w = fb.replay(made, schedule, local(KINDS[kind], steps=1), strategy=rule, seed=1).w
        far[kind] = float(np.linalg.norm(w - optimum))
    if name != "random_k":  # which has no bias, but noise
        assert far[f"{name} feedback"] < 0.3 * far[name]
    assert far[f"{name} feedback"] < 0.2


@compiled
def test_a_compiled_gradient_and_the_compiled_loop_compress_too() -> None:
    import ctypes

    from fedbuff._local_sgd import LocalSGD

    made = problem()
    for name in PLAIN:
        loop = LocalSGD(made, local(KINDS[name]), seed=5)
        want = made.delta(np.ones(DIM), 2, local(KINDS[name]), task=4, seed=5)
        assert loop.delta(2, 4, np.ones(DIM)).tolist() == want.tolist()
    centers = np.random.default_rng(2).standard_normal((N, DIM))
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_double),
        ctypes.POINTER(ctypes.c_double), ctypes.c_void_p,
    )  # fmt: skip

    def gradient(client: int, n: int, chosen: Any, w: Any, out: Any, context: Any) -> int:
        for j in range(DIM):
            out[j] = 0.7 * (w[j] - centers[client, j])
        return 0

    kept = kind(gradient)
    custom = fb.Custom(ctypes.cast(kept, ctypes.c_void_p).value, dim=DIM, n_samples=[1] * N, dtype=np.float64)
    schedule = make_schedule(10)
    for name in ("top_k", "top_k feedback", "random_k feedback", "sign"):
        w = fb.replay(custom, schedule, local(KINDS[name]), strategy=RULE, seed=2).w
        want = fb.replay(made, schedule, local(KINDS[name]), strategy=RULE, seed=2).w
        np.testing.assert_allclose(w, want, rtol=0, atol=1e-12)


# ---- bytes, configurations, refusals


def test_bytes() -> None:
    assert fb.Compression("top_k", share=0.01).upload_bytes(10_000, 4) == 100 * 8
    assert fb.Compression("random_k", share=0.01).upload_bytes(10_000, 8) == 100 * 8
    assert fb.Compression("qsgd", levels=1).upload_bytes(12, 4) == 4 + 3
    assert fb.Compression("qsgd", levels=255).upload_bytes(10, 8) == 8 + 12  # 9 bits each
    assert fb.Compression("sign").upload_bytes(9, 4) == 4 + 2
    assert fb.Compression("bfloat16").upload_bytes(9, 8) == 18
    assert [fb.Compression("top_k", share=share).kept(10) for share in (1e-9, 0.14, 0.15, 1.0)] == [1, 1, 2, 10]
    made, schedule = problem(), make_schedule(10)
    run = fb.replay(made, schedule, local(KINDS["top_k"]), strategy=RULE, eval_every=5)
    assert run.history["bytes_up"].tolist() == [0, 15 * 5 * 12, 30 * 5 * 12]
    assert run.history["bytes_down"].tolist() == [0, 15 * DIM * 8, 30 * DIM * 8]
    assert "bytes_up" not in fb.replay(made, schedule, local(None), strategy=RULE, eval_every=5).history


TABLES: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": np.eye(4).tolist(), "curvature": 0.5},
    "trace": {"kind": "model", "n_clients": 4},
    "strategy": {"kind": "fedbuff", "buffer_size": 2},
    "local": {"steps": 2, "lr": 0.1, "compress": {"kind": "top_k", "share": 0.5, "error_feedback": True}},
    "schedule": {"server_steps": 12},
}


def test_configurations_and_sweeps() -> None:
    run = fb.StudyConfig(TABLES).run(seed=1)
    results = fb.sweep(TABLES, {"local.compress.share": [0.5, 1.0]}, seeds=[1])
    assert results.column("loss")[0] == run.history["loss"][-1]
    assert results.column("bytes_up").tolist() == [24 * 2 * 12, 24 * 4 * 12]
    with pytest.raises(ValueError, match=r"local\.compress\.shore"):
        fb.StudyConfig({**TABLES, "local": {"steps": 1, "lr": 0.1, "compress": {"kind": "top_k", "shore": 1}}}).local  # noqa: B018


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"kind": "top"}, ValueError, r"^kind: expected one of top_k"),
        ({"kind": "top_k"}, TypeError, r"^share: top_k needs it"),
        ({"kind": "top_k", "share": 0.0}, ValueError, r"^share: expected"),
        ({"kind": "random_k", "share": 1.5}, ValueError, r"^share: expected"),
        ({"kind": "sign", "share": 0.5}, ValueError, r"^share: sign sends all numbers"),
        ({"kind": "qsgd"}, TypeError, r"^levels: qsgd needs it"),
        ({"kind": "qsgd", "levels": 2**20 + 1}, ValueError, r"^levels: expected"),
        ({"kind": "sign", "levels": 2}, ValueError, r"^levels: they are for qsgd; sign has none"),
        ({"kind": "qsgd", "levels": 2, "error_feedback": True}, ValueError, r"^error_feedback: qsgd has no bias"),
    ],
)
def test_refused_options(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fb.Compression(**options)


def test_refused_together() -> None:
    with pytest.raises(TypeError, match=r"^compress: expected a Compression, got str"):
        local("sign")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^compress: scaffold uploads what it computes"):
        local(KINDS["sign"], method="scaffold")
    with pytest.raises(TypeError, match=r"^state: error_feedback needs it"):
        problem().delta(np.zeros(DIM), 0, local(KINDS["sign feedback"]))
    with pytest.raises(ValueError, match=r"^state: "):
        problem().delta(np.zeros(DIM), 0, local(KINDS["sign"]), state=np.zeros(DIM))
