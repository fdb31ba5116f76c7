// A problem and local steps of the C ABI's structs, which were not checked, as the kernels want them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "clients/local_options.hpp"
#include "clients/network_plan.hpp"
#include "fedbuff/fedbuff.h"
#include "kernels/problem.hpp"
#include "numbers/field_checks.hpp"

namespace fedbuff {

template <class T>
struct GivenWork {
  Problem<T> problem{};                     // without client_weight
  std::unique_ptr<const NetworkPlan> plan;  // what the problem points to
  LocalOptions options;
};

// Reads both; `checks` says what is wrong with them. Throws std::bad_alloc.
template <class T>
void read_work(const fb_problem& problem, const fb_local_config& config, FieldChecks& checks, GivenWork<T>& work_out);

// The local steps alone, for a host's own gradient, whose clients have so many rows.
void read_local(const fb_local_config& config, const std::vector<std::int64_t>& samples, std::int64_t dim,
                FieldChecks& checks, LocalOptions& options_out);

}  // namespace fedbuff
