#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "control_block.h"

/**
 * A block file mapped into this process. The agent creates it (mode 0600, its
 * space really allocated, so that a full file system is an error here and never
 * a SIGBUS later); agent and rank share it. The mapping lives as long as the
 * object; threads that touch the block hold a shared_ptr to it.
 */
namespace jlaunch {

/** The file is there, but is not a block of ours: says what was found. */
class BlockError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/** A shared mapping of kControlBlockBytes bytes of a file. */
class MappedFile {
 public:
  /** Creates the file; throws std::system_error, also if it exists. */
  static MappedFile create(const std::string& path);

  /**
   * Opens an existing one. Throws std::system_error if it cannot be opened, and
   * BlockError unless it is a regular file of the right size, ours, and closed
   * to all others.
   */
  static MappedFile open(const std::string& path);

  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  void* data() const {
    return data_;
  }

  const std::string& path() const {
    return path_;
  }

 private:
  MappedFile(std::string path, int fd);

  std::string path_;
  void* data_ = nullptr;
};

/** The control block of a rank, mapped. */
class RankMapping {
 public:
  /** By the agent, before it starts the rank. */
  static std::shared_ptr<RankMapping> create(
      const std::string& path,
      std::uint32_t rank,
      std::uint32_t epoch);

  /** By the rank. Throws as MappedFile::open, BlockError also for another magic
   *  or version. */
  static std::shared_ptr<RankMapping> open(const std::string& path);

  ControlBlock& block() const {
    return *static_cast<ControlBlock*>(file_.data());
  }

  const std::string& path() const {
    return file_.path();
  }

 private:
  explicit RankMapping(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
};

/** The agent's own block, mapped. */
class HostMapping {
 public:
  /** By the agent; UINT64_MAX stands for "for ever". */
  static std::shared_ptr<HostMapping> create(
      const std::string& path,
      std::uint64_t lease_ns,
      std::uint64_t grace_ns);

  /** By a rank. Throws as RankMapping::open. */
  static std::shared_ptr<HostMapping> open(const std::string& path);

  HostBlock& block() const {
    return *static_cast<HostBlock*>(file_.data());
  }

  const std::string& path() const {
    return file_.path();
  }

 private:
  explicit HostMapping(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
};

} // namespace jlaunch
