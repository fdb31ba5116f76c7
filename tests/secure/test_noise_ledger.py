"""Noise from the operating system: what a checkpoint keeps, what was drawn how often, what the accountant counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb
from fedbuff._replay.noise_ledger import NoiseLedger, ledger_path
from fedbuff.secure import Gaussian

N, K, STEPS = 6, 2, 30
SCHEDULE = fb.uniform_arrivals(N, K, 2, STEPS, seed=1)
PRIVACY = Gaussian(clip=1.0, noise_multiplier=0.5)
LOCAL = fb.LocalSGD(steps=1, lr=0.1)


def strategy(privacy: Gaussian = PRIVACY) -> fb.FedBuff:
    return fb.FedBuff(K, privacy=privacy)


def problem() -> fb.Quadratic:
    return fb.Quadratic(np.arange(2.0 * N).reshape(N, 2))


def replayed(privacy: Gaussian = PRIVACY, **options: Any) -> fb.Result:
    return fb.replay(problem(), SCHEDULE, LOCAL, strategy=strategy(privacy), seed=3, **options)


class Killed(Exception):
    """In the place of a kill: nothing is saved after it."""


def killed_at(step: int) -> Any:
    def callback(row: dict[str, float]) -> None:
        if row["step"] == step:
            raise Killed

    return callback


def test_a_run_says_whether_it_is_repeatable() -> None:
    assert Gaussian(clip=1.0, noise_multiplier=1.0).source == "system"
    run = replayed()
    assert not run.repeatable and "repeatable=False" in repr(run)
    assert run.releases is not None and run.releases.tolist() == [1] * STEPS
    assert not np.array_equal(run.w, replayed().w)
    for privacy in (
        Gaussian(clip=1.0, noise_multiplier=0.5, source="simulated"),
        Gaussian(clip=1.0, noise_multiplier=0.0),
    ):
        run = replayed(privacy)
        assert run.repeatable and run.releases is None and "repeatable=True" in repr(run)
        np.testing.assert_array_equal(run.w, replayed(privacy).w)


def test_a_resume_goes_on_from_what_was_released(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    first = replayed(checkpoint=file, stop=fb.Stop(server_steps=11), eval_every=1)
    second = replayed(checkpoint=file, eval_every=1)
    assert first.releases is not None and first.releases.tolist() == [1] * 11
    assert second.releases is not None and second.releases.tolist() == [1] * STEPS
    np.testing.assert_array_equal(second.history["loss"][:12], first.history["loss"])
    again = replayed(checkpoint=file, eval_every=1)  # it is done: nothing is drawn
    np.testing.assert_array_equal(again.w, second.w)
    assert again.releases is not None and again.releases.tolist() == [1] * STEPS


def test_steps_that_a_kill_lost_are_counted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "c.npz", "checkpoint_every": 10, "eval_every": 1}
    with pytest.raises(Killed):
        replayed(**options, callback=killed_at(17))
    run = replayed(**options)
    assert run.version == STEPS and run.releases is not None
    assert run.releases.tolist() == [1] * 10 + [2] * 7 + [1] * 13


def test_a_kill_before_the_first_checkpoint_is_counted_and_each_one_after(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "c.npz", "eval_every": 1}
    for step in (5, 3, 8):
        with pytest.raises(Killed):
            replayed(**options, callback=killed_at(step))
    run = replayed(**options)
    assert run.releases is not None
    assert run.releases.tolist() == [4] * 3 + [3] * 2 + [2] * 3 + [1] * (STEPS - 8)
    simulated = Gaussian(clip=1.0, noise_multiplier=0.5, source="simulated")
    same: dict[str, Any] = {**options, "checkpoint": tmp_path / "s.npz"}
    with pytest.raises(Killed):
        replayed(simulated, **same, callback=killed_at(5))
    assert replayed(simulated, **same).releases is None and not ledger_path(tmp_path / "s.npz").exists()


def test_noise_is_noted_before_it_is_drawn(tmp_path: Path) -> None:
    """A client of step t finds t in the file; a real kill then loses nothing of the count."""
    file = tmp_path / "c.npz"
    program = f"""
import json, os, numpy as np, fedbuff as fb
from fedbuff._replay.noise_ledger import NoiseLedger, ledger_path, _read
schedule = fb.uniform_arrivals({N}, {K}, 0, {STEPS}, seed=1)
tasks = []
def update(client, task, w, generator):
    tasks.append(task)
    step = (len(tasks) - 1) // {K}
    assert any(begin <= step < end for begin, end in _read(ledger_path({str(file)!r}))[1]), step
    if step == 7 and "GO_ON" not in os.environ:
        os._exit(9)
    return np.ones_like(w)
problem = fb.Callback(update, n_clients={N}, w0=np.zeros(3))
strategy = fb.FedBuff({K}, privacy=fb.secure.Gaussian(clip=1.0, noise_multiplier=1.0))
run = fb.replay(problem, schedule, strategy=strategy, threads=1, checkpoint={str(file)!r})
print(json.dumps(run.releases.tolist()))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "GO_ON": "1"})
    releases = json.loads(done.stdout)
    assert releases[:7] == [2] * 7
    assert len(releases) == STEPS and set(releases) <= {1, 2}


