#pragma once

#include <cstdint>

#include "verbs_abi.h"

/**
 * What the soft provider offers beyond verbs. Looked up by name with dlsym, and
 * optional: another provider has none of it.
 */
extern "C" {

/**
 * Says where this process sleeps: in the file `path`, at `offset`, two 32-bit
 * words, the bell and the number of sleepers. Peers add 1 to the bell and wake
 * its futex when they have posted something for a queue pair of this context,
 * or made room in a full one, and somebody sleeps.
 *
 * REQUIRES: before the queue pairs of the context are made. A sleeper first
 * adds itself to the sleepers, then (sequentially consistent) polls once more,
 * and only then sleeps on the value of the bell that it read before that poll.
 *
 * Returns 0 or an errno.
 */
int jlaunch_soft_set_bell(
    jlaunch::abi::ibv_context* context,
    const char* path,
    std::uint64_t offset);

/**
 * Says that the context makes no more queue pairs: the node file loses its name
 * as soon as all peers have mapped it, so that not even a SIGKILL leaves it.
 */
void jlaunch_soft_seal(jlaunch::abi::ibv_context* context);

/** What the last failed call of this thread found, in words; never null. */
const char* jlaunch_soft_error();

} // extern "C"
