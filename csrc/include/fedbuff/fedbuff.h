/* fedbuff: FedBuff's schedules, replays, server, buffer, local SGD and event queue as a C library. C99.
 *
 * Handles are opaque. Memory that goes in or out belongs to the caller unless said. Functions that can fail return an
 * fb_status; fb_status_text says it in words; after any status but FB_OK nothing has changed unless said. A null handle
 * is FB_ERR_ARGUMENT; functions that return a number give -1 for it, those that return a pointer null. Destroying takes
 * the handle's address and makes it null, so that what was freed is seen to be gone.
 *
 * Structs begin with `size` and `abi`: start from the FB_..._INIT of the struct. Later versions only append fields;
 * a field that the caller's header did not have yet counts as zero. Servers, buffers and local SGD may be used from
 * many threads at once. The library has no state of its own but the CPU level that it chose, and fb_error_text. A
 * fork's child may go on with servers and buffers that nobody was using when it was made; all calls on others give
 * FB_ERR_FORKED (-1, null), and destroying them frees nothing.
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

/* Grows when something here changes its meaning or goes away. */
#define FB_ABI_VERSION 1u

typedef int32_t fb_status;
enum {
  FB_OK = 0,
  FB_ERR_ARGUMENT = 1,    /* a null pointer, or a number out of range */
  FB_ERR_MEMORY = 2,      /* out of memory */
  FB_ERR_NEVER_GIVEN = 3, /* the server never gave out that version */
  FB_ERR_NOTHING_DUE = 4, /* every download of that version was returned or cancelled already */
  FB_ERR_NOT_FINITE = 5,  /* the delta holds a NaN or an infinity */
  FB_ERR_ZERO_NORM = 6,   /* the weights of the full buffer sum to zero */
  FB_ERR_SHORT_TABLE = 7, /* staler than the table of staleness weights is long */
  FB_ERR_ABI = 8,         /* a struct of another ABI, or with fields that this library does not know */
  FB_ERR_DTYPE = 9,       /* an array of another dtype than the object's */
  FB_ERR_SIZE = 10,       /* an array of another size than the object's */
  FB_ERR_OVERFLOW = 11,   /* a sum beyond its type: floats, or 64 bits; or a queue that has counted to its end */
  FB_ERR_TICKET = 12,     /* a ticket that was never given out, or was used or cancelled already */
  FB_ERR_CLOSED = 13,     /* the object was closed */
  FB_ERR_EMPTY = 14,      /* no event is pending */
  FB_ERR_HOST = 15,       /* a function of the host's failed: an executor or a gradient */
  FB_ERR_DIVERGED = 16,   /* the server step would make the model infinite or NaN */
  FB_ERR_FORKED = 17,     /* a fork's child, made while threads of its parent were inside the object */
  FB_ERR_CLIENT = 18,     /* the rule looks at clients: none was given, or none of 0 .. n_clients - 1 */
  FB_ERR_BUSY = 19,       /* another thread is inside, or a function that the object calls */
  FB_ERR_FILE = 20        /* a file that could not be read or written, or is not what was saved */
};

typedef int32_t fb_dtype;
/* FB_BF16: rows of a table, the upper half of a float's bits. */
enum { FB_F32 = 0, FB_F64 = 1, FB_I32 = 2, FB_I64 = 3, FB_BF16 = 4 };

FB_API uint32_t fb_abi_version(void);
/* FB_OK where a program compiled with this FB_ABI_VERSION may use the library, else FB_ERR_ABI. */
FB_API fb_status fb_require_abi(uint32_t abi);
FB_API const char* fb_status_text(fb_status status);
/* What this thread's last call of a function that makes or restores an object, or of a schedule, replay or recorder,
 * found wrong, by the field: "buffer_size: expected at least 1, got 0". Empty where its status says it all. */
FB_API const char* fb_error_text(void);
/* The CPU level whose kernels run: "baseline", "avx2", "avx512", "neon". */
FB_API const char* fb_level(void);

/* Threads of the host. `run` calls work(argument, 0) .. work(argument, n - 1), in any order and on any threads, returns
 * when all calls have returned, and gives 0, or another number where it failed. It may throw, in C++. */
typedef void (*fb_work)(void* argument, int64_t part);
typedef struct fb_executor {
  uint32_t size, abi;
  void* context;
  int32_t (*run)(void* context, int64_t n, fb_work work, void* argument);
} fb_executor;
#define FB_EXECUTOR_INIT {sizeof(fb_executor), FB_ABI_VERSION, 0, 0}

/* ---- The server ------------------------------------------------------------------------------------------------- */

typedef enum fb_base { FB_BASE_START = 0, FB_BASE_CURRENT = 1 } fb_base;
typedef enum fb_norm {
  FB_NORM_ONE = 0,
  FB_NORM_ARRIVALS = 1,
  FB_NORM_WEIGHTS = 2,
  FB_NORM_SCALED_WEIGHTS = 3,
  FB_NORM_CLIENTS = 4
} fb_norm;
/* On g = direction, v, m and x zero at the first step but for `initial`; no bias correction but in FB_ADAM.
 *   FB_SGD               v <- momentum v + g; w <- w - lr v
 *   FB_NESTEROV          v <- momentum v + g; w <- w - lr (g + momentum v)
 *   FB_DELAYED_NESTEROV  x <- x + g; w <- w - lr (activation momentum m + g / period); at every period-th step
 *                        m <- momentum m + x / period; w <- w - lr ((1 - activation (period - 1)) momentum m +
 *                        g / period), x <- 0 instead
 *   the others           g <- g + weight_decay w; m <- beta1 m + (1 - beta1) g; w <- w - lr m / (sqrt(v) + epsilon)
 *     FB_ADAM, FB_ADAM_UNCORRECTED  v <- beta2 v + (1 - beta2) g^2
 *     FB_ADAGRAD                    v <- v + g^2
 *     FB_YOGI                       v <- v - (1 - beta2) g^2 sign(v - g^2)
 *     FB_AMSGRAD                    as FB_ADAM_UNCORRECTED, and divides by the root of the largest v so far */
typedef enum fb_optimizer {
  FB_SGD = 0,
  FB_ADAM = 1,
  FB_NESTEROV = 2,
  FB_ADAM_UNCORRECTED = 3,
  FB_ADAGRAD = 4,
  FB_YOGI = 5,
  FB_AMSGRAD = 6,
  FB_DELAYED_NESTEROV = 7
} fb_optimizer;
/* What lr is multiplied by at the step from version t, with u = max(0, t - warm_up):
 *   FB_DECAY_STEP decay_factor^floor(u / decay_steps); FB_DECAY_INVERSE_SQRT 1 / sqrt(1 + u / decay_steps);
 *   FB_DECAY_COSINE decay_floor + (1 - decay_floor) (1 + cos(pi min(u / decay_steps, 1))) / 2
 * and by (t + 1) / warm_up while that is below 1. */
typedef enum fb_decay { FB_DECAY_NONE = 0, FB_DECAY_STEP = 1, FB_DECAY_COSINE = 2, FB_DECAY_INVERSE_SQRT = 3 } fb_decay;
/* What happens to lr where the largest staleness in the buffer, tau, is above tau_c: min(lr, 1 / tau), or lr / tau. */
typedef enum fb_delay_lr { FB_DELAY_LR_NONE = 0, FB_DELAY_LR_MIN = 1, FB_DELAY_LR_DIVIDE = 2 } fb_delay_lr;
typedef enum fb_outcome { FB_ADDED = 0, FB_STEPPED = 1, FB_TOO_STALE = 2 } fb_outcome;

