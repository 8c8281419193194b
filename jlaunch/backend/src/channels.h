#pragma once

#include <nanobind/nanobind.h>

#include "delivery.h"

/**
 * How a loss gets into Python: the two channels of the Delivery of this
 * process, and the buffer protocol between them. All of it is called with the
 * GIL, except where said.
 *
 * First channel: a translator in MLX's nanobind domain turns the exception that
 * comes out of any MLX call into the typed one. Second channel: a pending call
 * of the interpreter, which runs in the main thread between two bytecodes.
 *
 * The buffer protocol (memoryview, np.array) is neither: numpy swallows what it
 * raises and takes the data a moment later. So in the main thread it raises
 * nothing and hands out the poisoned memory, and the second channel raises in
 * the same statement, as soon as the call returns.
 */
namespace jlaunch {

/** Of this process; never destroyed, as MLX's streams are not either. */
Delivery& delivery();

/** Any thread, without the GIL: is it Python's main thread? */
bool on_main_thread();

/** Once, when the extension is imported. */
void install_channels();

/** From now on nothing is raised in the main thread: the interpreter ends. */
void close_channels();

/** The failure as an instance of the class in jlaunch.backend.errors. */
nanobind::object exception_from(const Failure& failure);

/** Main thread: true if JobStopping is to be raised now, because nobody has. */
bool claim_stop();

} // namespace jlaunch
