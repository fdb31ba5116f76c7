// What fb_error_text says: a sentence about the last refusal, of each thread its own.
#pragma once

#include "fedbuff/fedbuff.h"
#include "numbers/field_checks.hpp"

namespace fedbuff {

// A call that may leave a sentence begins with none.
void clear_error();
// Keeps the sentence, cut where it is very long, and gives the status back.
fb_status refuse(fb_status status, const char* text);
// FB_OK where all is well.
fb_status refuse(const FieldChecks& checks);

}  // namespace fedbuff
