#include "abi/error_text.hpp"

#include <cstdio>

namespace fedbuff {

namespace {

thread_local char error_text[256] = "";

}  // namespace

void clear_error() { error_text[0] = '\0'; }

fb_status refuse(fb_status status, const char* text) {
  std::snprintf(error_text, sizeof error_text, "%s", text);
  return status;
}

fb_status refuse(const FieldChecks& checks) { return checks.ok() ? FB_OK : refuse(FB_ERR_ARGUMENT, checks.text()); }

}  // namespace fedbuff

extern "C" const char* fb_error_text(void) { return fedbuff::error_text; }
