/* Compiled as strict C99: the public header needs nothing else. */
#include <fedbuff/fedbuff.h>

int main(void) {
  const double w0[2] = {0.0, 0.0};
  fb_server* server = 0;
  fb_rule rule = FB_RULE_INIT;
  fb_server_state state = FB_SERVER_STATE_INIT;
  fb_problem problem = FB_PROBLEM_INIT;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  fb_executor executor = FB_EXECUTOR_INIT;
  if (fb_require_abi(FB_ABI_VERSION) != FB_OK || fb_server_create(&rule, FB_F64, 2, w0, &server) != FB_OK) {
    return 1;
  }
  fb_server_destroy(&server);
  return state.size == 0 || problem.size == 0 || config.size == 0 || executor.size == 0;
}
