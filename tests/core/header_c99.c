/* Compiled as strict C99: the public header needs nothing else. */
#include <fedbuff/fedbuff.h>

int main(void) {
  const double w0[2] = {0.0, 0.0};
  fb_server* server = 0;
  fb_rule rule = {0};
  rule.size = sizeof rule;
  rule.buffer_size = 1;
  rule.max_staleness = -1;
  rule.lr = 1.0;
  if (fb_abi_version() != FB_ABI_VERSION || fb_server_create(&rule, FB_F64, 2, w0, &server) != FB_OK) {
    return 1;
  }
  fb_server_destroy(server);
  return 0;
}
