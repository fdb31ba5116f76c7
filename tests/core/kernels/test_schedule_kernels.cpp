// The schedule's kernels on every level, beside one draw at a time and a plain sort.
#include <algorithm>
#include <vector>

#include "check.hpp"
#include "kernels/delay_model.hpp"
#include "kernels/dispatch.hpp"
#include "schedule/delays.hpp"

using namespace fedbuff;

namespace {

const double kSamples[5] = {0.0, 0.25, 0.5, 4.0, 1e6};

Distribution distribution(DistributionKind kind) {
  Distribution d;
  d.kind = kind;
  d.p[0] = 0.75;
  d.p[1] = 1.5;
  d.p[2] = 0.5;
  d.p[3] = 3.0;
  d.samples = kSamples;
  d.n_samples = 5;
  return d;
}

TEST(schedule_kernels_draw_what_single_draws_are) {
  check::on_every_level([] {
    std::vector<double> speed;
    for (int i = 0; i < 1000; ++i) {
      speed.push_back(0.5 + i);
    }
    for (int kind = 0; kind <= static_cast<int>(DistributionKind::Empirical); ++kind) {
      DelayModel model;
      model.seed = 0x123456789ABCDEFu;
      for (Distribution& d : model.component) {
        d = distribution(static_cast<DistributionKind>(kind));
      }
      for (const bool scaled : {false, true}) {
        model.speed = scaled ? speed.data() : nullptr;
        std::uint32_t client[kDrawBatch], task[kDrawBatch];
        double wait[kDrawBatch], duration[kDrawBatch];
        for (std::uint32_t i = 0; i < kDrawBatch; ++i) {
          client[i] = 61 * i;
          task[i] = i == 3 ? 0xFFFFFFFFu : 7 * i;
        }
        kernels().schedule.draw_tasks(model, client, task, wait, duration);
        for (int i = 0; i < kDrawBatch; ++i) {
          CHECK_EQ(wait[i], draw_wait(model, client[i], task[i]));
          CHECK_EQ(duration[i], draw_duration(model, client[i], task[i]));
        }
        double time[kDrawBatch];
        kernels().schedule.draw_law(model.component[0], model.seed, client, task, kServer, time);
        for (int i = 0; i < kDrawBatch; ++i) {
          CHECK_EQ(time[i], draw_server_time(model.component[0], model.seed, client[i], task[i]));
        }
      }
    }
  });
}

TEST(schedule_kernels_select_by_the_words_of_philox) {
  check::on_every_level([] {
    const std::uint64_t first = 0xFFFFFFFFu - 5;  // the low word wraps around within the batch
    std::uint64_t words[kDrawBatch];
    kernels().schedule.draw_selection(9, first, words);
    for (std::uint64_t i = 0; i < kDrawBatch; ++i) {
      const std::uint64_t start = first + i;
      const PhiloxBlock block =
          philox4x32(9, static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(start >> 32), 0,
                     stream_word(Stream::ClientSelection, 0));
      CHECK_EQ(words[i], std::uint64_t{block.word[0]} << 32 | block.word[1]);
    }
  });
}

TEST(schedule_kernels_rank_times_that_differ) {
  check::on_every_level([] {
    check::Numbers numbers(3);
    for (std::size_t n = 0; n <= kMostRanked; ++n) {
      std::vector<double> time = numbers.vector<double>(static_cast<std::int64_t>(n));
      std::vector<double> sorted = time;
      std::sort(sorted.begin(), sorted.end());
      time.resize(kMostRanked);
      std::uint32_t rank[kMostRanked];
      CHECK(kernels().schedule.rank_times(time.data(), n, rank));
      for (std::size_t i = 0; i < n; ++i) {
        CHECK_EQ(sorted[rank[i]], time[i]);
      }
      if (n > 1) {
        time[n - 1] = time[0];
        CHECK(!kernels().schedule.rank_times(time.data(), n, rank));
      }
    }
  });
}

}  // namespace
