"""One contender in a process of its own: `python benches/contend.py WHO WHAT [ARGUMENT ...]`.

WHO is `ours`, one of rivals/with_<WHO>.py, or one of rivals/peer_<WHO>.py. It gets ready, prints a line of JSON, and
then takes a turn for every line that it reads: the work once, and again until the turn has lasted as many seconds as
the line says. It prints what the turn took, wall and CPU seconds, the amount of work, and the answer, so that whoever
compares can see that both sides computed the same thing.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def module_of(who: str) -> Any:
    if who == "ours":
        return import_module("ours")
    kind = "with" if (HERE / "rivals" / f"with_{who}.py").exists() else "peer"
    return import_module(f"rivals.{kind}_{who}")


def main() -> None:
    who, what, *arguments = sys.argv[1:]
    sys.path.insert(0, str(HERE))
    from rivals.data import loss_of, workload

    try:
        run = getattr(module_of(who), what)(*arguments)
    except ImportError as error:
        if error.name is None or error.name.startswith("rivals"):
            raise
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    losses: list[float] = []
    for line in sys.stdin:
        least, amount = float(line.strip() or 0), 0.0
        begin, cpu = time.perf_counter(), time.process_time()
        while True:
            result = run()
            amount += result["amount"]
            wall = time.perf_counter() - begin
            if wall >= least:
                break
        cpu = time.process_time() - cpu
        model = result.pop("model", None)
        if model is not None:  # every turn computes the same, so that one look is enough
            if not losses:
                losses.append(loss_of(workload(arguments[0]), model))
            result["loss"] = losses[0]
        print(json.dumps(result | {"wall": wall, "cpu": cpu, "amount": amount}), flush=True)


if __name__ == "__main__":
    main()
