#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"

/**
 * Who has been told of a loss: the bookkeeping behind "the main thread gets
 * every loss exactly once". Knows neither MLX nor Python; any thread.
 *
 * MLX carries an error from the failing task to the caller that waits as text
 * alone, at most once per stream, and sometimes not at all. So a failing task
 * leaves its Failure here and throws a text that names it; the translator
 * (first channel) finds it by that text; and the same failing task requests a
 * call in the main thread (second channel), for the cases that MLX loses. The
 * first of the two that runs in the main thread takes the loss; the other one
 * finds nothing left to do.
 *
 * A *generation* ends with each delivery in the main thread. Every task is
 * stamped with the generation in which the main thread put it on a stream. One
 * that fails after its generation has ended was queued behind a loss which the
 * program has caught by now: it fails in silence (its output is poisoned all
 * the same). A collective put on a stream after the delivery fails aloud again:
 * the group is sticky.
 */
namespace jlaunch {

/** When, and by whom, a collective was put on its stream. */
struct Origin {
  std::uint64_t generation = 0;
  bool main_thread = false;
};

class Delivery {
 public:
  /** `request_call` asks the main thread to call take() soon; false: it could
   *  not (the next failing task tries again). */
  explicit Delivery(std::function<bool()> request_call);

  Origin origin(bool main_thread) const;

  /** A task failed. Returns the text to throw, or nothing if the failure has
   *  been delivered to the one who put the task on its stream. */
  std::optional<std::string> failed(const Failure& failure, Origin origin);

  /** The failure that a text of failed() names, if it does. */
  std::optional<Failure> find(std::string_view text) const;

  /** First channel, main thread: `failure` is being raised now. */
  void delivered(const Failure& failure);

  /** Second channel, main thread: the loss that nobody has raised yet, which
   *  the caller raises now. */
  std::optional<Failure> take();

  /**
   * Main thread: leaves `failure` to take(), since an exception would not be
   * heard here, and runs `evaluate`, whose collectives fail in silence.
   */
  template <typename Evaluate>
  auto defer(const Failure& failure, Evaluate evaluate) {
    set_deferring(&failure);
    auto result = evaluate();
    set_deferring(nullptr);
    return result;
  }

  /** Main thread: true if nobody has raised JobStopping yet, and the caller
   *  raises it now (the SIGTERM handler). */
  bool claim_stop();

 private:
  struct Loss {
    Failure failure;
    bool told = false; // in the main thread, once at least
    bool open = false; // to be told (again) in the main thread
  };

  std::size_t number_of(const Failure& failure);
  void set_deferring(const Failure* failure);
  void open(std::size_t number);
  void close(std::size_t number);

  const std::function<bool()> request_call_;
  mutable std::mutex mutex_;
  std::uint64_t generation_ = 1;
  bool deferring_ = false;
  // One for each group and epoch: a group is sticky, so it has one failure.
  std::vector<Loss> losses_;
  bool call_requested_ = false;
  bool stop_told_ = false;
};

/** How a text of failed() ends, for people who meet it raw: " [jlaunch loss 3]";
 *  returns the text without it. */
std::string_view without_marker(std::string_view text);

} // namespace jlaunch
