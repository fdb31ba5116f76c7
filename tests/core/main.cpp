// core_tests <file of Philox answers> [part of a name]: runs the tests whose name holds that part; after a minus, those
// whose name does not.
#include <cstdio>
#include <cstring>

#include "check.hpp"
#include "kernels/dispatch.hpp"

namespace {
std::string answers;
}

namespace check {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

std::string known_answers_path() { return answers; }

void on_every_level(void (*body)()) {
  const std::string before = fedbuff::kernels().name;
  for (const char* const* level = fedbuff::available_levels(); *level != nullptr; ++level) {
    CHECK(fedbuff::force_level(*level));
    CHECK_EQ(std::string(fedbuff::kernels().name), std::string(*level));
    try {
      body();
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(*level) + ": " + error.what());
    }
  }
  CHECK(fedbuff::force_level(before.c_str()));
}

}  // namespace check

int main(int n_arguments, char** argument) {
  if (n_arguments < 2) {
    std::fprintf(stderr, "usage: core_tests philox_known_answers.txt [part of a name]\n");
    return 2;
  }
  answers = argument[1];
  const char* part = n_arguments > 2 ? argument[2] : "";
  const bool wanted = part[0] != '-';
  part += wanted ? 0 : 1;
  int passed = 0;
  int failed = 0;
  for (const check::Test& test : check::tests()) {
    if ((std::strstr(test.name, part) != nullptr) != wanted) {
      continue;
    }
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
      ++failed;
    }
  }
  std::printf("core: %d passed, %d failed; levels", passed, failed);
  for (const char* const* level = fedbuff::available_levels(); *level != nullptr; ++level) {
    std::printf(" %s", *level);
  }
  std::printf("\n");
  return failed != 0 || passed == 0 ? 1 : 0;
}
