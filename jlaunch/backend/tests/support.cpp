#include "support.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include "platform.h"

namespace jlaunch::test {

namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

} // namespace

TempDir::TempDir() : owner_(getpid()) {
  const bool memory = std::filesystem::is_directory("/dev/shm");
  std::string path =
      (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
      "/jlaunch-test-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    fail(path);
  }
  path_ = path;
}

TempDir::~TempDir() {
  if (owner_ == getpid()) {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
}

std::size_t TempDir::entries() const {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(path_)) {
    ++count;
  }
  return count;
}

void* shared_pages(std::size_t bytes) {
  void* pages = mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  if (pages == MAP_FAILED) {
    fail("mmap");
  }
  return pages;
}

void unmap_pages(void* pages, std::size_t bytes) {
  munmap(pages, bytes);
}

void wait_for(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto now = word.load(std::memory_order_acquire);
    if (now >= value) {
      return;
    }
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error(
          "waited in vain for " + std::to_string(value) + ", it is " +
          std::to_string(now));
    }
    futex_wait(word, now, std::chrono::seconds(1));
  }
}

void set(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.store(value, std::memory_order_release);
  futex_wake(word);
}

void Meeting::barrier(int size, std::uint32_t round) {
  const auto wanted = static_cast<std::uint32_t>(size) * round;
  arrived.fetch_add(1);
  futex_wake(arrived);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (auto now = arrived.load(); now < wanted; now = arrived.load()) {
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error("not all ranks came to the barrier");
    }
    futex_wait(arrived, now, std::chrono::seconds(1));
  }
}

std::vector<std::vector<std::byte>> Meeting::exchange(
    int rank,
    int size,
    const std::vector<std::byte>& address) {
  if (address.size() > kAddressBytes) {
    throw std::runtime_error("the address is too long for the meeting");
  }
  const auto at = static_cast<std::size_t>(rank);
  std::memcpy(addresses[at].data(), address.data(), address.size());
  lengths[at] = static_cast<std::uint32_t>(address.size());
  barrier(size, 1);
  std::vector<std::vector<std::byte>> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) {
    all.emplace_back(addresses[i].begin(), addresses[i].begin() + lengths[i]);
  }
  return all;
}

BlockFile::BlockFile(const TempDir& dir, int rank)
    : path_(dir.path() + "-rank-" + std::to_string(rank) + ".block") {
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || reserve_file(fd, 0, kControlBlockBytes) != 0) {
    fail(path_);
  }
  void* pages = mmap(
      nullptr, kControlBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (pages == MAP_FAILED) {
    fail(path_);
  }
  block_ = new (pages) ControlBlock{};
  block_->magic = kControlBlockMagic;
  block_->version = kControlBlockVersion;
  block_->rank = static_cast<std::uint32_t>(rank);
}

BlockFile::~BlockFile() {
  munmap(block_, kControlBlockBytes);
  unlink(path_.c_str());
}

void BlockFile::say(VerdictKind kind, const std::vector<LossEntry>& losses)
    const {
  auto& part = block_->verdict;
  const auto number = part.verdict.load() + 1;
  part.lock.fetch_add(1);
  for (const auto& loss : losses) {
    const auto rank = static_cast<std::size_t>(loss.rank);
    const auto bit = std::uint64_t{1} << (rank % 64);
    part.lost[rank / 64].fetch_or(bit);
    part.reason[rank] = static_cast<std::uint8_t>(loss.reason);
    part.completed_seq[rank] = loss.completed_seq;
    if (loss.clean) {
      part.clean[rank / 64].fetch_or(bit);
    }
  }
  part.losses = static_cast<std::uint32_t>(losses.size());
  part.kind = static_cast<std::uint32_t>(kind);
  part.verdict = number;
  part.lock.fetch_add(1);
  block_->bell.fetch_add(1);
  futex_wake(block_->bell);
}

void BlockFile::keep_waiting(std::uint32_t question) const {
  auto& part = block_->verdict;
  part.lock.fetch_add(1);
  part.answered = question;
  part.lock.fetch_add(1);
  block_->bell.fetch_add(1);
  futex_wake(block_->bell);
}

World::World(int ranks) : size(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    blocks.push_back(std::make_unique<BlockFile>(dir, rank));
  }
  setenv("JLAUNCH_SOFT_DIR", dir.path().c_str(), 1);
}

GroupConfig World::config(int rank) const {
  GroupConfig config;
  config.rank = rank;
  config.size = size;
  config.epoch = 1;
  config.provider = soft_library();
  config.deadline = deadline;
  config.wires = wires;
  config.ring = ring;
  if (with_blocks) {
    const auto& file = *blocks[static_cast<std::size_t>(rank)];
    config.block = &file.block();
    config.block_path = file.path();
    config.host_block = &*host;
  }
  return config;
}

std::unique_ptr<Group> World::join(int rank) const {
  auto group = Group::open(config(rank));
  const auto addresses = meeting->exchange(rank, size, group->address());
  group->connect(addresses);
  // As at a real rendezvous: nobody goes ahead, or away, before all have
  // connected.
  meeting->barrier(size, 2);
  return group;
}

std::string soft_library() {
  return JLAUNCH_SOFT_LIBRARY;
}

void check(bool holds, const char* what, const char* file, int line) {
  if (!holds) {
    throw std::runtime_error(
        std::string(file) + ":" + std::to_string(line) + ": " + what);
  }
}

Process::Process(std::function<void()> body) {
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) {
    fail("fork");
  }
  if (pid_ > 0) {
    return;
  }
#if defined(__linux__)
  // A test that is killed from outside takes its ranks along.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  int code = 0;
  try {
    body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank process: %s\n", e.what());
    code = 1;
  }
  std::fflush(nullptr);
  _exit(code);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)) {}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Process::signal(int number) const {
  if (::kill(pid_, number) != 0) {
    fail("kill");
  }
}

int Process::wait() {
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) {
    fail("waitpid");
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void Process::wait_stopped() const {
  int status = 0;
  if (waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status)) {
    throw std::runtime_error("the process did not stop");
  }
}

std::uint64_t Process::cpu_ns() const {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(pid_, &clock) != 0 ||
      clock_gettime(clock, &used) != 0) {
    throw std::runtime_error("no CPU clock of the process");
  }
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000U +
      static_cast<std::uint64_t>(used.tv_nsec);
}

bool run_processes(const World& world, const std::function<void(int)>& body) {
  std::vector<Process> ranks;
  for (int rank = 0; rank < world.size; ++rank) {
    ranks.emplace_back([&, rank] { body(rank); });
  }
  bool well = true;
  for (auto& rank : ranks) {
    well = rank.wait() == 0 && well;
  }
  return well;
}

bool run_threads(const World& world, const std::function<void(int)>& body) {
  std::atomic<bool> well{true};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world.size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
        well = false;
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  return well;
}

} // namespace jlaunch::test
