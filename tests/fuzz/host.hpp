// An executor of the host's that does the parts in some order, fails or throws, as the input says.
#pragma once

#include <stdexcept>

#include "fedbuff/fedbuff.h"
#include "input.hpp"

namespace fuzz {

class Host {
 public:
  // Null now and then, and now and then with a size or ABI of its own.
  template <class Set>
  void set(Input& in, Set set_executor) {
    fb_executor executor = FB_EXECUTOR_INIT;
    executor.context = &mode_;
    executor.run = &run;
    mode_ = in.below(5);
    const std::int64_t kind = in.below(8);
    if (kind == 0) {
      set_executor(nullptr);
      return;
    }
    if (kind == 1) {
      executor.run = nullptr;
    } else if (kind == 2) {
      executor.size = in.raw<std::uint8_t>() % (sizeof executor + 1);
    } else if (kind == 3) {
      executor.abi = in.byte();
    }
    set_executor(&executor);
  }

 private:
  static std::int32_t run(void* context, std::int64_t n, fb_work work, void* argument) {
    const std::int64_t mode = *static_cast<const std::int64_t*>(context);
    if (mode == 3) {
      return 1;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      work(argument, mode == 1 ? n - 1 - i : i);
    }
    if (mode == 4) {
      throw std::runtime_error("of the host");
    }
    return 0;
  }

  std::int64_t mode_ = 0;
};

}  // namespace fuzz
