// WeightTree: weights of clients, and the client at a place among them, in O(log n).
//
// A tree of sums with eight children each: a node is ((a + b) + (c + d)) + ((e + f) + (g + h)), so the sums depend on
// the weights that are there and not on how they came. Memory: 8 n bytes and an eighth of that more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fedbuff {

class WeightTree {
 public:
  // n clients of weight 0.
  void resize(std::size_t n) {
    levels_.clear();
    do {
      n = (n + kWidth - 1) / kWidth;
      levels_.emplace_back(n * kWidth, 0.0);
    } while (n > 1);
  }

  double total() const { return sum(levels_.back().data()); }

  void set(std::size_t client, double weight) {
    std::size_t at = client;
    levels_[0][at] = weight;
    for (std::size_t level = 1; level < levels_.size(); ++level) {
      at /= kWidth;
      levels_[level][at] = sum(&levels_[level - 1][at * kWidth]);
    }
  }

  // The client at `place`, 0 <= place < total(), where their weights lie one behind the other; total() is above 0.
  std::uint32_t at(double place) const {
    std::size_t node = 0;
    for (std::size_t level = levels_.size(); level-- > 0;) {
      const double* child = &levels_[level][node * kWidth];
      std::size_t last = 0;  // with weight, for a place that rounding moved past the end
      std::size_t i = 0;
      for (; i < kWidth && place >= child[i]; ++i) {
        place -= child[i];
        last = child[i] > 0.0 ? i : last;
      }
      node = node * kWidth + (i < kWidth ? i : last);
    }
    return static_cast<std::uint32_t>(node);
  }

 private:
  static constexpr std::size_t kWidth = 8;
  static double sum(const double* w) { return ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])); }

  std::vector<std::vector<double>> levels_;  // the clients' weights first
};

}  // namespace fedbuff
