#include "actor.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>

#include <doctest/doctest.h>

#include "keeper.h"
#include "platform.h"
#include "watch.h"

extern char** environ;

namespace jlaunch::test {

namespace {

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

void say_line(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(STDOUT_FILENO, text.data(), text.size());
}

/** Real memory in small pages, as slow to free as a program's own. Filled by
 *  the kernel: a sanitizer would shadow each byte that we wrote. */
bool fill_memory(std::size_t mib) {
  if (mib == 0) {
    return true;
  }
  void* memory = ::mmap(
      nullptr,
      mib << 20,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  return memory != MAP_FAILED &&
      ::madvise(memory, mib << 20, MADV_NOHUGEPAGE) == 0 &&
      ::madvise(memory, mib << 20, MADV_POPULATE_WRITE) == 0;
}

void fork_and_drop(std::unique_ptr<Keeper>& keeper) {
  const pid_t child = ::fork();
  if (child == 0) {
    keeper.reset();
    say_line("forked");
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

int play_rank(int argc, char** argv) {
  if (!fill_memory(argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 0)) {
    say_line("no memory");
    return 4;
  }
  const auto rank = RankMapping::open(argv[2]);
  const auto host = HostMapping::open(argv[3]);
  std::unique_ptr<Keeper> keeper;
  try {
    keeper = Keeper::claim(
        rank, host, [](const std::string& why) { say_line("lost: " + why); });
  } catch (const ClaimRefused& refused) {
    say_line(std::string("refused: ") + refused.what());
    return 3;
  }
  say_line("claimed");
  for (std::string order; std::getline(std::cin, order);) {
    if (order == "release") {
      keeper->release();
      say_line("released");
    } else if (order == "fork") {
      fork_and_drop(keeper);
    } else if (order == "hold") {
      rank->block().rank_part.in_wait = 1;
      say_line("holding");
    } else if (order == "ignore") {
      std::signal(SIGTERM, SIG_IGN);
      say_line("ignoring");
    } else if (order == "child") {
      if (::fork() == 0) {
        for (;;) {
          ::pause();
        }
      }
      say_line("born");
    } else if (order == "exec") {
      ::execlp("sleep", "sleep", "60", nullptr);
    }
  }
  return 0;
}

int play_many(char** argv) {
  const auto host = HostMapping::open(argv[3]);
  const unsigned long count = std::strtoul(argv[4], nullptr, 10);
  std::vector<std::unique_ptr<Keeper>> keepers;
  for (unsigned long i = 0; i < count; ++i) {
    const auto rank = RankMapping::open(argv[2] + std::to_string(i));
    keepers.push_back(Keeper::claim(rank, host, nullptr));
  }
  say_line("claimed");
  std::string order;
  std::getline(std::cin, order);
  return 0;
}

int play_agent(char** argv) {
  const auto host = HostMapping::open(argv[2]);
  Watch watch(host);
  say_line("watching");
  for (std::string order; std::getline(std::cin, order);) {
    if (order == "beat") {
      host->block().agent_beat_ns = monotonic_ns();
      say_line("beaten");
    } else if (order == "close") {
      watch.close();
      say_line("closed");
    }
  }
  return 0;
}

} // namespace

Actor::Actor(const std::vector<std::string>& role) {
  int in[2] = {-1, -1};
  int out[2] = {-1, -1};
  REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string program = own_program();
  std::vector<std::string> words = role;
  std::vector<char*> argv{program.data()};
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  const int error = ::posix_spawn(
      &pid_, program.c_str(), &actions, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  in_ = in[1];
  out_ = out[0];
  REQUIRE(error == 0);
}

Actor::~Actor() {
  if (!status_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(in_);
  ::close(out_);
}

std::string Actor::hear() {
  for (;;) {
    const auto end = heard_.find('\n');
    if (end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    pollfd ready{out_, POLLIN, 0};
    const auto patience = std::chrono::milliseconds(kPatience).count();
    REQUIRE(::poll(&ready, 1, static_cast<int>(patience)) == 1);
    char bytes[512];
    const ssize_t count = ::read(out_, bytes, sizeof(bytes));
    if (count <= 0) {
      return "(end of output)";
    }
    heard_.append(bytes, static_cast<std::size_t>(count));
  }
}

void Actor::say(const std::string& line) {
  const std::string text = line + "\n";
  REQUIRE(
      ::write(in_, text.data(), text.size()) ==
      static_cast<ssize_t>(text.size()));
}

void Actor::kill(int signal) {
  REQUIRE(::kill(pid_, signal) == 0);
}

bool Actor::has_ended() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    status_ = status;
  }
  return status_.has_value();
}

int Actor::wait() {
  // Its end closes its output, which can be waited for with a bound.
  while (!has_ended()) {
    if (hear() == "(end of output)") {
      int status = 0;
      REQUIRE(::waitpid(pid_, &status, 0) == pid_);
      status_ = status;
    }
  }
  return *status_;
}

std::optional<int> run_role(int argc, char** argv) {
  if (argc >= 4 && std::strcmp(argv[1], "rank") == 0) {
    return play_rank(argc, argv);
  }
  if (argc >= 5 && std::strcmp(argv[1], "many") == 0) {
    return play_many(argv);
  }
  if (argc >= 3 && std::strcmp(argv[1], "agent") == 0) {
    return play_agent(argv);
  }
  return std::nullopt;
}

Scratch::Scratch() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "jlaunch-test-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  directory_ = pattern;
}

Scratch::~Scratch() {
  std::filesystem::remove_all(directory_);
}

} // namespace jlaunch::test
