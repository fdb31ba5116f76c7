// A first-in-first-out queue whose items keep their indices: [begin, end), index i in slot i modulo a power of two.
//
// push_back is O(1) amortised and may move the items; pop_front and access are O(1). Not thread-safe, but see View.
// Memory does not shrink.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace fedbuff {

template <class Item>
class IndexRing {
 public:
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t size() const { return end_ - begin_; }

  Item& operator[](std::int64_t index) { return items_[slot(index)]; }
  const Item& operator[](std::int64_t index) const { return items_[slot(index)]; }
  Item& front() { return (*this)[begin_]; }
  Item& back() { return (*this)[end_ - 1]; }

  // The items at the time of construction, for threads that read them while another thread calls pop_front. The ring
  // must not grow or restart meanwhile.
  class View {
   public:
    explicit View(const IndexRing& ring) : items_(ring.items_.data()), mask_(ring.items_.size() - 1), end_(ring.end_) {}
    std::int64_t end() const { return end_; }
    const Item& operator[](std::int64_t index) const { return items_[static_cast<std::size_t>(index) & mask_]; }

   private:
    const Item* items_;
    std::size_t mask_;
    std::int64_t end_;
  };

  void push_back(Item item) {
    make_room();
    items_[slot(end_++)] = std::move(item);
  }

  // The next push_back does not throw.
  void make_room() {
    if (size() == static_cast<std::int64_t>(items_.size())) {
      grow();
    }
  }

  void pop_front() {
    if constexpr (!std::is_trivially_destructible_v<Item>) {
      items_[slot(begin_)] = Item{};
    }
    ++begin_;
  }

  // Removes all items; the next one gets this index.
  void restart(std::int64_t index) {
    while (begin_ < end_) {
      pop_front();
    }
    begin_ = end_ = index;
  }

 private:
  std::size_t slot(std::int64_t index) const { return static_cast<std::size_t>(index) & (items_.size() - 1); }

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