/* q_j, a factor of s_j e_j: 1; 1 / (|delta| + epsilon); 1 / (|w - start| + epsilon), with the model that the client
 * downloaded; 1 / (|w - start| / |delta| + epsilon); (1 + cos) / 2 of the angle between the delta and the last server
 * step, or the sum of the buffer so far, and 1 where one of the two is zero. Without a unit. */
typedef enum fb_weight_by {
  FB_WEIGHT_NONE = 0,
  FB_WEIGHT_NORM = 1,
  FB_WEIGHT_WAY = 2,
  FB_WEIGHT_RATIO = 3,
  FB_WEIGHT_LAST_STEP = 4,
  FB_WEIGHT_SUM = 5
} fb_weight_by;

/* A table with a row per client: row_i, the client's last delta, zero before its first. An arrival of client i
 * contributes delta + table_own row_i, and its delta then takes the row's place, so that a second one in the same
 * buffer is compared with the first; the direction of a step has table_mean times the mean of all rows, as they were
 * when its buffer was empty, added to it. It needs n_clients, and no unit. */
typedef enum fb_table { FB_TABLE_NONE = 0, FB_TABLE_ROWS = 1, FB_TABLE_BF16 = 2 } fb_table;

/* What the rows of a table are. FB_KEEPS_DELTA: a client's last delta, as above. FB_KEEPS_MEANS: Ringleader's; the mean
 * of each client's deltas, in two tables of n_clients rows, of the round that is collected and of the one that steps
 * are made of: the direction of a step is the sum of the latter's means over n_clients (FB_TRIGGER_RINGLEADER,
 * FB_NORM_CLIENTS, FB_TABLE_ROWS). FB_KEEPS_MODELS: FedFa's; n_clients is the number of models in a ring, which begins
 * with w0 in each, and an arrival's model, start - delta, takes the place of the oldest: the model is their mean
 * (buffer_size 1, FB_NORM_CLIENTS, FB_TABLE_ROWS, table_own -1, table_mean 0). */
typedef enum fb_keeps { FB_KEEPS_DELTA = 0, FB_KEEPS_MEANS = 1, FB_KEEPS_MODELS = 2 } fb_keeps;

/* What makes a step. FB_TRIGGER_BUFFER: buffer_size arrivals. FB_TRIGGER_EVERY_CLIENT: at least so many, and all
 * clients heard: the harmonic mean of their arrivals in the buffer is per_client or more. FB_TRIGGER_RINGLEADER:
 * arrivals are collected until all clients are heard, without a step; then each client's next arrival makes a step,
 * while the others count for the next round. The last two need n_clients, and uploads that name their client. */
typedef enum fb_trigger { FB_TRIGGER_BUFFER = 0, FB_TRIGGER_EVERY_CLIENT = 1, FB_TRIGGER_RINGLEADER = 2 } fb_trigger;

/* A control variate c, zero at first: the mean of a state that each of n_clients clients keeps. A step adds the changes
 * of its arrivals' clients over n_clients to it, and takes control_pull times the new c off the model (FedDyn). The
 * data of an fb_model is (w, c) then, 2 dim numbers. Without a unit, a table, a hidden model and own_step;
 * FB_TRIGGER_BUFFER. */
typedef enum fb_control { FB_CONTROL_NONE = 0, FB_CONTROL_MEAN = 1 } fb_control;

/* A step that the host's own rule makes: all deltas of the buffer at once, in the order of arrival. Pointers hold until
 * the function returns. It writes w_out, and may change the state, and nothing else; it returns 0, or a code for which
 * the step is not made. A model or state that is not finite counts as one that diverged. It runs on one thread at a
 * time. */
typedef struct fb_step_input {
  uint32_t size, abi;
  fb_dtype dtype; /* of the deltas and models */
  int64_t dim;
  int64_t version;          /* that the step starts from */
  int64_t n;                /* arrivals */
  const void* const* delta; /* (n) of (dim) */
  const double* weight;     /* (n) s_j e_j */
  const int64_t* staleness; /* (n) */
  const int64_t* client;    /* (n), -1 where it is not known */
  double lr;                /* the rule's, of this version */
  const void* w;            /* (dim) the present model */
  int64_t n_state;
  double* state; /* (n_state) the rule's own, zero at the start; saved with the server, or the replay */
  void* w_out;   /* (dim) the next model */
} fb_step_input;
typedef int32_t (*fb_step_function)(void* context, const fb_step_input* step);

/* contribution_j = s_j e_j (base_j - w_end_j); direction = sum_j contribution_j / norm; w <- optimizer(w, direction).
 *
 * With a unit > 0 deltas are whole numbers, int32 or int64, that count units (base FB_BASE_START only). They are summed
 * exactly, so that a full buffer gives the same bits in whatever order it came: s_j e_j counts to a multiple of 2^-24,
 * a contribution to the nearest unit, ties to even. */
typedef struct fb_rule {
  uint32_t size, abi;
  int32_t base;          /* fb_base */
  int32_t norm;          /* fb_norm */
  int32_t optimizer;     /* fb_optimizer */
  int64_t buffer_size;   /* K */
  int64_t n_clients;     /* for FB_NORM_CLIENTS and a table */
  int64_t max_staleness; /* an older arrival is dropped; -1: none is */
  double lr;
  double momentum;
  double beta1, beta2, epsilon, weight_decay;
  double unit;         /* of whole-number deltas; 0: deltas have the model's dtype */
  int32_t decay;       /* fb_decay */
  int32_t delay_lr;    /* fb_delay_lr */
  int64_t tau_c;       /* of delay_lr */
  int64_t warm_up;     /* server steps; 0: none */
  int64_t decay_steps; /* >= 1 where there is a decay */
  double decay_factor; /* FB_DECAY_STEP */
  double decay_floor;  /* FB_DECAY_COSINE */
  int64_t period;      /* FB_DELAYED_NESTEROV, >= 1 */
  double activation;   /* FB_DELAYED_NESTEROV, 0 .. 1 / period */
  double initial;      /* v at the start, but of FB_SGD and the Nesterovs */
  int32_t table;       /* fb_table: rows of the model's dtype, or of half a float */
  int32_t table_seen;  /* 1: the mean is over the clients that have a row, 0: over n_clients */
  int32_t table_wait;  /* 1: steps leave the model as it is until every client has a row */
  double table_own, table_mean;
  int32_t weight_by;     /* fb_weight_by */
  double weight_epsilon; /* of FB_WEIGHT_NORM, FB_WEIGHT_WAY, FB_WEIGHT_RATIO; > 0 there */
  double weight_clip;    /* q_j times min(1, weight_clip / |delta|); 0: none */
  int32_t table_keeps;   /* fb_keeps */
  int32_t trigger;       /* fb_trigger */
  double per_client;     /* of the triggers that hear all clients, >= 1 */
  int32_t weight_shared; /* 1: e_j is divided by its client's arrivals in the buffer, so that a server keeps the deltas
                            until the step; n_clients, FB_BASE_START, no table, no unit, no weights of numbers */
  int32_t hidden_levels; /* > 0: QAFeL's hidden model is what is downloaded: at a step it moves by the difference from
                            the server's own model, quantised to so many levels; FB_BASE_START */
  uint64_t hidden_seed;  /* of those roundings */
  int64_t stop_stale;    /* > 0: tasks of this staleness are to be stopped; an arrival of one is too stale */
  fb_step_function own_step; /* not null: it makes the steps. Deltas are kept until then. FB_BASE_START, FB_SGD without
                                momentum, FB_NORM_ONE, and no unit, table, hidden model or weights of numbers */
  void* own_context;
  int64_t own_state;   /* numbers of its state */
  int32_t control;     /* fb_control */
  double control_pull; /* >= 0 */
} fb_rule;
#define FB_RULE_INIT  \
  {sizeof(fb_rule),   \
   FB_ABI_VERSION,    \
   FB_BASE_START,     \
   FB_NORM_ONE,       \
   FB_SGD,            \
   1,                 \
   0,                 \
   -1,                \
   1.0,               \
   0.0,               \
   0.9,               \
   0.999,             \
   1e-8,              \
   0.0,               \
   0.0,               \
   FB_DECAY_NONE,     \
   FB_DELAY_LR_NONE,  \
   0,                 \
   0,                 \
   0,                 \
   0.0,               \
   0.0,               \
   0,                 \
   0.0,               \
   0.0,               \
   FB_TABLE_NONE,     \
   0,                 \
   0,                 \
   0.0,               \
   0.0,               \
   0,                 \
   0.0,               \
   0.0,               \
   FB_KEEPS_DELTA,    \
   FB_TRIGGER_BUFFER, \
   1.0,               \
   0,                 \
   0,                 \
   0,                 \
   0,                 \
   0,                 \
   0,                 \
   0,                 \
   FB_CONTROL_NONE,   \
   0.0}

