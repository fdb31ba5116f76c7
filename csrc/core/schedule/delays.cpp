#include "schedule/delays.hpp"

#if defined(__x86_64__) && !defined(__clang__)
// GCC 12 warns of its own undefined operands in the AVX-512 intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace fedbuff {

namespace {

using Kind = DistributionKind;
using Words = std::uint32_t[4][kDrawBatch];

// The words of the counters (c0[i], c1[i], c2, c3), i < kDrawBatch.
struct PlainPhilox {
  static FB_ALWAYS_INLINE void run(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1,
                                   std::uint32_t c2, std::uint32_t c3, Words& words_out) {
    for (int i = 0; i < kDrawBatch; ++i) {
      const PhiloxBlock block = philox4x32(seed, c0[i], c1[i], c2, c3);
      for (int j = 0; j < 4; ++j) {
        words_out[j][i] = block.word[j];
      }
    }
  }
};

template <Kind kKind>
FB_ALWAYS_INLINE void draw_kind(const Distribution& d, const Words& w, double* out) {
  double value[kDrawBatch];
  for (int i = 0; i < kDrawBatch; ++i) {
    value[i] = detail::from_words<kKind>(d, w[0][i], w[1][i], w[2][i], w[3][i]);
  }
  for (int i = 0; i < kDrawBatch; ++i) {
    out[i] = value[i];
  }
}

template <class Philox>
FB_ALWAYS_INLINE void draw_component(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task,
                                     std::uint32_t component, double* out) {
  const Distribution& d = model.component[component];
  if (d.kind == Kind::Constant) {
    for (int i = 0; i < kDrawBatch; ++i) {
      out[i] = d.p[0];
    }
    return;
  }
  if (d.kind == Kind::TruncatedNormal) {
    for (int i = 0; i < kDrawBatch; ++i) {
      out[i] = draw(d, model.seed, client[i], task[i], component);
    }
    return;
  }
  Words w;
  Philox::run(model.seed, client, task, component, stream_word(Stream::Delays, 0), w);
  switch (d.kind) {
    case Kind::Uniform: return draw_kind<Kind::Uniform>(d, w, out);
    case Kind::Exponential: return draw_kind<Kind::Exponential>(d, w, out);
    case Kind::HalfNormal: return draw_kind<Kind::HalfNormal>(d, w, out);
    case Kind::LogNormal: return draw_kind<Kind::LogNormal>(d, w, out);
    case Kind::Pareto: return draw_kind<Kind::Pareto>(d, w, out);
    case Kind::Weibull: return draw_kind<Kind::Weibull>(d, w, out);
    default: return draw_kind<Kind::Empirical>(d, w, out);
  }
}

template <class Philox>
FB_ALWAYS_INLINE void draw_tasks(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task,
                                 double* wait_out, double* duration_out) {
  double download[kDrawBatch];
  double compute[kDrawBatch];
  double upload[kDrawBatch];
  draw_component<Philox>(model, client, task, kWait, wait_out);
  draw_component<Philox>(model, client, task, kDownload, download);
  draw_component<Philox>(model, client, task, kCompute, compute);
  draw_component<Philox>(model, client, task, kUpload, upload);
  if (model.speed != nullptr) {
    for (int i = 0; i < kDrawBatch; ++i) {
      compute[i] = compute[i] * model.speed[client[i]];
    }
  }
  for (int i = 0; i < kDrawBatch; ++i) {
    duration_out[i] = (download[i] + compute[i]) + upload[i];
  }
}

template <class Philox>
FB_ALWAYS_INLINE void selection_words(std::uint64_t seed, std::uint64_t first, std::uint32_t attempt,
                                      std::uint64_t* words_out) {
  std::uint32_t low[kDrawBatch];
  std::uint32_t high[kDrawBatch];
  Words w;
  for (int i = 0; i < kDrawBatch; ++i) {
    const std::uint64_t start = first + static_cast<std::uint64_t>(i);
    low[i] = static_cast<std::uint32_t>(start);
    high[i] = static_cast<std::uint32_t>(start >> 32);
  }
  Philox::run(seed, low, high, attempt, stream_word(Stream::ClientSelection, 0), w);
  for (int i = 0; i < kDrawBatch; ++i) {
    words_out[i] = std::uint64_t{w[0][i]} << 32 | w[1][i];
  }
}

void tasks_plain(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task, double* wait_out,
                 double* duration_out) {
  draw_tasks<PlainPhilox>(model, client, task, wait_out, duration_out);
}

void selection_plain(std::uint64_t seed, std::uint64_t first, std::uint32_t attempt, std::uint64_t* words_out) {
  selection_words<PlainPhilox>(seed, first, attempt, words_out);
}

#if defined(__x86_64__)
// Four counters to a register, one in each 64-bit lane; what stands above 32 bits in a lane is never read.
struct WidePhilox {
  FB_WIDE static void run(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1, std::uint32_t c2,
                          std::uint32_t c3, Words& words_out) {
    constexpr int kGroups = kDrawBatch / 4;
    __m256i x0[kGroups], x1[kGroups], x2[kGroups], x3[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      x0[g] = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c0 + 4 * g)));
      x1[g] = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(c1 + 4 * g)));
      x2[g] = _mm256_set1_epi64x(static_cast<long long>(c2));
      x3[g] = _mm256_set1_epi64x(static_cast<long long>(c3));
    }
    const __m256i m0 = _mm256_set1_epi64x(0xD2511F53ll);
    const __m256i m1 = _mm256_set1_epi64x(0xCD9E8D57ll);
    std::uint32_t k0 = static_cast<std::uint32_t>(seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const __m256i key0 = _mm256_set1_epi64x(static_cast<long long>(k0));
      const __m256i key1 = _mm256_set1_epi64x(static_cast<long long>(k1));
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        const __m256i p0 = _mm256_mul_epu32(x0[g], m0);
        const __m256i p1 = _mm256_mul_epu32(x2[g], m1);
        x0[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x1[g]), key0);
        x2[g] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x3[g]), key1);
        x1[g] = p1;
        x3[g] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    for (int g = 0; g < kGroups; ++g) {
      const __m256i x[4] = {x0[g], x1[g], x2[g], x3[g]};
      for (int j = 0; j < 4; ++j) {
        const __m128i low = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(x[j], even));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words_out[j] + 4 * g), low);
      }
    }
  }
};

