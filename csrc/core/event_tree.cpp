#include "event_tree.hpp"

#if defined(__x86_64__) && !defined(__clang__)
// GCC 12 warns of its own undefined operands in the AVX-512 intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fedbuff {

namespace {

// A row of sixteen times: `put` gives one of them a value and returns the least; `find` gives a bit to all that equal
// a value. The wide ones store whole registers, since a narrow store would delay the next wide load.
struct PlainRow {
  static FB_ALWAYS_INLINE double put(double* row, std::uint32_t lane, double value) {
    row[lane] = value;
    double least[4] = {row[0], row[1], row[2], row[3]};
    for (int i = 4; i < 16; i += 4) {
      for (int j = 0; j < 4; ++j) {
        least[j] = row[i + j] < least[j] ? row[i + j] : least[j];
      }
    }
    const double a = least[1] < least[0] ? least[1] : least[0];
    const double b = least[3] < least[2] ? least[3] : least[2];
    return b < a ? b : a;
  }
  static FB_ALWAYS_INLINE std::uint32_t find(const double* row, double value) {
    std::uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) {
      bits |= static_cast<std::uint32_t>(row[i] == value) << i;
    }
    return bits;
  }
};

template <class Row>
FB_ALWAYS_INLINE TimeTree::Earliest replace(TimeTree& tree, std::uint32_t slot, double time) {
  constexpr std::uint32_t n = TimeTree::kRow;
  const double row_least = Row::put(tree.time + slot / n * n, slot % n, time);
  const double least = Row::put(tree.least, slot / n, row_least);
  const std::uint32_t rows = Row::find(tree.least, least);
  const auto row = static_cast<std::uint32_t>(__builtin_ctz(rows));
  const std::uint32_t lanes = Row::find(tree.time + row * n, least);
  const auto lane = static_cast<std::uint32_t>(__builtin_ctz(lanes));
  return {least, row * n + lane, (rows & (rows - 1)) | (lanes & (lanes - 1))};
}

TimeTree::Earliest replace_plain(TimeTree& tree, std::uint32_t slot, double time) {
  return replace<PlainRow>(tree, slot, time);
}

#if defined(__x86_64__)
struct WideRow {
  FB_WIDE static double put(double* row, std::uint32_t lane, double value) {
    const __m256d new_value = _mm256_set1_pd(value);
    const __m256i new_lane = _mm256_set1_epi64x(static_cast<long long>(lane));
    __m256i lanes = _mm256_setr_epi64x(0, 1, 2, 3);
    __m256d x[4];
    for (int i = 0; i < 4; ++i) {
      const __m256d here = _mm256_castsi256_pd(_mm256_cmpeq_epi64(lanes, new_lane));
      x[i] = _mm256_blendv_pd(_mm256_load_pd(row + 4 * i), new_value, here);
      _mm256_store_pd(row + 4 * i, x[i]);
      lanes = _mm256_add_epi64(lanes, _mm256_set1_epi64x(4));
    }
    const __m256d four = _mm256_min_pd(_mm256_min_pd(x[0], x[1]), _mm256_min_pd(x[2], x[3]));
    const __m128d two = _mm_min_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_min_sd(two, _mm_unpackhi_pd(two, two)));
  }
  FB_WIDE static std::uint32_t find(const double* row, double value) {
    const __m256d wanted = _mm256_set1_pd(value);
    int bits = 0;
    for (int i = 0; i < 4; ++i) {
      bits |= _mm256_movemask_pd(_mm256_cmp_pd(_mm256_load_pd(row + 4 * i), wanted, _CMP_EQ_OQ)) << 4 * i;
    }
    return static_cast<std::uint32_t>(bits);
  }
};

FB_WIDE TimeTree::Earliest replace_wide(TimeTree& tree, std::uint32_t slot, double time) {
  return replace<WideRow>(tree, slot, time);
}

struct WiderRow {
  FB_WIDER static double put(double* row, std::uint32_t lane, double value) {
    const __m512d new_value = _mm512_set1_pd(value);
    const std::uint32_t here = 1u << lane;
    const __m512d low = _mm512_mask_mov_pd(_mm512_load_pd(row), static_cast<__mmask8>(here), new_value);
    const __m512d high = _mm512_mask_mov_pd(_mm512_load_pd(row + 8), static_cast<__mmask8>(here >> 8), new_value);
    _mm512_store_pd(row, low);
    _mm512_store_pd(row + 8, high);
    const __m512d eight = _mm512_min_pd(low, high);
    const __m256d four = _mm256_min_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_min_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_min_sd(two, _mm_unpackhi_pd(two, two)));
  }
  FB_WIDER static std::uint32_t find(const double* row, double value) {
    const __m512d wanted = _mm512_set1_pd(value);
    const std::uint32_t low = _mm512_cmp_pd_mask(_mm512_load_pd(row), wanted, _CMP_EQ_OQ);
    const std::uint32_t high = _mm512_cmp_pd_mask(_mm512_load_pd(row + 8), wanted, _CMP_EQ_OQ);
    return low | high << 8;
  }
};

FB_WIDER TimeTree::Earliest replace_wider(TimeTree& tree, std::uint32_t slot, double time) {
  return replace<WiderRow>(tree, slot, time);
}
#endif

}  // namespace

TimeTree::Replace time_tree_replace(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::Avx512) {
    return &replace_wider;
  }
  if (level == SimdLevel::Avx2) {
    return &replace_wide;
  }
#endif
  (void)level;
  return &replace_plain;
}

}  // namespace fedbuff
