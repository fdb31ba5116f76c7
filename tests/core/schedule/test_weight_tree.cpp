// The tree of weights beside a plain sum.
#include "schedule/weight_tree.hpp"

#include <cstdint>
#include <vector>

#include "check.hpp"

namespace {

TEST(weight_tree_finds_the_client_at_a_place) {
  for (const std::size_t n : {1u, 8u, 9u, 64u, 65u, 700u}) {
    check::Numbers numbers(n);
    fedbuff::WeightTree tree;
    tree.resize(n);
    CHECK(tree.total() == 0.0);
    std::vector<double> weight(n, 0.0);
    for (int turn = 0; turn < 300; ++turn) {
      const auto client = static_cast<std::size_t>(numbers.below(static_cast<std::int64_t>(n)));
      weight[client] = static_cast<double>(numbers.below(4));  // whole numbers: sums are exact in any order
      tree.set(client, weight[client]);
      double total = 0.0;
      for (const double w : weight) {
        total += w;
      }
      CHECK(tree.total() == total);
      if (total > 0.0) {
        const double place = static_cast<double>(numbers.below(static_cast<std::int64_t>(total))) + 0.5;
        std::size_t expected = 0;
        for (double before = weight[0]; before <= place; before += weight[expected]) {
          ++expected;
        }
        CHECK_EQ(std::size_t{tree.at(place)}, expected);
      }
    }
  }
}

TEST(weight_tree_gives_the_last_with_weight_past_the_end) {
  fedbuff::WeightTree tree;
  tree.resize(20);
  tree.set(3, 1.0);
  tree.set(11, 1.0);
  CHECK_EQ(tree.at(2.0), 11u);
}

}  // namespace