typedef struct fb_server fb_server;
typedef struct fb_model fb_model;

/* The model has the dtype FB_F32 or FB_F64. w0 (dim) is copied. */
FB_API fb_status fb_server_create(const fb_rule* rule, fb_dtype dtype, int64_t dim, const void* w0,
                                  fb_server** server_out);
FB_API void fb_server_destroy(fb_server** server);
/* Uploads that wait for their turn, and all that come later, give FB_ERR_CLOSED, and so do downloads and cancels. What
 * can be read stays readable. */
FB_API fb_status fb_server_close(fb_server* server);

FB_API fb_dtype fb_server_dtype(const fb_server* server);
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
/* The same into memory of the caller's, w_out (dim) of the model's dtype: nothing is held. */
FB_API fb_status fb_server_download_to(fb_server* server, fb_dtype dtype, int64_t dim, void* w_out,
                                       int64_t* version_out);
FB_API fb_status fb_server_cancel(fb_server* server, int64_t version);

/* s by staleness: weight[t] for an update that is t versions old. Copied. Without one, s is 1. */
FB_API fb_status fb_server_set_staleness(fb_server* server, const double* weight, int64_t n_weights);
/* s of one staleness beyond that table, for an update that is very old; a few thousand of them are kept. */
FB_API fb_status fb_server_set_staleness_at(fb_server* server, int64_t staleness, double weight);

/* A place in the order in which deltas are added. It ends in one upload or one cancelled ticket; later ones wait. */
#define FB_NO_TICKET (-1)
FB_API fb_status fb_server_take_ticket(fb_server* server, int64_t* ticket_out);
FB_API fb_status fb_server_cancel_ticket(fb_server* server, int64_t ticket);

/* delta (dim) = model downloaded - model after the local steps; it counts s(staleness) times e. Its dtype is the
 * model's, or FB_I32 or FB_I64 with a unit. *outcome_out (may be null): fb_outcome.
 *
 * Deltas are added in the order of tickets; FB_NO_TICKET takes the next one. The call returns when the delta was added,
 * and its memory is the caller's again. Threads that wait for their turn help with the additions of large models.
 * FB_ERR_ARGUMENT, FB_ERR_DTYPE, FB_ERR_SIZE and FB_ERR_SHORT_TABLE leave the ticket unused; all others use it up.
 * FB_ERR_OVERFLOW: with this delta the buffer's sum would not be finite. FB_ERR_DIVERGED: it fills the buffer, and the
 * step would make a model that is not finite; the buffer stays as it was, one short of full. */
FB_API fb_status fb_server_upload(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta, int64_t version,
                                  double e, int64_t ticket, int32_t* outcome_out);

/* The same from a client, 0 .. n_clients - 1, as rules with a table need it; FB_ERR_CLIENT leaves the ticket unused. */
FB_API fb_status fb_server_upload_from(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta,
                                       int64_t version, double e, int64_t client, int64_t ticket, int32_t* outcome_out);

/* The same with a control variate: `change` (dim) is what the client's state has changed by. The other uploads give
 * FB_ERR_ARGUMENT with such a rule, and this one without. */
FB_API fb_status fb_server_upload_change(fb_server* server, fb_dtype dtype, int64_t dim, const void* delta,
                                         const void* change, int64_t version, double e, int64_t ticket,
                                         int32_t* outcome_out);

/* Steps with what is in the buffer, as a server does whose steps have times: in its turn, like an upload. FB_ERR_EMPTY
 * where the buffer is empty; FB_ERR_ARGUMENT with FB_TRIGGER_RINGLEADER, which steps at arrivals only. */
FB_API fb_status fb_server_step(fb_server* server);
/* The versions whose tasks the rule stops (stop_stale), ascending, and how many tasks are due on each: the host stops
 * them, cancels their downloads, and sends their clients the present model. Up to n are written; all are counted in the
 * return value. */
FB_API int64_t fb_server_overdue(const fb_server* server, int64_t n, int64_t* version_out, int64_t* tasks_out);

/* A model that came back from a client, in parts as it was sent. Its delta is start - model, rounded to the dtype. */
typedef struct fb_model_upload {
  const void* start;       /* (dim) the model that the client downloaded */
  const void* const* part; /* (n_parts) the model that came back */
  const int64_t* part_end; /* (n_parts) where each part ends, ascending; the last is dim */
  int64_t n_parts;
  int64_t version;
  int64_t client; /* -1 where the rule has no table */
  double e;
  fb_status status; /* out: that of fb_server_upload_from */
  int32_t outcome;  /* out, where status is FB_OK: fb_outcome */
} fb_model_upload;

/* n uploads in their order, to the same bits as fb_server_upload_from of each delta, without tickets. Deltas are made
 * block by block as they are added, those of up to 16 uploads in one pass. All arrays are of the server's dtype, which
 * is not that of a server with a unit. FB_OK: each upload has its status. Otherwise nothing was uploaded. */
FB_API fb_status fb_server_upload_models(fb_server* server, fb_dtype dtype, int64_t dim, int64_t n,
                                         fb_model_upload* uploads);

/* Memory of the caller's for the rows of a table, of n_clients times dim values; it must outlive the server. To be
 * given before the first upload. Without it rows are allocated when their clients come first. */
FB_API fb_status fb_server_set_table(fb_server* server, void* memory, int64_t bytes);

/* Large additions and steps run on the host's threads from now on; null: on those that upload. FB_ERR_HOST: the
 * executor failed; the delta was not added. The bits do not depend on it. */
FB_API fb_status fb_server_set_executor(fb_server* server, const fb_executor* executor);

/* A second server in the same state, taken between two calls of other threads; models are shared until they change. It
 * has no tickets out, no executor, and is not closed. */
FB_API fb_status fb_server_clone(fb_server* server, fb_server** server_out);

