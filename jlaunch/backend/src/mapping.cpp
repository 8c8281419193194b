#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "platform.h"

namespace jlaunch {

namespace {

/** A descriptor that is closed when it goes out of scope. */
class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : fd_(::open(
            path.c_str(),
            flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW,
            0600)) {
    if (fd_ < 0) {
      throw std::system_error(errno, std::generic_category(), path);
    }
  }
  ~OpenFile() {
    ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const {
    return fd_;
  }

 private:
  int fd_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throw BlockError(
      path + ": not a usable control block: " + found +
      "; it is created by the agent of the job and must not be touched");
}

void check_file(const std::string& path, int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  if (!S_ISREG(info.st_mode)) {
    refuse(path, "not a regular file");
  }
  if (info.st_uid != ::geteuid()) {
    refuse(
        path,
        "owned by uid " + std::to_string(info.st_uid) + ", expected " +
            std::to_string(::geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    refuse(path, "open to other users, expected mode 0600");
  }
  if (info.st_size != static_cast<off_t>(kControlBlockBytes)) {
    refuse(
        path,
        std::to_string(info.st_size) + " bytes, expected " +
            std::to_string(kControlBlockBytes));
  }
}

void check_kind(
    const std::string& path,
    std::uint32_t magic,
    std::uint32_t version,
    std::uint32_t expected_magic) {
  if (magic != expected_magic) {
    refuse(
        path,
        "magic " + std::to_string(magic) + ", expected " +
            std::to_string(expected_magic));
  }
  if (version != kControlBlockVersion) {
    refuse(
        path,
        "version " + std::to_string(version) + ", expected " +
            std::to_string(kControlBlockVersion) +
            " (the launcher and the rank use different installations)");
  }
}

} // namespace

MappedFile::MappedFile(std::string path, int fd) : path_(std::move(path)) {
  void* data = ::mmap(
      nullptr, kControlBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), path_);
  }
  data_ = data;
}

MappedFile MappedFile::create(const std::string& path) {
  const OpenFile file(path, O_CREAT | O_EXCL);
  // The umask may have taken bits away from 0600.
  int error = ::fchmod(file.get(), 0600) == 0 ? 0 : errno;
  if (error == 0) {
    error = reserve_file(file.get(), 0, kControlBlockBytes);
  }
  if (error != 0) {
    ::unlink(path.c_str());
    throw std::system_error(error, std::generic_category(), path);
  }
  return MappedFile(path, file.get());
}

MappedFile MappedFile::open(const std::string& path) {
  const OpenFile file(path, 0);
  check_file(path, file.get());
  return MappedFile(path, file.get());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(data_, kControlBlockBytes);
  }
}

std::shared_ptr<RankMapping> RankMapping::create(
    const std::string& path,
    std::uint32_t rank,
    std::uint32_t epoch) {
  std::shared_ptr<RankMapping> mapping(
      new RankMapping(MappedFile::create(path)));
  auto* block = ::new (mapping->file_.data()) ControlBlock{};
  block->magic = kControlBlockMagic;
  block->version = kControlBlockVersion;
  block->rank = rank;
  block->started_epoch = epoch;
  return mapping;
}

std::shared_ptr<RankMapping> RankMapping::open(const std::string& path) {
  std::shared_ptr<RankMapping> mapping(new RankMapping(MappedFile::open(path)));
  const ControlBlock& block = mapping->block();
  check_kind(path, block.magic, block.version, kControlBlockMagic);
  return mapping;
}

std::shared_ptr<HostMapping> HostMapping::create(
    const std::string& path,
    std::uint64_t lease_ns,
    std::uint64_t grace_ns) {
  std::shared_ptr<HostMapping> mapping(
      new HostMapping(MappedFile::create(path)));
  auto* block = ::new (mapping->file_.data()) HostBlock{};
  block->magic = kHostBlockMagic;
  block->version = kControlBlockVersion;
  block->agent_pid = static_cast<std::uint32_t>(::getpid());
  block->agent_beat_ns = monotonic_ns();
  block->lease_ns = lease_ns;
  block->grace_ns = grace_ns;
  return mapping;
}

std::shared_ptr<HostMapping> HostMapping::open(const std::string& path) {
  std::shared_ptr<HostMapping> mapping(new HostMapping(MappedFile::open(path)));
  const HostBlock& block = mapping->block();
  check_kind(path, block.magic, block.version, kHostBlockMagic);
  return mapping;
}

} // namespace jlaunch
