// A network of the C ABI's structs, which were not checked.
#pragma once

#include <memory>
#include <string>

#include "fedbuff/fedbuff.h"
#include "clients/network_plan.hpp"

namespace fedbuff {

struct NetworkFault {
  fb_status status;
  std::string text;  // empty with FB_OK
};

// Throws std::bad_alloc.
NetworkFault read_network(const fb_network* given, std::unique_ptr<const NetworkPlan>& plan_out);

}  // namespace fedbuff