/* A part of a rule's state: "third" (dim), the largest second moment of FB_AMSGRAD;
 * "last_step" (dim), old minus new model, of FB_WEIGHT_LAST_STEP; "own_w" (dim), the server's own model where the one
 * that is downloaded is hidden_levels'; of a table "row" (dim) with a client's number as its key (FB_KEEPS_MODELS: the
 * place in the ring, and minus the model), "table_total" (dim) the sum of all rows when the buffer was empty,
 * "table_change" (dim) what the buffer changed in it, "table_seen" (1) FB_I64 how many rows there were then; of
 * FB_KEEPS_MEANS "row" and "table_total" of the round that is collected, "step_row", "step_total" and "step_count"
 * (n_clients) FB_I64 of the one that steps are made of; of a trigger that hears all clients "heard" (n_clients) FB_I64,
 * their arrivals in this round, and of FB_TRIGGER_RINGLEADER "to_step" (n_clients) FB_I64, 1 where the client's next
 * arrival makes a step; of weight_shared and own_step "held" (dim) with its number in the buffer as its key,
 * "held_client" and "held_staleness" (fill) FB_I64, "held_s" and "held_e" (fill) FB_F64; of own_step "own_state"
 * (own_state) FB_F64; "control" (dim) the control variate, "control_change" (dim) what the buffer's clients have
 * changed. */
typedef struct fb_array {
  const char* name;
  int64_t key; /* of a client, or -1 */
  int64_t size;
  fb_dtype dtype;
  const void* data;
} fb_array;

/* The whole state, to save and restore. Pointers in a state that was read point into the server and hold until its next
 * call, by whatever thread: clone a server that others use meanwhile, and read the clone. `due`, `due_version` and
 * `kept` are the caller's arrays of n_due entries (call with them null for n_due). */
typedef struct fb_server_state {
  uint32_t size, abi;
  int64_t version, fill, dropped;
  double sum_weights, sum_scaled_weights;
  const void* w;
  const void* sum;      /* (dim) of the dtype, or int64 with a unit; meaningful where fill > 0 */
  const void* first;    /* (dim) v of FB_SGD and FB_NESTEROV, else m; null where there is none */
  const void* second;   /* (dim) v, or x of FB_DELAYED_NESTEROV; null where there is none */
  int64_t n_due;        /* versions with tasks due */
  int64_t* due_version; /* (n_due) ascending */
  int64_t* due;         /* (n_due) how many tasks */
  const void** kept;    /* (n_due) the model of that version, where the rule needs it */
  int64_t staleness;    /* the largest in the buffer */
  int64_t n_arrays;     /* what the rule keeps beside first and second */
  fb_array* arrays;     /* (n_arrays) of the caller's, as `due`; may be null to read the rest alone */
} fb_server_state;
#define FB_SERVER_STATE_INIT {sizeof(fb_server_state), FB_ABI_VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

FB_API fb_status fb_server_get_state(fb_server* server, fb_server_state* state);
FB_API fb_status fb_server_restore(const fb_rule* rule, fb_dtype dtype, int64_t dim, const fb_server_state* state,
                                   fb_server** server_out);

/* ---- The buffer alone, for those who write their own server ------------------------------------------------------ */

typedef struct fb_buffer fb_buffer;

/* unit as in fb_rule; 0 for deltas of the dtype. */
FB_API fb_status fb_buffer_create(fb_dtype dtype, int64_t dim, double unit, fb_buffer** buffer_out);
FB_API void fb_buffer_destroy(fb_buffer** buffer);
FB_API fb_status fb_buffer_close(fb_buffer* buffer);
FB_API fb_status fb_buffer_set_executor(fb_buffer* buffer, const fb_executor* executor);
FB_API fb_status fb_buffer_take_ticket(fb_buffer* buffer, int64_t* ticket_out);
FB_API fb_status fb_buffer_cancel_ticket(fb_buffer* buffer, int64_t ticket);
/* sum + weight * delta, in the order of tickets, as fb_server_upload. */
FB_API fb_status fb_buffer_add(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* delta, double weight,
                               int64_t ticket);
FB_API int64_t fb_buffer_dim(const fb_buffer* buffer);
FB_API int64_t fb_buffer_count(const fb_buffer* buffer);
/* The sum (dim), of the dtype or int64 with a unit; inside the buffer, until its next change. */
FB_API const void* fb_buffer_sum(fb_buffer* buffer);
FB_API fb_status fb_buffer_clear(fb_buffer* buffer);
/* w_out = w - lr * sum (w_out may be w), and empties the buffer. */
FB_API fb_status fb_buffer_step(fb_buffer* buffer, fb_dtype dtype, int64_t dim, const void* w, double lr, void* w_out);

/* ---- Local SGD --------------------------------------------------------------------------------------------------- */

typedef enum fb_family { FB_NET = 0, FB_SPARSE = 1, FB_QUADRATIC = 2, FB_LAYERS = 3 } fb_family;
typedef enum fb_head { FB_SQUARED = 0, FB_LOGISTIC = 1, FB_SOFTMAX = 2 } fb_head;
typedef enum fb_activation { FB_RELU = 0, FB_TANH = 1 } fb_activation;
typedef enum fb_curvature { FB_SCALAR = 0, FB_DIAGONAL = 1, FB_DENSE = 2 } fb_curvature;

typedef enum fb_layer_kind {
  FB_LAYER_CONV2D = 0,
  FB_LAYER_RELU = 1,
  FB_LAYER_MAX_POOL = 2,
  FB_LAYER_FLATTEN = 3,
  FB_LAYER_DENSE = 4,
  FB_LAYER_AVG_POOL = 5, /* zeros of the padding are counted */
  FB_LAYER_GLOBAL_AVG = 6,
  FB_LAYER_LEAKY_RELU = 7,
  FB_LAYER_GELU = 8, /* by the error function */
  FB_LAYER_SILU = 9,
  FB_LAYER_TANH = 10,
  FB_LAYER_SIGMOID = 11,
  FB_LAYER_DROPOUT = 12, /* while clients train */
  FB_LAYER_GROUP_NORM = 13,
  FB_LAYER_LAYER_NORM = 14, /* over all numbers of a row */
  /* A block that adds its shortcut: RESIDUAL, layers, SHORTCUT, layers (none: its input), END_RESIDUAL. */
  FB_LAYER_RESIDUAL = 15,
  FB_LAYER_SHORTCUT = 16,
  FB_LAYER_END_RESIDUAL = 17,
  FB_LAYER_EMBEDDING = 18,      /* the first layer: tokens (features) become a sequence (features, out) */
  FB_LAYER_MEAN_OVER_TIME = 19, /* of a sequence */
  FB_LAYER_LAST_STEP = 20,      /* of a sequence: a vector */
  FB_LAYER_LSTM = 21, /* (time, features) to (time, out); weights as torch.nn.LSTM has them: ih, hh, bias ih, bias hh */
  FB_LAYER_GRU = 22,  /* the same as torch.nn.GRU */
  FB_LAYER_RANDOM_CROP = 23, /* while clients train: a part of the image with `padding` zeros around it */
  FB_LAYER_RANDOM_FLIP = 24  /* while clients train: left and right change places, or not */
} fb_layer_kind;

/* A layer. Weights are laid out as PyTorch does: (out, in / groups, height, width) or (out, in), then the bias (out).
 */
typedef struct fb_layer {
  int32_t kind;      /* fb_layer_kind */
  int32_t out;       /* output channels, outputs; FB_LAYER_GROUP_NORM: groups; FB_LAYER_EMBEDDING: features;
                        LSTM and GRU: width */
  int32_t kernel[2]; /* height, width: convolutions, pools */
  int32_t stride[2];
  int32_t padding[4]; /* top, bottom, left, right */
  int32_t groups;     /* convolutions */
  int32_t bias;       /* 0 or 1; norms: weights and biases */
  int32_t vocabulary; /* FB_LAYER_EMBEDDING: how many tokens there are */
  double number;      /* FB_LAYER_LEAKY_RELU: slope below zero; FB_LAYER_DROPOUT: rate; norms: epsilon */
} fb_layer;
#define FB_LAYER_INIT {FB_LAYER_FLATTEN, 0, {1, 1}, {1, 1}, {0, 0, 0, 0}, 1, 1, 0, 0.0}

