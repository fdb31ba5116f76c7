from libc.stdint cimport int64_t, uint32_t

from fedbuff._fedbuff_h cimport fb_dtype, fb_local, fb_status


cdef class LocalSGD:
    cdef fb_local* local
    cdef fb_dtype dtype_code
    cdef readonly Py_ssize_t dim
    cdef readonly Py_ssize_t n_clients
    cdef readonly object dtype
    cdef object problem  # its rows are read for as long as this lives

    # The C level, without the GIL, from any thread: w and delta_out (dim) of the dtype, which may not overlap.
    cdef fb_status delta_raw(self, int64_t client, uint32_t task, const void* w, void* delta_out) noexcept nogil
