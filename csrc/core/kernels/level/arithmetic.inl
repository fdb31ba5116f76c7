// + - * / of Vec<T>: the compiler's own operators, which it has for the vector types of every level.

template <class T>
struct Vec;

template <class T>
FB_ALWAYS_INLINE Vec<T> operator+(Vec<T> a, Vec<T> b) {
  return {a.v + b.v};
}
template <class T>
FB_ALWAYS_INLINE Vec<T> operator-(Vec<T> a, Vec<T> b) {
  return {a.v - b.v};
}
template <class T>
FB_ALWAYS_INLINE Vec<T> operator*(Vec<T> a, Vec<T> b) {
  return {a.v * b.v};
}
template <class T>
FB_ALWAYS_INLINE Vec<T> operator/(Vec<T> a, Vec<T> b) {
  return {a.v / b.v};
}
