// Which rows a step looks at. A batch drawn with replacement is a multiset, so a row drawn c times counts c times: each
// distinct row is visited once, in the order of its first draw, with its count as a factor.

inline constexpr std::int64_t kBlockRows = 128;           // rows that pass through a model together
inline constexpr std::int64_t kMostRowsMerged = 1 << 16;  // clients with more rows keep repeated draws apart

// Draws [begin, begin + n) of the step's batch as row numbers within the client. begin is a multiple of 4.
inline void draw_rows(const Task& task, std::int64_t step, std::int64_t begin, std::int64_t n, std::int64_t n_rows,
                      std::uint32_t* row_out) {
  if (task.rows != nullptr) {
    for (std::int64_t i = 0; i < n; ++i) {
      row_out[i] = static_cast<std::uint32_t>(task.rows[step * task.batch + begin + i]);
    }
    return;
  }
  const auto client = static_cast<std::uint32_t>(task.client);
  const auto local_step = static_cast<std::uint32_t>(step);
  const auto rows = static_cast<std::uint32_t>(n_rows);
  if (task.steps_per_pass > 0) {
    const Shuffle shuffle(task.seed, client, task.number, static_cast<std::uint32_t>(step / task.steps_per_pass), rows);
    const auto first = static_cast<std::uint32_t>(step % task.steps_per_pass * task.batch + begin);
    for (std::int64_t i = 0; i < n; ++i) {
      row_out[i] = shuffle.at(first + static_cast<std::uint32_t>(i));
    }
    return;
  }
  // Blocks four at a time, round by round: the multiplications of independent blocks overlap.
  constexpr int kWide = 4;
  for (std::int64_t i = 0; i < n; i += 4 * kWide) {
    std::uint32_t c0[kWide], c1[kWide], c2[kWide], c3[kWide];
    for (int b = 0; b < kWide; ++b) {
      c0[b] = client;
      c1[b] = task.number;
      c2[b] = local_step;
      c3[b] = stream_word(Stream::Batches, static_cast<std::uint32_t>((begin + i) / 4 + b));
    }
    philox_rounds<kWide>(task.seed, c0, c1, c2, c3);
    for (int b = 0; b < kWide; ++b) {
      const std::uint32_t word[4] = {c0[b], c1[b], c2[b], c3[b]};
      for (int k = 0; k < 4; ++k) {
        if (i + 4 * b + k < n) {
          row_out[i + 4 * b + k] = index_below(word[k], rows);
        }
      }
    }
  }
}

// Distinct rows of n draws into row_out, how often each was drawn into count_out; returns how many there are.
// seen (n_rows) is zero before and after. row_out may be draw.
template <class T>
std::int64_t merge_repeats(const std::uint32_t* draw, std::int64_t n, std::uint8_t* seen, std::uint32_t* row_out,
                           T* count_out) {
  std::int64_t distinct = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t row = draw[i];
    if (seen[row] == 0) {
      row_out[distinct] = row;
      count_out[distinct] = T(1);
      seen[row] = static_cast<std::uint8_t>(++distinct);
    } else {
      count_out[seen[row] - 1] += T(1);
    }
  }
  for (std::int64_t i = 0; i < distinct; ++i) {
    seen[row_out[i]] = 0;
  }
  return distinct;
}
