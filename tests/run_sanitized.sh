#!/usr/bin/env bash
# run_sanitized.sh <python> <built> [option of pytest]...: the tests that work the edges of the compiled modules, on a build
# of them with ASan and UBSan in the folder <built>.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
out=$2
shift 2
cd "$(dirname "$0")/.."

level=$(
    tests/sanitized_python.sh "$python" "$out" - "$out" <<'CHECK'
import sys, fedbuff, fedbuff._core
assert fedbuff._core.__file__.startswith(sys.argv[1]), f"not the sanitized build: {fedbuff._core.__file__}"
print(fedbuff._core.level())
CHECK
)

tests/sanitized_python.sh "$python" "$out" -m pytest -q -p no:cacheprovider "$@" \
    tests/rule/test_server.py tests/problems/test_problems.py tests/rule/test_presets.py tests/boundary/test_inputs.py \
    tests/embedding/test_parts.py tests/embedding/test_bad_use.py \
    -k "not numba and not threads_may_share"
# The C++ tests work the edges of every level; this one is what the bindings reach.
tests/sanitized_python.sh "$python" "$out" -m pytest -q -p no:cacheprovider "$@" tests/backends/test_conformance.py -k "cpp-$level"
