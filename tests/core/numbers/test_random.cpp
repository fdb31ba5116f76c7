// Philox against its published answers, and the portable functions at places where the answer is known.
#include <fstream>
#include <iomanip>

#include "check.hpp"
#include "numbers/normal.hpp"
#include "numbers/philox.hpp"
#include "numbers/portable_math.hpp"

using namespace fedbuff;

TEST(random_philox_known_answers) {
  std::ifstream file(check::known_answers_path());
  CHECK(file.good());
  int n_answers = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream words(line);
    std::uint32_t value[10];
    for (std::uint32_t& word : value) {
      words >> std::hex >> word;
    }
    CHECK(!words.fail());
    const std::uint64_t seed = std::uint64_t{value[5]} << 32 | value[4];
    const PhiloxBlock block = philox4x32(seed, value[0], value[1], value[2], value[3]);
    for (int i = 0; i < 4; ++i) {
      CHECK_EQ(block.word[i], value[6 + i]);
    }
    ++n_answers;
  }
  CHECK(n_answers >= 3);
}

TEST(random_blocks_side_by_side_are_blocks) {
  std::uint32_t c0[3] = {1, 2, 3}, c1[3] = {4, 5, 6}, c2[3] = {7, 8, 9}, c3[3] = {10, 11, 12};
  philox_rounds<3>(77, c0, c1, c2, c3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const PhiloxBlock one = philox4x32(77, 1 + i, 4 + i, 7 + i, 10 + i);
    CHECK(one.word[0] == c0[i] && one.word[1] == c1[i] && one.word[2] == c2[i] && one.word[3] == c3[i]);
  }
}

TEST(random_words_become_numbers) {
  CHECK_EQ(index_below(0xffffffffu, 10), 9u);
  CHECK_EQ(index_below(0, 10), 0u);
  CHECK_EQ(index_below(0x80000000u, 10), 5u);
  CHECK_EQ(unit_double(0, 0), 0.0);
  CHECK_EQ(unit_double(0xffffffffu, 0xffffffffu), 1.0 - 1.0 / 9007199254740992.0);
  CHECK_EQ(stream_word(Stream::InitialModel, 3), 0x50000003u);
}

TEST(random_portable_functions) {
  CHECK_EQ(portable::log(1.0), 0.0);
  CHECK_EQ(portable::exp(0.0), 1.0);
  CHECK_EQ(portable::log(0.0), -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(portable::log(-1.0)));
  check::Numbers numbers(1);
  for (int i = 0; i < 2000; ++i) {
    const double x = std::exp(40 * numbers.next());
    const double y = 30 * numbers.next();
    CHECK_NEAR(portable::log(x), std::log(x), 1.5, 0.0, i);
    CHECK_NEAR(portable::exp(y), std::exp(y), 1.5, 0.0, i);
    CHECK_NEAR(portable::pow(x, y / 10), std::pow(x, y / 10), 2.5, 0.0, i);
    const double turn = (numbers.next() + 1) / 2;
    double sine, cosine;
    portable::sincos2pi(turn, sine, cosine);
    CHECK_NEAR(sine, std::sin(2 * std::acos(-1.0) * turn), 8, 1.0, i);
    CHECK_NEAR(cosine, std::cos(2 * std::acos(-1.0) * turn), 8, 1.0, i);
  }
  double sine, cosine;
  portable::sincos2pi(0.25, sine, cosine);
  CHECK(sine == 1.0 && cosine == 0.0);
}

TEST(random_normals_have_mean_0_and_variance_1) {
  double sum = 0, square = 0;
  for (std::uint32_t i = 0; i < 20000; ++i) {
    double pair[2];
    normal_pair(philox4x32(5, i, 0, 0, 0), pair);
    sum += pair[0] + pair[1];
    square += pair[0] * pair[0] + pair[1] * pair[1];
  }
  CHECK(std::abs(sum / 40000) < 0.02 && std::abs(square / 40000 - 1) < 0.03);
}
