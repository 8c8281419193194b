#include "node.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform.h"

namespace jlaunch::soft {

namespace {

constexpr std::uint16_t kFirstMulticastLid = 0xC000;
constexpr int kNameTries = 64;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

std::string private_directory() {
  const char* given = std::getenv("JLAUNCH_SOFT_DIR");
  if (given == nullptr || *given == '\0') {
    fail(
        ENOENT,
        "JLAUNCH_SOFT_DIR is not set: the soft provider needs a private "
        "directory, which jlaunch gives every rank");
  }
  struct stat info{};
  if (stat(given, &info) != 0) {
    fail(errno, std::string("JLAUNCH_SOFT_DIR ") + given);
  }
  if (!S_ISDIR(info.st_mode)) {
    fail(ENOTDIR, std::string("JLAUNCH_SOFT_DIR ") + given);
  }
  if (info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    fail(
        EACCES,
        std::string("JLAUNCH_SOFT_DIR ") + given +
            " must belong to this user, with mode 0700");
  }
  return given;
}

NodeId random_id() {
  std::random_device random;
  NodeId id;
  id.lid = static_cast<std::uint16_t>(1 + random() % (kFirstMulticastLid - 1));
  id.low = static_cast<std::uint32_t>(random() & 0xFFFFFF);
  return id;
}

} // namespace

std::string NodeId::file_name() const {
  char name[32];
  std::snprintf(name, sizeof(name), "node-%04x-%06x", lid, low & 0xFFFFFF);
  return name;
}

File open_node(const std::string& directory, NodeId id) {
  return File::open_shared(
      directory + "/" + id.file_name(), O_RDONLY, kHeaderBytes);
}

std::shared_ptr<Node> Node::acquire() {
  static std::mutex mutex;
  static std::weak_ptr<Node> shared;
  auto directory = private_directory();
  std::scoped_lock lock(mutex);
  auto node = shared.lock();
  // A forked child has its parent's node in its memory: not its own.
  if (node == nullptr || node->pid_ != getpid() || !node->named() ||
      node->directory() != directory) {
    node = std::make_shared<Node>(std::move(directory));
    shared = node;
  }
  return node;
}

Node::Node(std::string directory)
    : directory_(std::move(directory)), pid_(getpid()) {
  int error = EEXIST;
  for (int i = 0; i < kNameTries && error == EEXIST; ++i) {
    id_ = random_id();
    const auto path = directory_ + "/" + id_.file_name();
    File file(
        ::open(
            path.c_str(),
            O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
            0600));
    error = file.fd() >= 0 ? 0 : errno;
    file_ = std::move(file);
  }
  if (error != 0) {
    fail(error, directory_);
  }
  named_ = true;
  error = reserve_file(file_.fd(), 0, kHeaderBytes);
  if (error != 0) {
    remove_name();
    fail(error, directory_ + " has no space for a node");
  }
  try {
    header_ = Mapping(file_, 0, kHeaderBytes, PROT_READ | PROT_WRITE);
  } catch (...) {
    remove_name();
    throw;
  }
  end_ = kHeaderBytes;
  header().version = kNodeVersion;
  header().magic.store(kNodeMagic, std::memory_order_release);
}

Node::~Node() {
  if (pid_ == getpid()) {
    remove_name();
  }
}

void Node::remove_name() {
  if (named_.exchange(false)) {
    ::unlink((directory_ + "/" + id_.file_name()).c_str());
  }
}

Extent Node::allocate(std::size_t bytes) {
  const auto wanted = whole_pages(std::max<std::size_t>(bytes, 1));
  std::scoped_lock lock(mutex_);
  const auto fit = std::find_if(
      free_.begin(), free_.end(), [&](Extent e) { return e.bytes == wanted; });
  if (fit != free_.end()) {
    const Extent extent = *fit;
    free_.erase(fit);
    return extent;
  }
  const int error = reserve_file(file_.fd(), end_, wanted);
  if (error != 0) {
    fail(
        error == ENOSPC ? ENOMEM : error,
        directory_ + " has no space for " + std::to_string(wanted) + " bytes");
  }
  const Extent extent{end_, wanted};
  end_ += wanted;
  return extent;
}

void Node::release(Extent extent) {
  std::scoped_lock lock(mutex_);
  free_.push_back(extent);
}

std::uint32_t Node::enter_queue(std::uint64_t offset) {
  std::scoped_lock lock(mutex_);
  auto& queues = header().queues;
  // Index 0 is never used: a queue pair's number is not 0.
  for (std::uint32_t index = 1; index < kMaxQueues; ++index) {
    if (queues[index].load(std::memory_order_relaxed) == 0) {
      const auto salt = next_salt_++ & kQueueIndexMask;
      queues[index].store(offset, std::memory_order_release);
      return (salt << kQueueSaltShift) | index;
    }
  }
  return 0;
}

void Node::leave_queue(std::uint32_t qp_num) {
  std::scoped_lock lock(mutex_);
  header().queues[qp_num & kQueueIndexMask].store(0, std::memory_order_release);
}

} // namespace jlaunch::soft
