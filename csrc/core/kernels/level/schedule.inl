// Delays and client selection a batch at a time, by the level's philox_batch. The expressions are those of `draw` in
// delay_model.hpp, in the same order: the bits do not depend on the level.

template <DistributionKind kKind>
FB_ALWAYS_INLINE void draw_kind(const Distribution& d, const DrawWords& w, double* out) {
  double value[kDrawBatch];
  for (int i = 0; i < kDrawBatch; ++i) {
    value[i] = detail::from_words<kKind>(d, w[0][i], w[1][i], w[2][i], w[3][i]);
  }
  for (int i = 0; i < kDrawBatch; ++i) {
    out[i] = value[i];
  }
}

FB_ALWAYS_INLINE void draw_law(const Distribution& d, std::uint64_t seed, const std::uint32_t* client,
                               const std::uint32_t* task, std::uint32_t component, double* out) {
  if (d.kind == DistributionKind::Constant) {
    for (int i = 0; i < kDrawBatch; ++i) {
      out[i] = d.p[0];
    }
    return;
  }
  if (d.kind == DistributionKind::TruncatedNormal) {
    for (int i = 0; i < kDrawBatch; ++i) {
      out[i] = draw(d, seed, client[i], task[i], component);
    }
    return;
  }
  DrawWords w;
  philox_batch(seed, client, task, component, stream_word(Stream::Delays, 0), w);
  switch (d.kind) {
    case DistributionKind::Uniform: return draw_kind<DistributionKind::Uniform>(d, w, out);
    case DistributionKind::Exponential: return draw_kind<DistributionKind::Exponential>(d, w, out);
    case DistributionKind::HalfNormal: return draw_kind<DistributionKind::HalfNormal>(d, w, out);
    case DistributionKind::LogNormal: return draw_kind<DistributionKind::LogNormal>(d, w, out);
    case DistributionKind::Pareto: return draw_kind<DistributionKind::Pareto>(d, w, out);
    case DistributionKind::Weibull: return draw_kind<DistributionKind::Weibull>(d, w, out);
    default: return draw_kind<DistributionKind::Empirical>(d, w, out);
  }
}

inline void draw_tasks(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task,
                       double* wait_out, double* duration_out) {
  double download[kDrawBatch];
  double compute[kDrawBatch];
  double upload[kDrawBatch];
  draw_law(model.component[kWait], model.seed, client, task, kWait, wait_out);
  draw_law(model.component[kDownload], model.seed, client, task, kDownload, download);
  draw_law(model.component[kCompute], model.seed, client, task, kCompute, compute);
  draw_law(model.component[kUpload], model.seed, client, task, kUpload, upload);
  if (model.speed != nullptr) {
    for (int i = 0; i < kDrawBatch; ++i) {
      compute[i] = compute[i] * model.speed[client[i]];
    }
  }
  for (int i = 0; i < kDrawBatch; ++i) {
    duration_out[i] = (download[i] + compute[i]) + upload[i];
  }
}

inline void draw_selection(std::uint64_t seed, std::uint64_t first, std::uint64_t* words_out) {
  std::uint32_t low[kDrawBatch];
  std::uint32_t high[kDrawBatch];
  DrawWords w;
  for (int i = 0; i < kDrawBatch; ++i) {
    const std::uint64_t start = first + static_cast<std::uint64_t>(i);
    low[i] = static_cast<std::uint32_t>(start);
    high[i] = static_cast<std::uint32_t>(start >> 32);
  }
  philox_batch(seed, low, high, 0, stream_word(Stream::ClientSelection, 0), w);
  for (int i = 0; i < kDrawBatch; ++i) {
    words_out[i] = std::uint64_t{w[0][i]} << 32 | w[1][i];
  }
}

constexpr ScheduleKernels make_schedule_kernels() {
  return {&draw_tasks,
          &draw_law,
          &draw_selection,
          &EventScan::rank_times,
          &EventScan::pick_early,
          EventScan::kMostListedSlots};
}