def test_a_replay_by_hand_notes_what_it_draws_after_it_was_saved(tmp_path: Path) -> None:
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    replay = fb.Replay(problem(), SCHEDULE, LOCAL, strategy=strategy())
    replay.run(4)
    replay.save(a)
    replay.run(3)
    replay.save(b)
    replay.run(2)
    assert replay.releases is not None and replay.releases.tolist() == [1] * 9
    first = fb.Replay.load(a, problem(), SCHEDULE)
    assert first.version == 4 and first.releases is not None and first.releases.tolist() == [1] * 9
    first.run(6)
    drawn = [1] * 4 + [2] * 5 + [1]
    for made in (first, fb.Replay.load(a, problem(), SCHEDULE)):
        assert made.releases is not None and made.releases.tolist() == drawn
    second = fb.Replay.load(b, problem(), SCHEDULE)
    assert second.releases is not None and second.releases.tolist() == [1] * 9
    second.save(a)  # the file knows of draws that `second` does not: they stay
    third = fb.Replay.load(a, problem(), SCHEDULE).releases
    assert third is not None and (third >= drawn).all()


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path: Path) -> None:
    file, other = tmp_path / "c.npz", tmp_path / "d.npz"
    for each in (file, other):
        replayed(checkpoint=each, stop=fb.Stop(server_steps=5))
    kept = ledger_path(file).read_bytes()
    os.replace(ledger_path(other), ledger_path(file))
    for call in (lambda: replayed(checkpoint=file), lambda: fb.Replay.load(file, problem(), SCHEDULE)):
        with pytest.raises(ValueError, match=r"c\.npz: expected its own ledger of noise in c\.npz\.noise"):
            call()
    ledger_path(file).unlink()
    for call in (lambda: replayed(checkpoint=file), lambda: fb.Replay.load(file, problem(), SCHEDULE)):
        with pytest.raises(ValueError, match=r"c\.npz: expected c\.npz\.noise beside it"):
            call()
    # A ledger whose checkpoint is gone is not written over.
    ledger_path(file).write_bytes(kept)
    file.unlink()
    with pytest.raises(ValueError, match=r"c\.npz\.noise: it says what noise a run drew whose c\.npz is gone"):
        replayed(checkpoint=file)
    assert ledger_path(file).read_bytes() == kept


def test_damaged_ledgers(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    ledger = NoiseLedger()
    ledger.attach(file)
    ledger.draw(0, 5)
    ledger.draw(5, 5)
    ledger.draw(5, 9)
    where = ledger_path(file)
    whole = where.read_bytes()
    where.write_bytes(whole + b"9 1")  # a kill in the middle of a line: the noise of it was never drawn
    again = NoiseLedger.read(file, ledger.run)
    assert again.releases().tolist() == [1] * 9 and where.read_bytes() == whole
    again.draw(7, 10)
    assert NoiseLedger.read(file, ledger.run).releases().tolist() == [1] * 7 + [2, 2, 1]
    for bad in (b"5 4\n", b"x y\n", b"1\n", b"-1 4\n", b"1 9999999999999999999\n", b"\xff 3\n"):
        where.write_bytes(whole + bad)
        with pytest.raises(ValueError, match=r"c\.npz\.noise: line 4: expected two steps"):
            NoiseLedger.read(file, ledger.run)
    for bad in (b"", b"fedbuff-noise 1", b"hello\n"):
        where.write_bytes(bad)
        with pytest.raises(ValueError, match="expected a ledger of noise"):
            NoiseLedger.read(file, ledger.run)


# The accountant


def test_epsilon_counts_every_release_and_says_what_is_simulated() -> None:
    pytest.importorskip("dp_accounting")
    real = Gaussian(clip=1.0, noise_multiplier=4.0)
    simulated = Gaussian(clip=1.0, noise_multiplier=4.0, source="simulated")
    once = fb.secure.epsilon(SCHEDULE, real)
    assert not once.simulated and "simulated" not in str(once) and once.releases == once.buffers
    other = fb.secure.epsilon(SCHEDULE, simulated)
    assert other.simulated and other.epsilon == once.epsilon and "simulated=True" in repr(other)
    assert "whoever knows the seed subtracts it" in str(other)
    ones = np.ones(STEPS, np.int64)
    assert fb.secure.epsilon(SCHEDULE, real, releases=ones) == once
    twice = fb.secure.epsilon(SCHEDULE, real, releases=2 * ones)
    assert twice.releases == 2 * once.releases and twice.buffers == once.buffers
    halved = Gaussian(clip=1.0, noise_multiplier=4.0 / np.sqrt(2.0))
    assert twice.epsilon == pytest.approx(fb.secure.epsilon(SCHEDULE, halved).epsilon, rel=1e-9)
    short = fb.secure.epsilon(SCHEDULE, real, releases=ones[:5])
    assert short.buffers <= 5 and short.epsilon < once.epsilon
    assert fb.secure.epsilon(SCHEDULE, real, releases=ones[:0]).epsilon == 0.0


@pytest.mark.parametrize(
    ("releases", "error", "words"),
    [
        (np.ones(STEPS), TypeError, "releases: expected whole numbers, .* got float64"),
        (np.ones((2, 2), int), TypeError, r"releases: .* got int64 \(2, 2\)"),
        (-np.ones(3, int), ValueError, "releases: expected numbers >= 0, got -1"),
        (np.ones(STEPS + 1, int), ValueError, f"releases: expected at most {STEPS}, .* got {STEPS + 1}"),
    ],
)
def test_bad_releases_are_refused(releases: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fb.secure.epsilon(SCHEDULE, PRIVACY, releases=releases)
