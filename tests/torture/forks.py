"""Runs a function in a fork of this process, which has imported all of fedbuff and has no threads yet: a kill and the
start after it cost tens of milliseconds."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Ended", "run"]


@dataclass(frozen=True)
class Ended:
    """How a child ended: `value` is what the function returned, `error` the text of its exception."""

    killed: bool
    seconds: float
    value: Any = None
    error: str | None = None


def run(call: Callable[[], Any], kill_after: float | None = None, most: float = 120.0) -> Ended:
    """Calls a function in a child, which is killed after so many seconds; TimeoutError where it does not end."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _call(call, writer)
    os.close(writer)
    try:
        if kill_after is not None and not select.select([reader], [], [], kill_after)[0]:
            os.kill(child, signal.SIGKILL)
        elif not select.select([reader], [], [], most)[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"it did not end in {most} s")
        with os.fdopen(reader, "rb", closefd=False) as pipe:
            content = pipe.read()
    finally:
        os.close(reader)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - began
    if not content:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            raise RuntimeError(f"it ended by {signal.Signals(os.WTERMSIG(status)).name}")
        return Ended(True, seconds)
    value, error = pickle.loads(content)
    return Ended(False, seconds, value, error)


def _call(call: Callable[[], Any], writer: int) -> None:
    try:
        answer = (call(), None)
    except BaseException:
        answer = (None, traceback.format_exc())
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(pickle.dumps(answer))
    sys.stdout.flush()
    os._exit(0)
