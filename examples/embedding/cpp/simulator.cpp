// A C++ simulator with its own event loop, its own delays, its own gradient and its own threads.
#include <fedbuff/fedbuff.hpp>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kDim = 100'000;
constexpr std::int64_t kClients = 8;

// Client i pulls every weight to i.
void gradient(std::int64_t client, fedbuff::Span<const std::int64_t>, fedbuff::Span<const double> w,
              fedbuff::Span<double> out) {
  for (std::size_t j = 0; j < w.size(); ++j) {
    out[j] = w[j] - static_cast<double>(client);
  }
}

// Two threads for the additions of a large model.
void run_on_two(std::int64_t n, const std::function<void(std::int64_t)>& work) {
  std::thread other([&] {
    for (std::int64_t part = 0; part < n; part += 2) work(part);
  });
  for (std::int64_t part = 1; part < n; part += 2) work(part);
  other.join();
}

}  // namespace

int main(int n_arguments, char** argument) {
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.steps = 2;
  config.lr = 0.25;
  fedbuff::LocalSGD<double> local(gradient, kDim, std::vector<std::int64_t>(kClients, 1), config);
  fedbuff::Server<double> server(fedbuff::rule(3, 1.0 / 3), std::vector<double>(kDim));
  server.set_executor(fedbuff::Executor(run_on_two));
  fedbuff::EventQueue queue;

  struct Task {
    std::uint32_t number = 0;
    double started = 0;
    std::int64_t version = 0;
    std::vector<double> delta = std::vector<double>(kDim);
  };
  std::vector<Task> task(kClients);
  std::mt19937_64 random(1);
  std::exponential_distribution<double> delay(1.0);
  const auto start = [&](std::int64_t client, double now) {
    Task& mine = task[static_cast<std::size_t>(client)];
    const auto [version, w] = server.download();
    local.delta(client, mine.number++, w, mine.delta);
    mine.version = version;
    mine.started = now;
    queue.push(now + delay(random), client);
  };
  for (std::int64_t client = 0; client < kClients; ++client) {
    start(client, 0.0);
  }
  std::ofstream log(n_arguments > 1 ? argument[1] : "/dev/null");
  log.precision(17);
  log << "client,version,start_time,arrive_time\n";
  while (server.version() < 40) {
    const fb_event event = queue.pop();
    const Task& done = task[static_cast<std::size_t>(event.item)];
    log << event.item << ',' << done.version << ',' << done.started << ',' << event.time << '\n';
    server.upload<double>(done.delta, done.version);
    start(event.item, event.time);
  }
  std::printf("version %d, w %.17g\n", static_cast<int>(server.version()), server.w()[kDim - 1]);
}
