"""Processes that run a Python function as clients' work, for what holds the GIL.

Each has one thread of every library that it loads, and gets its tasks one group at a time: models and deltas lie in
memory that it shares with this process, the rest goes through a pipe. A worker ends when this process does, also where
that is killed. Which worker runs a group changes nothing in what comes out.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.spec import ClientFunction
from .local import LocalSGD

__all__ = ["WorkerPool"]

Floats = NDArray[np.floating[Any]]

_ATTEMPTS = 3  # at the same tasks, each by a new process
# One thread of each library in a worker: the workers have the cores.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "FEDBUFF_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
_starting = threading.Lock()


class WorkerPool:
    """`n` processes with a copy of the problem each; they start when they are needed."""

    def __init__(self, problem: Any, n: int) -> None:
        try:
            self._problem = pickle.dumps(problem.in_a_worker())
        except Exception as error:
            raise TypeError(
                f"workers: the problem cannot be sent to other processes ({error}); its functions must be ones that a "
                "module has by name, not lambdas or functions inside functions"
            ) from error
        self._dim, self._dtype = problem.dim, problem.dtype
        self._rows = problem.batch or 1
        self._single = problem.batch is None
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()
        self._n = n
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._workers)

    def function(self, seed: int, local: LocalSGD | None) -> ClientFunction:
        """The problem's work for a replay, done by the workers."""
        session = pickle.dumps((seed, local))

        def one(client: int, task: int, w: Floats) -> Floats:
            return np.array(self._run(session, [client], [task], w[None])[0])

        def group(clients: NDArray[np.int64], tasks: NDArray[np.int64], W: Floats) -> Floats:
            return self._run(session, clients.tolist(), tasks.tolist(), W)

        return ClientFunction(one if self._single else group, _same, 0 if self._single else self._rows)

    def close(self) -> None:
        """Ends all processes; calls that wait for one fail."""
        with self._lock:
            self._closed = True
            _end(self._workers)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid]

    def _start_all(self) -> None:
        with self._lock:
            if self._closed:
                raise ValueError("workers: they were ended while tasks waited for them")
            while len(self._workers) < self._n:
                worker = _Worker(len(self._workers), self._problem, self._rows, self._dim, self._dtype)
                self._workers.append(worker)
                self._idle.put(worker)

    def _run(self, session: bytes, clients: list[int], tasks: list[int], W: Floats) -> Floats:
        self._start_all()
        worker = self._idle.get()
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    return worker.run(session, clients, tasks, W)
                except _WorkerEnded as ended:
                    if self._closed:
                        raise ValueError("workers: they were ended while tasks waited for them") from None
                    which = ", ".join(f"task {t} of client {c}" for c, t in zip(clients, tasks, strict=True))
                    text = f"workers: worker {worker.number} {ended} at {which}"
                    if attempt + 1 == _ATTEMPTS:
                        raise ChildProcessError(f"{text}, and so did {_ATTEMPTS - 1} before it at the same") from None
                    with self._lock:
                        if not self._closed:
                            worker.start()
                    warnings.warn(f"{text}; a new one does them again", RuntimeWarning, stacklevel=2)
            raise AssertionError("an attempt returns or raises")
        except (KeyboardInterrupt, SystemExit):
            worker.end()  # it is at work on tasks that nobody waits for
            raise
        finally:
            self._idle.put(worker)


