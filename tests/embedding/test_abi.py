"""A program compiled against this header, run with a library that has appended fields to every struct."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import installs
import pytest

from fedbuff import backends
from fedbuff._machine import embedding as _embedding

ROOT = installs.ROOT
PROGRAM = """
#include <fedbuff/fedbuff.h>
#include <stdio.h>

static int32_t run(void* context, int64_t n, fb_work work, void* argument) {
  ++*(int*)context;
  for (int64_t part = 0; part < n; ++part) work(argument, part);
  return 0;
}

enum { DIM = 20000 };
static double w0[DIM], delta[DIM];

int main(void) {
  int calls = 0, failed = 0;
  int32_t dim = 2;
  double center[2] = {1, 2}, curvature = 1, small[2] = {0, 0}, step[2];
  struct { fb_server_state state; double behind; } guarded = {FB_SERVER_STATE_INIT, 42};
  fb_rule rule = FB_RULE_INIT;
  fb_executor executor = FB_EXECUTOR_INIT;
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  fb_server* server = 0;
  fb_local* local = 0;
  int64_t version;
  fb_model* model = 0;
  fb_delays delays = FB_DELAYS_INIT;
  fb_schedule_config plan = FB_SCHEDULE_CONFIG_INIT;
  fb_columns columns = FB_COLUMNS_INIT;
  fb_replay_config weights = FB_REPLAY_CONFIG_INIT;
  fb_schedule* schedule = 0;
  fb_replay* replay = 0;
  int32_t client[8], end;
  uint32_t task[8];
  int64_t numbers[5][8], n_rows, n_steps;
  double times[3][8];
  uint8_t status[8];
  executor.run = run;
  executor.context = &calls;
  problem.family = FB_QUADRATIC;
  problem.layer_size = &dim;
  problem.n_clients = 1;
  problem.center = center;
  problem.curvature = &curvature;
  config.lr = 1;
  delta[0] = 3;
  failed += fb_server_create(&rule, FB_F64, DIM, w0, &server) != FB_OK;
  failed += fb_server_set_executor(server, &executor) != FB_OK;
  failed += fb_server_download(server, &version, &model) != FB_OK;
  fb_model_release(model);
  failed += fb_server_upload(server, FB_F64, DIM, delta, version, 1.0, FB_NO_TICKET, 0) != FB_OK;
  failed += fb_server_get_state(server, &guarded.state) != FB_OK;
  failed += guarded.behind != 42 || guarded.state.version != 1 || ((const double*)guarded.state.w)[0] != -3;
  failed += fb_local_create(&problem, &config, FB_F64, &local) != FB_OK;
  failed += fb_local_delta(local, FB_F64, 2, 0, 0, small, step) != FB_OK || step[1] != -2;
  failed += calls == 0;
  fb_local_destroy(&local);
  fb_server_destroy(&server);

  delays.n_clients = plan.concurrency = 1;
  delays.compute.p[0] = 0.5;
  plan.server_steps = 3;
  columns.n_rows = columns.n_steps = 8;
  columns.client = client, columns.task = task, columns.version = numbers[0], columns.step = numbers[1];
  columns.staleness = numbers[2], columns.started = numbers[3], columns.step_rows = numbers[4];
  columns.start_time = times[0], columns.arrive_time = times[1], columns.step_time = times[2];
  columns.status = status;
  failed += fb_schedule_create(&delays, &plan, &schedule) != FB_OK;
  failed += fb_schedule_next(schedule, &columns, &n_rows, &n_steps, &end) != FB_OK;
  failed += n_steps != 3 || times[2][2] != 1.5;
  columns.n_rows = n_rows, columns.n_steps = n_steps;
  failed += fb_replay_create(&problem, &config, &rule, &weights, FB_F64, 2, small, &replay) != FB_OK;
  failed += fb_replay_add(replay, &columns) != FB_OK || fb_replay_close(replay) != FB_OK;
  failed += fb_replay_run(replay, 9, 1, &end) != FB_OK || end != FB_REPLAY_CLOSED;
  failed += ((const double*)fb_replay_w(replay))[1] != 2;
  fb_replay_destroy(&replay);
  fb_schedule_destroy(&schedule);

  rule.abi = FB_ABI_VERSION + 1;
  failed += fb_server_create(&rule, FB_F64, DIM, w0, &server) != FB_ERR_ABI || server != 0;
  failed += fb_require_abi(FB_ABI_VERSION + 1) != FB_ERR_ABI;
  printf("%d failed, rule of %d bytes\\n", failed, (int)sizeof rule);
  return failed;
}
"""


@pytest.mark.skipif(backends.build_info()["compiled"] is False, reason="nothing was compiled")
def test_a_library_with_appended_fields(tmp_path: Path) -> None:
    if shutil.which("cc") is None or shutil.which("c++") is None:
        pytest.skip("no compiler")
    header = (ROOT / "csrc" / "include" / "fedbuff" / "fedbuff.h").read_text(encoding="utf-8")
    appended, n_structs = re.subn(
        r"(typedef struct \w+ \{\n  uint32_t size, abi;\n(?:.*\n)*?)(\} \w+;)", r"\1  double appended[4];\n\2", header
    )
    assert n_structs == 11
    later = tmp_path / "fedbuff"
    later.mkdir()
    (later / "fedbuff.h").write_text(appended, encoding="utf-8")
    (tmp_path / "program.c").write_text(PROGRAM)

    library = _embedding.library()
    folder = str(Path(library).parent)
    core = ROOT / "csrc" / "core"
    sources = [
        str(core / f"{name}.cpp")
        for name in (
            *("abi/c_api", "abi/c_schedule", "abi/c_replay", "abi/held_replay", "abi/saved_file", "abi/check_rule"),
            *("abi/error_text", "server/server", "server/buffer", "clients/local_sgd", "clients/read_problem"),
            *("clients/workspace", "clients/network_plan", "clients/read_network"),
        )
    ]
    compile_library = ["c++", "-std=c++17", "-O0", "-fPIC", "-shared", "-pthread", f"-I{tmp_path}", f"-I{core}"]
    both = f"-Wl,-rpath,{tmp_path}:{folder}"
    for command in (
        # the kernels, which know nothing of the header, are this library's
        [*compile_library, *sources, library, "-Wl,-rpath," + folder, "-o", "libfedbuff_later.so"],
        ["cc", "-std=c99", "program.c", f"-I{ROOT}/csrc/include", "-L.", "-lfedbuff_later", both, "-o", "later"],
        ["cc", "-std=c99", "program.c", f"-I{ROOT}/csrc/include", library, both, "-o", "same"],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for program in ("./later", "./same"):
        done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (program, done.stdout, done.stderr)
        assert done.stdout.startswith("0 failed")
