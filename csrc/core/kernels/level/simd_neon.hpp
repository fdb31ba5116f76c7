// Vec<T> for AArch64, whose every CPU has Advanced SIMD (NEON): 16 bytes, multiply-adds fused, 32 registers.

template <>
struct Vec<float> {
  static constexpr int kLanes = 4;
  static constexpr int kDotRows = 4;
  static constexpr bool kMoreDotOuts = false;
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 4;
  static constexpr int kConvPixels = 12, kConvVecs = 2;
  static constexpr int kListVecs = 20;
  static constexpr bool kPicks = false;
  float32x4_t v;

  static Vec zero() { return {vdupq_n_f32(0)}; }
  static Vec set(float x) { return {vdupq_n_f32(x)}; }
  static Vec load(const float* p) { return {vld1q_f32(p)}; }
  static Vec load_half(const float* p) { return {vcombine_f32(vld1_f32(p), vdup_n_f32(0))}; }
  static Vec load_part(const float* p, int n) {
    float part[kLanes] = {};
    for (int i = 0; i < n; ++i) {
      part[i] = p[i];
    }
    return load(part);
  }
  void store(float* p) const { vst1q_f32(p, v); }
  void store_part(float* p, int n) const {
    float part[kLanes];
    store(part);
    for (int i = 0; i < n; ++i) {
      p[i] = part[i];
    }
  }
  void stream(float* p) const { store(p); }
  static void end_streams() {}
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 2;
  static constexpr int kDotRows = 4;
  static constexpr bool kMoreDotOuts = false;
  static constexpr int kUpdateOuts = 6, kUpdateVecs = 4;
  static constexpr int kConvPixels = 12, kConvVecs = 2;
  static constexpr int kListVecs = 20;
  static constexpr bool kPicks = false;
  float64x2_t v;

  static Vec zero() { return {vdupq_n_f64(0)}; }
  static Vec set(double x) { return {vdupq_n_f64(x)}; }
  static Vec load(const double* p) { return {vld1q_f64(p)}; }
  static Vec load(const float* p) { return {vcvt_f64_f32(vld1_f32(p))}; }
  static Vec load_half(const double* p) { return {vcombine_f64(vld1_f64(p), vdup_n_f64(0))}; }
  static Vec load_part(const double* p, int n) {
    return {vcombine_f64(n > 0 ? vld1_f64(p) : vdup_n_f64(0), n > 1 ? vld1_f64(p + 1) : vdup_n_f64(0))};
  }
  void store(double* p) const { vst1q_f64(p, v); }
  void store_part(double* p, int n) const {
    if (n > 0) {
      vst1q_lane_f64(p, v, 0);
    }
    if (n > 1) {
      vst1q_lane_f64(p + 1, v, 1);
    }
  }
  void stream(double* p) const { store(p); }
  static void end_streams() {}
};

inline Vec<float> madd(Vec<float> a, Vec<float> b, Vec<float> c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Vec<double> madd(Vec<double> a, Vec<double> b, Vec<double> c) { return {vfmaq_f64(c.v, a.v, b.v)}; }
inline float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double madd(double a, double b, double c) { return __builtin_fma(a, b, c); }

// As the x86 instructions: the second argument where either is NaN.
inline Vec<float> max(Vec<float> a, Vec<float> b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline Vec<double> max(Vec<double> a, Vec<double> b) { return {vbslq_f64(vcgtq_f64(a.v, b.v), a.v, b.v)}; }
inline Vec<float> min(Vec<float> a, Vec<float> b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline Vec<double> min(Vec<double> a, Vec<double> b) { return {vbslq_f64(vcltq_f64(a.v, b.v), a.v, b.v)}; }
inline Vec<float> sqrt(Vec<float> a) { return {vsqrtq_f32(a.v)}; }
inline Vec<double> sqrt(Vec<double> a) { return {vsqrtq_f64(a.v)}; }
inline Vec<float> abs(Vec<float> a) { return {vabsq_f32(a.v)}; }
inline Vec<double> abs(Vec<double> a) { return {vabsq_f64(a.v)}; }

inline Vec<float> if_less(Vec<float> a, Vec<float> b, Vec<float> yes, Vec<float> no) {
  return {vbslq_f32(vcltq_f32(a.v, b.v), yes.v, no.v)};
}
inline Vec<double> if_less(Vec<double> a, Vec<double> b, Vec<double> yes, Vec<double> no) {
  return {vbslq_f64(vcltq_f64(a.v, b.v), yes.v, no.v)};
}

inline Vec<float> round(Vec<float> a) { return {vrndnq_f32(a.v)}; }
inline Vec<double> round(Vec<double> a) { return {vrndnq_f64(a.v)}; }
// a * 2^n for whole n with 2^n a normal number.
inline Vec<float> scale_by_power(Vec<float> a, Vec<float> n) {
  const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n.v), vdupq_n_s32(127));
  return {vmulq_f32(a.v, vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)))};
}
inline Vec<double> scale_by_power(Vec<double> a, Vec<double> n) {
  const int64x2_t biased = vaddq_s64(vcvtnq_s64_f64(n.v), vdupq_n_s64(1023));
  return {vmulq_f64(a.v, vreinterpretq_f64_s64(vshlq_n_s64(biased, 52)))};
}

// (a0 + a2) + (a1 + a3).
inline float sum_lanes(Vec<float> a) {
  const float32x2_t pair = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline double sum_lanes(Vec<double> a) { return vgetq_lane_f64(a.v, 0) + vgetq_lane_f64(a.v, 1); }
// (a0 + a2, a1 + a3, b0 + b2, b1 + b3).
inline float32x4_t add_halves(Vec<float> a, Vec<float> b) {
  return vaddq_f32(vcombine_f32(vget_low_f32(a.v), vget_low_f32(b.v)),
                   vcombine_f32(vget_high_f32(a.v), vget_high_f32(b.v)));
}
inline void sum_lanes_of_4(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d, float* out) {
  vst1q_f32(out, vpaddq_f32(add_halves(a, b), add_halves(c, d)));
}
inline void sum_lanes_of_4(Vec<double> a, Vec<double> b, Vec<double> c, Vec<double> d, double* out) {
  vst1q_f64(out, vpaddq_f64(a.v, b.v));
  vst1q_f64(out + 2, vpaddq_f64(c.v, d.v));
}

// Lane i is bias plus the sum of the lanes of row(i), added in the order of sum_lanes.
template <class Row>
inline __attribute__((always_inline)) Vec<float> sum_lanes_of_each(Vec<float> bias, Row row) {
  return bias + Vec<float>{vpaddq_f32(add_halves(row(0), row(1)), add_halves(row(2), row(3)))};
}
template <class Row>
inline __attribute__((always_inline)) Vec<double> sum_lanes_of_each(Vec<double> bias, Row row) {
  return bias + Vec<double>{vpaddq_f64(row(0).v, row(1).v)};
}
