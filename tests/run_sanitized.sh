#!/usr/bin/env bash
# run_sanitized.sh <python> <built> [option of pytest]...: the tests that work the edges of the compiled modules, on a build
# of them with ASan and UBSan in the folder <built>. Numba and pyarrow are kept out: they bring compilers and allocators
# that the sanitizers do not know.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
out=$2
shift 2
cd "$(dirname "$0")/.."

mkdir -p build/blocked
for name in numba pyarrow; do
    echo "raise ImportError('$name is kept out under sanitizers')" >"build/blocked/$name.py"
done

export PYTHONPATH=$PWD/build/blocked:$out PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
compiler=${CXX:-g++}
preload="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libstdc++.so)"

level=$(
    LD_PRELOAD=$preload "$python" - "$out" <<'CHECK'
import sys, fedbuff, fedbuff._core
assert fedbuff._core.__file__.startswith(sys.argv[1]), f"not the sanitized build: {fedbuff._core.__file__}"
print(fedbuff._core.level())
CHECK
)

LD_PRELOAD=$preload "$python" -m pytest -q -p no:cacheprovider "$@" \
    tests/rule/test_server.py tests/problems/test_problems.py tests/rule/test_presets.py tests/boundary/test_inputs.py \
    tests/embedding/test_parts.py tests/embedding/test_bad_use.py \
    -k "not numba and not threads_may_share"
# The C++ tests work the edges of every level; this one is what the bindings reach.
LD_PRELOAD=$preload "$python" -m pytest -q -p no:cacheprovider "$@" tests/backends/test_conformance.py -k "cpp-$level"