/* Layers in sequence. The last one gives a vector: the scores. */
typedef struct fb_network {
  uint32_t size, abi;
  int32_t n_layers;       /* at most 512 */
  int32_t input_shape[3]; /* channels, height, width of a row of x; (features, 1, 1) for a vector or tokens,
                             (1, time, features) for a sequence */
  const fb_layer* layers; /* (n_layers) */
  double label_smoothing; /* 0.0 */
} fb_network;
#define FB_NETWORK_INIT {sizeof(fb_network), FB_ABI_VERSION, 0, {0, 0, 0}, 0, 0.0}

/* Whether the layers fit together. *dim_out, unless null, is the number of weights. text_out (text_size, unless null)
 * gets what is wrong, with the layer's number, and ends in a zero; it is empty where nothing is. */
FB_API fb_status fb_network_check(const fb_network* network, int64_t* dim_out, char* text_out, int64_t text_size);

/* What the clients minimise. Arrays are C-contiguous, stay the caller's, and must live and not change for as long as
 * the handle does; floating ones have the dtype given to fb_local_create.
 *
 *   FB_NET        dense rows through n_layers - 1 hidden layers into a head. The model: layer by layer the weights
 *                 (out, in) row-major, then the bias where there is an intercept.
 *   FB_LAYERS     dense rows, in the order (channels, height, width), through the layers of `network`, which is copied.
 *                 The loss of a row is the sum over the outputs. n_layers, layer_size, activation and intercept are not
 * used. FB_SPARSE     CSR rows, n_layers 1, one output, FB_SQUARED or FB_LOGISTIC. FB_QUADRATIC  f_i(w) = (w - c_i)'
 * A_i (w - c_i) / 2, dim = layer_size[0]. */
typedef struct fb_problem {
  uint32_t size, abi;
  int32_t family;            /* fb_family */
  int32_t head;              /* fb_head */
  int32_t activation;        /* fb_activation */
  int32_t intercept;         /* 0 or 1 */
  int32_t n_layers;          /* weight matrices: 1 without hidden layers; at most 16 */
  int32_t curvature_form;    /* fb_curvature */
  int32_t curvature_shared;  /* 0 or 1: one matrix for all clients */
  const int32_t* layer_size; /* (n_layers + 1) features, hidden sizes, outputs; FB_QUADRATIC: (1) dim */
  int64_t n_clients;
  const int64_t* offsets;   /* (n_clients + 1) client i owns rows offsets[i] .. offsets[i + 1], at least one */
  const void* x;            /* (n_rows, features); FB_SPARSE: the stored values */
  const void* target;       /* (n_rows) FB_SQUARED, FB_LOGISTIC (0 or 1); FB_LAYERS: (n_rows, outputs) */
  const int32_t* label;     /* (n_rows) FB_SOFTMAX */
  const int32_t* column;    /* FB_SPARSE: the column of each stored value */
  const int64_t* row_start; /* FB_SPARSE: (n_rows + 1) */
  double l2;                /* + l2 / 2 |w|^2 */
  double nonconvex;         /* + nonconvex * sum w^2 / (1 + w^2) */
  const void* center;       /* FB_QUADRATIC: (n_clients, dim) */
  const void* curvature;    /* FB_QUADRATIC: scalar (1), diagonal (dim) or dense (dim, dim), per client unless shared */
  double noise_variance;    /* FB_QUADRATIC: E|xi|^2 of one sample's gradient noise */
  const fb_network* network; /* FB_LAYERS */
  const int32_t* token;      /* FB_LAYERS that begin with FB_LAYER_EMBEDDING: (n_rows, features), in the place of x */
  const uint8_t* byte;       /* FB_LAYERS: (n_rows, features), in the place of x; b stands for scale * b + shift */
  double scale, shift;
} fb_problem;
#define FB_PROBLEM_INIT \
  {sizeof(fb_problem),  \
   FB_ABI_VERSION,      \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   1,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0,                   \
   0.0,                 \
   0.0,                 \
   0,                   \
   0,                   \
   0.0,                 \
   0,                   \
   0,                   \
   0,                   \
   1.0,                 \
   0.0}

/* A step size that follows a count t, of versions or of local steps: lr times the factor of its fb_decay, as in
 * fb_rule.
 */
typedef struct fb_learning_rate {
  double lr;
  int32_t decay; /* fb_decay */
  int64_t steps; /* at least 1 */
  double factor, floor;
  int64_t warm_up;
} fb_learning_rate;

/* What is beside the local steps. FB_METHOD_FEDNOVA: the delta is multiplied by Q / a, where a is how much the client's
 * gradients weigh in it together: its number of steps, with momentum m the sum of (1 - m^k) / (1 - m) for k = 1 ..
 * steps.
 *
 * FB_METHOD_SCAFFOLD and FB_METHOD_FEDDYN keep a state of each client, c_i, zero at first, and have no momentum,
 * weight_decay, prox and rates that follow something:
 *   FB_METHOD_SCAFFOLD  gradient + c - c_i, with the server's c; then c_i <- c_i - c + delta / (steps lr)
 *   FB_METHOD_FEDDYN    gradient - c_i + alpha (w - w_start); then c_i <- c_i + alpha delta */
typedef enum fb_method {
  FB_METHOD_SGD = 0,
  FB_METHOD_FEDNOVA = 1,
  FB_METHOD_SCAFFOLD = 2,
  FB_METHOD_FEDDYN = 3
} fb_method;

/* What is sent in the place of the delta: its largest numbers, of equals the first; numbers at random places, times dim
 * / kept; whole multiples of |delta| / levels, rounded by chance without bias (QSGD); the mean of all sizes with the
 * number's sign; the nearest numbers of 16 bits. With error feedback what was not sent is the client's state, which is
 * added to its next delta: the state of fb_local_delta_state, without control; places at random are not multiplied
 * then, and QSGD has none. Not with methods that keep a state of their own. */
typedef enum fb_compress {
  FB_COMPRESS_NONE = 0,
  FB_COMPRESS_TOP_K = 1,
  FB_COMPRESS_RANDOM_K = 2,
  FB_COMPRESS_QSGD = 3,
  FB_COMPRESS_SIGN = 4,
  FB_COMPRESS_BF16 = 5
} fb_compress;

/* `steps` times w <- w - lr v, v <- momentum v + g + weight_decay w + prox (w - w_start); v is zero at the start.
 * Batches are a function of (seed, client, task, step). Pointers are read once, when a local is made. */
