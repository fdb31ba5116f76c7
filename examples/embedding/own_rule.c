/* A server rule of one's own in C: the median of the buffer's deltas, number by number, which no weights can give.
 *
 *   cc own_rule.c $(python -m fedbuff --cflags --libs) -o own_rule && ./own_rule
 */
#include <fedbuff/fedbuff.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                              \
  do {                                                           \
    const fb_status status_ = (call);                            \
    if (status_ != FB_OK) {                                      \
      fprintf(stderr, "%s: %s\n", #call, fb_status_text(status_)); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

enum { DIM = 3, BUFFER = 3, UPLOADS = 12 };

static double middle(double a, double b, double c) {
  return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}

/* w_out = w - lr * median. The state counts the steps, for which the step size falls. */
static int32_t median(void* context, const fb_step_input* step) {
  const double* const* delta = (const double* const*)step->delta;
  const double *w = step->w, lr = step->lr / (1 + step->state[0]);
  double* w_out = step->w_out;
  int64_t j;
  (void)context;
  if (step->dtype != FB_F64 || step->n != BUFFER) {
    return 1;
  }
  for (j = 0; j < step->dim; ++j) {
    w_out[j] = w[j] - lr * middle(delta[0][j], delta[1][j], delta[2][j]);
  }
  step->state[0] += 1;
  return 0;
}

int main(void) {
  const double w0[DIM] = {0, 0, 0};
  double w[DIM], delta[DIM];
  fb_rule rule = FB_RULE_INIT;
  fb_server* server = 0;
  int k;

  rule.buffer_size = BUFFER;
  rule.own_step = median;
  rule.own_state = 1;
  CHECK(fb_server_create(&rule, FB_F64, DIM, w0, &server));
  for (k = 0; k < UPLOADS; ++k) {
    int64_t version;
    int32_t outcome;
    CHECK(fb_server_download_to(server, FB_F64, DIM, w, &version));
    delta[0] = k % 3 == 2 ? 1e6 : 1.0 + k; /* every third client lies about the first number */
    delta[1] = -0.5 * k;
    delta[2] = k * k;
    CHECK(fb_server_upload(server, FB_F64, DIM, delta, version, 1.0, FB_NO_TICKET, &outcome));
  }
  CHECK(fb_server_download_to(server, FB_F64, DIM, w, &(int64_t){0}));
  printf("version %d, w %.17g %.17g %.17g\n", (int)fb_server_version(server), w[0], w[1], w[2]);
  fb_server_destroy(&server);
  return 0;
}