FB_WIDE void tasks_wide(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task,
                        double* wait_out, double* duration_out) {
  draw_tasks<WidePhilox>(model, client, task, wait_out, duration_out);
}

FB_WIDE void selection_wide(std::uint64_t seed, std::uint64_t first, std::uint32_t attempt, std::uint64_t* words_out) {
  selection_words<WidePhilox>(seed, first, attempt, words_out);
}

// Eight counters to a register.
struct WiderPhilox {
  FB_WIDER static void run(std::uint64_t seed, const std::uint32_t* c0, const std::uint32_t* c1, std::uint32_t c2,
                           std::uint32_t c3, Words& words_out) {
    constexpr int kGroups = kDrawBatch / 8;
    __m512i x0[kGroups], x1[kGroups], x2[kGroups], x3[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      x0[g] = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c0 + 8 * g)));
      x1[g] = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(c1 + 8 * g)));
      x2[g] = _mm512_set1_epi64(static_cast<long long>(c2));
      x3[g] = _mm512_set1_epi64(static_cast<long long>(c3));
    }
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53ll);
    const __m512i m1 = _mm512_set1_epi64(0xCD9E8D57ll);
    std::uint32_t k0 = static_cast<std::uint32_t>(seed);
    std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const __m512i key0 = _mm512_set1_epi64(static_cast<long long>(k0));
      const __m512i key1 = _mm512_set1_epi64(static_cast<long long>(k1));
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        const __m512i p0 = _mm512_mul_epu32(x0[g], m0);
        const __m512i p1 = _mm512_mul_epu32(x2[g], m1);
        // 0x96: the exclusive or of three
        x0[g] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), x1[g], key0, 0x96);
        x2[g] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), x3[g], key1, 0x96);
        x1[g] = p1;
        x3[g] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int g = 0; g < kGroups; ++g) {
      const __m512i x[4] = {x0[g], x1[g], x2[g], x3[g]};
      for (int j = 0; j < 4; ++j) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words_out[j] + 8 * g), _mm512_cvtepi64_epi32(x[j]));
      }
    }
  }
};

FB_WIDER void tasks_wider(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task,
                          double* wait_out, double* duration_out) {
  draw_tasks<WiderPhilox>(model, client, task, wait_out, duration_out);
}

FB_WIDER void selection_wider(std::uint64_t seed, std::uint64_t first, std::uint32_t attempt,
                              std::uint64_t* words_out) {
  selection_words<WiderPhilox>(seed, first, attempt, words_out);
}
#endif

}  // namespace

BatchDraws batch_draws(SimdLevel level) {
#if defined(__x86_64__)
  if (level == SimdLevel::Avx512) {
    return {&tasks_wider, &selection_wider};
  }
  if (level == SimdLevel::Avx2) {
    return {&tasks_wide, &selection_wide};
  }
#endif
  (void)level;
  return {&tasks_plain, &selection_plain};
}

}  // namespace fedbuff