typedef struct fb_local_config {
  uint32_t size, abi;
  int64_t steps;
  int64_t batch_size;         /* rows drawn with replacement; 0: all rows of the client */
  const int64_t* batch_sizes; /* (n_clients) instead of batch_size, or null; copied */
  uint64_t seed;
  double lr, momentum, weight_decay, prox;
  int64_t
      epochs; /* above 0, instead of steps: passes over the client's rows in a shuffled order, without replacement */
  int32_t drop_last;                     /* with epochs, 0 or 1: a pass ends before a batch that is not full */
  const int64_t* client_steps;           /* (n_clients) instead of steps, or null */
  const double* client_lr;               /* (n_clients) instead of lr, or null */
  const fb_learning_rate* lr_by_version; /* lr is multiplied by that of the version that a task starts from; or null */
  const fb_learning_rate* lr_by_step;    /* and by that of the local step, from 0; or null */
  int32_t method;                        /* fb_method; FedNova takes neither prox nor lr_by_step */
  double effective_steps;                /* FedNova's Q; 0: the mean of a over the clients */
  double alpha;                          /* FedDyn's, > 0; else 0 */
  int32_t compress;                      /* fb_compress */
  int32_t compress_feedback;             /* 0 or 1 */
  double compress_share;   /* of the numbers, for FB_COMPRESS_TOP_K and FB_COMPRESS_RANDOM_K: 0 < share <= 1; else 0 */
  int64_t compress_levels; /* FB_COMPRESS_QSGD, 1 .. 2^20; else 0 */
} fb_local_config;
#define FB_LOCAL_CONFIG_INIT \
  {sizeof(fb_local_config), FB_ABI_VERSION, 1, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0.0, 0}

/* gradient_out (dim) = the mean gradient at w over n_rows rows of the client, numbered within the client; of the dtype
 * given to fb_local_create_custom. Returns 0, or another number where it failed. */
typedef int32_t (*fb_gradient)(int64_t client, int64_t n_rows, const int64_t* rows, const void* w, void* gradient_out,
                               void* context);

typedef struct fb_local fb_local;

FB_API fb_status fb_local_create(const fb_problem* problem, const fb_local_config* config, fb_dtype dtype,
                                 fb_local** local_out);
/* The host's own gradient. samples (n_clients): rows of each client; copied. */
FB_API fb_status fb_local_create_custom(fb_gradient gradient, void* context, int64_t n_clients, const int64_t* samples,
                                        const fb_local_config* config, fb_dtype dtype, int64_t dim,
                                        fb_local** local_out);
FB_API void fb_local_destroy(fb_local** local);
FB_API int64_t fb_local_dim(const fb_local* local);
FB_API int64_t fb_local_n_clients(const fb_local* local);
/* delta_out (dim) = w - (w after the local steps); it may not overlap w. With lr_by_version w is version 0. */
FB_API fb_status fb_local_delta(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                                const void* w, void* delta_out);
/* The same, of a task that starts from this version. */
FB_API fb_status fb_local_delta_at(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                                   int64_t version, const void* w, void* delta_out);
/* The same with a method that keeps a state of clients: `state` (dim) is the client's, and is changed; `control` (dim)
 * the server's c of this version, for FB_METHOD_SCAFFOLD, else null. Or with error feedback. No two of the arrays may
 * overlap. The other two functions give FB_ERR_ARGUMENT with such a method, and this one without. */
FB_API fb_status fb_local_delta_state(fb_local* local, fb_dtype dtype, int64_t dim, int64_t client, uint32_t task,
                                      int64_t version, const void* w, const void* control, void* state,
                                      void* delta_out);

/* ---- The event queue, for one thread at a time ------------------------------------------------------------------- */

/* Events come out in the order of time, then kind, then creation. */
typedef struct fb_event {
  double time;  /* >= 0, finite */
  int64_t item; /* the caller's */
  int32_t kind; /* 0 .. 3: at equal times the lower comes first */
} fb_event;
typedef struct fb_queue fb_queue;

FB_API fb_status fb_queue_create(fb_queue** queue_out);
FB_API void fb_queue_destroy(fb_queue** queue);
FB_API fb_status fb_queue_push(fb_queue* queue, double time, int64_t item, int32_t kind);
/* The same; *ticket_out is a number for fb_queue_cancel. */
FB_API fb_status fb_queue_push_ticket(fb_queue* queue, double time, int64_t item, int32_t kind, int64_t* ticket_out);
/* The event of this ticket will not come out; FB_ERR_TICKET where it did, was cancelled, or never was. Its memory is
 * used again when its time has come. Clearing the queue ends all tickets, whose numbers are then given out again. */
FB_API fb_status fb_queue_cancel(fb_queue* queue, int64_t ticket);
/* The earliest event, removed or left. FB_ERR_EMPTY where there is none. */
FB_API fb_status fb_queue_pop(fb_queue* queue, fb_event* event_out);
FB_API fb_status fb_queue_peek(fb_queue* queue, fb_event* event_out);
FB_API int64_t fb_queue_size(const fb_queue* queue);
FB_API fb_status fb_queue_clear(fb_queue* queue);

/* ---- Schedules: who arrives when, on which version, in which step ------------------------------------------------ */

/* What a delay is drawn from, with its numbers p[0], p[1], ... Draws are a function of (seed, client, task). */
typedef enum fb_law_kind {
  FB_LAW_CONSTANT = 0,         /* value */
  FB_LAW_UNIFORM = 1,          /* low, high */
  FB_LAW_EXPONENTIAL = 2,      /* mean */
  FB_LAW_HALF_NORMAL = 3,      /* scale, low: low + |N(0, 1)| scale */
  FB_LAW_TRUNCATED_NORMAL = 4, /* loc, scale, low, high: a part of at least 1/1000 lies between low and high */
  FB_LAW_LOG_NORMAL = 5,       /* mean and sigma of the logarithm */
  FB_LAW_PARETO = 6,           /* shape, scale: scale / (1 - u)^(1 / shape) */
  FB_LAW_WEIBULL = 7,          /* shape, scale: scale (-log(1 - u))^(1 / shape) */
  FB_LAW_EMPIRICAL = 8         /* one of `samples`, each as likely */
} fb_law_kind;

typedef struct fb_law {
  int32_t kind; /* fb_law_kind */
  double p[4];
  const double* samples; /* FB_LAW_EMPIRICAL: (n_samples) ascending, finite, not negative */
  int64_t n_samples;
} fb_law;
#define FB_LAW_INIT {FB_LAW_CONSTANT, {0.0, 0.0, 0.0, 0.0}, 0, 0}

/* What a task does outside its client's windows: it starts when one opens, and then goes on whatever happens; it stops
 * and goes on with the next window; it fails when its window closes. */
typedef enum fb_windows {
  FB_WINDOWS_NONE = 0,
  FB_WINDOWS_WAIT = 1,
  FB_WINDOWS_PAUSE = 2,
  FB_WINDOWS_ABORT = 3
} fb_windows;

/* How long tasks take. A client waits, downloads, computes and uploads; then it has arrived. Arrays stay the caller's
 * and must live and not change for as long as the schedule does. */
typedef struct fb_delays {
  uint32_t size, abi;
  int64_t n_clients;
  fb_law wait, download, compute, upload;
  const double* speed; /* (n_clients) what multiplies a client's compute time; null: 1 */
  /* Recorded tasks in the place of the laws and of speed, where row_start is not null: those of client i are the rows
   * row_start[i] .. row_start[i + 1], which it does in turn. Seconds. */
  const int64_t* row_start;                                         /* (n_clients + 1) */
  const double *row_wait, *row_download, *row_compute, *row_upload; /* (n_rows); null: 0 */
  const uint8_t* row_ok;                                            /* (n_rows) 0: the task fails; null: none does */
  int32_t rows_stop;           /* 1: a client stops after its last row; 0: it begins again */
  int32_t windows;             /* fb_windows */
  const int64_t* window_start; /* (n_clients + 1) client i has the windows window_start[i] .. window_start[i + 1] */
  const double *window_begin, *window_end; /* (n_windows) ascending for each client, apart from each other */
  const double* window_period;             /* (n_clients) its windows come again after so long; null: they do not */
} fb_delays;
#define FB_DELAYS_INIT \
  {sizeof(fb_delays),  \
   FB_ABI_VERSION,     \
   0,                  \
   FB_LAW_INIT,        \
   FB_LAW_INIT,        \
   FB_LAW_INIT,        \
   FB_LAW_INIT,        \
   0,                  \
   0,                  \
   0,                  \
   0,                  \
   0,                  \
   0,                  \
   0,                  \
   0,                  \
   FB_WINDOWS_NONE,    \
   0,                  \
   0,                  \
   0,                  \
   0}

