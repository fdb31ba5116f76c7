"""Two things, or more, in turn, in one process group on the same cores: a ratio with its spread.

    python benches/compare.py "ours replay W1 4000" "numba replay W1 4000"
    python benches/compare.py "ours replay W3 600 2" "ours replay W3 600 1" --cores 2 --turns 9

Each contender (`contend.py` says who there is) is a process that gets ready once and then takes turns, one at a time,
while the others wait. What disturbs a turn makes it slower, never faster, so a rate is the best of its turns; the
spread is that of the ratios turn by turn. Times on one core are CPU times, which others on the machine disturb less.
Words such as FEDBUFF_ISA=avx2 before a contender are set in its environment.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
NEEDS = {"heapq": ("numpy",), "cpp": ("numpy",), "ours": ("fedbuff",), "torch_networks": ("torch",)} | {
    who: (who, "torch") for who in ("pfl", "flgo", "flsim")
}
SECONDS = 0.3  # that a turn lasts at least


class Missing(Exception):
    """A contender whose library is in none of the environments."""


class Failed(Exception):
    """A contender that ended instead of taking its turn."""


def interpreters() -> list[str]:
    """This one; that of .venv-rivals beside the benches; those in FEDBUFF_BENCH_PYTHON, separated by colons."""
    others = [HERE.parent / ".venv-rivals" / "bin" / "python"]
    others += [Path(path) for path in os.environ.get("FEDBUFF_BENCH_PYTHON", "").split(":") if path]
    return [sys.executable, *(str(path) for path in others if path.exists())]


@functools.cache
def python_with(*packages: str) -> str:
    """The first interpreter that can import all of the packages."""
    code = f"from importlib.util import find_spec; import sys; sys.exit(None in map(find_spec, {packages!r}))"
    for python in interpreters():
        if subprocess.run([python, "-c", code], cwd=HERE).returncode == 0:
            return python
    names = " with ".join(packages)
    raise Missing(f"{names} is in no environment: install it, or name an interpreter in FEDBUFF_BENCH_PYTHON")


def python_for(who: str) -> str:
    return python_with(*NEEDS.get(who, (who,)))


def parts_of(text: str) -> tuple[dict[str, str], list[str]]:
    """A contender's environment, and who it is with what and arguments."""
    words = shlex.split(text)
    n = next((i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), len(words))
    return dict(word.split("=", 1) for word in words[:n]), words[n:]


class Contender:
    """A process that takes turns."""

    def __init__(self, text: str, cores: int = 1) -> None:
        self.text, self.cores = text, cores
        chosen, (who, *rest) = parts_of(text)
        python = python_for(who)
        pinned = sorted(os.sched_getaffinity(0))[-cores:]
        threads = dict.fromkeys(
            (f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA", "NUMEXPR")), str(cores)
        )
        eigen = "--xla_cpu_multi_thread_eigen=false" if cores == 1 else ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, as long as the process lives
        self._process = subprocess.Popen(
            [python, str(HERE / "contend.py"), who, *rest],
            cwd=HERE,
            env={**os.environ, **threads, "XLA_FLAGS": eigen, "JAX_PLATFORMS": "cpu", **chosen},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, pinned),
        )
        try:
            first = self._answer()
            if "missing" in first:
                raise Missing(f"{text}: {first['missing']}")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        self._process.wait()
        self._errors.seek(0, os.SEEK_SET)
        raise Failed(f"{self.text}: {self._errors.read()[-2000:]}")

    def turn(self, seconds: float = 0.0) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        result = self._answer()
        result["rate"] = result["amount"] / (result["cpu"] if self.cores == 1 else result["wall"])
        return result

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@dataclass
class Measured:
    """The turns of one contender."""

    text: str
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [turn["rate"] for turn in self.turns]

    @property
    def rate(self) -> float:
        return max(self.rates)


@dataclass(frozen=True)
class Ratio:
    """How often faster the first is: best against best, and the quartiles of turn against turn."""

    best: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.best:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(first: Measured, second: Measured) -> Ratio:
    each = np.divide(first.rates, second.rates)
    low, high = np.quantile(each, [0.25, 0.75])
    return Ratio(first.rate / second.rate, float(low), float(high))


@contextlib.contextmanager
def contenders(texts: Sequence[str], cores: Sequence[int] | int = 1) -> Iterator[list[Contender]]:
    each = [cores] * len(texts) if isinstance(cores, int) else list(cores)
    made: list[Contender] = []
    try:
        for text, n in zip(texts, each, strict=True):
            made.append(Contender(text, n))
        yield made
    finally:
        for one in made:
            one.close()


def write_answers(texts: Sequence[str]) -> None:
    """Has fedbuff write the update that each rival's must equal, for the workloads named."""
    for who, what, *rest in (parts_of(text)[1] for text in texts):
        if who != "ours" and what in ("replay", "sgd") and rest:
            with contenders([f"ours answer {rest[0]}"]):
                pass
        if who != "ours" and what in ("network", "network_rounding"):
            with contenders([f"ours network_answer {rest[0]} {rest[1]}"]):
                pass


def present(texts: Sequence[str]) -> list[str]:
    """Those whose library is in one of the environments."""
    found = []
    for text in texts:
        with contextlib.suppress(Missing):
            python_for(parts_of(text)[1][0])
            found.append(text)
    return found


def compare(
    texts: Sequence[str], *, turns: int = 5, cores: Sequence[int] | int = 1, seconds: float = SECONDS
) -> list[Measured]:
    """Lets the contenders take turns of so many seconds at least, after one that does not count; answers must agree."""
    write_answers(texts)
    results = [Measured(text) for text in texts]
    with contenders(texts, cores) as made:
        for one in made:
            one.turn()
        for _ in range(turns):
            for one, result in zip(made, results, strict=True):
                result.turns.append(one.turn(seconds))
    for name, tolerance in (("loss", 0.05), ("staleness", 0.05), ("norm", 0.001), ("stay", 0.05), ("pace", 0.05)):
        answers = [result.turns[0][name] for result in results if name in result.turns[0]]
        if answers and max(answers) - min(answers) > tolerance * abs(max(answers)):
            raise AssertionError(f"{name} differs: {dict(zip(texts, answers, strict=True))}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", nargs="+", help="who, what and arguments, quoted")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a turn lasts at least")
    options = parser.parse_args()
    results = compare(options.contender, turns=options.turns, cores=options.cores, seconds=options.seconds)
    width = max(len(result.text) for result in results)
    for result in results:
        answers = {key: result.turns[0][key] for key in ("loss", "staleness") if key in result.turns[0]}
        beside = "" if result is results[0] else f"  first / this = {ratio(results[0], result)}"
        shown = " ".join(f"{key} {value:.4g}" for key, value in answers.items())
        print(f"{result.text:{width}}  {result.rate:12.5g} /s  {shown}{beside}")


if __name__ == "__main__":
    main()
