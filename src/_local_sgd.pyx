"""LocalSGD: a client's work on a problem, for compiled loops that cimport it."""

from libc.stdint cimport int64_t, uint32_t

from fedbuff._fedbuff_h cimport *
from fedbuff._server cimport address, as_int64, check

import numpy as np

from fedbuff._base.arrays import as_output, as_vector
from fedbuff._base.checks import seed_of


cdef class LocalSGD:
    """What a client of `problem` does by the options in `local` (a `fedbuff.LocalSGD`), without Python in between.

    Bits are those of `problem.delta` and of a replay with the same seed. The problem must be one of the built-in ones.
    """

    def __cinit__(self, problem, local, *, seed=0):
        bound = getattr(problem, "bound", None)
        if not hasattr(bound, "local_handle"):
            kind = type(problem).__name__
            raise TypeError(f"problem: expected a built-in problem of the compiled backend, got {kind}")
        plan = local.plan(problem)
        if plan.keeps_state:
            raise ValueError("local: this loop keeps no state of clients; problem.delta(state=) and replays do")
        cdef size_t handle = bound.local_handle(plan, seed_of(seed))
        self.local = <fb_local*> handle
        self.problem = problem
        self.dtype = problem.dtype
        self.dtype_code = FB_F32 if problem.dtype == np.float32 else FB_F64
        self.dim = fb_local_dim(self.local)
        self.n_clients = fb_local_n_clients(self.local)

    def __dealloc__(self):
        fb_local_destroy(&self.local)

    cdef fb_status delta_raw(self, int64_t client, uint32_t task, const void* w, void* delta_out) noexcept nogil:
        return fb_local_delta(self.local, self.dtype_code, self.dim, client, task, w, delta_out)

    @property
    def _handle(self):
        return <size_t> self.local

    def delta(self, client, task, w, out=None, *, version=0):
        """w minus the model after the local steps, into `out` or a new array. `version` is that of w."""
        cdef int64_t which = as_int64("client", client)
        cdef int64_t number = as_int64("task", task)
        cdef int64_t at = as_int64("version", version)
        if at < 0:
            raise ValueError(f"version: expected an int >= 0, got {at}")
        model = as_vector("w", w, self.dim, self.dtype)
        result = np.empty(self.dim, self.dtype) if out is None else as_output("out", out, self.dim, self.dtype, model)
        if not 0 <= which < self.n_clients:
            raise IndexError(f"client: there are {self.n_clients} clients, got {which}")
        if not 0 <= number < 1 << 32:
            raise ValueError(f"task: expected an int from 0 to 2**32 - 1, got {number}")
        cdef const void* source = address(model)
        cdef void* target = address(result)
        cdef fb_status status
        with nogil:
            status = fb_local_delta_at(
                self.local, self.dtype_code, self.dim, which, <uint32_t> number, at, source, target
            )
        check(status)
        return result

    def __reduce__(self):
        raise TypeError("local: it does not pickle; make another one of the problem")

    def __repr__(self):
        return f"<{type(self).__name__}: {self.n_clients} clients, {self.dim} {self.dtype} weights>"
