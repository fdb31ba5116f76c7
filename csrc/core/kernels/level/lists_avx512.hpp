// Lists of floats for AVX-512. ListMaker takes sixteen pixels at a time, whose channels become lanes of pixels.

// Rows become columns.
inline void transpose(__m512i (&a)[16]) {
  __m512i b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // quarter k of a[i + j]: column 4 k + j of four rows
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low_even = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
    const __m512i high_even = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
    a[j] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    a[4 + j] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    a[8 + j] = _mm512_shuffle_i32x4(low_even, high_even, 0xDD);
    a[12 + j] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
  }
}

template <>
class ListMaker<float> {
 public:
  ListMaker(ChannelLists<float>& lists, const ListPlaces& places, std::int64_t n)
      : lists_(lists),
        n_(n),
        there_(Vec<float>::mask(static_cast<int>(n))),
        group_(_mm512_maskz_loadu_epi32(there_, places.group)),
        away_(_mm512_maskz_loadu_epi32(0xF, places.away)) {
    for (std::int64_t c = 0; c < n; ++c) {
      lists.length[c] = c * lists.room;
    }
  }
  void add(const float* g, const float* choice, std::int32_t from) {
    const __m512i place = _mm512_cvttps_epi32(_mm512_maskz_loadu_ps(there_, choice));
    const __m512i begin = _mm512_add_epi32(_mm512_set1_epi32(from), group_);
    g_[waiting_] = _mm512_maskz_loadu_epi32(there_, g);
    from_[waiting_] = _mm512_add_epi32(begin, _mm512_permutexvar_epi32(place, away_));
    if (++waiting_ == 16) {
      append();
    }
  }
  void finish() {
    if (waiting_ > 0) {
      for (; waiting_ < 16; ++waiting_) {
        g_[waiting_] = from_[waiting_] = _mm512_setzero_si512();
      }
      append();
    }
    for (std::int64_t c = 0; c < n_; ++c) {
      lists_.length[c] -= c * lists_.room;
    }
  }

 private:
  void append() {
    transpose(g_);
    transpose(from_);
    for (std::int64_t c = 0; c < n_; ++c) {
      const __mmask16 kept = _mm512_test_epi32_mask(g_[c], _mm512_set1_epi32(0x7FFFFFFF));
      const std::int64_t at = lists_.length[c];
      _mm512_storeu_si512(lists_.g + at, _mm512_maskz_compress_epi32(kept, g_[c]));
      _mm512_storeu_si512(lists_.from + at, _mm512_maskz_compress_epi32(kept, from_[c]));
      lists_.length[c] = at + __builtin_popcount(kept);
    }
    waiting_ = 0;
  }

  ChannelLists<float>& lists_;
  std::int64_t n_;
  __mmask16 there_;
  __m512i group_, away_;
  __m512i g_[16], from_[16];  // of the pixels that wait, later of the channels
  int waiting_ = 0;
};

inline void append_pixel(PlaceLists<float>& lists, std::int64_t n, const float* g, const float* choice,
                         std::int32_t from, std::int32_t step) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i steps = _mm512_mullo_epi32(lane, _mm512_set1_epi32(step));
  for (std::int64_t c = 0; c < n; c += 16, from += 16 * step) {
    const __mmask16 there = n - c < 16 ? Vec<float>::mask(static_cast<int>(n - c)) : static_cast<__mmask16>(0xFFFF);
    const __m512i own = _mm512_maskz_loadu_epi32(there, g + c);
    const __m512i place = _mm512_cvttps_epi32(_mm512_maskz_loadu_ps(there, choice + c));
    const __m512i begin = _mm512_add_epi32(_mm512_set1_epi32(from), steps);
    const __mmask16 counted = _mm512_test_epi32_mask(own, _mm512_set1_epi32(0x7FFFFFFF));
    for (int k = 0; k < 4; ++k) {
      const __mmask16 kept = _mm512_mask_cmpeq_epi32_mask(counted, place, _mm512_set1_epi32(k));
      const std::int64_t at = k * lists.room + lists.length[k];
      _mm512_storeu_si512(lists.g + at, _mm512_maskz_compress_epi32(kept, own));
      _mm512_storeu_si512(lists.from + at, _mm512_maskz_compress_epi32(kept, begin));
      lists.length[k] += __builtin_popcount(kept);
    }
  }
}
