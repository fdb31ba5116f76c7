"""What a boundary costs: uploads through C, C++, Cython and Numba beside the core's own loop, and through Python beside
the raw kernel, NumPy and PyTorch; and what many producer threads gain. `pytest benches/bench_boundary.py -s`.

Where the loader and the allocator happen to put a process's memory, and what else the machine does, change an upload of
a small model by more than a boundary does. So the five loops live in one process, with the same delta, and take turns
of milliseconds; what counts is the ratio within a cycle of turns, the median over the cycles of several processes. The
assertions only say that both sides compute the same and that nothing is absurdly slow.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record import note

import fedbuff as fb
from fedbuff import _core
from fedbuff._machine import embedding as _embedding

ROOT = Path(__file__).resolve().parents[1]
K = 10
TURNS = 5
WARM_UP, CYCLES = 5, 60

# A turn is n uploads, for which there are downloads before the clock starts; the seconds that they took. At the end, a
# number of the model.
C_LOOP = """
#include HEADER
#include <stdint.h>
#include <time.h>
static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
static float w0[1000];
static SERVER;
EXPORT void prepare(void) { PREPARE }
EXPORT double turn(const float* delta, int n) {
  int64_t version = 0;
  for (int i = 0; i < n; ++i) { DOWNLOAD }
  const double begin = seconds();
  for (int i = 0; i < n; ++i) { UPLOAD }
  return seconds() - begin;
}
EXPORT double number(void) { return NUMBER; }
"""
RULE = "fb_rule rule = FB_RULE_INIT; rule.buffer_size = 10; rule.lr = 0.1;"
LANGUAGES = {
    "core": (
        "cpp",
        {
            "HEADER": '"server.hpp"',
            "SERVER": "fb_server* server",
            "PREPARE": RULE + "server = fedbuff::make_server(rule, FB_F32, 1000, w0).release();",
            "DOWNLOAD": "fb_model* model; server->download(&version, &model); fb_model_release(model);",
            "UPLOAD": "if (server->upload(FB_F32, 1000, delta, version, 1.0, -1, nullptr) != FB_OK) return -1;",
            "NUMBER": "static_cast<const float*>(fb_model_data(server->model()))[3]",
        },
    ),
    "c": (
        "c",
        {
            "HEADER": "<fedbuff/fedbuff.h>",
            "SERVER": "fb_server* server",
            "PREPARE": RULE + "fb_server_create(&rule, FB_F32, 1000, w0, &server);",
            "DOWNLOAD": "fb_model* model; fb_server_download(server, &version, &model); fb_model_release(model);",
            "UPLOAD": "if (fb_server_upload(server, FB_F32, 1000, delta, version, 1.0, FB_NO_TICKET, 0)) return -1;",
            "NUMBER": "((const float*)fb_model_data(fb_server_model(server)))[3]",
        },
    ),
    "c++": (
        "cpp",
        {
            "HEADER": "<fedbuff/fedbuff.hpp>",
            "SERVER": "fedbuff::Server<float>* server",
            "PREPARE": "server = new fedbuff::Server<float>(fedbuff::rule(10, 0.1), {w0, 1000});",
            "DOWNLOAD": "version = server->download().version;",
            "UPLOAD": "server->upload<float>({delta, 1000}, version);",
            "NUMBER": "server->w()[3]",
        },
    ),
}
CYTHON_LOOP = """
# cython: language_level=3, boundscheck=False
from libc.stdint cimport int64_t
from fedbuff cimport Server

def run(Server server, const float[::1] delta, int64_t version, int n):
    cdef int bad = 0
    with nogil:
        for _ in range(n):
            bad |= server.upload_raw(&delta[0], version, 1.0, NULL)
    return bad
"""
# All five in one process; prints for each, turn by turn, how long it took.
LOOPS = """
import ctypes, json, sys, time
import numpy as np, fedbuff as fb
from numba import njit
from fedbuff import numba as fbn
sys.path.insert(0, ".")
import loop as cython_loop