/* When tasks start. FB_START_ALL: every client is always at work. FB_START_POOL: `concurrency` clients are; who comes
 * next is drawn. FB_START_RATE: at `rate` a second, whoever is at work. FB_START_ROUNDS: FedAvg's; `concurrency`
 * clients start together, the step is made when buffer_size have arrived, and the others are discarded. */
typedef enum fb_start { FB_START_ALL = 0, FB_START_POOL = 1, FB_START_RATE = 2, FB_START_ROUNDS = 3 } fb_start;
/* FB_START_RATE: what becomes of a start whose client is at work. */
typedef enum fb_if_busy { FB_BUSY_REDRAW = 0, FB_BUSY_SKIP = 1, FB_BUSY_OVERLAP = 2 } fb_if_busy;
typedef enum fb_selection {
  FB_SELECT_UNIFORM = 0,
  FB_SELECT_ROUND_ROBIN = 1,
  FB_SELECT_LONGEST_IDLE = 2,
  FB_SELECT_WEIGHTED = 3
} fb_selection;

/* The strategy, as far as time knows it, and where the schedule ends: at least one of the last three is needed. The
 * buffer's size, trigger, per_client, max_staleness and stop_stale are those of the fb_rule that it is replayed with.
 * FedBuff is FB_START_POOL or FB_START_ALL; FedAsync the same with buffer_size 1. */
typedef struct fb_schedule_config {
  uint32_t size, abi;
  uint64_t seed;
  int32_t start;             /* fb_start */
  int32_t poisson;           /* FB_START_RATE: 1: starts are a Poisson process, 0: evenly spaced */
  int64_t concurrency;       /* FB_START_POOL, FB_START_ROUNDS */
  double rate;               /* FB_START_RATE, > 0 */
  int32_t if_busy;           /* fb_if_busy */
  int32_t selection;         /* fb_selection, of FB_START_POOL and FB_START_ROUNDS */
  const double* probability; /* (n_clients) FB_SELECT_WEIGHTED; sum 1 */
  int64_t max_uses;          /* tasks that a client may start; 0: any number */
  int32_t queues;            /* 1: a task may be sent to a busy client, and waits there */
  int32_t distinct_clients;  /* 1: no client is in a buffer twice; the second arrival waits for the next buffer */
  int64_t buffer_size;
  int64_t max_staleness;     /* an older arrival is dropped; -1: none is */
  double max_wait;           /* a step is made so long after the buffer's first arrival; 0: it waits */
  double timeout;            /* of a task; 0: none */
  double period;             /* a step is made so often, if anything has arrived; 0: not */
  double uplink;             /* uploads share a link that has room for so many at full speed; 0: they share nothing */
  int32_t trigger;           /* fb_trigger */
  int32_t server_needs_time; /* 1: the server needs server_time for an upload, one after the other */
  double per_client;         /* of triggers that hear all clients, >= 1 */
  fb_law server_time;
  int64_t refill;       /* open slots that start together; 1: at once; 0: at a step */
  int64_t stop_stale;   /* tasks of this staleness are stopped; 0: none are */
  int32_t restart;      /* 1: all tasks are stopped at every step */
  int64_t server_steps; /* -1: no limit */
  int64_t arrivals;     /* -1: no limit */
  double max_time;      /* -1: no limit */
} fb_schedule_config;
#define FB_SCHEDULE_CONFIG_INIT \
  {sizeof(fb_schedule_config),  \
   FB_ABI_VERSION,              \
   0,                           \
   FB_START_POOL,               \
   0,                           \
   1,                           \
   0.0,                         \
   FB_BUSY_REDRAW,              \
   FB_SELECT_UNIFORM,           \
   0,                           \
   0,                           \
   0,                           \
   0,                           \
   1,                           \
   -1,                          \
   0.0,                         \
   0.0,                         \
   0.0,                         \
   0.0,                         \
   FB_TRIGGER_BUFFER,           \
   0,                           \
   1.0,                         \
   FB_LAW_INIT,                 \
   1,                           \
   0,                           \
   0,                           \
   -1,                          \
   -1,                          \
   -1.0}

/* What became of a task. The step uses FB_TASK_USED alone. */
typedef enum fb_task_status {
  FB_TASK_USED = 0,
  FB_TASK_LEFT_IN_BUFFER = 1, /* not written: a used row whose step is not made when the schedule ends */
  FB_TASK_TOO_STALE = 2,
  FB_TASK_DISCARDED = 3,
  FB_TASK_TIMED_OUT = 4,
  FB_TASK_FAILED = 5,
  FB_TASK_STOPPED = 6
} fb_task_status;

/* Arrays of the caller's, for rows in the order of arrival and for steps. */
typedef struct fb_columns {
  uint32_t size, abi;
  int64_t n_rows, n_steps; /* fb_schedule_next: room; fb_replay_add: how many there are */
  int32_t* client;         /* (n_rows) */
  uint32_t* task;          /* the client's number of the task, from 0 */
  int64_t* version;        /* of the model that it began from */
  int64_t* step;           /* that it enters; -1 where it is not used */
  int64_t* staleness;      /* step - version */
  double* start_time;
  double* arrive_time;
  uint8_t* status;    /* fb_task_status */
  double* step_time;  /* (n_steps) */
  int64_t* started;   /* tasks that started on the version that the step ended */
  int64_t* step_rows; /* rows before the end of the step, of the whole schedule */
} fb_columns;
#define FB_COLUMNS_INIT {sizeof(fb_columns), FB_ABI_VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Why a part of a schedule ended. FB_SCHEDULE_STALLED: no arrival has reached the buffer in 10^7 events. */
typedef enum fb_schedule_end {
  FB_SCHEDULE_MORE = 0,
  FB_SCHEDULE_SERVER_STEPS = 1,
  FB_SCHEDULE_MAX_TIME = 2,
  FB_SCHEDULE_ARRIVALS = 3,
  FB_SCHEDULE_EXHAUSTED = 4,
  FB_SCHEDULE_STALLED = 5
} fb_schedule_end;

typedef struct fb_schedule fb_schedule; /* for one thread at a time */

FB_API fb_status fb_schedule_create(const fb_delays* delays, const fb_schedule_config* config,
                                    fb_schedule** schedule_out);
FB_API void fb_schedule_destroy(fb_schedule** schedule);
/* The least room for rows of a call of fb_schedule_next, which needs room for two steps too. */
FB_API int64_t fb_schedule_rows_needed(const fb_schedule* schedule);
/* The next rows and steps, as many as fit the room or are left. *end_out: fb_schedule_end; call again after
 * FB_SCHEDULE_MORE. Rows and steps do not depend on the room. */
FB_API fb_status fb_schedule_next(fb_schedule* schedule, const fb_columns* room, int64_t* n_rows_out,
                                  int64_t* n_steps_out, int32_t* end_out);
