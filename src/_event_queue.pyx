"""EventQueue: the event queue of the schedule's own loop, for somebody else's.

It behaves, to the text of its exceptions, as the one in fedbuff/backends/python/event_queue.py.
"""

from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t

from fedbuff._fedbuff_h cimport *
from fedbuff._server cimport as_double, as_int64, check

from fedbuff._base.checks import integer
from fedbuff._rule.server_errors import empty_queue, event_kind, event_time, queue_busy


cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    static inline int fb_enter(int* inside) { return __atomic_exchange_n(inside, 1, __ATOMIC_ACQUIRE) == 0; }
    static inline void fb_leave(int* inside) { __atomic_store_n(inside, 0, __ATOMIC_RELEASE); }
    #else
    static inline int fb_enter(int* inside) { return inside != 0; } /* the GIL is held from here to fb_leave */
    static inline void fb_leave(int* inside) { (void)inside; }
    #endif
    """
    bint fb_enter(int* inside) noexcept nogil
    void fb_leave(int* inside) noexcept nogil


cdef class EventQueue:
    """Events in the order of time, then kind, then creation; for one thread at a time.

    >>> import fedbuff as fb
    >>> queue = fb.EventQueue()
    >>> queue.push(2.0, item=7)
    >>> queue.push(1.5, item=3, kind=1)
    >>> queue.push(1.5, item=4)
    >>> queue.pop(), queue.pop(), len(queue)
    ((1.5, 4, 0), (1.5, 3, 1), 1)

    Times are finite and not negative. An item is an int of 64 bits: a client's number. A kind is 0, 1, 2 or 3, and
    decides between equal times: arrivals before starts, as in a schedule.
    """

    def __cinit__(self):
        check(fb_queue_create(&self.queue))

    def __dealloc__(self):
        fb_queue_destroy(&self.queue)

    cdef fb_status push_raw(self, double time, int64_t item, int32_t kind) noexcept nogil:
        return fb_queue_push(self.queue, time, item, kind)

    cdef fb_status pop_raw(self, fb_event* event_out) noexcept nogil:
        return fb_queue_pop(self.queue, event_out)

    cdef fb_status peek_raw(self, fb_event* event_out) noexcept nogil:
        return fb_queue_peek(self.queue, event_out)

    cdef int64_t size_raw(self) noexcept nogil:
        return fb_queue_size(self.queue)

    cdef int enter(self) except -1:
        if not fb_enter(&self.inside):
            raise queue_busy()
        return 0

    @property
    def _handle(self):
        return <size_t> self.queue

    def push(self, time, item, kind=0):
        """Adds an event."""
        cdef double at = as_double("time", time)
        cdef int64_t number = as_int64("item", item)
        which = integer("kind", kind)
        if not (isfinite(at) and at >= 0):
            raise event_time(at)
        if not 0 <= which <= 3:
            raise event_kind(which)
        self.enter()
        cdef fb_status status = self.push_raw(at, number, <int32_t> which)
        fb_leave(&self.inside)
        check(status)

    def pop(self):
        """The earliest event, (time, item, kind), removed; IndexError where there is none."""
        cdef fb_event event
        self.enter()
        cdef fb_status status = self.pop_raw(&event)
        fb_leave(&self.inside)
        if status == FB_ERR_EMPTY:
            raise empty_queue()
        check(status)
        return event.time, event.item, event.kind

    def peek(self):
        """The earliest event, left where it is."""
        cdef fb_event event
        self.enter()
        cdef fb_status status = self.peek_raw(&event)
        fb_leave(&self.inside)
        if status == FB_ERR_EMPTY:
            raise empty_queue()
        check(status)
        return event.time, event.item, event.kind

    def clear(self):
        """Removes all events."""
        self.enter()
        cdef fb_status status = fb_queue_clear(self.queue)
        fb_leave(&self.inside)
        check(status)

    def __len__(self):
        self.enter()
        cdef int64_t n = self.size_raw()
        fb_leave(&self.inside)
        return n

    def __reduce__(self):
        raise TypeError("event queue: it does not pickle")

    def __repr__(self):
        return f"<{type(self).__name__}: {len(self)} events>"
