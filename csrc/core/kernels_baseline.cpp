// The kernels for every CPU of the architecture.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "normal.hpp"
#include "philox.hpp"

namespace fedbuff::baseline {

#include "level/simd_baseline.hpp"
#include "level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"baseline", make_kernels<float>(), make_kernels<double>()};

}  // namespace fedbuff::baseline
