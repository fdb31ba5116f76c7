// What the kernels use from outside. A level includes it before it switches the target, so that shared functions are
// compiled for any CPU.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "compiler/always_inline.hpp"
#include "kernels/delay_model.hpp"
#include "kernels/kernels.hpp"
#include "numbers/normal.hpp"
#include "numbers/philox.hpp"
#include "numbers/shuffle.hpp"
