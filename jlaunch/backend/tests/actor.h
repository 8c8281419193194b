#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

/**
 * Real processes for the tests of life and death: this test program, started
 * again in another role (see run_role). A test speaks to it in lines.
 */
namespace jlaunch::test {

/** Long enough for a loaded machine; only a failing test waits so long. */
inline constexpr std::chrono::seconds kPatience{20};

class Actor {
 public:
  /** Starts the program in a role (its name, then its arguments), leader of a
   *  process group of its own. */
  explicit Actor(const std::vector<std::string>& role);
  /** Kills its group and reaps it. */
  ~Actor();
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  pid_t pid() const {
    return pid_;
  }

  /** The next line it says; a test failure if none comes. */
  std::string hear();

  void say(const std::string& line);
  void kill(int signal);

  /** Wait status, once it has ended; a test failure if it does not. */
  int wait();

  /** Whether it has ended already. */
  bool has_ended();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string heard_;
  std::optional<int> status_;
};

/**
 * The other side: runs the role that `argv` names and returns its exit code;
 * nothing if it names none.
 *
 *   rank RANK_BLOCK HOST_BLOCK [MEMORY_MIB]
 *     Claims the rank; says "claimed" or "refused: WHY", later "lost: WHY".
 *     Obeys "release", "fork" (a child that drops its copy, and says so),
 *     "hold" (pretends to be in a collective), "ignore" (SIGTERM), "child" (one
 *     that stays and holds its output open), "exec".
 *   many PREFIX HOST_BLOCK COUNT
 *     Claims PREFIX0, PREFIX1, …; says "claimed".
 *   agent HOST_BLOCK
 *     Watches; says "watching". Obeys "beat", "close".
 */
std::optional<int> run_role(int argc, char** argv);

/** A directory of its own for one test, removed with all files in it. */
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const {
    return directory_ + "/" + name;
  }

 private:
  std::string directory_;
};

} // namespace jlaunch::test
