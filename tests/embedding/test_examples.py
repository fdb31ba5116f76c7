"""examples/embedding: each built and run against the installed package, in a folder of its own; logs replay to the
model that the program printed, and the pages in docs/embedding show the very files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import installs
import numpy as np
import pytest

import fedbuff as fb

EXAMPLES = installs.ROOT / "examples" / "embedding"
PAGES = installs.ROOT / "docs" / "embedding"


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")


def flags(installed: Path, *options: str) -> list[str]:
    """What `python -m fedbuff` of the installed package says."""
    return installs.run("-m", "fedbuff", *options, cwd=installed, PYTHONPATH=str(installed)).stdout.split()


def execute(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("how", ["flags", "pkg-config"])
def test_c_program(installed: Path, tmp_path: Path, how: str) -> None:
    need("cc")
    if how == "flags":
        given = flags(installed, "--cflags", "--libs")
        assert all(str(installed) in flag for flag in given if not flag.startswith("-l"))
    else:
        need("pkg-config")
        folder = str(installed / "fedbuff" / "pkgconfig")
        assert execute("pkg-config", "--modversion", "fedbuff", cwd=tmp_path, PKG_CONFIG_PATH=folder).strip() == (
            fb.__version__
        )
        given = execute("pkg-config", "--cflags", "--libs", "fedbuff", cwd=tmp_path, PKG_CONFIG_PATH=folder).split()
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    execute("cc", *strict, str(EXAMPLES / "server.c"), *given, "-o", "server", cwd=tmp_path)
    shown = execute("./server", "log.csv", cwd=tmp_path)
    version, *w = re.findall(r"[\d.]+", shown)

    problem = fb.Quadratic(np.array([[1.0, 2], [3, 4], [5, 6]]))
    log = fb.read_arrival_log(tmp_path / "log.csv", clients=3)
    schedule = fb.schedule(log, fb.FedBuff(buffer_size=2))
    run = fb.replay(problem, schedule, fb.LocalSGD(steps=3, lr=0.1))
    assert schedule.n_steps == int(version) == 6
    assert run.w.tolist() == [float(x) for x in w]


def test_a_whole_simulation_in_c(installed: Path, tmp_path: Path) -> None:
    """simulate.c reads delays, makes their schedule, replays it and prints the loss: the bits are Python's."""
    need("cc")
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    given = flags(installed, "--cflags", "--libs")
    execute("cc", *strict, str(EXAMPLES / "simulate.c"), *given, "-o", "simulate", cwd=tmp_path)
    random = np.random.default_rng(8)
    client = np.sort(random.integers(12, size=300))
    client[:12] = np.arange(12)  # all have one at least
    client.sort()
    compute, upload = random.lognormal(size=300), random.exponential(0.25, size=300)
    lines = [f"{c},{a!r},{b!r}" for c, a, b in zip(client, compute.tolist(), upload.tolist(), strict=True)]
    (tmp_path / "delays.csv").write_text("\n".join(["client,compute,upload", *lines]) + "\n")
    shown = execute("./simulate", "delays.csv", cwd=tmp_path)

    rows = 2 * (np.arange(840) * 7919 % 1024 / 1024 - 0.5)
    x = rows.reshape(120, 7)
    label = (np.cumsum(x * np.arange(7.0), axis=1)[:, -1] > 0).astype(np.int64)
    problem = fb.Logistic(x, label, np.arange(120) // 10, l2=0.125, intercept=False)
    strategy = fb.FedBuff(4, max_staleness=4, norm="arrivals", staleness=lambda t: 0.5**t)
    schedule = fb.schedule(fb.read_trace(tmp_path / "delays.csv"), strategy, 6, server_steps=60, seed=3)
    metrics = ("loss", "grad_norm_sq", "accuracy")
    local = fb.LocalSGD(steps=3, lr=0.25, batch_size=4)
    run = fb.replay(problem, schedule, local, strategy=strategy, seed=5, eval_every=60, metrics=metrics)
    loss, norm, accuracy = (run.history.last[name] for name in metrics)
    assert shown == (
        f"60 server steps at time {schedule.step_time[-1]:.17g}\n"
        f"loss {loss:.17g}, squared gradient norm {norm:.17g}, accuracy {accuracy:.17g}\n"
    )


def test_own_rule_in_c(installed: Path, tmp_path: Path) -> None:
    """own_rule.c, beside the same rule in Python."""
    need("cc")
    given = flags(installed, "--cflags", "--libs")
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    execute("cc", *strict, str(EXAMPLES / "own_rule.c"), *given, "-o", "own_rule", cwd=tmp_path)
    shown = execute("./own_rule", cwd=tmp_path)

    def median(step: Any) -> None:
        step.out[:] = step.w - step.lr / (1 + step.state[0]) * np.median(step.deltas, axis=0)
        step.state[0] += 1

    server = fb.Server(np.zeros(3), fb.FedBuff(3, 1.0, own=fb.OwnRule(median, n_state=1)))
    for k in range(12):
        version, _ = server.download()
        server.upload(np.array([1e6 if k % 3 == 2 else 1.0 + k, -0.5 * k, k * k]), version)
    assert shown == f"version 4, w {server.w[0]:.17g} {server.w[1]:.17g} {server.w[2]:.17g}\n"


def test_cpp_program_by_cmake(installed: Path, tmp_path: Path) -> None:
    need("cmake", "c++")
    shutil.copytree(EXAMPLES / "cpp", tmp_path / "cpp")
    (folder,) = flags(installed, "--cmakedir")
    assert folder.startswith(str(installed))
    execute("cmake", "-S", "cpp", "-B", "build", f"-Dfedbuff_DIR={folder}", cwd=tmp_path)
    execute("cmake", "--build", "build", cwd=tmp_path)
    shown = execute("build/simulator", "log.csv", cwd=tmp_path)

    def pull(client: int, task: int, w: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Two steps of 1/4 toward the client's number."""
        moved = w.copy()
        for _ in range(2):
            moved -= 0.25 * (moved - client)
        return w - moved

    log = fb.read_arrival_log(tmp_path / "log.csv", clients=8)
    schedule = fb.schedule(log, fb.FedBuff(buffer_size=3))
    assert schedule.n_steps == 40
    run = fb.replay(fb.Callback(pull, w0=np.zeros(1), n_clients=8), schedule, metrics=())
    assert shown == f"version 40, w {run.w[0]:.17g}\n"


def test_cmake_refuses_a_later_version(installed: Path, tmp_path: Path) -> None:
    need("cmake", "c++")
    (folder,) = flags(installed, "--cmakedir")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(x LANGUAGES CXX)\nfind_package(fedbuff 99 REQUIRED)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", ".", "-B", "b", f"-Dfedbuff_DIR={folder}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0 and f"version: {fb.__version__}" in done.stderr


def test_cython_module(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    need("cc")
    shutil.copytree(EXAMPLES / "cython", tmp_path / "cython")
    folder = tmp_path / "cython"
    installs.run(
        "setup.py", "-q", "build_ext", "--inplace", cwd=folder, PYTHONPATH=str(installed), PYTHONWARNINGS="default"
    )
    path = os.pathsep.join([str(installed), str(folder)])
    shown = installs.run("train.py", cwd=folder, PYTHONPATH=path).stdout
    assert shown.startswith("version 30, ") and shown.endswith("the replay is equal\n")


@pytest.mark.parametrize(
    ("script", "needs"),
    [
        ("numba_loop", "numba"),
        ("own_rule", "numba"),
        ("simpy_model", "simpy"),
        ("asyncio_server", "asyncio"),
        ("torch_loop", "torch"),
    ],
)
def test_script(installed: Path, tmp_path: Path, script: str, needs: str) -> None:
    pytest.importorskip(needs)
    code = "import fedbuff, runpy, sys; sys.argv = sys.argv[1:]; assert fedbuff.__file__.startswith(sys.argv.pop())\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    shown = installs.run(
        "-c", code, str(EXAMPLES / f"{script}.py"), "log.csv", str(installed), cwd=tmp_path, PYTHONPATH=str(installed)
    ).stdout
    assert shown.endswith("the replay is equal\n")
    assert (tmp_path / "log.csv").stat().st_size > 100


def test_every_example_is_tested_and_shown() -> None:
    files = {p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*") if p.suffix != ".pyc" and p.is_file()}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    for name in sorted(files):
        assert (EXAMPLES / name).read_text(encoding="utf-8") in pages, f"no page shows {name} as it is"
    tested = Path(__file__).read_text(encoding="utf-8")
    assert all(Path(name).stem in tested or Path(name).parent.name in ("cpp", "cython") for name in files)


def test_command_line_says_where_things_are() -> None:
    def shown(*options: str) -> str:
        return installs.run("-m", "fedbuff", *options, cwd=installs.ROOT, PYTHONPATH=str(installs.ROOT)).stdout.strip()

    assert shown("--cflags") == f"-I{fb.get_include()}"
    assert shown("--cmakedir") == fb.get_cmake_dir()
    assert shown("--cflags", "--libs").startswith(f"-I{fb.get_include()} -L")
