// Vec<T> of 16 bytes in the compiler's own vectors: SSE2 on x86-64, NEON on AArch64. Multiply and add stay two
// roundings.

template <class T>
struct Vec {
  static constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
  static constexpr int kDotRows = 2;
  static constexpr bool kMoreDotOuts = false;
  static constexpr int kUpdateOuts = 5, kUpdateVecs = 2;
  static constexpr int kConvPixels = 6, kConvVecs = 2;
  static constexpr int kListVecs = 12;
  static constexpr bool kPicks = false;
  typedef T Native __attribute__((vector_size(16)));
  Native v;

  static Vec zero() { return {Native{}}; }
  static Vec set(T x) { return {Native{} + x}; }
  static Vec load(const T* p) {
    Vec a;
    __builtin_memcpy(&a.v, p, 16);
    return a;
  }
  template <class Narrow>
  static Vec load(const Narrow* p) {
    Vec a;
    for (int i = 0; i < kLanes; ++i) {
      a.v[i] = static_cast<T>(p[i]);
    }
    return a;
  }
  static Vec load_half(const T* p) {
    Vec a = zero();
    __builtin_memcpy(&a.v, p, 8);
    return a;
  }
  static Vec load_part(const T* p, int n) {
    Vec a = zero();
    for (int i = 0; i < n; ++i) {
      a.v[i] = p[i];
    }
    return a;
  }
  void store(T* p) const { __builtin_memcpy(p, &v, 16); }
  void store_part(T* p, int n) const {
    for (int i = 0; i < n; ++i) {
      p[i] = v[i];
    }
  }
  void stream(T* p) const { store(p); }
  static void end_streams() {}
};

template <class T>
Vec<T> madd(Vec<T> a, Vec<T> b, Vec<T> c) {
  return {a.v * b.v + c.v};
}
inline float madd(float a, float b, float c) { return a * b + c; }
inline double madd(double a, double b, double c) { return a * b + c; }

// As the x86 instructions: the second argument where either is NaN.
template <class T>
Vec<T> max(Vec<T> a, Vec<T> b) {
  return {a.v > b.v ? a.v : b.v};
}
template <class T>
Vec<T> min(Vec<T> a, Vec<T> b) {
  return {a.v < b.v ? a.v : b.v};
}
template <class T>
Vec<T> abs(Vec<T> a) {
  return {a.v < 0 ? -a.v : a.v};
}
template <class T>
Vec<T> if_less(Vec<T> a, Vec<T> b, Vec<T> yes, Vec<T> no) {
  return {a.v < b.v ? yes.v : no.v};
}
inline Vec<float> sqrt(Vec<float> a) {
  for (int i = 0; i < 4; ++i) {
    a.v[i] = __builtin_sqrtf(a.v[i]);
  }
  return a;
}
inline Vec<double> sqrt(Vec<double> a) {
  for (int i = 0; i < 2; ++i) {
    a.v[i] = __builtin_sqrt(a.v[i]);
  }
  return a;
}
// To the nearest whole number, for |a| below 2^22 (float) and 2^51 (double).
inline Vec<float> round(Vec<float> a) {
  const Vec<float> magic = Vec<float>::set(12582912.0f);
  return (a + magic) - magic;
}
inline Vec<double> round(Vec<double> a) {
  const Vec<double> magic = Vec<double>::set(6755399441055744.0);
  return (a + magic) - magic;
}
inline Vec<float> scale_by_power(Vec<float> a, Vec<float> n) {
  for (int i = 0; i < 4; ++i) {
    const float whole = n.v[i] == n.v[i] ? n.v[i] : 0.0f;
    const std::int32_t bits = (static_cast<std::int32_t>(whole) + 127) * (1 << 23);
    float power;
    __builtin_memcpy(&power, &bits, 4);
    a.v[i] *= power;
  }
  return a;
}
inline Vec<double> scale_by_power(Vec<double> a, Vec<double> n) {
  for (int i = 0; i < 2; ++i) {
    const double whole = n.v[i] == n.v[i] ? n.v[i] : 0.0;
    const std::int64_t bits = (static_cast<std::int64_t>(whole) + 1023) * (std::int64_t{1} << 52);
    double power;
    __builtin_memcpy(&power, &bits, 8);
    a.v[i] *= power;
  }
  return a;
}
inline float sum_lanes(Vec<float> a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline double sum_lanes(Vec<double> a) { return a.v[0] + a.v[1]; }
template <class T>
void sum_lanes_of_4(Vec<T> a, Vec<T> b, Vec<T> c, Vec<T> d, T* out) {
  out[0] = sum_lanes(a);
  out[1] = sum_lanes(b);
  out[2] = sum_lanes(c);
  out[3] = sum_lanes(d);
}
template <class T, class Row>
Vec<T> sum_lanes_of_each(Vec<T> bias, Row row) {
  for (int i = 0; i < Vec<T>::kLanes; ++i) {
    bias.v[i] += sum_lanes(row(i));
  }
  return bias;
}
