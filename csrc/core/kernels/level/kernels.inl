// The kernels, written once and compiled per CPU level inside that level's own namespace, so that no function of one
// level can stand in for another's. Standard-library templates stay out for the same reason.
//
// A level provides Vec<T> for float and double: kLanes and block shapes; zero, set, load, store, stream (a store past
// the caches, to an aligned address) and end_streams after them, load_part / store_part of the first n lanes, load_half
// of the first half, Vec<double>::load of floats; madd (fused where the level has it), max and min (the second
// argument where one is NaN), sqrt, abs, if_less, round, scale_by_power, sum_lanes, sum_lanes_of_4 and, of as many rows
// as there are lanes, sum_lanes_of_each.
//
// + - * / are those of arithmetic.inl. In schedule_<level>.hpp a level also provides EventScan, and philox_batch or the
// Words64 that philox_batch.inl needs; lists_avx512.hpp has a ListMaker of its own in the place of that of lists.inl.
//
// Each part uses those above it.
#include "math.inl"
#include "vectors.inl"
#include "optimizers.inl"
#include "rows.inl"
#include "fixed_point.inl"
#include "quantize.inl"
#include "compress.inl"
#include "linear.inl"
#include "batch.inl"
#include "dense.inl"
#include "matmul.inl"
#include "recurrent_shape.inl"
#include "network_scratch.inl"
#include "scratch.inl"
#include "net.inl"
#include "conv.inl"
#include "conv_back.inl"
#include "pool.inl"
#include "pointwise.inl"
#include "norm.inl"
#include "embedding.inl"
#include "recurrent.inl"
#include "augment.inl"
#include "network.inl"
#include "block.inl"
#include "quadratic.inl"
#include "small.inl"
#include "local.inl"
#include "evaluate.inl"
#include "limits.inl"
#include "schedule.inl"

template <class T>
std::size_t scratch_bytes(const Problem<T>& problem) {
  return Scratch<T>(problem, nullptr).bytes;
}

template <class T>
constexpr Kernels<T> make_kernels() {
  return {&scratch_bytes<T>,
          &local_sgd<T>,
          &clients_gradient<T>,
          &count_correct<T>,
          &accumulate<T>,
          &accumulate_models<T>,
          &aggregate<T>,
          &add_row<T>,
          &step_rows<T>,
          &store_row<T>,
          &sgd_step<T>,
          &adam_step<T>,
          &optimizer_step<T>,
          &all_finite<T>,
          &dot<T>,
          &squared_distance<T>,
          &encode_add<T, std::uint32_t>,
          &encode_add<T, std::uint64_t>,
          &add_words<typename Kernels<T>::Word>,
          &decode<T, std::uint32_t>,
          &decode<T, std::uint64_t>,
          &quantize<T>,
          &gather_sizes<T>,
          &keep_sizes<T>,
          &sum_of_sizes<T>,
          &take_signs<T>,
          &round_to_half<T>,
          make_limits<T>()};
}
