/* A whole simulation without Python: recorded delays from a file, FedBuff's schedule of them, its replay on logistic
 * regression, and the loss.
 *
 *   cc simulate.c $(python -m fedbuff --cflags --libs) -o simulate && ./simulate delays.csv
 *
 * The file has a line per task, `client,compute,upload`, with clients in ascending order, after a line of names.
 */
#include <fedbuff/fedbuff.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                           \
  do {                                                                                        \
    const fb_status status_ = (call);                                                         \
    if (status_ != FB_OK) {                                                                   \
      fprintf(stderr, "%s: %s. %s\n", #call, fb_status_text(status_), fb_error_text()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

enum { CLIENTS = 12, PER_CLIENT = 10, ROWS = CLIENTS * PER_CLIENT, FEATURES = 7, MOST_TASKS = 4096, ROOM = 64, STEPS = 60 };

/* A number in [-1, 1) that looks irregular and is the same everywhere. */
static double fraction(int64_t i) { return 2 * ((double)(i * 7919 % 1024) / 1024 - 0.5); }

/* The columns of the file, and where each client's rows begin. */
static void read_delays(const char* path, double* compute, double* upload, int64_t* row_start) {
  FILE* file = fopen(path, "r");
  char line[256];
  int64_t n = 0, at = 0;
  if (file == NULL || fgets(line, sizeof line, file) == NULL) {
    fprintf(stderr, "%s: it cannot be read\n", path);
    exit(1);
  }
  row_start[0] = 0;
  while (n < MOST_TASKS && fgets(line, sizeof line, file) != NULL) {
    long client;
    if (sscanf(line, "%ld,%lf,%lf", &client, &compute[n], &upload[n]) != 3 || client < at || client >= CLIENTS) {
      fprintf(stderr, "%s: line %d: expected client,compute,upload\n", path, (int)n + 2);
      exit(1);
    }
    while (at < client) {
      row_start[++at] = n;
    }
    ++n;
  }
  while (at < CLIENTS) {
    row_start[++at] = n;
  }
  fclose(file);
}

int main(int n_arguments, char** argument) {
  static double compute[MOST_TASKS], upload[MOST_TASKS], x[ROWS * FEATURES], target[ROWS];
  int64_t row_start[CLIENTS + 1], offsets[CLIENTS + 1];
  const int32_t layer_size[2] = {FEATURES, 1};
  const double staleness[5] = {1.0, 0.5, 0.25, 0.125, 0.0625};
  int64_t i, j, n_rows, n_steps;
  int32_t more = FB_SCHEDULE_MORE, end;
  double loss, norm, accuracy;

  fb_delays delays = FB_DELAYS_INIT;
  fb_schedule_config config = FB_SCHEDULE_CONFIG_INIT;
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config local = FB_LOCAL_CONFIG_INIT;
  fb_rule rule = FB_RULE_INIT;
  fb_replay_config weights = FB_REPLAY_CONFIG_INIT;
  fb_schedule* schedule = NULL;
  fb_replay* replay = NULL;

  /* When: recorded tasks, six clients at work, a buffer of four. */
  read_delays(n_arguments > 1 ? argument[1] : "delays.csv", compute, upload, row_start);
  delays.n_clients = CLIENTS;
  delays.row_start = row_start;
  delays.row_compute = compute;
  delays.row_upload = upload;
  config.seed = 3;
  config.concurrency = 6;
  config.buffer_size = 4;
  config.max_staleness = 4;
  config.server_steps = STEPS;
  CHECK(fb_schedule_create(&delays, &config, &schedule));

  /* What: each client has ten rows. */
  for (i = 0; i < ROWS; ++i) {
    double sum = 0;
    for (j = 0; j < FEATURES; ++j) {
      x[i * FEATURES + j] = fraction(i * FEATURES + j);
      sum += (double)j * x[i * FEATURES + j];
    }
    target[i] = sum > 0;
  }
  for (i = 0; i <= CLIENTS; ++i) {
    offsets[i] = i * PER_CLIENT;
  }
  problem.family = FB_NET;
  problem.head = FB_LOGISTIC;
  problem.layer_size = layer_size;
  problem.n_clients = CLIENTS;
  problem.offsets = offsets;
  problem.x = x;
  problem.target = target;
  problem.l2 = 0.125;
  local.steps = 3;
  local.lr = 0.25;
  local.batch_size = 4;
  local.seed = 5;
  rule.buffer_size = 4;
  rule.norm = FB_NORM_ARRIVALS;
  rule.max_staleness = 4;
  weights.staleness = staleness;
  weights.n_staleness = 5;
  CHECK(fb_replay_create(&problem, &local, &rule, &weights, FB_F64, FEATURES, NULL, &replay));

  /* The schedule is made and replayed in parts. */
  while (more == FB_SCHEDULE_MORE) {
    static int32_t client[ROOM];
    static uint32_t task[ROOM];
    static int64_t version[ROOM], step[ROOM], stale[ROOM], started[ROOM], step_rows[ROOM];
    static double start_time[ROOM], arrive_time[ROOM], step_time[ROOM];
    static uint8_t status[ROOM];
    fb_columns columns = FB_COLUMNS_INIT;
    columns.n_rows = columns.n_steps = ROOM;
    columns.client = client, columns.task = task, columns.version = version, columns.step = step;
    columns.staleness = stale, columns.start_time = start_time, columns.arrive_time = arrive_time;
    columns.status = status, columns.step_time = step_time, columns.started = started, columns.step_rows = step_rows;
    CHECK(fb_schedule_next(schedule, &columns, &n_rows, &n_steps, &more));
    columns.n_rows = n_rows;
    columns.n_steps = n_steps;
    CHECK(fb_replay_add(replay, &columns));
    CHECK(fb_replay_run(replay, STEPS, 2, &end));
  }
  CHECK(fb_replay_close(replay));
  CHECK(fb_replay_run(replay, STEPS, 2, &end));
  CHECK(fb_replay_evaluate(replay, 2, &loss, &norm, &accuracy));
  printf("%d server steps at time %.17g\nloss %.17g, squared gradient norm %.17g, accuracy %.17g\n",
         (int)fb_replay_version(replay), fb_replay_time(replay), loss, norm, accuracy);
  fb_replay_destroy(&replay);
  fb_schedule_destroy(&schedule);
  return end == FB_REPLAY_CLOSED ? 0 : 1;
}
