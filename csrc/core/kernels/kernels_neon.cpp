// The kernels for AArch64, with fused multiply-adds.
#if defined(__aarch64__) && defined(__ARM_NEON) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>

#include "kernels/level_includes.hpp"

namespace fedbuff::neon {

#include "kernels/level/arithmetic.inl"
#include "kernels/level/simd_neon.hpp"
#include "kernels/level/event_scan.inl"
#include "kernels/level/schedule_neon.hpp"
#include "kernels/level/philox_batch.inl"
#include "kernels/level/kernels.inl"

extern const KernelTable table;
const KernelTable table = {"neon", make_kernels<float>(), make_kernels<double>(), make_schedule_kernels()};

}  // namespace fedbuff::neon
#endif
