// Vec<T> for AVX-512 (F, DQ, VL, BW); kernels.inl says what a Vec must offer.

template <>
struct Vec<float> {
  static constexpr int kLanes = 16;
  static constexpr int kDotRows = 5;                      // rows of a block of dot products
  static constexpr bool kMoreDotOuts = true;              // whether one output more and one row less fit the registers
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 4;  // outputs and vectors of a block of row updates
  static constexpr int kConvPixels = 14, kConvVecs = 2;   // pixels and vectors of channels of a block of convolution
  static constexpr int kListVecs = 20;                    // vectors of a kernel that pass over a list
  static constexpr bool kPicks = true;                    // whether pick_sizes is there
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_half(const float* p) { return {_mm512_zextps256_ps512(_mm256_loadu_ps(p))}; }
  static Vec load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_part(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  void stream(float* p) const { _mm512_stream_ps(p, v); }
  static void end_streams() { _mm_sfence(); }
  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  // The sizes of a vector's numbers that are at least `least`, side by side; how many. Writes a whole vector.
  static int pick_sizes(const float* x, std::int32_t least, std::int32_t* out) {
    const __m512i size = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 picked = _mm512_cmpge_epi32_mask(size, _mm512_set1_epi32(least));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(picked, size));
    return __builtin_popcount(picked);
  }
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 8;
  static constexpr int kDotRows = 5;
  static constexpr bool kMoreDotOuts = true;
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 4;
  static constexpr int kConvPixels = 14, kConvVecs = 2;  // pixels and vectors of channels of a block of convolution
  static constexpr int kListVecs = 20;                   // vectors of a kernel that pass over a list
  static constexpr bool kPicks = true;
  __m512d v;

  static Vec zero() { return {_mm512_setzero_pd()}; }
  static Vec set(double x) { return {_mm512_set1_pd(x)}; }
  static Vec load(const double* p) { return {_mm512_loadu_pd(p)}; }
  static Vec load(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
  static Vec load_half(const double* p) { return {_mm512_zextpd256_pd512(_mm256_loadu_pd(p))}; }
  static Vec load_part(const double* p, int n) { return {_mm512_maskz_loadu_pd(mask(n), p)}; }
  void store(double* p) const { _mm512_storeu_pd(p, v); }
  void store_part(double* p, int n) const { _mm512_mask_storeu_pd(p, mask(n), v); }
  void stream(double* p) const { _mm512_stream_pd(p, v); }
  static void end_streams() { _mm_sfence(); }
  static __mmask8 mask(int n) { return static_cast<__mmask8>((1u << n) - 1u); }
  static int pick_sizes(const double* x, std::int64_t least, std::int64_t* out) {
    const __m512i size = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi64(0x7FFFFFFFFFFFFFFF));
    const __mmask8 picked = _mm512_cmpge_epi64_mask(size, _mm512_set1_epi64(least));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(picked, size));
    return __builtin_popcount(picked);
  }
};

