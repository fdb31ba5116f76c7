/* fedbuff: FedBuff's server as a C library. C99.
 *
 * Handles are opaque. Memory that goes in or out belongs to the caller unless said. Functions that can fail return an
 * fb_status; fb_status_text says it in words. A server may be used from many threads at once: each call takes its lock.
 */
#ifndef FEDBUFF_H
#define FEDBUFF_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FB_API __attribute__((visibility("default")))
#else
#define FB_API
#endif

/* Grows when something here changes meaning; fb_abi_version() tells what the library was built with. */
#define FB_ABI_VERSION 1

typedef enum fb_status {
  FB_OK = 0,
  FB_ERR_ARGUMENT = 1,    /* a null pointer, a size or a number out of range */
  FB_ERR_MEMORY = 2,      /* out of memory; nothing changed */
  FB_ERR_NEVER_GIVEN = 3, /* the server never gave out that version */
  FB_ERR_NOTHING_DUE = 4, /* every download of that version was returned or cancelled already */
  FB_ERR_NOT_FINITE = 5,  /* the delta holds a NaN or an infinity; nothing changed */
  FB_ERR_ZERO_NORM = 6,   /* the weights of the full buffer sum to zero; nothing changed */
  FB_ERR_SHORT_TABLE = 7  /* staler than the table of staleness weights is long; nothing changed */
} fb_status;

typedef enum fb_dtype { FB_F32 = 0, FB_F64 = 1 } fb_dtype;
typedef enum fb_base { FB_BASE_START = 0, FB_BASE_CURRENT = 1 } fb_base;
typedef enum fb_norm {
  FB_NORM_ONE = 0,
  FB_NORM_ARRIVALS = 1,
  FB_NORM_WEIGHTS = 2,
  FB_NORM_SCALED_WEIGHTS = 3,
  FB_NORM_CLIENTS = 4
} fb_norm;
typedef enum fb_optimizer { FB_SGD = 0, FB_ADAM = 1 } fb_optimizer;
typedef enum fb_outcome { FB_ADDED = 0, FB_STEPPED = 1, FB_TOO_STALE = 2 } fb_outcome;

/* contribution_j = s_j e_j (base_j - w_end_j); direction = sum_j contribution_j / norm; w <- optimizer(w, direction).
 * Set `size` to sizeof(fb_rule) before anything else. */
typedef struct fb_rule {
  uint32_t size;
  int32_t base;          /* fb_base */
  int32_t norm;          /* fb_norm */
  int32_t optimizer;     /* fb_optimizer */
  int64_t buffer_size;   /* K */
  int64_t n_clients;     /* for FB_NORM_CLIENTS */
  int64_t max_staleness; /* an older arrival is dropped; -1: none is */
  double lr;
  double momentum;                            /* FB_SGD */
  double beta1, beta2, epsilon, weight_decay; /* FB_ADAM */
} fb_rule;

typedef struct fb_server fb_server;
typedef struct fb_model fb_model;

FB_API uint32_t fb_abi_version(void);
FB_API const char* fb_status_text(fb_status status);
/* The CPU level whose kernels run: "baseline", "avx2", "avx512". */
FB_API const char* fb_level(void);

/* w0 (dim) is copied. */
FB_API fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0,
                                  fb_server** server_out);
FB_API void fb_server_destroy(fb_server* server);

FB_API int64_t fb_server_dim(const fb_server* server);
FB_API int64_t fb_server_version(const fb_server* server);
FB_API int64_t fb_server_fill(const fb_server* server);        /* arrivals in the buffer */
FB_API int64_t fb_server_dropped(const fb_server* server);     /* arrivals refused as too stale */
FB_API int64_t fb_server_outstanding(const fb_server* server); /* downloads not yet returned or cancelled */
FB_API int64_t fb_server_live_models(const fb_server* server); /* models kept, the current one included */

/* The current model, held until fb_model_release: it does not change while it is held. */
FB_API fb_model* fb_server_model(fb_server* server);
FB_API const void* fb_model_data(const fb_model* model);
FB_API void fb_model_release(fb_model* model);

/* As fb_server_model, and one task is now due on *version_out: it ends in one upload or one cancel. */
FB_API fb_status fb_server_download(fb_server* server, int64_t* version_out, fb_model** model_out);
FB_API fb_status fb_server_cancel(fb_server* server, int64_t version);

/* s by staleness: weight[t] for an update that is t versions old. Copied. Without one, s is 1. */
FB_API fb_status fb_server_set_staleness(fb_server* server, const double* weight, int64_t n_weights);

/* delta (dim) = model downloaded - model after the local steps; it counts s(staleness) times e. *outcome_out (may be
 * null): fb_outcome. */
FB_API fb_status fb_server_upload(fb_server* server, const void* delta, int64_t version, double e,
                                  int32_t* outcome_out);

/* A second server in the same state, taken between two calls of other threads; models are shared until they change. */
FB_API fb_status fb_server_clone(fb_server* server, fb_server** server_out);

/* The whole state, to save and restore. Pointers in a state that was read point into the server and hold until its next
 * call, by whatever thread: clone a server that others use meanwhile, and read the clone. `due`, `due_version` and
 * `kept` are the caller's arrays of n_due entries (call with them null for n_due). */
typedef struct fb_server_state {
  uint32_t size;
  int64_t version, fill, dropped;
  double sum_weights, sum_scaled_weights;
  const void* w;
  const void* sum;      /* (dim); meaningful where fill > 0 */
  const void* first;    /* (dim) velocity, or Adam's first moment; null where there is none */
  const void* second;   /* (dim) Adam's second moment */
  int64_t n_due;        /* versions with tasks due */
  int64_t* due_version; /* (n_due) ascending */
  int64_t* due;         /* (n_due) how many tasks */
  const void** kept;    /* (n_due) the model of that version, FB_BASE_CURRENT only */
} fb_server_state;

FB_API fb_status fb_server_get_state(fb_server* server, fb_server_state* state);
FB_API fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                                   fb_server** server_out);

/* The smaller parts. sum_out = sum + weight * delta (sum null: zero; may be sum_out). */
FB_API fb_status fb_accumulate(fb_dtype dtype, int64_t dim, const void* sum, const void* delta, double weight,
                               void* sum_out);
/* w_out = w - scale * sum (w_out may be w). */
FB_API fb_status fb_step(fb_dtype dtype, int64_t dim, const void* w, const void* sum, double scale, void* w_out);
/* w_out = w - scale * sum_k weight[k] * delta[k], in one pass (w_out may be w). weight (n_deltas) has the dtype. */
FB_API fb_status fb_aggregate(fb_dtype dtype, int64_t dim, const void* w, int64_t n_deltas, const void* const* delta,
                              const void* weight, double scale, void* w_out);

#ifdef __cplusplus
}
#endif

#endif /* FEDBUFF_H */
