# fedbuff.h for Cython: declarations only, as the header has them.
from libc.stdint cimport int32_t, int64_t, uint32_t

cdef extern from "fedbuff/fedbuff.h" nogil:
    ctypedef int fb_status
    ctypedef int fb_dtype
    int FB_OK, FB_ERR_ARGUMENT, FB_ERR_MEMORY, FB_ERR_NEVER_GIVEN, FB_ERR_NOTHING_DUE, FB_ERR_NOT_FINITE
    int FB_ERR_ZERO_NORM, FB_ERR_SHORT_TABLE
    int FB_F32, FB_F64
    int FB_BASE_START, FB_BASE_CURRENT
    int FB_NORM_ONE, FB_NORM_ARRIVALS, FB_NORM_WEIGHTS, FB_NORM_SCALED_WEIGHTS, FB_NORM_CLIENTS
    int FB_SGD, FB_ADAM
    int FB_ADDED, FB_STEPPED, FB_TOO_STALE

    ctypedef struct fb_rule:
        uint32_t size
        int32_t base, norm, optimizer
        int64_t buffer_size, n_clients, max_staleness
        double lr, momentum, beta1, beta2, epsilon, weight_decay

    ctypedef struct fb_server:
        pass

    ctypedef struct fb_model:
        pass

    ctypedef struct fb_server_state:
        uint32_t size
        int64_t version, fill, dropped
        double sum_weights, sum_scaled_weights
        const void* w
        const void* sum
        const void* first
        const void* second
        int64_t n_due
        int64_t* due_version
        int64_t* due
        const void** kept

    const char* fb_status_text(fb_status status)
    fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0, fb_server** server_out)
    void fb_server_destroy(fb_server* server)
    int64_t fb_server_version(const fb_server* server)
    int64_t fb_server_fill(const fb_server* server)
    int64_t fb_server_dropped(const fb_server* server)
    int64_t fb_server_outstanding(const fb_server* server)
    int64_t fb_server_live_models(const fb_server* server)
    fb_model* fb_server_model(fb_server* server)
    const void* fb_model_data(const fb_model* model)
    void fb_model_release(fb_model* model)
    fb_status fb_server_download(fb_server* server, int64_t* version_out, fb_model** model_out)
    fb_status fb_server_cancel(fb_server* server, int64_t version)
    fb_status fb_server_set_staleness(fb_server* server, const double* weight, int64_t n_weights)
    fb_status fb_server_upload(fb_server* server, const void* delta, int64_t version, double e, int32_t* outcome_out)
    fb_status fb_server_clone(fb_server* server, fb_server** server_out)
    fb_status fb_server_get_state(fb_server* server, fb_server_state* state)
    fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                                fb_server** server_out)
    fb_status fb_accumulate(fb_dtype dtype, int64_t dim, const void* sum, const void* delta, double weight,
                            void* sum_out)
    fb_status fb_step(fb_dtype dtype, int64_t dim, const void* w, const void* sum, double scale, void* w_out)
