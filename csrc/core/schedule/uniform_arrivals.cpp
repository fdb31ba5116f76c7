#include "schedule/uniform_arrivals.hpp"

#include <algorithm>

#include "numbers/philox.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kRowsPerCall = std::int64_t{1} << 19;

constexpr std::uint64_t joined(std::uint32_t high, std::uint32_t low) { return std::uint64_t{high} << 32 | low; }

}  // namespace

UniformArrivalsFill::UniformArrivalsFill(const UniformArrivals& plan, const ScheduleColumns& columns)
    : plan_(plan), columns_(columns), last_(static_cast<std::size_t>(plan.n_clients)) {
  std::fill_n(columns.started, columns.n_steps, 0);
}

bool UniformArrivalsFill::run() {
  const UniformArrivals plan = plan_;
  const ScheduleColumns columns = columns_;
  const std::int64_t end = std::min(columns.n_rows, row_ + kRowsPerCall);
  std::int64_t step = step_;
  std::int64_t k = in_step_;
  for (std::int64_t row = row_; row < end; ++row) {
    const auto index = static_cast<std::uint64_t>(row);
    const PhiloxBlock block =
        philox4x32(plan.seed, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0,
                   stream_word(Stream::ClientSelection, 0));
    const std::uint64_t client =
        multiply_high(joined(block.word[0], block.word[1]), static_cast<std::uint64_t>(plan.n_clients));
    Last& before = last_[client];
    const std::int64_t lowest = std::max({std::int64_t{0}, step - plan.max_staleness, before.version});
    const std::uint64_t span = plan.oldest ? 1 : static_cast<std::uint64_t>(step - lowest + 1);
    const std::int64_t version =
        lowest + static_cast<std::int64_t>(multiply_high(joined(block.word[2], block.word[3]), span));
    columns.client[row] = static_cast<std::int32_t>(client);
    columns.task[row] = before.tasks++;
    columns.version[row] = version;
    columns.step[row] = step;
    columns.staleness[row] = step - version;
    columns.start_time[row] = static_cast<double>(std::max(version * plan.buffer_size, before.row + 1));
    columns.arrive_time[row] = static_cast<double>(row + 1);
    columns.status[row] = static_cast<std::uint8_t>(TaskStatus::Used);
    ++columns.started[version];
    before.row = row;
    before.version = step;
    if (++k == plan.buffer_size) {
      columns.step_time[step] = static_cast<double>(row + 1);
      columns.step_rows[step] = row + 1;
      before.version = ++step;
      k = 0;
    }
  }
  row_ = end;
  step_ = step;
  in_step_ = k;
  return end < columns.n_rows;
}

}  // namespace fedbuff