def _same(delta: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return delta  # a worker has checked it


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()


class _WorkerEnded(Exception):
    """A process ended; the text says how."""


class _Failure:
    """What a function raised in a worker, with the text of its traceback."""

    def __init__(self, error: BaseException) -> None:
        self.text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
            self.error: BaseException = error
        except Exception:  # it cannot travel
            self.error = ValueError(f"function: {type(error).__name__}: {error}")

    def throw(self) -> None:
        raise self.error from _InWorker(self.text)


class _InWorker(Exception):
    """The traceback of an error in a worker process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _Worker:
    """One process, its pipe and its memory."""

    def __init__(self, number: int, problem: bytes, rows: int, dim: int, dtype: np.dtype[Any]) -> None:
        self.number, self._problem, self._dtype = number, problem, dtype
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._memory = self._context.RawArray("b", 2 * rows * dim * dtype.itemsize)
        self._shape = (2, rows, dim)
        self._models, self._deltas = np.frombuffer(self._memory, dtype).reshape(self._shape)
        self.start()

    def start(self) -> None:
        """A new process in the place of the one before, if any."""
        self.end()
        self._pipe, theirs = self._context.Pipe()
        arguments = (theirs, self._memory, self._shape, self._dtype.str, self._problem)
        self._process = self._context.Process(target=_serve, args=arguments, daemon=True)
        with _one_thread_and_no_interrupts():
            self._process.start()
        theirs.close()
        self._is_ready = False

    @property
    def pid(self) -> int:
        return 0 if self._process is None else int(self._process.pid)

    def run(self, session: bytes, clients: list[int], tasks: list[int], W: Floats) -> Floats:
        n = len(W)
        if self._process is None:
            self.start()
        self._models[:n] = W
        try:
            if not self._is_ready:
                self._answer()
                self._is_ready = True
            self._pipe.send((session, clients, tasks))
            self._answer()
        except (EOFError, OSError) as error:
            process = self._process
            if process is None:
                raise _WorkerEnded("was ended") from None
            process.join(10)
            code = process.exitcode
            by_signal = code is not None and code < 0
            how = f"was ended by signal {signal.Signals(-code).name}" if by_signal else f"ended with code {code}"
            if not self._is_ready and not by_signal:
                raise ValueError(
                    f"workers: a worker process {how} before it was ready; what starts a replay in a script must stand "
                    'under `if __name__ == "__main__":`'
                ) from error
            raise _WorkerEnded(f"(process {process.pid}) {how}") from None
        return self._deltas[:n].copy()

    def _answer(self) -> None:
        answer = self._pipe.recv()
        if isinstance(answer, _Failure):
            answer.throw()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self._pipe.close()


@contextmanager
def _one_thread_and_no_interrupts() -> Iterator[None]:
    """A process that starts now has one thread of each library, and leaves Ctrl-C to this one."""
    with _starting:
        before = {name: os.environ.get(name) for name in _ONE_THREAD}
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # it would unblock the signal
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.environ.update(_ONE_THREAD)
        if before["XLA_FLAGS"]:
            os.environ["XLA_FLAGS"] = f"{before['XLA_FLAGS']} {_ONE_THREAD['XLA_FLAGS']}"
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(pipe: Any, memory: Any, shape: tuple[int, ...], dtype: str, problem: bytes) -> None:
    """The life of a worker: it answers until its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    models, deltas = np.frombuffer(memory, dtype).reshape(shape)
    work: tuple[bytes, ClientFunction] | None = None
    try:
        made = pickle.loads(problem)
        pipe.send(None)
        while True:
            session, clients, tasks = pipe.recv()
            try:
                if work is None or work[0] != session:
                    work = session, made.work(*pickle.loads(session))
                _do(work[1], clients, tasks, models, deltas)
            except Exception as error:
                pipe.send(_Failure(error))
            else:
                pipe.send(None)
    except EOFError:
        return
    except BrokenPipeError:
        return
    except Exception as error:
        pipe.send(_Failure(error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _do(work: ClientFunction, clients: list[int], tasks: list[int], models: Floats, deltas: Floats) -> None:
    n = len(clients)
    W = models[:n].copy()  # the function may keep it
    if work.batch == 0:
        W.flags.writeable = False
        deltas[0] = work.check(work.call(clients[0], tasks[0], W[0]), W[0].shape, W.dtype)
    else:
        given = np.array(clients), np.array(tasks)
        deltas[:n] = work.check(work.call(*given, W), W.shape, W.dtype)
