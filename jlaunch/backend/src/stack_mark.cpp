#include "stack_mark.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <unistd.h>

namespace jlaunch {

namespace {

std::atomic<int> mark_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void write_mark(int) {
  const int before = errno;
  const char mark = 0;
  (void)!::write(mark_fd.load(std::memory_order_relaxed), &mark, 1);
  errno = before;
}

} // namespace

void mark_end_of_stack(int signal, int fd) {
  mark_fd.store(fd, std::memory_order_relaxed);
  struct sigaction action{};
  action.sa_handler = &write_mark;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal, &action, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigaction");
  }
}

} // namespace jlaunch
