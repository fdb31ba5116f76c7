// Clients drawn by weight: the place of each, and how often each is drawn.
#include "schedule/weighted_clients.hpp"

#include <cstdint>
#include <vector>

#include "check.hpp"

namespace {

using fedbuff::WeightedClients;

TEST(weighted_clients_finds_the_candidate_at_a_place) {
  for (const std::size_t n : {1u, 2u, 9u, 64u, 700u}) {
    check::Numbers numbers(n);
    std::vector<double> weight(n);
    for (double& w : weight) {  // whole numbers: sums are exact in any order
      w = static_cast<double>(numbers.below(4) * numbers.below(4) * numbers.below(100));
    }
    weight[n / 2] += 1.0;
    double total = 0.0;
    for (const double w : weight) {
      total += w;
    }
    WeightedClients clients;
    clients.set_weights(weight.data(), n);
    for (int turn = 0; turn < 2000; ++turn) {
      const double u = static_cast<double>(numbers.below(1 << 20)) / (1 << 20);
      std::size_t expected = 0;
      for (double until = weight[0]; until <= u * total; until += weight[expected]) {
        ++expected;
      }
      CHECK_EQ(std::size_t{clients.candidate(u)}, expected);
    }
  }
}

TEST(weighted_clients_draws_in_proportion_among_those_it_holds) {
  const std::vector<double> weight{1.0, 0.5, 0.25, 0.75, 0.0, 1e-300, 0.125, 0.3};
  WeightedClients clients;
  clients.set_weights(weight.data(), weight.size());
  CHECK(clients.is_empty());
  for (std::uint32_t c = 0; c < weight.size(); ++c) {
    clients.insert(c);
  }
  clients.insert(2);  // once is enough
  clients.remove(0);
  clients.remove(3);
  clients.insert(3);
  CHECK(!clients.holds(0));
  CHECK(!clients.holds(4));
  constexpr int kPlaces = 1 << 20;  // at equal distances, so that shares are those of the places
  std::vector<double> drawn(weight.size(), 0.0);
  double hits = 0.0;
  for (int i = 0; i < kPlaces; ++i) {
    const std::int64_t client = clients.draw(static_cast<double>(i) / kPlaces);
    if (client >= 0) {
      drawn[static_cast<std::size_t>(client)] += 1.0;
      hits += 1.0;
    }
  }
  CHECK(hits >= 0.5 * kPlaces);
  const double total = 0.5 + 0.25 + 0.75 + 0.125 + 0.3;
  for (std::size_t c = 0; c < weight.size(); ++c) {
    const double share = c == 0 || c == 4 ? 0.0 : weight[c] / total;
    CHECK(drawn[c] / hits > share - 1e-5);
    CHECK(drawn[c] / hits < share + 1e-5);
  }
}

TEST(weighted_clients_finds_the_only_one_however_small_its_weight) {
  const std::vector<double> weight{1.0, 1e-310, 1e-30};
  WeightedClients clients;
  clients.set_weights(weight.data(), weight.size());
  for (const std::uint32_t only : {1u, 2u}) {
    clients.insert(only);
    CHECK_EQ(clients.draw(0.25), std::int64_t{only});
    clients.remove(only);
    CHECK(clients.is_empty());
  }
}

}  // namespace
