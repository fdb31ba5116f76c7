// A queue whose things keep their numbers: [begin, end), number i in slot i modulo a power of two.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace fedbuff {

template <class Item>
class NumberedQueue {
 public:
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t size() const { return end_ - begin_; }

  Item& operator[](std::int64_t number) { return items_[slot(number)]; }
  const Item& operator[](std::int64_t number) const { return items_[slot(number)]; }

  // The things as they lie now, for a thread that looks at them while another one takes some from the front.
  class View {
   public:
    explicit View(const NumberedQueue& queue)
        : items_(queue.items_.data()), mask_(queue.items_.size() - 1), end_(queue.end_) {}
    std::int64_t end() const { return end_; }
    const Item& operator[](std::int64_t number) const { return items_[static_cast<std::size_t>(number) & mask_]; }

   private:
    const Item* items_;
    std::size_t mask_;
    std::int64_t end_;
  };

  void push_back(Item item) {
    if (size() == static_cast<std::int64_t>(items_.size())) {
      grow();
    }
    items_[slot(end_++)] = std::move(item);
  }

  void pop_front() {
    if constexpr (!std::is_trivially_destructible_v<Item>) {
      items_[slot(begin_)] = Item{};
    }
    ++begin_;
  }

  // Empty, and the next thing has this number.
  void restart(std::int64_t number) {
    while (begin_ < end_) {
      pop_front();
    }
    begin_ = end_ = number;
  }

 private:
  std::size_t slot(std::int64_t number) const { return static_cast<std::size_t>(number) & (items_.size() - 1); }

  void grow() {
    std::vector<Item> larger(items_.empty() ? 16 : 2 * items_.size());
    for (std::int64_t i = begin_; i < end_; ++i) {
      larger[static_cast<std::size_t>(i) & (larger.size() - 1)] = std::move(items_[slot(i)]);
    }
    items_ = std::move(larger);
  }

  std::vector<Item> items_;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

}  // namespace fedbuff
