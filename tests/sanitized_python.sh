#!/usr/bin/env bash
# sanitized_python.sh <python> <built> [argument]...: Python on a build of fedbuff with ASan and UBSan in the folder
# <built>. Numba and pyarrow are kept out: they bring compilers and allocators that the sanitizers do not know.
set -euo pipefail
python=$(realpath --no-symlinks "$1")
out=$2
shift 2
blocked=$(dirname "$0")/../build/blocked

mkdir -p "$blocked"
for name in numba pyarrow; do
    echo "raise ImportError('$name is kept out under sanitizers')" >"$blocked/$name.py"
done

PYTHONPATH=$(realpath "$blocked"):$out
export PYTHONPATH PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
compiler=${CXX:-g++}
LD_PRELOAD="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libstdc++.so)" exec "$python" "$@"
