# fedbuff.h for Cython: declarations only, as the header has them.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef extern from "fedbuff/fedbuff.h" nogil:
    ctypedef int fb_status
    ctypedef int fb_dtype
    uint32_t FB_ABI_VERSION
    int FB_OK, FB_ERR_ARGUMENT, FB_ERR_MEMORY, FB_ERR_NEVER_GIVEN, FB_ERR_NOTHING_DUE, FB_ERR_NOT_FINITE
    int FB_ERR_ZERO_NORM, FB_ERR_SHORT_TABLE, FB_ERR_ABI, FB_ERR_DTYPE, FB_ERR_SIZE, FB_ERR_OVERFLOW, FB_ERR_TICKET
    int FB_ERR_CLOSED, FB_ERR_EMPTY, FB_ERR_HOST, FB_ERR_DIVERGED, FB_ERR_FORKED, FB_ERR_CLIENT
    int FB_F32, FB_F64, FB_I32, FB_I64, FB_BF16
    int FB_ADDED, FB_STEPPED, FB_TOO_STALE
    int64_t FB_NO_TICKET

    ctypedef struct fb_rule:
        uint32_t size, abi
        int32_t base, norm, optimizer
        int64_t buffer_size, n_clients, max_staleness
        double lr, momentum, beta1, beta2, epsilon, weight_decay, unit
        int32_t decay, delay_lr
        int64_t tau_c, warm_up, decay_steps
        double decay_factor, decay_floor
        int64_t period
        double activation, initial
        int32_t table, table_seen, table_wait
        double table_own, table_mean
        int32_t weight_by
        double weight_epsilon, weight_clip
        int32_t table_keeps, trigger
        double per_client
        int32_t weight_shared, hidden_levels
        uint64_t hidden_seed
        int64_t stop_stale
        int32_t control
        double control_pull

    ctypedef struct fb_array:
        const char* name
        int64_t key, size
        fb_dtype dtype
        const void* data

    ctypedef struct fb_model_upload:
        const void* start
        const void** part
        const int64_t* part_end
        int64_t n_parts, version, client
        double e
        fb_status status
        int32_t outcome

    ctypedef struct fb_server:
        pass

    ctypedef struct fb_model:
        pass

    ctypedef struct fb_server_state:
        uint32_t size, abi
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
        int64_t staleness, n_arrays
        fb_array* arrays

    ctypedef struct fb_buffer:
        pass

    ctypedef struct fb_local:
        pass

    ctypedef struct fb_event:
        double time
        int64_t item
        int32_t kind

    ctypedef struct fb_queue:
        pass

    const char* fb_status_text(fb_status status)

    fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0, fb_server** server_out)
    void fb_server_destroy(fb_server** server)
    fb_status fb_server_close(fb_server* server)
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
    fb_status fb_server_set_staleness_at(fb_server* server, int64_t staleness, double weight)
    fb_status fb_server_take_ticket(fb_server* server, int64_t* ticket_out)
    fb_status fb_server_cancel_ticket(fb_server* server, int64_t ticket)
    fb_status fb_server_upload(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, int64_t version,
                               double e, int64_t ticket, int32_t* outcome_out)
    fb_status fb_server_upload_change(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta,
                                      const void* change, int64_t version, double e, int64_t ticket,
                                      int32_t* outcome_out)
    fb_status fb_server_upload_from(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, int64_t version,
                                    double e, int64_t client, int64_t ticket, int32_t* outcome_out)
    fb_status fb_server_upload_models(fb_server* server, fb_dtype dtype, int64_t dim, int64_t n,
                                      fb_model_upload* uploads)
    fb_status fb_server_step(fb_server* server)
    int64_t fb_server_overdue(const fb_server* server, int64_t n, int64_t* version_out, int64_t* tasks_out)
    fb_status fb_server_set_table(fb_server* server, void* memory, int64_t bytes)
    fb_status fb_server_clone(fb_server* server, fb_server** server_out)
    fb_status fb_server_get_state(fb_server* server, fb_server_state* state)
    fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                                fb_server** server_out)

    fb_status fb_buffer_create(fb_dtype dtype, int64_t dim, double unit, fb_buffer** buffer_out)
    void fb_buffer_destroy(fb_buffer** buffer)
    fb_status fb_buffer_close(fb_buffer* buffer)
    fb_status fb_buffer_take_ticket(fb_buffer* buffer, int64_t* ticket_out)
    fb_status fb_buffer_cancel_ticket(fb_buffer* buffer, int64_t ticket)
    fb_status fb_buffer_add(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* delta, double weight,
                            int64_t ticket)
    int64_t fb_buffer_count(const fb_buffer* buffer)
    const void* fb_buffer_sum(fb_buffer* buffer)
    fb_status fb_buffer_clear(fb_buffer* buffer)
    fb_status fb_buffer_step(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* w, double lr, void* w_out)

    void fb_local_destroy(fb_local** local)
    int64_t fb_local_dim(const fb_local* local)
    int64_t fb_local_n_clients(const fb_local* local)
    fb_status fb_local_delta(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task, const void* w,
                             void* delta_out)
    fb_status fb_local_delta_at(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                                int64_t version, const void* w, void* delta_out)

    fb_status fb_queue_create(fb_queue** queue_out)
    void fb_queue_destroy(fb_queue** queue)
    fb_status fb_queue_push(fb_queue* queue, double time, int64_t item, int32_t kind)
    fb_status fb_queue_pop(fb_queue* queue, fb_event* event_out)
    fb_status fb_queue_peek(fb_queue* queue, fb_event* event_out)
    int64_t fb_queue_size(const fb_queue* queue)
    fb_status fb_queue_clear(fb_queue* queue)
