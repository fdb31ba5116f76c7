// TARGET [file or folder]...: calls the target with each file, as libFuzzer does, where a compiler has no libFuzzer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "input.hpp"

int main(int n_arguments, char** argument) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < n_arguments; ++i) {
    if (std::filesystem::is_directory(argument[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argument[i])) {
        files.push_back(entry.path());
      }
    } else {
      files.emplace_back(argument[i]);
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::fprintf(stderr, "%s\n", path.c_str());
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%s: %zu inputs\n", argument[0], files.size());
  return files.empty() ? 1 : 0;
}
