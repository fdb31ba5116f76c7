// The kernels for every CPU of the architecture.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/delay_model.hpp"
#include "kernels/kernels.hpp"
#include "numbers/normal.hpp"
#include "numbers/philox.hpp"
#include "numbers/shuffle.hpp"

namespace fedbuff::baseline {

#include "kernels/level/simd_baseline.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_baseline.hpp"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"baseline", make_kernels<float>(), make_kernels<double>(), make_schedule_kernels()};

}  // namespace fedbuff::baseline
