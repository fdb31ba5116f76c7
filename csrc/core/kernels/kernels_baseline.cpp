// The kernels for every CPU of the architecture.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"
#include "numbers/normal.hpp"
#include "numbers/philox.hpp"

namespace fedbuff::baseline {

#include "kernels/level/simd_baseline.hpp"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"baseline", make_kernels<float>(), make_kernels<double>()};

}  // namespace fedbuff::baseline
