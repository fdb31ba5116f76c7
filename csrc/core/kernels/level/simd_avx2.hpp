// Vec<T> for AVX2 with FMA.

inline __m256i lane_mask_32(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i lane_mask_64(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }

template <>
struct Vec<float> {
  static constexpr int kLanes = 8;
  static constexpr int kDotRows = 2;
  static constexpr bool kMoreDotOuts = false;
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 2;
  static constexpr int kConvPixels = 6, kConvVecs = 2;
  static constexpr int kListVecs = 12;
  static constexpr bool kPicks = false;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_half(const float* p) { return {_mm256_zextps128_ps256(_mm_loadu_ps(p))}; }
  static Vec load_part(const float* p, int n) { return {_mm256_maskload_ps(p, lane_mask_32(n))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_part(float* p, int n) const { _mm256_maskstore_ps(p, lane_mask_32(n), v); }
  void stream(float* p) const { _mm256_stream_ps(p, v); }
  static void end_streams() { _mm_sfence(); }
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 4;
  static constexpr int kDotRows = 2;
  static constexpr bool kMoreDotOuts = false;
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 2;
  static constexpr int kConvPixels = 6, kConvVecs = 2;
  static constexpr int kListVecs = 12;
  static constexpr bool kPicks = false;
  __m256d v;

  static Vec zero() { return {_mm256_setzero_pd()}; }
  static Vec set(double x) { return {_mm256_set1_pd(x)}; }
  static Vec load(const double* p) { return {_mm256_loadu_pd(p)}; }
  static Vec load(const float* p) { return {_mm256_cvtps_pd(_mm_loadu_ps(p))}; }
  static Vec load_half(const double* p) { return {_mm256_zextpd128_pd256(_mm_loadu_pd(p))}; }
  static Vec load_part(const double* p, int n) { return {_mm256_maskload_pd(p, lane_mask_64(n))}; }
  void store(double* p) const { _mm256_storeu_pd(p, v); }
  void store_part(double* p, int n) const { _mm256_maskstore_pd(p, lane_mask_64(n), v); }
  void stream(double* p) const { _mm256_stream_pd(p, v); }
  static void end_streams() { _mm_sfence(); }
};

inline Vec<float> madd(Vec<float> a, Vec<float> b, Vec<float> c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec<double> madd(Vec<double> a, Vec<double> b, Vec<double> c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
inline float madd(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
inline double madd(double a, double b, double c) {
  return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
}

inline Vec<float> max(Vec<float> a, Vec<float> b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec<double> max(Vec<double> a, Vec<double> b) { return {_mm256_max_pd(a.v, b.v)}; }
inline Vec<float> min(Vec<float> a, Vec<float> b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec<double> min(Vec<double> a, Vec<double> b) { return {_mm256_min_pd(a.v, b.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {_mm256_sqrt_ps(a.v)}; }
inline Vec<double> sqrt(Vec<double> a) { return {_mm256_sqrt_pd(a.v)}; }
inline Vec<float> abs(Vec<float> a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Vec<double> abs(Vec<double> a) { return {_mm256_andnot_pd(_mm256_set1_pd(-0.0), a.v)}; }

inline Vec<float> if_less(Vec<float> a, Vec<float> b, Vec<float> yes, Vec<float> no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline Vec<double> if_less(Vec<double> a, Vec<double> b, Vec<double> yes, Vec<double> no) {
  return {_mm256_blendv_pd(no.v, yes.v, _mm256_cmp_pd(a.v, b.v, _CMP_LT_OQ))};
}

inline Vec<float> round(Vec<float> a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Vec<double> round(Vec<double> a) {
  return {_mm256_round_pd(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for whole n with 2^n a normal number.
inline Vec<float> scale_by_power(Vec<float> a, Vec<float> n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)))};
}
inline Vec<double> scale_by_power(Vec<double> a, Vec<double> n) {
  // Adding 1.5 * 2^52 leaves n in the low bits.
  const __m256i bits = _mm256_castpd_si256(_mm256_add_pd(n.v, _mm256_set1_pd(6755399441055744.0)));
  const __m256i biased = _mm256_add_epi64(bits, _mm256_set1_epi64x(1023));
  return {_mm256_mul_pd(a.v, _mm256_castsi256_pd(_mm256_slli_epi64(biased, 52)))};
}

inline float sum_lanes(Vec<float> a) {
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline double sum_lanes(Vec<double> a) {
  const __m128d q = _mm_add_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}
inline void sum_lanes_of_4(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d, float* out) {
  const __m256 ab =
      _mm256_add_ps(_mm256_permute2f128_ps(a.v, b.v, 0x20), _mm256_permute2f128_ps(a.v, b.v, 0x31));  // a | b
  const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c.v, d.v, 0x20), _mm256_permute2f128_ps(c.v, d.v, 0x31));
  // Lanes 0 and 1 of each half against 2 and 3, then the two that are left.
  const __m256 low = _mm256_shuffle_ps(ab, cd, 0x44);   // a0 a1 c0 c1 | b0 b1 d0 d1
  const __m256 high = _mm256_shuffle_ps(ab, cd, 0xEE);  // a2 a3 c2 c3 | b2 b3 d2 d3
  const __m256 pair = _mm256_add_ps(low, high);
  const __m256 sum = _mm256_add_ps(pair, _mm256_movehdup_ps(pair));  // a . c . | b . d .
  const __m128 ac = _mm256_castps256_ps128(sum);
  const __m128 bd = _mm256_extractf128_ps(sum, 1);
  const __m128 abcd = _mm_shuffle_ps(ac, bd, 0x88);  // a c b d
  _mm_storeu_ps(out, _mm_shuffle_ps(abcd, abcd, 0xD8));
}
inline void sum_lanes_of_4(Vec<double> a, Vec<double> b, Vec<double> c, Vec<double> d, double* out) {
  out[0] = sum_lanes(a);
  out[1] = sum_lanes(b);
  out[2] = sum_lanes(c);
  out[3] = sum_lanes(d);
}

// Lane i is bias plus the sum of the lanes of row(i), added in the order of sum_lanes.
inline __m256 add_halves(Vec<float> a, Vec<float> b) {
  return _mm256_add_ps(_mm256_blend_ps(a.v, b.v, 0xF0), _mm256_permute2f128_ps(a.v, b.v, 0x21));
}
inline __m256d add_halves(Vec<double> a, Vec<double> b) {
  return _mm256_add_pd(_mm256_blend_pd(a.v, b.v, 0xC), _mm256_permute2f128_pd(a.v, b.v, 0x21));
}
template <class Row>
inline __attribute__((always_inline)) Vec<float> sum_lanes_of_each(Vec<float> bias, Row row) {
  __m256 pair[2];  // rows 2 i, 2 i + 1, and those four behind, two numbers of each
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256 ab = add_halves(row(2 * i), row(2 * i + 4)), cd = add_halves(row(2 * i + 1), row(2 * i + 5));
    pair[i] = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  }
  return bias + Vec<float>{_mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[1], 0x88),
                                         _mm256_shuffle_ps(pair[0], pair[1], 0xDD))};
}
template <class Row>
inline __attribute__((always_inline)) Vec<double> sum_lanes_of_each(Vec<double> bias, Row row) {
  const __m256d even = add_halves(row(0), row(2)), odd = add_halves(row(1), row(3));
  return bias + Vec<double>{_mm256_add_pd(_mm256_unpacklo_pd(even, odd), _mm256_unpackhi_pd(even, odd))};
}
