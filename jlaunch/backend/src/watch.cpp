#include "watch.h"

#include <algorithm>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "block_ops.h"
#include "platform.h"
#include "robust_life.h"

namespace jlaunch {

/** A thread that waits for the end of one claim (see watch.h: elsewhere). */
class Watch::ClaimVigil {
 public:
  ClaimVigil(Watch& watch, const Post& post);

  /** Not under the watch's mutex, unless finished(). */
  ~ClaimVigil() {
    vigil_.interrupt();
    thread_.join();
  }
  ClaimVigil(const ClaimVigil&) = delete;
  ClaimVigil& operator=(const ClaimVigil&) = delete;

  /** Under the watch's mutex: the claim ended, the thread is returning. */
  bool finished() const {
    return finished_;
  }

 private:
  Vigil vigil_;
  bool finished_ = false;
  std::thread thread_;
};

/** One watched rank. */
struct Watch::Post {
  std::int64_t key = 0;
  std::shared_ptr<RankMapping> block;
  std::unique_ptr<ClaimVigil> vigil = nullptr;

  std::atomic<std::uint32_t>& word() const {
    return block->block().rank_part.owner;
  }
};

Watch::ClaimVigil::ClaimVigil(Watch& watch, const Post& post)
    : vigil_(post.word(), watch.many_words_) {
  const SignalsBlocked blocked;
  // The thread may outlive the post in the sentry's list: it has its own copy.
  Post own{post.key, post.block};
  thread_ = std::thread([this, &watch, own = std::move(own)] {
    while (vigil_.wait_until(UINT64_MAX) != VigilEnd::interrupted) {
      const std::lock_guard lock(watch.mutex_);
      watch.settle(own);
      // A sentry may have told this death before us, and the next claim may be
      // held already: whoever rang for it found this vigil at its post.
      if (life_of(own.word().load()) != Life::held) {
        finished_ = true;
        return;
      }
    }
  });
}

/** One thread, and the words that it sleeps on. */
class Watch::Sentry {
 public:
  /** The first one has the doorbell and the agent's life word. */
  Sentry(Watch& watch, bool first)
      : watch_(watch), first_(first), bell_(doorbell().load()) {
    const SignalsBlocked blocked;
    std::promise<void> ready;
    std::future<void> started = ready.get_future();
    thread_ = std::thread([this, &ready] {
      first_ ? run_with_life(std::move(ready)) : run(std::move(ready));
    });
    try {
      started.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  /** Not under the watch's mutex. */
  ~Sentry() {
    {
      const std::lock_guard lock(watch_.mutex_);
      ending_ = true;
      nudge();
    }
    thread_.join();
  }
  Sentry(const Sentry&) = delete;
  Sentry& operator=(const Sentry&) = delete;

  // Under the watch's mutex:

  bool has(std::int64_t key) const {
    return std::ranges::any_of(
        posts_, [key](const Post& post) { return post.key == key; });
  }

  bool has_room() const {
    return !watch_.many_words_ || posts_.size() < kMaxFutexWaiters - 2;
  }

  void add(Post post) {
    posts_.push_back(std::move(post));
    nudge();
  }

  /** Hands the post over, to be destroyed when the mutex is free. */
  std::optional<Post> remove(std::int64_t key) {
    const auto found = std::ranges::find(posts_, key, &Post::key);
    if (found == posts_.end()) {
      return std::nullopt;
    }
    Post post = std::move(*found);
    posts_.erase(found);
    nudge();
    return post;
  }

 private:
  std::atomic<std::uint32_t>& doorbell() const {
    return watch_.host_->block().doorbell;
  }

  void run_with_life(std::promise<void> ready) {
    try {
      RobustLife life(watch_.host_->block().agent_life);
      if (!life.take()) {
        throw std::runtime_error(
            watch_.host_->path() +
            ": the agent's life word is held already, "
            "expected it free; is another agent of this job running here?");
      }
      run(std::move(ready));
    } catch (...) {
      ready.set_exception(std::current_exception());
    }
  }

  void run(std::promise<void> ready) {
    ready.set_value();
    std::vector<FutexWaiter> words;
    std::vector<std::shared_ptr<RankMapping>> mapped;
    while (look_around(words, mapped)) {
      if (watch_.many_words_) {
        futex_wait_any(words);
      } else {
        futex_wait(*words.front().word, words.front().expected);
      }
    }
  }

  /** Reports what happened and says what to sleep on; false: end. `mapped`
   *  keeps the words in memory meanwhile, whatever is removed. */
  bool look_around(
      std::vector<FutexWaiter>& words,
      std::vector<std::shared_ptr<RankMapping>>& mapped) {
    const std::lock_guard lock(watch_.mutex_);
    words.clear();
    mapped.clear();
    if (first_) {
      listen(words);
    }
    for (Post& post : posts_) {
      watch_.settle(post);
      if (watch_.many_words_) {
        // Sleeping on a free word too, with the bit set, leaves no gap between
        // a claim and its watch.
        const std::uint32_t word = post.word().fetch_or(kLifeWaiters);
        words.push_back({&post.word(), word | kLifeWaiters});
        mapped.push_back(post.block);
      } else {
        attend(post);
      }
    }
    words.push_back({&changed_, changed_.load()});
    return !ending_;
  }

  void listen(std::vector<FutexWaiter>& words) {
    const std::uint32_t bell = doorbell().load();
    if (bell != bell_) {
      bell_ = bell;
      watch_.news_.rang = true;
      watch_.wake_.raise();
    }
    words.push_back({&doorbell(), bell});
  }

  void attend(Post& post) {
    if (post.vigil && post.vigil->finished()) {
      post.vigil.reset();
    }
    if (!post.vigil && life_of(post.word().load()) == Life::held) {
      post.vigil = std::make_unique<ClaimVigil>(watch_, post);
    }
  }

  /** Makes the thread look around. */
  void nudge() {
    changed_.fetch_add(1);
    futex_wake(changed_);
    if (!watch_.many_words_) {
      ring_doorbell(watch_.host_->block()); // the only word it sleeps on
    }
  }

  Watch& watch_;
  const bool first_;
  std::uint32_t bell_; // the doorbell, as last seen
  std::atomic<std::uint32_t> changed_{0};
  bool ending_ = false;
  std::vector<Post> posts_;
  std::thread thread_;
};

Watch::Watch(std::shared_ptr<HostMapping> host, Sleep sleep)
    : host_(std::move(host)),
      many_words_(sleep == Sleep::best && has_futex_wait_any()) {
  sentries_.push_back(std::make_unique<Sentry>(*this, true));
}

Watch::~Watch() {
  close();
}

/** Reports a death, and takes the kernel's mark away, so that the next one is
 *  told too; a claim that came between stands. Under the mutex. */
void Watch::settle(const Post& post) {
  std::uint32_t word = post.word().load();
  while (life_of(word) == Life::died) {
    if (post.word().compare_exchange_weak(word, word & kLifeWaiters)) {
      news_.died.push_back(post.key);
      wake_.raise();
      return;
    }
  }
}

void Watch::add(std::int64_t key, std::shared_ptr<RankMapping> block) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    throw std::logic_error("the watch is closed");
  }
  for (const auto& sentry : sentries_) {
    if (sentry->has(key)) {
      throw std::invalid_argument(
          "key " + std::to_string(key) + " is watched already");
    }
  }
  const auto with_room = std::ranges::find_if(
      sentries_, [](const auto& sentry) { return sentry->has_room(); });
  if (with_room != sentries_.end()) {
    (*with_room)->add({key, std::move(block)});
    return;
  }
  sentries_.push_back(std::make_unique<Sentry>(*this, false));
  sentries_.back()->add({key, std::move(block)});
}

void Watch::remove(std::int64_t key) {
  std::optional<Post> removed;
  const std::lock_guard lock(mutex_);
  for (const auto& sentry : sentries_) {
    removed = sentry->remove(key);
    if (removed) {
      break;
    }
  }
  std::erase(news_.died, key);
}

Watch::News Watch::take() {
  wake_.drain();
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void Watch::close() {
  std::vector<std::unique_ptr<Sentry>> ended;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  ended.swap(sentries_);
}

} // namespace jlaunch
