#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mapping.h"
#include "platform_watch.h"

/**
 * The agent's watch: native threads that sleep on the life word of every rank
 * and on the host's doorbell, and wake the agent's event loop. They never touch
 * the GIL.
 *
 * How they sleep. Where one call can wait for several words (futex_waitv, Linux
 * 5.16), one thread sleeps on the doorbell and up to 126 ranks, and each further
 * thread on as many more. Elsewhere one thread sleeps on the doorbell, and one
 * more keeps a vigil (platform_watch.h) at each claim while it is held: a death
 * stays an event, no interval has to be chosen, and an idle thread costs memory,
 * not time.
 *
 * The first thread also holds the agent's own life word, so that every rank's
 * keeper learns of the agent's death from the kernel.
 */
namespace jlaunch {

class Watch {
 public:
  enum class Sleep {
    best, // what the system offers
    vigils, // as without futex_waitv (tests)
  };

  /** What happened since the last take(). */
  struct News {
    std::vector<std::int64_t> died; // keys, in order of time
    bool rang = false; // the doorbell; may be set for nothing
  };

  /** Takes the agent's life word; throws std::runtime_error if it is held. */
  explicit Watch(std::shared_ptr<HostMapping> host, Sleep sleep = Sleep::best);

  /** As close(). */
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /** Readable when there are news; stays open until the destructor. */
  int fd() const {
    return wake_.fd();
  }

  /**
   * Watches a rank's block under a key of the caller's. A claim whose holder
   * has died already is reported. Throws std::invalid_argument for a key that
   * is watched, std::logic_error after close().
   */
  void add(std::int64_t key, std::shared_ptr<RankMapping> block);

  /** Forgets a key, also what take() would have said of it. Nothing if it is
   *  not watched. */
  void remove(std::int64_t key);

  /** Drains the descriptor. Each claim's death is told once. Any thread. */
  News take();

  /** Ends the threads and frees the agent's life word, which every rank takes
   *  for the end of the agent. Idempotent. */
  void close();

 private:
  class ClaimVigil;
  class Sentry;
  struct Post;

  void settle(const Post& post);

  std::shared_ptr<HostMapping> host_;
  const bool many_words_;
  WakeFd wake_;

  std::mutex mutex_; // guards all below, and every sentry's posts
  News news_;
  bool closed_ = false;
  std::vector<std::unique_ptr<Sentry>> sentries_;
};

} // namespace jlaunch
