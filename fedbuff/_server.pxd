from libc.stdint cimport int32_t, int64_t

from fedbuff._fedbuff_h cimport (
    fb_buffer,
    fb_dtype,
    fb_model,
    fb_model_upload,
    fb_server,
    fb_server_state,
    fb_status,
)


cdef int check(fb_status status) except -1
cdef void* address(object array) noexcept
cdef double as_double(str name, object value) except? -1.0
cdef int64_t as_int64(str name, object value) except? -1


cdef class Model:
    cdef fb_model* model


cdef class Server:
    cdef fb_server* server
    cdef fb_dtype dtype_code
    cdef readonly Py_ssize_t dim
    cdef readonly object dtype
    cdef readonly object unit
    cdef object rule
    cdef Py_ssize_t n_table  # how far s by staleness was worked out
    cdef int weighting       # 0 equal, 1 samples, 2 ask the rule
    cdef double weight_scale
    cdef int64_t n_clients   # that uploads must name, or 0
    cdef object client_weights
    cdef bint has_control    # whether the rule has a control variate
    cdef object rows         # its memory, where that is a file's

    # The C level, without the GIL, as in fedbuff.h: deltas of the model's dtype, in the order of the calls.
    # FB_ERR_SHORT_TABLE: call grow_table and try again.
    cdef fb_status upload_raw(self, const void* delta, int64_t version, double e, int32_t* outcome_out) noexcept nogil
    cdef fb_status upload_from_raw(
        self, const void* delta, int64_t version, double e, int64_t client, int32_t* outcome_out
    ) noexcept nogil
    cdef fb_status download_raw(self, int64_t* version_out, fb_model** model_out) noexcept nogil
    cdef fb_status cancel_raw(self, int64_t version) noexcept nogil

    cdef int require(self, fb_status status) except -1
    cdef int grow_table(self, int64_t staleness) except -1
    cdef int make_table(self, int64_t staleness) except -1
    cdef double sample_weight(self, double n_samples) except? -1.0
    cdef double weight_of(self, double n_samples, int64_t client) except? -1.0
    cdef bint has_sum(self, int64_t fill)
    cdef int explain_own(self, fb_status status) except -1
    cdef object as_array(self, fb_model* model)
    cdef object control_of(self, object w)
    cdef object outcome_of(self, fb_model_upload* upload, object reply)
    cdef object read_state(self, fb_server* server)
    cdef object kept_by_rule(self, fb_server_state* state)
    cdef object copy_of(self, const void* values, object dtype, int64_t size=*)


cdef class DeltaBuffer:
    cdef fb_buffer* buffer
    cdef fb_dtype dtype_code
    cdef readonly Py_ssize_t dim
    cdef readonly object dtype
    cdef readonly object unit

    # The C level, without the GIL: deltas of the dtype, in the order of the calls.
    cdef fb_status add_raw(self, const void* delta, double weight) noexcept nogil
    cdef fb_status step_raw(self, const void* w, double lr, void* w_out) noexcept nogil
    cdef int require(self, fb_status status) except -1
