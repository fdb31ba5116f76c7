"""The check of what a replay depends on: compiled and in NumPy the same, of whole schedules and of streams."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._schedule.check import FAULTS, check_columns
from fedbuff._schedule.columns import IN_FLIGHT_COLUMNS, ROW_COLUMNS, STEP_COLUMNS
from fedbuff.backends.python.schedule_check import ScheduleCheck

_core = pytest.importorskip("fedbuff._core")

DELAYS = fb.DelayModel(n_clients=12, compute=fb.Exponential(1.0), client_speed=fb.LogNormal(0.0, 0.7))
LOG = fb.ArrivalLog(np.array([0, 1, 0, 2, 1, 0]), np.arange(1.0, 7.0), version=np.array([0, 0, 1, 0, 2, 2]))
SOURCES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fedbuff": (DELAYS, fb.FedBuff(3), {"concurrency": 8}),
    "all at work": (DELAYS, fb.FedBuff(3), {}),
    "fedasync": (DELAYS, fb.FedAsync(0.5), {"concurrency": 5}),
    "max_staleness": (DELAYS, fb.FedBuff(2, max_staleness=2), {"concurrency": 10}),
    "max_wait": (DELAYS, fb.FedBuff(5, max_wait=0.3), {"concurrency": 10}),
    "distinct": (DELAYS, fb.FedBuff(3, distinct_clients=True), {"concurrency": 8}),
    "timeout": (DELAYS, fb.FedBuff(3), {"concurrency": 8, "timeout": 0.8}),
    "open loop": (DELAYS, fb.FedBuff(3), {"start_rate": 4.0, "in_flight": "allow"}),
    "fedavg": (DELAYS, fb.FedAvg(clients_per_round=4, over_selection=0.5), {}),
    "constant": (fb.DelayModel(n_clients=12, compute=fb.Constant(1.0)), fb.FedBuff(5), {}),
}


def make(name: str, steps: int = 25) -> fb.Schedule:
    source, strategy, options = SOURCES[name]
    return fb.schedule(source, strategy, server_steps=steps, seed=2, **options)


def chunks(name: str, size: int) -> list[fb.Schedule]:
    source, strategy, options = SOURCES[name]
    return list(fb.iter_schedule(source, strategy, server_steps=25, seed=2, chunk=size, **options))


def both(parts: list[Any]) -> tuple[int, int]:
    """What the two checks find in the last part, which must be the same."""
    ours, theirs = ScheduleCheck(), _core.ScheduleCheck()
    found = 0, -1
    for part in parts:
        found = ours.add(part)
        assert theirs.add(part) == found, FAULTS[found[0]]
        assert ours.n_chunks == theirs.n_chunks
        if found[0]:
            break
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_what_the_resolver_makes_passes_whole_sliced_and_in_chunks(name: str) -> None:
    whole = make(name)
    assert both([whole]) == (0, -1)
    for size in (1, 7, 10**6):
        assert both(chunks(name, size)) == (0, -1)
    slices = [whole[begin : begin + 4] for begin in range(0, 25, 4)]
    assert both(slices) == (0, -1)
    for part in slices:
        assert both([part]) == (0, -1)


def test_a_log_passes() -> None:
    assert both([fb.schedule(LOG, fb.FedBuff(2))]) == (0, -1)


EXTREMES = [-(2**63), -1, 0, 1, 2, 5, 24, 25, 26, 2**31, 2**40, 2**62, 2**63 - 1]
TIMES = [-np.inf, -1.0, 0.0, 0.5, 1.0, 3.0, 1e300, np.inf, np.nan]


@pytest.mark.parametrize("name", ["fedbuff", "max_staleness", "max_wait", "distinct", "fedavg", "timeout"])
def test_changed_columns_are_judged_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    groups = {**ROW_COLUMNS, **STEP_COLUMNS, **IN_FLIGHT_COLUMNS}
    seen = set()
    sources = [[make(name)], chunks(name, 20)]
    for trial in range(250):
        parts = sources[trial % 2]
        which = int(rng.integers(len(parts)))
        state = {**parts[which]._state()}
        for column in rng.choice(list(groups), rng.integers(1, 3), replace=False):
            values = state[column].copy()
            if not values.size:
                continue
            at = int(rng.integers(values.size))
            if values.dtype.kind == "f":
                values[at] = rng.choice(TIMES)
            elif rng.random() < 0.5:
                values[at] = np.array(rng.choice(np.array(EXTREMES, object))).astype(np.int64).astype(values.dtype)
            else:
                values[at] = (values[at].astype(np.int64) + rng.integers(-2, 3)).astype(values.dtype)
            state[column] = values
        changed = [*parts[:which], SimpleNamespace(**state), *parts[which + 1 :]]
        seen.add(both(changed)[0])
    assert len(seen) >= 8, seen


def test_every_fault_has_a_message_and_is_found() -> None:
    whole = make("max_staleness")
    dropped = int(np.flatnonzero(whole.status != 0)[0])

    def changed(column: str, at: int, value: Any) -> tuple[int, int]:
        state = whole._state()
        state[column] = state[column].copy()
        state[column][at] = value
        return both([SimpleNamespace(**state)])

    found = [
        changed("client", 3, -1),
        changed("status", 3, 7),
        changed("version", 3, -1),
        changed("step", dropped, 1),
        changed("step", 3, 2**40),
        changed("arrive_time", 3, np.nan),
        changed("arrive_time", 3, -1.0),
        changed("in_flight_client", 0, 12),
        changed("in_flight_version", 0, 2**40),
        changed("step_time", 3, np.inf),
        changed("step_time", 3, 0.0),
        changed("step", 5, 0),
        changed("arrive_time", 1, whole.arrive_time[2]),
        changed("staleness", 3, -1),
        changed("staleness", 3, 2**40),
        changed("staleness", dropped, 0),
    ]
    assert [fault for fault, _ in found] == list(range(1, 17))
    state = whole._state()
    state["version"], state["staleness"] = state["version"].copy(), state["staleness"].copy()
    state["version"][0], state["staleness"][0] = 1, -1
    assert both([SimpleNamespace(**state)])[0] == 14
    assert changed("step_started", 3, 0) == (18, 4)
    assert changed("step_started", 3, -(2**63)) == (18, 4)
    # on a version that is made after it arrives
    whole = make("fedbuff")
    state = whole._state()
    for name in ("version", "staleness", "step_time"):
        state[name] = state[name].copy()
    row = int(np.flatnonzero(whole.step == 5)[0])
    state["version"][row], state["staleness"][row] = 5, 0
    state["step_time"][4] = (whole.arrive_time[row] + whole.step_time[5]) / 2
    assert both([SimpleNamespace(**state)]) == (17, row)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("n_clients", 0, "from 1 to 2147483647"), ("n_clients", 2**31, "from 1 to 2147483647"),
     ("buffer_size", -1, ">= 0"), ("concurrency", -1, ">= 0"), ("seed", -1, ">= 0"), ("seed", 2**64, r"below 2\*\*64"),
     ("started_on_0", -1, ">= 0"), ("first_step", -1, ">= 0"), ("first_step", 2**60, "from 0 to 9007199254740992")],
)  # fmt: skip
def test_scalars_are_checked_by_name(name: str, value: int, expected: str) -> None:
    state = {**make("fedbuff")._state(), name: value}
    with pytest.raises(ValueError, match=f"^{name}: expected an int {expected}, got {value}$"):
        check_columns(fb.Schedule(**state))


def test_scalars_and_description_have_their_types() -> None:
    state = make("fedbuff")._state()
    for name in ("n_clients", "seed", "first_step"):
        with pytest.raises(TypeError, match=f"{name}: expected an int, got float"):
            fb.Schedule(**{**state, name: 1.5})
    with pytest.raises(TypeError, match="description: expected a dictionary, got list"):
        fb.Schedule(**{**state, "description": []})
    with pytest.raises(ValueError, match="description: expected a dictionary of strategy"):
        check_columns(fb.Schedule(**{**state, "description": {"strategy": 3}}))


def test_columns_may_lie_anywhere() -> None:
    whole = make("fedbuff")
    state = whole._state()
    for name in (*ROW_COLUMNS, *STEP_COLUMNS, *IN_FLIGHT_COLUMNS):
        state[name] = np.repeat(state[name], 2)[::2]
    check_columns(fb.Schedule(**state))