/* The time of the last event. */
FB_API double fb_schedule_time(const fb_schedule* schedule);
/* Tasks in flight, by client and task. Up to n are written; all are counted in the return value. */
FB_API int64_t fb_schedule_in_flight(const fb_schedule* schedule, int64_t n, int32_t* client_out, uint32_t* task_out,
                                     int64_t* version_out, double* start_time_out);

/* ---- Replays: the numbers of a schedule -------------------------------------------------------------------------- */

/* What is beside problem, local steps and rule. */
typedef struct fb_replay_config {
  uint32_t size, abi;
  const double* staleness; /* (n_staleness) s by staleness, copied; null: s is 1 */
  int64_t n_staleness;
  const double* client_weight; /* (n_clients) e of a client's updates, copied; null: 1 */
  const double* client_share;  /* (n_clients) of the objective that is evaluated, copied; they sum to 1; null: equal */
  int64_t window_bytes;        /* of deltas that wait for their step; 0: 2^30 */
} fb_replay_config;
#define FB_REPLAY_CONFIG_INIT {sizeof(fb_replay_config), FB_ABI_VERSION, 0, 0, 0, 0, 0}

/* Why fb_replay_run came back. */
typedef enum fb_replay_end {
  FB_REPLAY_STEPS = 0,     /* max_steps were made */
  FB_REPLAY_NEED_ROWS = 1, /* fb_replay_add more rows, or fb_replay_close */
  FB_REPLAY_DIVERGED = 2,  /* the next model would not be finite; the step is not made */
  FB_REPLAY_CLOSED = 3     /* all steps of a closed replay are made */
} fb_replay_end;

/* For one thread at a time: FB_ERR_BUSY otherwise. Its bits depend neither on threads, nor on the parts in which rows
 * come, nor on the calls in which it runs, nor on a save in between. */
typedef struct fb_replay fb_replay;

/* The problem's arrays must live and not change for as long as the replay does; all others are copied. w0 (dim) null:
 * zeros. config may be null. Of the rule, the unit must be 0. */
FB_API fb_status fb_replay_create(const fb_problem* problem, const fb_local_config* local, const fb_rule* rule,
                                  const fb_replay_config* config, fb_dtype dtype, int64_t dim, const void* w0,
                                  fb_replay** replay_out);
FB_API void fb_replay_destroy(fb_replay** replay);
/* Rows after those before, and steps that are complete with them, as fb_schedule_next wrote them (start_time,
 * arrive_time and step_rows may be null). FB_ERR_SHORT_TABLE: one is staler than the table of weights is long; nothing
 * has changed. FB_ERR_ARGUMENT, FB_ERR_MEMORY: they are no part of a schedule, or were taken in part; the replay is of
 * no more use. */
FB_API fb_status fb_replay_add(fb_replay* replay, const fb_columns* rows);
/* There are no more rows. */
FB_API fb_status fb_replay_close(fb_replay* replay);
/* Makes server steps, on so many threads, at least 1. *end_out: fb_replay_end. */
FB_API fb_status fb_replay_run(fb_replay* replay, int64_t max_steps, int32_t threads, int32_t* end_out);
FB_API int64_t fb_replay_version(const fb_replay* replay); /* server steps made */
FB_API int64_t fb_replay_updates(const fb_replay* replay); /* client updates in them */
FB_API double fb_replay_time(const fb_replay* replay);     /* virtual time of the last step */
FB_API int64_t fb_replay_dim(const fb_replay* replay);
/* The present model (dim), inside the replay, until its next call. Null while another thread is inside. */
FB_API const void* fb_replay_w(fb_replay* replay);
/* Of the present model: the objective, the squared norm of its gradient, and the share of rows that are put in the
 * right class. What is null is not made. */
FB_API fb_status fb_replay_evaluate(fb_replay* replay, int32_t threads, double* loss_out, double* grad_norm_sq_out,
                                    double* accuracy_out);
/* Writes all that the rest of the run needs, beside the path first and then in its place. */
FB_API fb_status fb_replay_save(fb_replay* replay, const char* path);
/* Into a new replay of the same problem, local steps, rule, weights and w0, before any rows: then all rows are added
 * from the schedule's start, of which those that are done are passed over. FB_ERR_FILE: no file of a replay like this
 * one. The sizes of the problem are compared, and not its data. */
FB_API fb_status fb_replay_load(fb_replay* replay, const char* path);

/* ---- A recorder: a live run as an arrival log -------------------------------------------------------------------- */

typedef struct fb_recorder fb_recorder; /* thread-safe */

FB_API fb_status fb_recorder_create(fb_recorder** recorder_out);
FB_API void fb_recorder_destroy(fb_recorder** recorder);
/* A client, 0 or more, begins a task on this version: it has just taken the model. Times are seconds from 0 that never
 * go back; FB_NOW: since the recorder was made, by the system's monotonic clock. */
#define FB_NOW (-1.0)
FB_API fb_status fb_recorder_started(fb_recorder* recorder, int64_t client, int64_t version, double time);
/* Its task reached the server. */
FB_API fb_status fb_recorder_arrived(fb_recorder* recorder, int64_t client, double time);
/* Its task is lost: it has no row. */
FB_API fb_status fb_recorder_cancelled(fb_recorder* recorder, int64_t client);
FB_API int64_t fb_recorder_count(const fb_recorder* recorder); /* arrivals */
FB_API int64_t
fb_recorder_in_flight(const fb_recorder* recorder); /* tasks that have neither arrived nor been cancelled */
/* The arrivals, as client, version, start_time and arrive_time. Up to n are written; all are counted. */
FB_API int64_t fb_recorder_rows(const fb_recorder* recorder, int64_t n, int64_t* client_out, int64_t* version_out,
                                double* start_time_out, double* arrive_time_out);
/* Writes them as CSV, which fedbuff.read_arrival_log of Python reads; beside the path first and then in its place. */
FB_API fb_status fb_recorder_save(const fb_recorder* recorder, const char* path);

/* ---- The smallest parts ------------------------------------------------------------------------------------------ */

/* sum_out = sum + weight * delta (sum null: zero; may be sum_out). Whatever is returned, sum_out was written;
 * FB_ERR_NOT_FINITE, FB_ERR_OVERFLOW: it is not finite, and the delta is not, or is. */
FB_API fb_status fb_accumulate(fb_dtype dtype, int64_t dim, const void* sum, const void* delta, double weight,
                               void* sum_out);
/* sum_out = sum + weight * delta in whole numbers: sum and sum_out (dim) int64, delta FB_I32 or FB_I64; weight to a
 * multiple of 2^-24, the product to the nearest whole number. FB_ERR_OVERFLOW leaves sum_out undefined. */
FB_API fb_status fb_accumulate_fixed(fb_dtype delta_dtype, int64_t dim, const int64_t* sum, const void* delta,
                                     double weight, int64_t* sum_out);
/* w_out = w - scale * sum (w_out may be w). */
FB_API fb_status fb_step(fb_dtype dtype, int64_t dim, const void* w, const void* sum, double scale, void* w_out);
/* w_out = w - scale * sum_k weight[k] * delta[k], in one pass (w_out may be w). weight (n_deltas) has the dtype. The
 * executor may be null. FB_ERR_HOST leaves w_out undefined. */
FB_API fb_status fb_aggregate(fb_dtype dtype, int64_t dim, const void* w, int64_t n_deltas, const void* const* delta,
                              const void* weight, double scale, const fb_executor* executor, void* w_out);

#ifdef __cplusplus
}
#endif

#endif /* FEDBUFF_H */
