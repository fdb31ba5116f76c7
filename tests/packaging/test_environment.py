"""FEDBUFF_BACKEND, FEDBUFF_ISA and FEDBUFF_NUM_THREADS: refused where they make no sense, in force where they do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import installs
import pytest

import fedbuff as fb
from fedbuff import backends

_core = pytest.importorskip("fedbuff._core", reason="nothing was compiled")

LEVELS = list(_core.available_levels())
PACKAGE = str(Path(fb.__file__).parents[1])
# Sums of products of which a fused multiply-add rounds once and a multiplication and an addition twice.
BITS = """
import hashlib
import numpy as np
import fedbuff as fb
rng = np.random.default_rng(0)
w, *deltas = rng.standard_normal((4, 1001)).astype(np.float32)
out = fb.aggregate(w, deltas, [0.3, 0.7, 0.9], lr=0.1)
"""


def run(code: str, ok: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    return installs.run("-c", code, cwd=Path(PACKAGE), ok=ok, PYTHONPATH=PACKAGE, **environment)


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"FEDBUFF_BACKEND": "fortran"},
            "ValueError: FEDBUFF_BACKEND='fortran': expected one of cpp, numba, reference",
        ),
        ({"FEDBUFF_BACKEND": ""}, "ValueError: FEDBUFF_BACKEND=''"),
        ({"FEDBUFF_ISA": "sse9"}, "ValueError: FEDBUFF_ISA='sse9': expected one of "),
        ({"FEDBUFF_ISA": "AVX2"}, "ValueError: FEDBUFF_ISA='AVX2': expected one of "),
        (
            {"FEDBUFF_ISA": "baseline", "FEDBUFF_BACKEND": "reference"},
            "ValueError: FEDBUFF_ISA='baseline': only the cpp",
        ),
        ({"FEDBUFF_NUM_THREADS": "0"}, "ValueError: FEDBUFF_NUM_THREADS='0': expected a whole number"),
        ({"FEDBUFF_NUM_THREADS": "two"}, "ValueError: FEDBUFF_NUM_THREADS='two'"),
        ({"FEDBUFF_NUM_THREADS": "-1"}, "ValueError: FEDBUFF_NUM_THREADS='-1'"),
        ({"FEDBUFF_NUM_THREADS": ""}, "ValueError: FEDBUFF_NUM_THREADS=''"),
    ],
)
def test_refused(environment: dict[str, str], error: str) -> None:
    done = run("import fedbuff as fb; fb.show_config()", ok=False, **environment)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith(error)


@pytest.mark.parametrize("name", ["cpp", "reference"])
def test_backend_in_force(name: str) -> None:
    code = "import fedbuff as fb; fb.show_config(); print(fb.Server.__module__)"
    shown = run(code, FEDBUFF_BACKEND=name).stdout
    assert re.search(rf"^backend +{name}$", shown, re.MULTILINE)
    assert shown.splitlines()[-1] == {"cpp": "fedbuff._server", "reference": "fedbuff.backends.reference"}[name]


def test_threads_in_force() -> None:
    code = "from fedbuff import backends; print(backends.default_threads())"
    assert run(code, FEDBUFF_NUM_THREADS="7").stdout.strip() == "7"
    assert int(run(code).stdout) >= 1


def bits_of(level: str) -> str:
    """What the level's own kernels give, asked for by name in this process."""
    before = _core.level()
    assert _core.force_level(level)
    try:
        namespace: dict[str, object] = {}
        exec(BITS, namespace)
        return namespace["out"].tobytes().hex()  # type: ignore[attr-defined, no-any-return]
    finally:
        _core.force_level(before)


@pytest.mark.skipif(backends.current().name != "cpp", reason="levels are of the compiled backend")
@pytest.mark.parametrize("level", LEVELS)
def test_level_in_force(level: str) -> None:
    """The forced level says its name, and its bits are those of its own kernels and not those of another rounding."""
    shown = run(BITS + "print(out.tobytes().hex())\nfb.show_config()", FEDBUFF_ISA=level).stdout
    assert re.search(rf"^level used +{level}$", shown, re.MULTILINE)
    got = shown.splitlines()[0]
    assert got == bits_of(level)
    if level == "baseline":
        assert all(got != bits_of(other) for other in LEVELS if other != "baseline")
    else:
        assert got != bits_of("baseline")


@pytest.fixture(scope="module")
def registers() -> dict[str, set[str]]:
    """Kinds of vector registers by namespace, from the library's machine code."""
    objdump = shutil.which("objdump")
    library = Path(fb.__file__).parent / f"libfedbuff-{fb.__version__}.so"
    if objdump is None or not library.exists():
        pytest.skip("no objdump")
    listing = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", library], capture_output=True, text=True
    ).stdout
    used: dict[str, set[str]] = {}
    namespace = ""
    for line in listing.splitlines():
        if line.endswith(">:"):
            found = re.search(r"fedbuff::(avx512|avx2|baseline)::", line)
            wide = re.search(r"_wider?\(|::Wide\w+::", line)  # called only where the CPU was asked
            namespace = found.group(1) if found else "wide" if wide else "the rest"
            used.setdefault(namespace, set())
        elif "mm" in line:
            used[namespace] |= set(re.findall(r"%([xyz]mm)\d", line))
    return used


@pytest.mark.skipif("avx2" not in LEVELS, reason="not an x86-64 CPU with AVX2")
def test_levels_keep_to_their_instructions(registers: dict[str, set[str]]) -> None:
    """Nothing outside a level's own functions needs more than every x86-64 CPU has."""
    assert registers["baseline"] == {"xmm"}
    assert registers["the rest"] <= {"xmm"}
    assert "ymm" in registers["avx2"] and "zmm" not in registers["avx2"]
    if "avx512" in registers:
        assert "zmm" in registers["avx512"]
