#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "control_block.h"
#include "group.h"
#include "verbs.h"

/**
 * What the tests share: a place for the soft provider, control blocks in files,
 * and ranks as processes or threads that meet to exchange their addresses.
 * Every wait is bounded (kPatience) and ends in an exception that says so.
 */
namespace jlaunch::test {

inline constexpr std::chrono::seconds kPatience{30};

/** A private directory that is gone, with its content, at the end. */
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::size_t entries() const;

 private:
  std::string path_;
  pid_t owner_;
};

/** A value in memory that processes share after a fork. */
template <class T>
class Shared;

/** Memory that is shared with forked children. */
void* shared_pages(std::size_t bytes);
void unmap_pages(void* pages, std::size_t bytes);

template <class T>
class Shared {
 public:
  Shared() : value_(new (shared_pages(sizeof(T))) T{}) {}
  ~Shared() {
    unmap_pages(value_, sizeof(T));
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const {
    return value_;
  }
  T& operator*() const {
    return *value_;
  }

 private:
  T* value_;
};

/** Sleeps until the word, which only grows and whose waker wakes its futex, has
 *  reached the value; throws after kPatience. */
void wait_for(const std::atomic<std::uint32_t>& word, std::uint32_t value);
/** Sets the word and wakes those who wait for it. */
void set(std::atomic<std::uint32_t>& word, std::uint32_t value);

/** Where ranks meet. In shared memory. */
struct Meeting {
  static constexpr std::size_t kRanks = 64;
  static constexpr std::size_t kAddressBytes = 4096;

  std::atomic<std::uint32_t> arrived{0}; // in all rounds together
  std::atomic<std::uint32_t> step{0}; // for a test's own signals
  std::atomic<std::uint32_t> other{0};
  std::array<std::uint32_t, kRanks> lengths{};
  std::array<std::array<std::byte, kAddressBytes>, kRanks> addresses{};

  /** The `round`-th barrier of `size` ranks. */
  void barrier(int size, std::uint32_t round);
  std::vector<std::vector<std::byte>> exchange(
      int rank,
      int size,
      const std::vector<std::byte>& address);
};

/** A control block in a file, and the agent's pen. */
class BlockFile {
 public:
  BlockFile(const TempDir& dir, int rank);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  ControlBlock& block() const {
    return *block_;
  }
  const std::string& path() const {
    return path_;
  }

  struct LossEntry {
    int rank;
    Reason reason;
    std::uint64_t completed_seq = 0;
    bool clean = false;
  };

  /** Writes a verdict as the agent does, and rings the bell. */
  void say(VerdictKind kind, const std::vector<LossEntry>& losses = {}) const;
  void keep_waiting(std::uint32_t question) const;

 private:
  std::string path_;
  ControlBlock* block_;
};

/** Everything that the ranks of one test share. */
struct World {
  explicit World(int ranks);

  int size;
  TempDir dir;
  Shared<Meeting> meeting;
  Shared<HostBlock> host;
  std::vector<std::unique_ptr<BlockFile>> blocks;
  std::chrono::nanoseconds deadline = std::chrono::seconds(20);
  bool with_blocks = true;
  int wires = 1;
  bool ring = false;

  /** Opens and connects the group of this rank; returns when all have. */
  std::unique_ptr<Group> join(int rank) const;
  GroupConfig config(int rank) const;
};

/** Path of the soft provider that was built with the tests. */
std::string soft_library();

/** Throws, from a rank, with the place. */
void check(bool holds, const char* what, const char* file, int line);
#define RANK_CHECK(condition) \
  ::jlaunch::test::check((condition), #condition, __FILE__, __LINE__)

/** A rank that runs in a process of its own. */
class Process {
 public:
  explicit Process(std::function<void()> body);
  ~Process(); // kills and reaps what is left
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const {
    return pid_;
  }
  void signal(int number) const;
  /** Waits for its end: the exit code, or -signal. */
  int wait();
  /** Waits until it is stopped. */
  void wait_stopped() const;
  /** CPU time that it has used, in nanoseconds. */
  std::uint64_t cpu_ns() const;

 private:
  pid_t pid_ = -1;
};

/** Runs `body` for each rank in a process; true if all ended well. */
bool run_processes(const World& world, const std::function<void(int)>& body);
/** The same in threads: what a thread sanitizer can see. */
bool run_threads(const World& world, const std::function<void(int)>& body);

} // namespace jlaunch::test
