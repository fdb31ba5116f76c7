// Marks a symbol that libfedbuff exports to the modules that link it. All others are hidden.
#pragma once

#define FB_CORE_API __attribute__((visibility("default")))
