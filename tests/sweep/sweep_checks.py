"""What a run of a sweep must be equal to."""

from __future__ import annotations

import hashlib

import numpy as np

import fedbuff as fb


def same_as_alone(results: fb.SweepResults, row: int, base: fb.StudyConfig) -> None:
    """A row has the bits of the same configuration run by itself."""
    config = base.changed(results.arms[int(results.column("arm")[row])])
    run = config.run(int(results.column("seed")[row]))
    assert results.column("error")[row] == "" and results.column("status")[row] == "done"
    assert results.column("model_sha256")[row] == hashlib.sha256(run.w.tobytes()).hexdigest()
    assert results.column("exit_reason")[row] == run.exit_reason.value
    assert results.column("server_steps")[row] == run.version
    found = results.history(row)
    assert set(found) == set(run.history)
    for name in run.history:
        np.testing.assert_array_equal(found[name], run.history[name], name)
    for name in config.metrics:
        assert results.column(name)[row] == run.history[name][-1] or np.isnan(run.history[name][-1])


def equal(one: fb.SweepResults, other: fb.SweepResults) -> None:
    """Two sweeps have the same runs, each once, with the same bits."""
    assert one.arms == other.arms and one.columns == other.columns
    assert len(set(one.column("run").tolist())) == len(one) == len(other)
    for name in one.columns:
        if name == "seconds":
            continue
        for left, right in zip(one.column(name), other.column(name), strict=True):
            np.testing.assert_array_equal(left, right, name)
