// Lists of the gradients that are not zero behind max-pooling.

// Whether x is not zero, without a branch. A NaN is not.
FB_ALWAYS_INLINE std::int64_t counts(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return (bits << 1) != 0 ? 1 : 0;
}
FB_ALWAYS_INLINE std::int64_t counts(double x) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return (bits << 1) != 0 ? 1 : 0;
}

inline constexpr std::int64_t kListChannels = 16;  // whose lists are made together
inline constexpr std::int64_t kListSlack = 16;     // entries behind a list that its maker may write

// The lists of up to kListChannels channels, one behind the other in memory: of each, gradients and where their windows
// begin in the input of the rows at work.
template <class T>
struct ChannelLists {
  T* g;                // (channels, room)
  std::int32_t* from;  // the same
  std::int64_t room;
  std::int64_t length[kListChannels];
};

// Where a window begins: for pixel `from`, channel c and the place that pooling chose, at from + group[c] +
// away[place].
struct ListPlaces {
  std::int32_t group[kListChannels];
  std::int32_t away[4];
};

// Makes the lists of n channels, pixel by pixel. The channels of a pixel lie together, so that one pass over the
// gradient is enough.
template <class T>
class ListMaker {
 public:
  ListMaker(ChannelLists<T>& lists, const ListPlaces& places, std::int64_t n) : lists_(lists), places_(places), n_(n) {
    for (std::int64_t c = 0; c < n; ++c) {
      lists.length[c] = c * lists.room;
    }
  }
  void add(const T* g, const T* choice, std::int32_t from) {
    for (std::int64_t c = 0; c < n_; ++c) {
      const std::int64_t at = lists_.length[c];
      lists_.g[at] = g[c];
      lists_.from[at] = from + places_.group[c] + places_.away[static_cast<int>(choice[c])];
      lists_.length[c] = at + counts(g[c]);
    }
  }
  void finish() {
    for (std::int64_t c = 0; c < n_; ++c) {
      lists_.length[c] -= c * lists_.room;
    }
  }

 private:
  ChannelLists<T>& lists_;
  const ListPlaces& places_;
  std::int64_t n_;
};

// The gradients of a picture's channels by the place that pooling chose in each window: four lists, of each gradients
// and where the channel's kernel begins.
template <class T>
struct PlaceLists {
  T* g;                // (4, room)
  std::int32_t* from;  // the same
  std::int64_t room;
  std::int64_t length[4];
};

// Appends the n channels of a pixel; the kernel of the first begins at `from`, each next one `step` behind.
template <class T>
void append_pixel(PlaceLists<T>& lists, std::int64_t n, const T* g, const T* choice, std::int32_t from,
                  std::int32_t step) {
  for (std::int64_t c = 0; c < n; ++c, from += step) {
    const auto place = static_cast<int>(choice[c]);
    const std::int64_t at = place * lists.room + lists.length[place];
    lists.g[at] = g[c];
    lists.from[at] = from;
    lists.length[place] += counts(g[c]);
  }
}
