// ClientSet: against a plain set, at the borders of words and of both levels of counts.
#include "schedule/client_set.hpp"

#include <set>

#include "check.hpp"

using namespace fedbuff;

TEST(client_set_ranks_are_those_of_a_plain_set) {
  for (const std::int64_t n : {1, 63, 64, 65, 4096, 4097, 262144, 300000}) {
    ClientSet clients;
    clients.resize(n);
    std::set<std::uint32_t> expected;
    check::Numbers numbers(static_cast<std::uint64_t>(n));
    for (int round = 0; round < 500; ++round) {
      const auto client = static_cast<std::uint32_t>(numbers.below(n));
      const bool member = numbers.next() < 0.4;
      clients.set(client, member);
      clients.set(client, member);  // a second time changes nothing
      if (member) {
        expected.insert(client);
      } else {
        expected.erase(client);
      }
      CHECK(clients.has(client) == member);
      CHECK_EQ(clients.count(), static_cast<std::int64_t>(expected.size()));
    }
    std::int64_t rank = 0;
    for (const std::uint32_t client : expected) {
      CHECK_EQ(clients.member(rank++), client);
    }
  }
}

TEST(client_set_borders_of_words_and_counts) {
  ClientSet clients;
  clients.resize(600000);
  CHECK_EQ(clients.count(), 0);
  const std::vector<std::uint32_t> members = {0, 63, 64, 4095, 4096, 262143, 262144, 524287, 524288, 599999};
  for (const std::uint32_t client : members) {
    clients.set(client, true);
  }
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    CHECK_EQ(clients.member(static_cast<std::int64_t>(rank)), members[rank]);
  }
  clients.resize(10);
  CHECK_EQ(clients.count(), 0);
  CHECK(!clients.has(0));
}

TEST(client_set_full) {
  ClientSet clients;
  clients.resize(5000);
  for (std::uint32_t client = 0; client < 5000; ++client) {
    clients.set(client, true);
  }
  for (std::uint32_t client = 0; client < 5000; ++client) {
    CHECK_EQ(clients.member(client), client);
  }
}
