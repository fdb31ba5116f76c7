// The kernels for every CPU of the architecture.
#include "kernels/level_includes.hpp"

namespace fedbuff::baseline {

#include "kernels/level/arithmetic.inl"
#include "kernels/level/simd_baseline.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_baseline.hpp"
#include "kernels/level/lists.inl"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"baseline", make_kernels<float>(), make_kernels<double>(), make_schedule_kernels()};

}  // namespace fedbuff::baseline
