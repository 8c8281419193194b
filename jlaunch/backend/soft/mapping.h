#pragma once

#include <cstddef>
#include <string>
#include <utility>

/**
 * Owners of the two things that the provider borrows from the system: a file
 * descriptor and a mapping.
 */
namespace jlaunch::soft {

std::size_t page_size();

/** `bytes` rounded up to whole pages. */
std::size_t whole_pages(std::size_t bytes);

class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File();

  int fd() const {
    return fd_;
  }

  /**
   * Opens a file that another process of this user made: a regular file, ours,
   * not a link, of at least `bytes` bytes. Throws std::system_error.
   */
  static File open_shared(
      const std::string& path,
      int flags,
      std::size_t bytes);

  /** The file's size now. Throws std::system_error. */
  std::size_t size() const;

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  /** Maps [offset, offset + bytes) of the file, shared, not inherited by a
   *  fork. Throws std::system_error. */
  Mapping(const File& file, std::size_t offset, std::size_t bytes, int protect);
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const {
    return base_ != nullptr;
  }
  std::byte* data() const {
    return base_;
  }
  std::size_t size() const {
    return bytes_;
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

} // namespace jlaunch::soft
