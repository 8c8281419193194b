/**
 * jlaunch-shim: the first code of a rank's process.
 *
 *     jlaunch-shim [--parent PID] [--status FD] [--cwd DIR] -- PROGRAM [ARGS]...
 *
 * Does what must happen between the agent's spawn and the program, in a process
 * with one thread and in native code: ties its life to the agent's, gives the
 * program a clean start (no ignored or blocked signal, no stray descriptor),
 * changes directory, and executes the program. The environment is passed on.
 *
 * --parent: SIGTERM when that process dies (Linux); nothing is started if it is
 * not our parent any more. --status: on failure a SpawnFailure is written there;
 * the descriptor closes when the program is executed, so end of file means
 * success. Exit codes: 127 the program could not be executed, 2 bad usage.
 */
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

namespace {

/** Read by jlaunch/io/process.py, in native byte order. */
struct SpawnFailure {
  enum Stage : std::int32_t { parent = 1, cwd = 2, exec = 3 };

  std::int32_t stage = 0;
  std::int32_t error = 0; // errno
};

struct Options {
  long parent = 0;
  int status = -1;
  const char* cwd = nullptr;
  char** program = nullptr;
};

constexpr int kFirstStray = 3; // after stdin, stdout, stderr

bool parse_number(const char* text, long& out) {
  char* end = nullptr;
  errno = 0;
  out = std::strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && out >= 0 &&
      out <= INT_MAX;
}

bool parse(char** arg, Options& out) {
  for (++arg; *arg != nullptr; ++arg) {
    if (std::strcmp(*arg, "--") == 0) {
      out.program = arg + 1;
      return *out.program != nullptr;
    }
    const char* name = *arg;
    if (*++arg == nullptr) {
      return false;
    }
    long number = 0;
    if (std::strcmp(name, "--cwd") == 0) {
      out.cwd = *arg;
    } else if (!parse_number(*arg, number)) {
      return false;
    } else if (std::strcmp(name, "--parent") == 0) {
      out.parent = number;
    } else if (std::strcmp(name, "--status") == 0 && number >= kFirstStray) {
      out.status = static_cast<int>(number);
    } else {
      return false;
    }
  }
  return false;
}

[[noreturn]] void fail(const Options& options, SpawnFailure::Stage stage) {
  SpawnFailure failure;
  failure.stage = stage;
  failure.error = errno;
  if (options.status >= 0) {
    // Too short to be torn; if nobody reads it, the exit code remains.
    (void)!::write(options.status, &failure, sizeof(failure));
  }
  ::_exit(127);
}

void bind_to_parent([[maybe_unused]] const Options& options) {
  if (options.parent == 0) {
    return;
  }
#if defined(__linux__)
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
  // It may have died before the line above: then nothing would tell us.
  if (::getppid() != static_cast<pid_t>(options.parent)) {
    errno = ESRCH;
    fail(options, SpawnFailure::parent);
  }
}

void reset_signals() {
  struct sigaction plain{};
  plain.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    ::sigaction(number, &plain, nullptr); // fails for the few that are fixed
  }
  sigset_t none{};
  sigemptyset(&none); // a macro on macOS
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/** Closes [first, last], a negative `last` meaning all. */
void close_between(int first, int last) {
  if (last >= 0 && first > last) {
    return;
  }
#if defined(SYS_close_range)
  const auto end = last < 0 ? ~0U : static_cast<unsigned>(last);
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), end, 0U) == 0) {
    return;
  }
#endif
  const long limit = ::sysconf(_SC_OPEN_MAX);
  const int end_of_table =
      limit > 0 && limit < 65536 ? static_cast<int>(limit) - 1 : 65535;
  for (int fd = first; fd <= (last < 0 ? end_of_table : last); ++fd) {
    ::close(fd);
  }
}

void close_strays(int status) {
  if (status < 0) {
    close_between(kFirstStray, -1);
    return;
  }
  ::fcntl(status, F_SETFD, FD_CLOEXEC);
  close_between(kFirstStray, status - 1);
  close_between(status + 1, -1);
}

} // namespace

int main(int, char** argv) {
  Options options;
  if (!parse(argv, options)) {
    static const char usage[] =
        "usage: jlaunch-shim [--parent PID] [--status FD] [--cwd DIR] -- "
        "PROGRAM [ARGS]...\n";
    (void)!::write(STDERR_FILENO, usage, sizeof(usage) - 1);
    return 2;
  }
  close_strays(options.status);
  bind_to_parent(options);
  reset_signals();
  if (options.cwd != nullptr && ::chdir(options.cwd) != 0) {
    fail(options, SpawnFailure::cwd);
  }
  ::execvp(options.program[0], options.program);
  fail(options, SpawnFailure::exec);
}