warm_up, cycles, n, process = map(int, sys.argv[1:])
memory = np.zeros(1016, np.float32)
delta = memory[-memory.ctypes.data % 64 // 4:][:1000]
delta[3] = 1

@njit
def numba_loop(server, delta, version, n):
    for _ in range(n):
        fbn.upload(server, delta, version)

class Library:
    def __init__(self, name):
        library = ctypes.CDLL(f"./loop_{name}.so")
        library.turn.argtypes, library.turn.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_double
        library.number.restype = ctypes.c_double
        library.prepare()
        self.turn, self.number = lambda: library.turn(delta.ctypes.data, n), library.number

class Module:
    def __init__(self, run):
        self.run, self.server = run, fb.Server(np.zeros(1000, np.float32), fb.FedBuff(buffer_size=10))
    def turn(self):
        for _ in range(n):
            version, _ = self.server.download()
        begin = time.perf_counter()
        self.run(self.server, version)
        return time.perf_counter() - begin
    def number(self):
        return float(self.server.w[3])

make = {
    "core": lambda: Library("core"),
    "c": lambda: Library("c"),
    "c++": lambda: Library("cpp"),
    "cython": lambda: Module(lambda server, version: cython_loop.run(server, delta, version, n)),
    "numba": lambda: Module(lambda server, version: numba_loop(fbn.handle(server), delta, version, n)),
}
def rotated(k):
    names = list(make)
    return names[k % len(names):] + names[:k % len(names)]
loops = {name: make[name]() for name in rotated(process)}  # nobody is always the first in memory, or in time
seconds = {name: [] for name in make}
for cycle in range(warm_up + cycles):
    for name in rotated(cycle):
        seconds[name].append(loops[name].turn())
for name, loop in loops.items():
    expected = -(warm_up + cycles) * n / 10
    assert abs(loop.number() - expected) < 1e-3 * -expected, (name, loop.number(), expected)
json.dump({name: taken[warm_up:] for name, taken in seconds.items()}, sys.stdout)
"""
PRODUCERS = """
#include <fedbuff/fedbuff.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
int main(int, char** argument) {
  const std::size_t dim = std::strtoull(argument[1], nullptr, 10);
  const int threads = std::atoi(argument[2]), uploads = std::atoi(argument[3]) / threads;
  fedbuff::Server<float> server(fedbuff::rule(10, 1.0), std::vector<float>(dim));
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> all;
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&] {
        const std::vector<float> delta(dim, round % 2 == 0 ? 1.0f : -1.0f);
        ++ready;
        while (!go) std::this_thread::yield();
        for (int i = 0; i < uploads; ++i) server.upload<float>(delta, server.download().version);
      });
    }
    while (ready < threads) std::this_thread::yield();
    const auto begin = std::chrono::steady_clock::now();
    go = true;
    for (auto& thread : all) thread.join();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const double rate = uploads * threads / taken.count();
    best = rate > best ? rate : best;
  }
  const auto w = server.w();
  for (const float x : w) if (x != w[0]) return 1;
  std::printf("%.9g %.9g\\n", best, -static_cast<double>(w[0]) + 0.0 * server.fill());
  return server.version() == std::int64_t{5} * uploads * threads / 10 && server.outstanding() == 0 ? 0 : 2;
}
"""


def compiled(folder: Path, name: str, suffix: str, source: str, *flags: str) -> Path:
    """A program, or, by flags, a library; links the package's own."""
    (folder / f"{name}.{suffix}").write_text(source)
    standard = "-std=c++17" if suffix == "cpp" else "-std=gnu99"
    command = ["c++" if suffix == "cpp" else "cc", "-O2", standard, f"{name}.{suffix}", "-pthread", *flags]
    command += [*_embedding.cflags().split(), f"-I{ROOT}/csrc/core", *_embedding.libs().split(), "-o"]
    output = folder / (f"{name}.so" if "-shared" in flags else name)
    subprocess.run([*command, str(output)], cwd=folder, check=True)
    return output


def output_of(command: list[str], folder: Path, cores: int) -> str:
    pin = functools.partial(os.sched_setaffinity, 0, range(cores))
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=pin).stdout


