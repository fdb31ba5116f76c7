// Lists of slots, linked through the slots: SlotList is one list, ClientQueues one for each client.
//
// A slot stands in at most one list that uses the same links. Joining and leaving cost O(1), from anywhere in a list.
// Slots count from 1; kNoSlot stands for none. Memory: 8 bytes per slot, 8 per list.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/huge_pages.hpp"

namespace fedbuff {

inline constexpr std::uint32_t kNoSlot = 0;

class SlotLinks {
 public:
  struct Ends {
    std::uint32_t first = kNoSlot;
    std::uint32_t last = kNoSlot;
  };

  void resize(std::size_t n_slots) { links_.resize(n_slots); }

  void join(Ends& list, std::uint32_t slot) {
    links_[slot] = {list.last, kNoSlot};
    (list.last == kNoSlot ? list.first : links_[list.last].last) = slot;
    list.last = slot;
  }
  void leave(Ends& list, std::uint32_t slot) {
    const Ends at = links_[slot];
    (at.first == kNoSlot ? list.first : links_[at.first].last) = at.last;
    (at.last == kNoSlot ? list.last : links_[at.last].first) = at.first;
  }

 private:
  LargeVector<Ends> links_;  // by slot: those before and behind it
};

class SlotList {
 public:
  void resize(std::size_t n_slots) { links_.resize(n_slots); }
  std::uint32_t first() const { return ends_.first; }
  void join(std::uint32_t slot) { links_.join(ends_, slot); }
  void leave(std::uint32_t slot) { links_.leave(ends_, slot); }
  void clear() { ends_ = {}; }

 private:
  SlotLinks links_;
  SlotLinks::Ends ends_;
};

// The tasks that each client was sent and has not ended; it works on the first of them.
class ClientQueues {
 public:
  void set_clients(std::size_t n) { queue_.resize(n); }
  const SlotLinks::Ends* clients() const { return queue_.data(); }
  void resize(std::size_t n_slots) { links_.resize(n_slots); }

  // The slot joins the queue; returns whether the client was idle.
  bool join(std::uint32_t client, std::uint32_t slot) {
    links_.join(queue_[client], slot);
    return queue_[client].first == slot;
  }
  // The slot leaves; returns the slot that the client turns to, or kNoSlot if there is none or it goes on as before.
  std::uint32_t leave(std::uint32_t client, std::uint32_t slot) {
    const bool was_first = queue_[client].first == slot;
    links_.leave(queue_[client], slot);
    return was_first ? queue_[client].first : kNoSlot;
  }

 private:
  SlotLinks links_;
  LargeVector<SlotLinks::Ends> queue_;
};

}  // namespace fedbuff
