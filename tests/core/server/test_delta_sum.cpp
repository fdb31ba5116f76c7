// The sum of a buffer: chunks on many threads, refused terms leave no trace, and whole numbers add exactly.
#include "server/delta_sum.hpp"

#include <atomic>
#include <limits>

#include "check.hpp"
#include "threads/parallel.hpp"

using namespace fedbuff;
using check::Numbers;

namespace {

constexpr std::int64_t kDims[] = {1, 7, kChunkSize, 2 * kChunkSize + 3};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
constexpr fb_dtype kDtype = sizeof(T) == 4 ? FB_F32 : FB_F64;

template <class T>
fb_status add(DeltaSum<T>& sum, bool empty, const std::vector<typename DeltaSum<T>::Term>& terms,
              const T* current = nullptr, int threads = 1) {
  std::atomic<fb_status> found{FB_OK};
  run_parallel(sum.n_chunks(), threads, [&](std::int64_t chunk) {
    if (const fb_status status = sum.add_chunk(chunk, empty, terms, current); status != FB_OK) {
      found = status;
    }
  });
  return found;
}

template <class T>
void sums_of_floats() {
  for (const std::int64_t dim : kDims) {
    Numbers numbers(17);
    const auto a = numbers.vector<T>(dim), b = numbers.vector<T>(dim), start = numbers.vector<T>(dim),
               current = numbers.vector<T>(dim);
    DeltaSum<T> sum(dim, 0.0), threaded(dim, 0.0);
    CHECK_EQ(sum.accepts(kDtype<T>, dim), FB_OK);
    CHECK_EQ(sum.accepts(FB_I32, dim), FB_ERR_DTYPE);
    CHECK_EQ(sum.accepts(kDtype<T>, dim + 1), FB_ERR_SIZE);
    for (DeltaSum<T>* one : {&sum, &threaded}) {
      const int threads = one == &sum ? 1 : 3;
      CHECK_EQ(add<T>(*one, true, {{a.data(), kDtype<T>, 2.0, nullptr}}, nullptr, threads), FB_OK);
      one->commit();
      const std::vector<typename DeltaSum<T>::Term> two = {{b.data(), kDtype<T>, -0.5, nullptr},
                                                           {a.data(), kDtype<T>, 1.0, start.data()}};
      CHECK_EQ(add<T>(*one, false, two, current.data(), threads), FB_OK);
      one->commit();
    }
    for (std::int64_t j = 0; j < dim; ++j) {
      const double moved = static_cast<double>(current[at(j)]) - static_cast<double>(start[at(j)]);
      const double want = 3.0 * static_cast<double>(a[at(j)]) - 0.5 * static_cast<double>(b[at(j)]) + moved;
      CHECK_NEAR(sum.values()[j], want, 8, 8.0, j);
      CHECK_EQ(threaded.values()[j], sum.values()[j]);
    }
    sum.clear();
    CHECK_EQ(sum.values()[dim - 1], T(0));
    sum.set_raw(threaded.raw());
    CHECK_EQ(sum.values()[dim - 1], threaded.values()[dim - 1]);
  }
}

template <class T>
void refused_terms() {
  for (const std::int64_t dim : kDims) {
    for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()}) {
      const auto good = Numbers(3).vector<T>(dim);
      auto broken = good;
      broken[at(dim - 1)] = bad;
      DeltaSum<T> sum(dim, 0.0);
      CHECK_EQ(add<T>(sum, true, {{good.data(), kDtype<T>, 1.0, nullptr}}), FB_OK);
      sum.commit();
      const std::vector<typename DeltaSum<T>::Term> terms = {{good.data(), kDtype<T>, 1.0, nullptr},
                                                             {broken.data(), kDtype<T>, 1.0, nullptr}};
      CHECK_EQ(add<T>(sum, false, terms), FB_ERR_OVERFLOW);  // and not committed
      CHECK_EQ(sum.reason(terms[0]), FB_ERR_OVERFLOW);
      CHECK_EQ(sum.reason(terms[1]), FB_ERR_NOT_FINITE);
      for (std::int64_t j = 0; j < dim; ++j) {
        CHECK_EQ(sum.values()[j], good[at(j)]);
      }
    }
  }
}

}  // namespace

TEST(delta_sum_of_floats) {
  check::on_every_level([] { sums_of_floats<float>(), sums_of_floats<double>(); });
}

TEST(delta_sum_refused_terms_leave_no_trace) {
  check::on_every_level([] { refused_terms<float>(), refused_terms<double>(); });
}

TEST(delta_sum_of_whole_numbers) {
  for (const std::int64_t dim : kDims) {
    std::vector<std::int32_t> narrow(at(dim));
    std::vector<std::int64_t> wide(at(dim));
    for (std::int64_t j = 0; j < dim; ++j) {
      narrow[at(j)] = static_cast<std::int32_t>(3 * j - 5);
      wide[at(j)] = (std::int64_t{1} << 53) + j;  // more than a double holds
    }
    DeltaSum<double> sum(dim, 0.5);
    CHECK_EQ(sum.accepts(FB_I32, dim), FB_OK);
    CHECK_EQ(sum.accepts(FB_I64, dim), FB_OK);
    CHECK_EQ(sum.accepts(FB_F64, dim), FB_ERR_DTYPE);
    const std::vector<DeltaSum<double>::Term> terms = {{narrow.data(), FB_I32, 0.5, nullptr},
                                                       {wide.data(), FB_I64, 1.0, nullptr}};
    CHECK_EQ(add<double>(sum, true, terms, nullptr, 3), FB_OK);
    sum.commit();
    const auto* raw = static_cast<const std::int64_t*>(sum.raw());
    for (std::int64_t j = 0; j < dim; ++j) {  // half of an odd number: to even
      CHECK_EQ(raw[j], wide[at(j)] + static_cast<std::int64_t>(std::nearbyint(0.5 * narrow[at(j)])));
    }
    for (std::int64_t chunk = 0; chunk < sum.n_chunks(); ++chunk) {
      sum.make_values(chunk);
    }
    CHECK_EQ(sum.values()[0], 0.5 * static_cast<double>(raw[0]));
    CHECK_EQ(sum.values()[dim - 1], 0.5 * static_cast<double>(raw[dim - 1]));
    const std::vector<std::int64_t> most(at(dim), std::numeric_limits<std::int64_t>::max());
    const std::int64_t before = raw[dim - 1];
    CHECK_EQ(add<double>(sum, false, {{most.data(), FB_I64, 1.0, nullptr}}), FB_ERR_OVERFLOW);
    CHECK_EQ(static_cast<const std::int64_t*>(sum.raw())[dim - 1], before);
  }
}

TEST(delta_sum_chunks_cover_everything_once) {
  for (const std::int64_t dim : {std::int64_t{1}, 2 * kChunkSize - 1, 2 * kChunkSize, 5 * kChunkSize + 1}) {
    const DeltaSum<float> sum(dim, 0.0);
    std::size_t next = 0;
    for (std::int64_t chunk = 0; chunk < sum.n_chunks(); ++chunk) {
      const auto range = sum.range(chunk);
      CHECK_EQ(range.begin, next);
      CHECK(range.n > 0);
      next += range.n;
    }
    CHECK_EQ(next, at(dim));
  }
}
