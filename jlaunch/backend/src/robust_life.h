#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

/**
 * A word that says who is alive: 0 free, else the id of a thread that holds it.
 *
 * On Linux it is a robust futex. The holder registers it with the kernel
 * (set_robust_list), and whatever way the holder ends (SIGKILL, a crash, exec)
 * the kernel marks the word as owner-died and wakes one sleeper, within 0.1 ms
 * and before the holder's memory is freed. On macOS there is no such thing: the
 * word holds the process id, and "died" is asked of the process table (so there
 * exec does not free a word).
 *
 * A sleeper sets kLifeWaiters before it sleeps (else the kernel does not wake
 * it); whoever takes or leaves the word keeps that bit, so a word that is
 * watched while it is free is watched from the first moment of a new claim.
 */
namespace jlaunch {

inline constexpr std::uint32_t kLifeWaiters = 0x80000000; // FUTEX_WAITERS
inline constexpr std::uint32_t kLifeDied = 0x40000000; // FUTEX_OWNER_DIED
inline constexpr std::uint32_t kLifeHolder = 0x3fffffff; // FUTEX_TID_MASK

enum class Life { free, held, died };

/** What a value of the word says. Any thread, any process. */
Life life_of(std::uint32_t word);

/**
 * The calling thread's hold on one life word. Made, taken, left and destroyed
 * by one thread, which must not use robust pthread mutexes meanwhile (a thread
 * has one list; the C library's is put back at the end). The word must stay
 * mapped while it is held. A child made by fork does not hold it.
 */
class RobustLife {
 public:
  explicit RobustLife(std::atomic<std::uint32_t>& word);
  /** Leaves the word if it is held. */
  ~RobustLife();
  RobustLife(const RobustLife&) = delete;
  RobustLife& operator=(const RobustLife&) = delete;

  /** Takes a free word, or that of a dead holder, and wakes its watchers.
   *  False if somebody alive holds it. */
  bool take();

  /** Frees the word and wakes its watchers. Nothing if it is not held. */
  void leave();

 private:
  struct List;

  std::atomic<std::uint32_t>& word_;
  std::unique_ptr<List> list_;
  bool held_ = false;
};

} // namespace jlaunch
