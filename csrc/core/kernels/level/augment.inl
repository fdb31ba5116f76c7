// Images that are moved or turned by chance while a client trains.

// How an image is shown: pixel (y, x) is the input's at (y + down, x + right), a zero where there is none; then left
// and right change places.
struct Shown {
  std::int64_t down = 0, right = 0;
  bool turned = false;
};

// The words are of the counter (place in the batch, 0, 0, Augmentation), by a key of the first two words of (client,
// task, step, Augmentation | number of the layer): how far down and right, or whether the image is turned.
template <class T>
Shown shown_of(const Operation& op, const NetworkScratch<T>& s, std::int64_t r) {
  const DropoutPlace& place = *s.place;
  Shown shown;
  if (!place.on) {
    return shown;
  }
  const PhiloxBlock a = philox4x32(place.seed, place.client, place.task, place.step,
                                   stream_word(Stream::Augmentation, static_cast<std::uint32_t>(op.number)));
  const PhiloxBlock b =
      philox4x32(std::uint64_t{a.word[1]} << 32 | a.word[0], place.first + static_cast<std::uint32_t>(r), 0, 0,
                 stream_word(Stream::Augmentation, 0));
  if (op.record.kind == LayerKind::RandomFlip) {
    shown.turned = index_below(b.word[0], 2) == 1;
    return shown;
  }
  const auto moved = [&](int word, std::int32_t padding) {
    return std::int64_t{index_below(b.word[word], 2 * static_cast<std::uint32_t>(padding) + 1)} - padding;
  };
  shown.down = moved(0, op.record.padding[0]);
  shown.right = moved(1, op.record.padding[2]);
  return shown;
}

// Calls body(place in the input's row, place in the output's row, n) for runs of n numbers that both have.
template <class Body>
void for_each_shown(const Tensor& in, const Tensor& out, const Shown& shown, Body body) {
  for (std::int64_t y = 0; y < out.h; ++y) {
    const std::int64_t from = y + shown.down;
    if (from < 0 || from >= in.h) {
      continue;
    }
    const std::int64_t line = in.first() + from * in.line(), to = out.first() + y * out.line();
    if (shown.turned) {
      for (std::int64_t x = 0; x < out.w; ++x) {
        body(line + (in.w - 1 - x) * in.c, to + x * out.c, out.c);
      }
      continue;
    }
    const std::int64_t begin = shown.right < 0 ? -shown.right : 0;
    const std::int64_t end = shown.right > 0 ? out.w - shown.right : out.w;
    if (begin < end) {
      body(line + (begin + shown.right) * in.c, to + begin * out.c, (end - begin) * out.c);
    }
  }
}

template <class T, class Row>
void augment_forward(const Network& network, const Operation& op, const NetworkScratch<T>& s, Row row,
                     std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  fill_zero(n_rows * out.size(), s.value[op.out]);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for_each_shown(in, out, shown_of(op, s, r),
                   [=, x = row(r), y = s.value[op.out] + r * out.size()](
                       std::int64_t from, std::int64_t to, std::int64_t n) { copy(n, x + from, y + to); });
  }
}

template <class T>
void augment_backward(const Network& network, const Operation& op, const NetworkScratch<T>& s, std::int64_t n_rows) {
  const Tensor& in = network.tensors[op.in];
  const Tensor& out = network.tensors[op.out];
  fill_zero(n_rows * in.size(), s.gradient[op.in]);
  for (std::int64_t r = 0; r < n_rows; ++r) {
    for_each_shown(in, out, shown_of(op, s, r),
                   [=, back = s.gradient[op.in] + r * in.size(), g = s.gradient[op.out] + r * out.size()](
                       std::int64_t to, std::int64_t from, std::int64_t n) { copy(n, g + from, back + to); });
  }
}
