"""Trace: grouping, order, refusals with the row, and the tools."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbuff as fb
from fedbuff._delays.clients import stable_order


def brute_groups(clients, values):
    groups = {}
    for client, value in zip(clients, values, strict=True):
        groups.setdefault(client, []).append(value)
    return groups


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), min_size=1, max_size=60))
def test_rows_are_grouped_by_client_in_file_order(rows) -> None:
    clients, values = [c for c, _ in rows], [v for _, v in rows]
    trace = fb.Trace(clients, values)
    groups = brute_groups(clients, values)
    assert trace.client_ids.tolist() == sorted(groups)
    for number, client in enumerate(sorted(groups)):
        assert trace.compute[trace.offsets[number] : trace.offsets[number + 1]].tolist() == groups[client]


def test_string_ids_are_sorted_and_kept() -> None:
    trace = fb.Trace(["b", "a", "b"], [1.0, 2.0, 3.0])
    assert trace.client_ids.tolist() == ["a", "b"]
    assert trace.compute.tolist() == [2.0, 1.0, 3.0]


def test_large_sparse_ids() -> None:
    trace = fb.Trace([10**15, 7, 10**15], [1.0, 2.0, 3.0])
    assert trace.client_ids.tolist() == [7, 10**15]
    assert trace.compute.tolist() == [2.0, 1.0, 3.0]


def test_task_column_orders_rows() -> None:
    trace = fb.Trace([0, 0, 1, 0], [30.0, 10.0, 5.0, 20.0], task=[2, 0, 0, 1], upload=[3.0, 1.0, 9.0, 2.0])
    assert trace.compute.tolist() == [10.0, 20.0, 30.0, 5.0]
    assert trace.upload.tolist() == [1.0, 2.0, 3.0, 9.0]


def test_clients_fixes_ids_and_their_order() -> None:
    trace = fb.Trace(["x", "y"], [1.0, 2.0], clients=["y", "x"])
    assert trace.compute.tolist() == [2.0, 1.0]
    stopping = fb.Trace([2], [1.0], clients=4, end="stop")
    assert stopping.offsets.tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="client 0 has no rows"):
        fb.Trace([2], [1.0], clients=4)


def test_total_is_compute() -> None:
    assert fb.Trace([0], total=[2.0], wait=[1.0]).compute.tolist() == [2.0]
    with pytest.raises(ValueError, match="compute, total: expected exactly one of them"):
        fb.Trace([0], [1.0], total=[2.0])
    with pytest.raises(ValueError, match="total: it contains"):
        fb.Trace([0], total=[2.0], upload=[1.0])


BY_ORDER = "; tasks='order' (--tasks order) takes the numbers by their order"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fb.Trace([0, 0, 0], [1, 2, 3.0], upload=[0, 0, -0.3]), "row 3: upload -0.3 is negative"),
        (lambda: fb.Trace([0, 0], [1.0, np.nan]), "row 2: compute is NaN"),
        (
            lambda: fb.Trace([0, 0], [np.inf, np.nan]),
            "row 1: compute inf is infinite; row 2: compute is NaN: 2 bad rows",
        ),
        (
            lambda: fb.Trace([0, 0], [1.0, -1.0], wait=[-1.0, 0.0]),
            "row 1: wait -1.0 is negative; row 2: compute -1.0 is negative: 2 bad rows",
        ),
        (lambda: fb.Trace([0, -4], [1.0, 1.0]), "row 2: client -4 is negative"),
        (lambda: fb.Trace([0, 3], [1.0, 1.0], clients=3), "row 2: client 3 is unknown"),
        (lambda: fb.Trace(["a", "z"], [1.0, 1.0], clients=["a"]), "row 2: client 'z' is unknown"),
        (lambda: fb.Trace([0, 0], [1.0, 1.0], task=[0, 2]), "row 2: client 0 has task 2 but no task 1" + BY_ORDER),
        (lambda: fb.Trace([0, 0, 0], [1, 1, 1.0], task=[0, 1, 1]), "row 3: client 0 has task 1 twice"),
        (lambda: fb.Trace([5], [1.0], task=[1]), "row 1: client 5 has task 1 but no task 0" + BY_ORDER),
        (lambda: fb.Trace([5], [1.0], task=[-1]), "row 1: task -1 is negative"),
        (lambda: fb.Trace([0, 0], [1.0, 1.0], ok=[1, 2]), "row 2: ok 2 is neither true nor false"),
        (lambda: fb.Trace(np.zeros(0, int), []), "there are no rows"),
    ],
)
def test_bad_rows_name_the_row(make, message) -> None:
    with pytest.raises(fb.TraceError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "make",
    [
        lambda: fb.Trace([0.5], [1.0]),
        lambda: fb.Trace([0], ["1"]),
        lambda: fb.Trace([0], [1.0], task=[0.0]),
        lambda: fb.Trace([0], [1.0], ok=["yes"]),
        lambda: fb.Trace([0], [1.0], clients=["a"]),
        lambda: fb.Trace([0], [1.0], availability="always"),
    ],
)
def test_wrong_dtypes_are_type_errors(make) -> None:
    with pytest.raises(TypeError):
        make()


def test_lengths_and_options_are_checked() -> None:
    with pytest.raises(ValueError, match="length 2"):
        fb.Trace([0, 1], [1.0])
    with pytest.raises(ValueError, match="end: expected one of wrap, stop"):
        fb.Trace([0], [1.0], end="loop")
    with pytest.raises(ValueError, match="twice"):
        fb.Trace([0], [1.0], clients=[0, 0])
    with pytest.raises(ValueError, match="clients: expected an int >= 1"):
        fb.Trace([0], [1.0], clients=0)


def test_arrays_are_read_only_copies() -> None:
    values = np.array([1.0, 2.0])
    trace = fb.Trace([0, 0], values)
    values[0] = 7.0
    assert trace.compute[0] == 1.0
    with pytest.raises(ValueError):
        trace.compute[0] = 3.0
    with pytest.raises(AttributeError):
        trace.compute = values


def test_copies_stay_read_only() -> None:
    import copy
    import pickle

    windows = fb.Availability([0], [0.0], [1.0], n_clients=1)
    trace = fb.Trace([0, 0], [1.0, 2.0], availability=windows)
    log = fb.ArrivalLog([0], [1.0], version=[0])
    for again in (pickle.loads(pickle.dumps((trace, log))), copy.deepcopy((trace, log))):
        assert again == (trace, log)
        for array in (again[0].compute, again[0].availability.begin, again[1].client):
            assert not array.flags.writeable
    law = pickle.loads(pickle.dumps(fb.Empirical([2.0, 1.0])))
    assert law == fb.Empirical([1.0, 2.0]) and not law.samples.flags.writeable
    model = pickle.loads(pickle.dumps(fb.DelayModel(2, client_speed=[1.0, 2.0])))
    assert not model.client_speed.flags.writeable


def test_error_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(fb.TraceError("upload is NaN", 3, "x.csv")))
    assert (str(error), error.row) == ("row 3: upload is NaN (x.csv)", 3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=200))
def test_stable_order_is_a_stable_argsort(codes) -> None:
    array = np.array(codes)
    assert stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()


def recorded(seed: int = 0, n: int = 7) -> fb.Trace:
    rng = np.random.default_rng(seed)
    client = rng.integers(0, n, 400)
    return fb.Trace(client, rng.exponential(1.0 + client), upload=rng.random(400), ok=rng.random(400) < 0.9)


def test_scale() -> None:
    trace = recorded()
    factors = np.arange(1.0, 8.0)
    scaled = trace.scale(compute=factors, upload=0.5)
    assert np.array_equal(scaled.compute, trace.compute * factors[trace.client])
    assert np.array_equal(scaled.upload, trace.upload * 0.5)
    assert np.array_equal(scaled.ok, trace.ok)
    with pytest.raises(ValueError):
        trace.scale(compute=-1.0)
    with pytest.raises(ValueError):
        trace.scale(compute=[1.0, 2.0])


def test_bootstrap_draws_whole_rows_of_the_same_client() -> None:
    trace = recorded()
    sample = trace.bootstrap(1000, seed=4)
    assert np.diff(sample.offsets).tolist() == [1000] * 7
    for client in range(7):
        own = slice(trace.offsets[client], trace.offsets[client + 1])
        pairs = set(zip(trace.compute[own], trace.upload[own], trace.ok[own], strict=True))
        drawn = slice(sample.offsets[client], sample.offsets[client + 1])
        found = set(zip(sample.compute[drawn], sample.upload[drawn], sample.ok[drawn], strict=True))
        assert found == pairs  # 1000 draws from about 57 rows miss one with probability below 1e-5
        assert abs(sample.compute[drawn].mean() - trace.compute[own].mean()) < 0.2 * (1 + client)
    assert trace.bootstrap(1000, seed=4) == sample
    assert trace.bootstrap(1000, seed=5) != sample
    assert np.array_equal(trace.bootstrap(500, seed=4).compute[:500], sample.compute[:500])


def test_bootstrap_keeps_blocks_together() -> None:
    trace = fb.Trace(np.zeros(50, int), np.arange(50.0))
    drawn = trace.bootstrap(60, seed=1, block=6).compute.reshape(10, 6)
    assert np.array_equal((drawn - drawn[:, :1]) % 50, np.tile(np.arange(6.0), (10, 1)))
    assert np.unique(drawn[:, 0]).size > 5


def test_assign_uses_devices_evenly() -> None:
    trace = recorded()
    few, many = trace.assign(3, seed=2), trace.assign(17, seed=2)
    assert np.unique(few.client_ids).size == 3
    uses = np.bincount(many.client_ids, minlength=7)
    assert sorted(uses.tolist()) == [2, 2, 2, 2, 3, 3, 3]
    for client, device in enumerate(many.client_ids):
        own = trace.compute[trace.offsets[device] : trace.offsets[device + 1]]
        assert np.array_equal(many.compute[many.offsets[client] : many.offsets[client + 1]], own)
    assert trace.assign(17, seed=2) == many
    assert trace.assign(17, seed=3) != many


def test_assign_takes_availability_along() -> None:
    windows = fb.Availability([0, 1, 1], [0.0, 1.0, 5.0], [2.0, 3.0, 6.0], n_clients=2, period=[10.0, 20.0])
    trace = fb.Trace([0, 1], [1.0, 2.0], availability=windows).assign(5, seed=0)
    for client, device in enumerate(trace.client_ids):
        times = np.linspace(0, 30, 301)
        assert np.array_equal(trace.availability.available(client, times), windows.available(int(device), times))


def test_summary() -> None:
    trace = fb.Trace([0, 0, 1, 1], [1.0, 1.0, 3.0, 3.0], ok=[True, True, True, False])
    summary = trace.summary()
    assert summary["between_clients"] == 1.0
    assert summary["failed"] == 0.25
    assert summary["total"]["mean"] == 2.0
    assert summary["rows_per_client"] == {"min": 2, "median": 2.0, "max": 2}
    assert "upload" not in summary
    assert fb.Trace([0, 0, 1, 1], [1.0, 3.0, 1.0, 3.0]).summary()["between_clients"] == 0.0


FAMILIES = {
    "exponential": fb.Exponential(2.0),
    "half_normal": fb.HalfNormal(1.5),
    "truncated_normal": fb.TruncatedNormal(2.0, 1.5),
    "log_normal": fb.LogNormal(0.3, 0.5),
    "pareto": fb.Pareto(3.0, 2.0),
    "weibull": fb.Weibull(1.7, 3.0),
    "uniform": fb.Uniform(1.0, 3.0),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_fit_recovers_the_family_it_was_drawn_from(kind: str) -> None:
    pytest.importorskip("scipy")
    from fedbuff.backends.python.portable_math import draw

    law = FAMILIES[kind]
    samples = draw(law.kind, law.params, None, 11, np.arange(20000), 0, 2)
    (found,) = fb.traces.fit(samples, [kind])
    assert type(found.distribution) is type(law)
    finite = [i for i, value in enumerate(law.params) if np.isfinite(value)]
    np.testing.assert_allclose(
        np.array(found.distribution.params)[finite], np.array(law.params)[finite], rtol=0.05, atol=0.05
    )
    assert found.ks < 0.015
    best = fb.Trace(np.zeros(20000, int), samples).fit("compute")[0]
    assert best.ks <= found.ks


def test_ks_distance_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    samples = np.round(np.random.default_rng(0).exponential(2.0, 500), 1) + 0.1  # with ties
    for found in fb.traces.fit(samples, ["exponential", "log_normal"]):
        law = found.distribution
        if isinstance(law, fb.Exponential):
            reference = stats.expon(scale=law.scale)
        else:
            reference = stats.lognorm(law.sigma, scale=np.exp(law.mean))
        assert found.ks == pytest.approx(stats.kstest(samples, reference.cdf).statistic, abs=1e-12)


def test_fit_refusals() -> None:
    pytest.importorskip("scipy")
    with pytest.raises(ValueError, match="families: expected one of"):
        fb.traces.fit([1.0, 2.0], ["gamma"])
    with pytest.raises(ValueError, match="log_normal cannot be fitted: a sample is 0"):
        fb.traces.fit([0.0, 1.0], ["log_normal"])
    assert {found.distribution.kind for found in fb.traces.fit([0.0, 1.0, 2.0])} == {
        "exponential",
        "half_normal",
        "truncated_normal",
        "uniform",
    }
    with pytest.raises(ValueError, match="part: expected one of total"):
        recorded().fit("sleep")


def test_a_log_is_a_trace_of_its_durations() -> None:
    log = fb.ArrivalLog(["b", "a", "b"], [1.0, 3.0, 4.5], start_time=[0.0, 0.5, 2.0])
    trace = log.as_trace()
    assert trace.client_ids.tolist() == ["a", "b"] and trace.total.tolist() == [2.5, 1.0, 2.5] and trace.end == "wrap"
    with pytest.raises(ValueError, match="start_time: the log has none"):
        fb.ArrivalLog([0, 0], [1.0, 2.0], version=[0, 0]).as_trace()


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_ids_that_look_like_formulas(tmp_path, ending) -> None:
    ids = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "'=quoted", "plain-7", "'single", "-7"]
    trace = fb.Trace(ids, np.arange(1.0, 9.0))
    path = tmp_path / f"t{ending}"
    trace.save(path)
    text = (gzip.decompress(path.read_bytes()) if ending == ".csv.gz" else path.read_bytes()).decode()
    cells = [row[0] for row in csv.reader(text.splitlines()[1:])]
    assert not [cell for cell in cells if cell[0] in "=+@" or (cell[0] == "-" and cell != "-7")]
    assert fb.read_trace(path) == trace
