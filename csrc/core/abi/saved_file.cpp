#include "abi/saved_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace fedbuff {

namespace {

constexpr std::size_t kBlock = 4096;

// A name beside the path that no other call of this or another process uses now.
std::string name_beside(const char* path) {
  static std::atomic<std::uint64_t> n_made{0};
  return std::string(path) + ".part-" + std::to_string(getpid()) + "-" + std::to_string(n_made.fetch_add(1));
}

// The folder of a path, to be synchronised: a new name is on the disk when its folder is.
std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// n numbers of so many bytes each, in the other order of bytes where this machine's is not that of files.
void to_file_order(unsigned char* bytes, std::size_t n, std::size_t bytes_each) {
  if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) {
    for (std::size_t i = 0; i < n; ++i) {
      std::reverse(bytes + i * bytes_each, bytes + (i + 1) * bytes_each);
    }
  }
}

}  // namespace

void ByteHash::add(std::uint64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  }
  add(bytes, sizeof bytes);
}

void ByteHash::add(double number) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  add(bits);
}

SavedFileWriter::SavedFileWriter(const char* path) : path_(path), beside_(name_beside(path)) {
  const int descriptor = open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ == nullptr) {
    fail();
    if (descriptor >= 0) {
      close(descriptor);
    }
  }
}

SavedFileWriter::~SavedFileWriter() {
  if (file_ != nullptr) {
    std::fclose(file_);
    std::remove(beside_.c_str());
  }
}

void SavedFileWriter::fail() {
  if (fault_.empty()) {
    fault_ = path_ + ": " + std::strerror(errno);
  }
}

void SavedFileWriter::write(const void* bytes, std::size_t n) {
  hash_.add(bytes, n);
  if (fault_.empty() && n > 0 && std::fwrite(bytes, 1, n, file_) != n) {
    fail();
  }
}

void SavedFileWriter::text(const char* bytes, std::size_t n) { write(bytes, n); }

void SavedFileWriter::number(std::uint64_t number) { numbers(&number, 1, sizeof number); }

void SavedFileWriter::numbers(const void* values, std::size_t n, std::size_t bytes_each) {
  unsigned char block[kBlock];
  const auto* from = static_cast<const unsigned char*>(values);
  const std::size_t at_once = kBlock / bytes_each;
  for (std::size_t i = 0; i < n; i += at_once) {
    const std::size_t some = std::min(at_once, n - i);
    std::memcpy(block, from + i * bytes_each, some * bytes_each);
    to_file_order(block, some, bytes_each);
    write(block, some * bytes_each);
  }
}

std::string SavedFileWriter::finish() {
  if (file_ == nullptr) {
    return fault_;
  }
  if (fault_.empty() && (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0)) {
    fail();
  }
  if (std::fclose(file_) != 0) {
    fail();
  }
  file_ = nullptr;
  if (fault_.empty() && std::rename(beside_.c_str(), path_.c_str()) != 0) {
    fail();
  }
  if (!fault_.empty()) {
    std::remove(beside_.c_str());
    return fault_;
  }
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);  // some file systems know nothing to do for a folder
    close(folder);
  }
  return fault_;
}

SavedFileReader::SavedFileReader(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) {
    fault_ = std::string(path) + ": " + std::strerror(errno);
    return;
  }
  unsigned char block[kBlock];
  for (std::size_t n = std::fread(block, 1, kBlock, file); n > 0; n = std::fread(block, 1, kBlock, file)) {
    bytes_.insert(bytes_.end(), block, block + n);
  }
  if (std::ferror(file) != 0) {
    fault_ = std::string(path) + ": it cannot be read";
  }
  std::fclose(file);
}

void SavedFileReader::require(bool good, const char* what) {
  if (!good && fault_.empty()) {
    fault_ = what;
  }
}

bool SavedFileReader::has(std::uint64_t n, std::size_t bytes_each) const {
  return n <= (bytes_.size() - at_) / bytes_each;
}

void SavedFileReader::numbers(void* values_out, std::size_t n, std::size_t bytes_each) {
  require(has(n, bytes_each), "the file ends too early");
  if (n == 0 || !fault_.empty()) {
    std::memset(values_out, 0, n * bytes_each);
    return;
  }
  std::memcpy(values_out, bytes_.data() + at_, n * bytes_each);
  to_file_order(static_cast<unsigned char*>(values_out), n, bytes_each);
  at_ += n * bytes_each;
}

std::string SavedFileReader::text(std::size_t n) {
  std::string made(has(n, 1) ? n : 0, '\0');
  require(made.size() == n, "the file ends too early");
  numbers(made.data(), made.size(), 1);
  return made;
}

std::uint64_t SavedFileReader::number() {
  std::uint64_t value = 0;
  numbers(&value, 1, sizeof value);
  return value;
}

std::int64_t SavedFileReader::whole(std::int64_t low, std::int64_t high, const char* what) {
  const auto value = static_cast<std::int64_t>(number());
  require(value >= low && value <= high, what);
  return fault_.empty() ? value : 0;
}

double SavedFileReader::real() {
  double value = 0;
  numbers(&value, 1, sizeof value);
  return value;
}

std::uint64_t SavedFileReader::hash() const {
  ByteHash made;
  made.add(bytes_.data(), at_);
  return made.value();
}

}  // namespace fedbuff
