/* FedBuff's server in a C program: three clients that take turns, a buffer of two.
 *
 *   cc server.c $(python -m fedbuff --cflags --libs) -o server && ./server log.csv
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

enum { DIM = 2, CLIENTS = 3, ARRIVALS = 12 };

int main(int n_arguments, char** argument) {
  /* Client i minimises |w - center_i|^2 / 2. */
  const double center[CLIENTS * DIM] = {1, 2, 3, 4, 5, 6}, curvature = 1, w0[DIM] = {0, 0};
  const int32_t dim = DIM;
  int64_t version[CLIENTS];
  double w[CLIENTS][DIM], delta[DIM];
  FILE* log = n_arguments > 1 ? fopen(argument[1], "w") : stdout;

  fb_rule rule = FB_RULE_INIT;
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  fb_server* server = 0;
  fb_local* local = 0;
  rule.buffer_size = 2;
  rule.lr = 0.5;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = CLIENTS;
  problem.center = center;
  problem.curvature = &curvature;
  problem.curvature_shared = 1;
  config.steps = 3;
  config.lr = 0.1;
  CHECK(fb_require_abi(FB_ABI_VERSION));
  CHECK(fb_server_create(&rule, FB_F64, DIM, w0, &server));
  CHECK(fb_local_create(&problem, &config, FB_F64, &local));

  for (int i = 0; i < CLIENTS; ++i) {
    CHECK(fb_server_download_to(server, FB_F64, DIM, w[i], &version[i]));
  }
  fprintf(log, "client,version,arrive_time\n"); /* an arrival log: fedbuff.read_arrival_log replays it */
  for (int k = 0; k < ARRIVALS; ++k) {
    const int i = k % CLIENTS;
    CHECK(fb_local_delta(local, FB_F64, DIM, i, (uint32_t)(k / CLIENTS), w[i], delta));
    fprintf(log, "%d,%d,%d\n", i, (int)version[i], k + 1);
    CHECK(fb_server_upload(server, FB_F64, DIM, delta, version[i], 1.0, FB_NO_TICKET, 0));
    CHECK(fb_server_download_to(server, FB_F64, DIM, w[i], &version[i]));
  }
  printf("version %d, w %.17g %.17g\n", (int)fb_server_version(server), w[(ARRIVALS - 1) % CLIENTS][0],
         w[(ARRIVALS - 1) % CLIENTS][1]);
  fb_local_destroy(&local);
  fb_server_destroy(&server);
  return log == stdout ? 0 : fclose(log);
}
