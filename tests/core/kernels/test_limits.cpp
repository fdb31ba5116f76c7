// The loops that measure the machine do what they say, on every CPU level, up to the last element and no further.
#include "check.hpp"
#include "kernels/dispatch.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

constexpr std::int64_t kDims[] = {1, 3, 8, 15, 16, 17, 64, 127, 130, 257};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
void loops_do_their_work() {
  const Limits<T>& limits = kernels().of<T>().limits;
  Numbers numbers(5);
  for (const std::int64_t dim : kDims) {
    const auto a = numbers.vector<T>(dim), b = numbers.vector<T>(dim), c = numbers.vector<T>(dim);
    const T* streams[] = {a.data(), b.data(), c.data()};
    double want = 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      want += static_cast<double>(a[at(j)]) + static_cast<double>(b[at(j)]) + static_cast<double>(c[at(j)]);
    }
    CHECK_NEAR(limits.read(dim, 3, streams), want, static_cast<double>(3 * dim), static_cast<double>(dim), 0);
    for (const bool past_caches : {false, true}) {
      for (std::int64_t begin = 0; begin < 3 && begin < dim; ++begin) {  // addresses that are not aligned, too
        std::vector<T> out(at(dim));
        limits.write(dim - begin, T(2), past_caches, out.data() + begin);
        for (std::int64_t j = 0; j < dim; ++j) {
          CHECK_EQ(out[at(j)], j < begin ? T(0) : T(2));
        }
        limits.copy(dim - begin, a.data(), past_caches, out.data() + begin);
        for (std::int64_t j = 0; j < dim; ++j) {
          CHECK_EQ(out[at(j)], j < begin ? T(0) : a[at(j - begin)]);
        }
      }
    }
  }
  CHECK_EQ(limits.read(0, 0, nullptr), T(0));
}

template <class T>
void chains_multiply_and_add() {
  const Limits<T>& limits = kernels().of<T>().limits;
  const auto numbers = static_cast<T>(limits.flops_per_round / 2);
  const T start = numbers * (numbers - 1) / 2;  // number j starts at j
  CHECK_EQ(limits.multiply_add(0, T(0.5), T(1)), start);
  CHECK_EQ(limits.multiply_add(1, T(0.5), T(1)), T(0.5) * start + numbers);
  CHECK_EQ(limits.multiply_add(3, T(0.5), T(1)), T(0.125) * start + T(1.75) * numbers);
  CHECK_EQ(limits.flops_per_round % (2 * limits.lanes), 0);
  CHECK_EQ(limits.dependent_additions(0, 3), 0u);
  CHECK_EQ(limits.dependent_additions(7, 3), static_cast<std::uint64_t>(21 * limits.additions_per_round));
}

}  // namespace

TEST(limits_loops) {
  check::on_every_level([] { loops_do_their_work<float>(), loops_do_their_work<double>(); });
}

TEST(limits_chains) {
  check::on_every_level([] { chains_multiply_and_add<float>(), chains_multiply_and_add<double>(); });
}
