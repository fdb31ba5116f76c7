// Files of the C ABI: written beside their path first and then in its place, and read whole. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace fedbuff {

// A hash of bytes, for what is to be recognised and not to be protected (FNV-1a).
class ByteHash {
 public:
  void add(const void* bytes, std::size_t n) {
    const auto* from = static_cast<const unsigned char*>(bytes);
    for (std::size_t i = 0; i < n; ++i) {
      value_ = (value_ ^ from[i]) * 0x100000001b3u;
    }
  }
  void add(std::uint64_t number);
  void add(double number);
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

// A file that is being written. What was not finished leaves nothing behind.
class SavedFileWriter {
 public:
  explicit SavedFileWriter(const char* path);
  ~SavedFileWriter();
  SavedFileWriter(const SavedFileWriter&) = delete;
  SavedFileWriter& operator=(const SavedFileWriter&) = delete;

  void text(const char* bytes, std::size_t n);
  void number(std::uint64_t number);
  // n numbers of so many bytes each: 2, 4 or 8.
  void numbers(const void* values, std::size_t n, std::size_t bytes_each);
  std::uint64_t hash() const { return hash_.value(); }  // of all bytes so far

  // Puts the file in its place, all of it on the disk. Empty, or what the system says.
  std::string finish();

 private:
  void write(const void* bytes, std::size_t n);
  void fail();

  const std::string path_, beside_;
  std::FILE* file_ = nullptr;
  std::string fault_;
  ByteHash hash_;
};

// A file in memory. `fault` says why it is none, or that something was asked for that is not in it: from then on all
// that is read is zero.
class SavedFileReader {
 public:
  explicit SavedFileReader(const char* path);
  const std::string& fault() const { return fault_; }
  void require(bool good, const char* what);

  std::string text(std::size_t n);
  std::uint64_t number();
  std::int64_t whole(std::int64_t low, std::int64_t high, const char* what);
  double real();
  // values_out (n)
  void numbers(void* values_out, std::size_t n, std::size_t bytes_each);
  bool has(std::uint64_t n, std::size_t bytes_each) const;  // whether so many numbers are left
  bool is_at_end() const { return at_ == bytes_.size(); }
  std::uint64_t hash() const;  // of all bytes that were read

 private:
  std::vector<unsigned char> bytes_;
  std::size_t at_ = 0;
  std::string fault_;
};

}  // namespace fedbuff