inline Vec<float> madd(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec<double> madd(Vec<double> a, Vec<double> b, Vec<double> c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
inline float madd(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
inline double madd(double a, double b, double c) {
  return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}

inline Vec<float> max(Vec<float> a, Vec<float> b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec<double> max(Vec<double> a, Vec<double> b) { return {_mm512_max_pd(a.v, b.v)}; }
inline Vec<float> min(Vec<float> a, Vec<float> b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec<double> min(Vec<double> a, Vec<double> b) { return {_mm512_min_pd(a.v, b.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {_mm512_sqrt_ps(a.v)}; }
inline Vec<double> sqrt(Vec<double> a) { return {_mm512_sqrt_pd(a.v)}; }
inline Vec<float> abs(Vec<float> a) { return {_mm512_abs_ps(a.v)}; }
inline Vec<double> abs(Vec<double> a) { return {_mm512_abs_pd(a.v)}; }

inline Vec<float> if_less(Vec<float> a, Vec<float> b, Vec<float> yes, Vec<float> no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline Vec<double> if_less(Vec<double> a, Vec<double> b, Vec<double> yes, Vec<double> no) {
  return {_mm512_mask_blend_pd(_mm512_cmp_pd_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}

inline Vec<float> round(Vec<float> a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec<double> round(Vec<double> a) {
  return {_mm512_roundscale_pd(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Vec<float> scale_by_power(Vec<float> a, Vec<float> n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Vec<double> scale_by_power(Vec<double> a, Vec<double> n) { return {_mm512_scalef_pd(a.v, n.v)}; }

// Sums of the lanes. One vector and four at once add in the same order: halves, quarters, then within 128 bits.
inline float sum_lanes(Vec<float> a) {
  const __m512 swapped = _mm512_shuffle_f32x4(a.v, a.v, 0x4E);
  const __m512 half = _mm512_add_ps(a.v, swapped);
  const __m128 q = _mm_add_ps(_mm512_castps512_ps128(half), _mm512_extractf32x4_ps(half, 1));
  const __m128 pair = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline double sum_lanes(Vec<double> a) {
  const __m512d swapped = _mm512_shuffle_f64x2(a.v, a.v, 0x4E);
  const __m512d half = _mm512_add_pd(a.v, swapped);
  const __m128d q = _mm_add_pd(_mm512_castpd512_pd128(half), _mm512_extractf64x2_pd(half, 1));
  return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}
inline void sum_lanes_of_4(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d, float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const __m512 pair = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));
  const __m512 sum = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0xB1));
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, sum)));
}
inline void sum_lanes_of_4(Vec<double> a, Vec<double> b, Vec<double> c, Vec<double> d, double* out) {
  const __m512d ab = _mm512_add_pd(_mm512_shuffle_f64x2(a.v, b.v, 0x44), _mm512_shuffle_f64x2(a.v, b.v, 0xEE));
  const __m512d cd = _mm512_add_pd(_mm512_shuffle_f64x2(c.v, d.v, 0x44), _mm512_shuffle_f64x2(c.v, d.v, 0xEE));
  const __m512d q = _mm512_add_pd(_mm512_shuffle_f64x2(ab, cd, 0x88), _mm512_shuffle_f64x2(ab, cd, 0xDD));
  const __m512d sum = _mm512_add_pd(q, _mm512_permute_pd(q, 0x55));
  const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
  _mm256_storeu_pd(out, _mm512_castpd512_pd256(_mm512_permutexvar_pd(first, sum)));
}

// Lane i is bias plus the sum of the lanes of row(i), added in the order of sum_lanes.
inline __m512 add_halves(Vec<float> a, Vec<float> b) {
  return _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a.v, b.v), _mm512_shuffle_f32x4(a.v, b.v, 0x4E));
}
inline __m512d add_halves(Vec<double> a, Vec<double> b) {
  return _mm512_add_pd(_mm512_mask_blend_pd(0xF0, a.v, b.v), _mm512_shuffle_f64x2(a.v, b.v, 0x4E));
}
inline __m512 add_pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
}
template <class Row>
inline __attribute__((always_inline)) Vec<float> sum_lanes_of_each(Vec<float> bias, Row row) {
  __m512 quarter[4];  // rows i, i + 4, i + 8 and i + 12, four numbers of each
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 ab = add_halves(row(i), row(i + 4)), cd = add_halves(row(i + 8), row(i + 12));
    quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  }
  const __m512 even = add_pairs(quarter[0], quarter[1]), odd = add_pairs(quarter[2], quarter[3]);
  return bias + Vec<float>{_mm512_add_ps(_mm512_shuffle_ps(even, odd, 0x88), _mm512_shuffle_ps(even, odd, 0xDD))};
}
template <class Row>
inline __attribute__((always_inline)) Vec<double> sum_lanes_of_each(Vec<double> bias, Row row) {
  __m512d quarter[2];  // rows i, i + 2, i + 4 and i + 6, two numbers of each
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d ab = add_halves(row(i), row(i + 2)), cd = add_halves(row(i + 4), row(i + 6));
    quarter[i] = _mm512_add_pd(_mm512_shuffle_f64x2(ab, cd, 0x88), _mm512_shuffle_f64x2(ab, cd, 0xDD));
  }
  return bias + Vec<double>{_mm512_add_pd(_mm512_unpacklo_pd(quarter[0], quarter[1]),
                                          _mm512_unpackhi_pd(quarter[0], quarter[1]))};
}
