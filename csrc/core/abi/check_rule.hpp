// Whether a rule of the C ABI makes sense.
#pragma once

#include "fedbuff/fedbuff.h"
#include "numbers/field_checks.hpp"

namespace fedbuff {

void check_rule(const fb_rule& rule, FieldChecks& checks);

}  // namespace fedbuff
