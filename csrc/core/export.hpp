// What the shared core shows to the modules that link it; everything else is hidden.
#pragma once

#define FB_CORE_API __attribute__((visibility("default")))
