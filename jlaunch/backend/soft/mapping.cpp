#include "mapping.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace jlaunch::soft {

namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

} // namespace

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = page_size();
  return (bytes + page - 1) / page * page;
}

File::~File() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

File File::open_shared(const std::string& path, int flags, std::size_t bytes) {
  File file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW));
  if (file.fd() < 0) {
    fail(errno, path);
  }
  struct stat info{};
  if (fstat(file.fd(), &info) != 0) {
    fail(errno, path);
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    fail(EACCES, path + " is not a regular file of this user");
  }
  if (static_cast<std::size_t>(info.st_size) < bytes) {
    fail(EINVAL, path + " is too short");
  }
  return file;
}

std::size_t File::size() const {
  struct stat info{};
  if (fstat(fd_, &info) != 0) {
    fail(errno, "fstat");
  }
  return static_cast<std::size_t>(info.st_size);
}

Mapping::Mapping(
    const File& file,
    std::size_t offset,
    std::size_t bytes,
    int protect) {
  void* base = mmap(
      nullptr,
      bytes,
      protect,
      MAP_SHARED,
      file.fd(),
      static_cast<off_t>(offset));
  if (base == MAP_FAILED) {
    fail(errno, "mmap");
  }
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
#if defined(MADV_DONTFORK)
  madvise(base_, bytes_, MADV_DONTFORK);
#endif
}

Mapping::~Mapping() {
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
}

} // namespace jlaunch::soft
