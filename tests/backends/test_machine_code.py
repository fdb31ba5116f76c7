"""The loops that measure the machine, in the machine code: none of their work may be left out by the compiler."""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import fedbuff
from fedbuff import _build_info

LIBRARY = Path(fedbuff.__file__).parent / f"libfedbuff-{fedbuff.__version__}.so"
CHAINS, READS, ADDITIONS = 12, 8, 16  # csrc/core/kernels/level/limits.inl
LEVELS = ("baseline", "avx2", "avx512")
TYPES = ("float", "double")

if shutil.which("objdump") is None or shutil.which("nm") is None:
    pytest.skip("objdump and nm are not installed: the machine code cannot be read", allow_module_level=True)
if platform.machine() != "x86_64" or not LIBRARY.exists():
    pytest.skip("the machine code is read on x86-64 with the compiled core only", allow_module_level=True)
if "-O3" not in _build_info.FLAGS.split():
    pytest.skip("a build without -O3 is not what measures", allow_module_level=True)


@functools.cache
def symbols() -> dict[str, tuple[int, int]]:
    """Where each of the loops begins and ends in the library, by its name."""
    command = ["nm", "--demangle", "--print-size", str(LIBRARY)]
    loop = r"(fedbuff::\w+::(?:multiply_add|read_streams|write_stream|copy_stream|dependent_additions)[^(]*)\("
    wanted = re.compile(rf"([0-9a-f]+) ([0-9a-f]+) t (?:\w+ )?{loop}")
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [match for match in map(wanted.match, lines) if match is not None]
    if not found:
        pytest.skip("the core has no symbols: its functions cannot be found in the machine code")
    return {match[3]: (int(match[1], 16), int(match[1], 16) + int(match[2], 16)) for match in found}


def instructions(name: str) -> list[str]:
    begin, end = symbols()[name]
    command = ["objdump", "--disassemble", "--no-show-raw-insn", f"--start-address={begin}", f"--stop-address={end}"]
    done = subprocess.run([*command, str(LIBRARY)], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "\t" in line]


def loops(name: str) -> list[list[str]]:
    """The bodies of the function's innermost loops: from a jump's target to the jump, where it goes backwards."""
    code = instructions(name)
    address = [int(line.split(":")[0], 16) for line in code]
    found = []
    for end, line in enumerate(code):
        jump = re.search(r"\tj\w+ +([0-9a-f]+) ", line)
        if jump is not None and int(jump[1], 16) in address[: end + 1]:
            found.append((address.index(int(jump[1], 16)), end))
    inner = [a for a in found if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in found)]
    return [[line.split("\t", 1)[1].strip() for line in code[begin:end]] for begin, end in inner]


def destinations(body: list[str], operation: str) -> set[str]:
    """The vector registers that such instructions of whole vectors write."""
    found = [re.match(rf"{operation}\w*p[sd] .*(%[xyz]mm\d+)$", line) for line in body]
    return {match[1] for match in found if match is not None}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_chain_has_a_multiply_add_of_its_own(level: str, kind: str) -> None:
    name = f"fedbuff::{level}::multiply_add<{kind}>"
    operations = ("mul", "add") if level == "baseline" else ("vfmadd",)
    for operation in operations:
        assert max(len(destinations(body, operation)) for body in loops(name)) >= CHAINS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_vector_is_read(level: str, kind: str) -> None:
    seen = [[line for line in body if re.match(r"v?(?:add|movu)p[sd] .*\(%\w+", line)]
            for body in loops(f"fedbuff::{level}::read_streams<{kind}>")]  # fmt: skip
    assert max(len(set(lines)) for lines in seen) >= READS


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("loop", ["write_stream", "copy_stream"])
def test_every_vector_is_written_by_a_store_of_the_level(loop: str, level: str, kind: str) -> None:
    width = {"baseline": "xmm", "avx2": "ymm", "avx512": "zmm"}[level]
    stores = [[line for line in body if re.match(rf"v?mov\w+ +%{width}\d+,.*\(%", line)]
              for body in loops(f"fedbuff::{level}::{loop}<{kind}>")]  # fmt: skip
    assert sum(len(lines) >= 4 for lines in stores) >= 1  # unrolled, and not a call of memset or memcpy
    if level != "baseline":
        assert any(line.startswith("vmovnt") for lines in stores for line in lines)


@pytest.mark.parametrize("level", LEVELS)
def test_every_addition_waits_for_the_one_before_it(level: str) -> None:
    (body,) = loops(f"fedbuff::{level}::dependent_additions")
    added = [line for line in body if re.match(r"add +%\w+,%\w+$", line)]
    assert len(added) == ADDITIONS and len(set(added)) == 1
