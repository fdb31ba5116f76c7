#include "kernels/dispatch.hpp"

#include <atomic>
#include <cstring>

namespace fedbuff {

namespace baseline {
extern const KernelTable table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
#elif defined(__aarch64__) && defined(__ARM_NEON) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FB_HAS_NEON
namespace neon {
extern const KernelTable table;
}
#endif

namespace {

struct Levels {
  const KernelTable* table[3];
  const char* name[4];
  int count;
};

Levels detect() {
  Levels found{};
  const auto add = [&found](const KernelTable& table) {
    found.table[found.count] = &table;
    found.name[found.count++] = table.name;
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw")) {
    add(avx512::table);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    add(avx2::table);
  }
#elif defined(FB_HAS_NEON)
  add(neon::table);  // every CPU of this architecture has it
#endif
  add(baseline::table);
  return found;
}

const Levels& levels() {
  static const Levels found = detect();
  return found;
}

std::atomic<const KernelTable*> in_force{nullptr};

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = in_force.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = levels().table[0];
    in_force.store(table, std::memory_order_release);
  }
  return *table;
}

const char* const* available_levels() { return levels().name; }

bool force_level(const char* name) {
  for (int i = 0; i < levels().count; ++i) {
    if (std::strcmp(levels().name[i], name) == 0) {
      in_force.store(levels().table[i], std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace fedbuff