def test_languages(benchmark: Any, tmp_path: Path) -> None:
    """Uploads per second at d = 1000; each as a share of the core's own loop. The bar: 0.95."""
    for name, (suffix, parts) in LANGUAGES.items():
        source = C_LOOP.replace("EXPORT", 'extern "C"' if suffix == "cpp" else "")
        for key, value in parts.items():
            source = source.replace(key, value)
        compiled(tmp_path, f"loop_{name.replace('+', 'p')}", suffix, source, "-shared", "-fPIC")
    (tmp_path / "loop.pyx").write_text(CYTHON_LOOP)
    folder = str(Path(_embedding.library()).parent)
    build = f"""
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
sys.argv = ["setup.py", "-q", "build_ext", "--inplace"]
loop = Extension("loop", ["loop.pyx"], include_dirs=[{fb.get_include()!r}], libraries=["fedbuff"],
                 library_dirs=[{folder!r}], runtime_library_dirs=[{folder!r}])
setup(name="loop", ext_modules=cythonize([loop], quiet=True, include_path=[{folder!r} + "/.."]))
"""
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    command = [sys.executable, "-c", LOOPS, str(WARM_UP), str(CYCLES), "10000"]
    processes = [json.loads(output_of([*command, str(k)], tmp_path, cores=1)) for k in range(TURNS)]
    seconds = {name: np.array([taken[name] for taken in processes]) for name in processes[0]}
    core = seconds.pop("core")
    figures = {f"{name}_to_core": float(np.median(core / taken)) for name, taken in seconds.items()}
    assert min(figures.values()) > 0.5
    for name, taken in seconds.items():
        by_process = np.median(core / taken, axis=1)
        figures |= {f"{name}_least": float(by_process.min()), f"{name}_most": float(by_process.max())}
    note(benchmark, core_ns=1e9 / 10_000 * float(np.median(core)), **figures)


def test_python_upload(benchmark: Any) -> None:
    """d = 10^6, float32: Server.upload beside the raw kernel (the bar: 0.95) and in-place loops that refuse what is not
    finite, without a trace, and step at ten (the bar: 2)."""
    dim, n = 1_000_000, 20
    delta = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    server = fb.Server(np.zeros(dim, np.float32), fb.FedBuff(buffer_size=K))
    w, total, other, scaled = np.zeros_like(delta), np.zeros_like(delta), np.zeros_like(delta), np.zeros_like(delta)

    def upload() -> None:
        for _ in range(n):
            server.upload(delta, server.download()[0])

    def kernel() -> None:
        for k in range(n):
            source, target = (total, other) if k % 2 == 0 else (other, total)
            _core.accumulate(source, delta, 1.0, None, None, target)
            if k % K == K - 1:
                _core.sgd_step(w, target, 0.1, 1.0, 0.0, None, w)

    def numpy() -> None:
        for k in range(n):
            assert np.isfinite(delta).all()
            np.multiply(delta, np.float32(1.0), out=scaled)
            np.add(total, scaled, out=total)
            if k % K == K - 1:
                np.multiply(total, np.float32(0.1), out=scaled)
                np.subtract(w, scaled, out=w)
                total[:] = 0

    runs: dict[str, Callable[[], None]] = {"upload": upload, "kernel": kernel, "numpy": numpy}
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(1)
        tensor, model, summed = torch.from_numpy(delta), torch.zeros(dim), torch.zeros(dim)

        def pytorch() -> None:
            for k in range(n):
                assert torch.isfinite(tensor).all()
                summed.add_(tensor, alpha=1.0)
                if k % K == K - 1:
                    model.sub_(summed, alpha=0.1)
                    summed.zero_()

        runs["torch"] = pytorch
    best = dict.fromkeys(runs, 1e9)
    for _ in range(TURNS * 3):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - begin) / n)
    np.testing.assert_allclose(server.w, -delta * (server.version * 1.0), rtol=1e-3)
    figures = {f"{name}_over_upload": seconds / best["upload"] for name, seconds in best.items() if name != "upload"}
    note(benchmark, uploads_per_second=1 / best["upload"], **figures)
    assert figures["numpy_over_upload"] > 0.5


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_producers(benchmark: Any, tmp_path: Path) -> None:
    """Four producer threads on two cores lose nothing (a million uploads, whole numbers, checked sums), and at d = 10^5
    gain over one. The bar: 1.4."""
    program = str(compiled(tmp_path, "producers", "cpp", PRODUCERS))

    def rate_of(dim: int, threads: int, uploads: int) -> float:
        rate, answer = output_of([program, str(dim), str(threads), str(uploads)], tmp_path, cores=2).split()
        assert float(answer) == uploads
        return float(rate)

    rate_of(8, 4, 200_000)
    rates: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(TURNS):
        for threads in rates:
            rates[threads].append(rate_of(100_000, threads, 2000))
    best = {threads: max(of_turns) for threads, of_turns in rates.items()}
    turn_by_turn = float(np.median(np.divide(rates[4], rates[1])))
    note(benchmark, one=best[1], two=best[2], four=best[4], gain=best[4] / best[1], gain_turn_by_turn=turn_by_turn)
    assert best[4] > 0.5 * best[1]
