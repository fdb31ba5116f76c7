from libc.stdint cimport int32_t, int64_t

from fedbuff._fedbuff_h cimport fb_event, fb_queue, fb_status


cdef class EventQueue:
    cdef fb_queue* queue
    cdef int inside  # 1 while a thread is, where there is no GIL

    # The C level, without the GIL; for one thread at a time.
    cdef fb_status push_raw(self, double time, int64_t item, int32_t kind) noexcept nogil
    cdef fb_status pop_raw(self, fb_event* event_out) noexcept nogil
    cdef fb_status peek_raw(self, fb_event* event_out) noexcept nogil
    cdef int64_t size_raw(self) noexcept nogil
    cdef int enter(self) except -1
