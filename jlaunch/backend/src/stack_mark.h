#pragma once

/**
 * The end of a dump of Python stacks. faulthandler writes them from a C signal
 * handler, so also while the main thread sits in native code, but it does not
 * say when it is done; it chains to the handler that was there before. That is
 * this one, which writes a zero byte: no line of a dump holds one.
 */
namespace jlaunch {

/** Handles `signal` by writing a zero byte to `fd`, which must not block. One
 *  signal in a process. Throws std::system_error. */
void mark_end_of_stack(int signal, int fd);

} // namespace jlaunch
