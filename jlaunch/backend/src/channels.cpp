#include "channels.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include <nanobind/stl/string.h>

#include "mlx_group.h"

namespace nb = nanobind;

namespace jlaunch {

namespace {

/**
 * Longest wait for what is queued behind a loss. Collectives behind it fail at
 * once, so this is for computation, which the caller would have waited for as
 * well; the bound is for a stream that waits for something unrelated.
 */
constexpr auto kDrainLimit = std::chrono::seconds(5);

std::atomic<bool> closed{false};
unsigned long main_thread = 0;
getbufferproc mlx_getbuffer = nullptr;

void drain() {
  nb::gil_scoped_release no_gil;
  drain_streams(kDrainLimit);
}

void set_exception(const Failure& failure) {
  try {
    auto exception = exception_from(failure);
    PyErr_SetObject(
        reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  } catch (nb::python_error& e) {
    e.restore();
  }
}

/** Sets the Python exception, after what is queued behind the loss is gone. */
void raise_loss(const Failure& failure) {
  if (on_main_thread()) {
    delivery().delivered(failure);
  }
  drain();
  set_exception(failure);
}

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const CollectiveError& e) {
    set_exception(e.failure());
  } catch (const std::runtime_error& e) {
    const auto failure = delivery().find(e.what());
    if (!failure) {
      throw;
    }
    raise_loss(*failure);
  }
}

int pending_call(void*) {
  const auto failure = closed ? std::nullopt : delivery().take();
  if (!failure) {
    return 0;
  }
  drain();
  set_exception(*failure);
  return -1;
}

bool request_pending_call() {
  return !closed && Py_AddPendingCall(&pending_call, nullptr) == 0;
}

/** The failure that the present Python exception carries as text, if any; the
 *  exception is taken in that case. */
std::optional<Failure> take_raw_loss() {
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
    return std::nullopt;
  }
  nb::python_error raw;
  auto failure = delivery().find(nb::str(raw.value()).c_str());
  if (!failure) {
    raw.restore();
  }
  return failure;
}

int getbuffer(PyObject* array, Py_buffer* view, int flags) {
  if (mlx_getbuffer(array, view, flags) == 0) {
    return 0;
  }
  const auto failure = take_raw_loss();
  if (!failure) {
    return -1;
  }
  if (!on_main_thread()) {
    raise_loss(*failure);
    return -1;
  }
  drain();
  return delivery().defer(
      *failure, [&] { return mlx_getbuffer(array, view, flags); });
}

void watch_buffers() {
  auto array = nb::module_::import_("mlx.core").attr("array");
  auto* buffers = reinterpret_cast<PyTypeObject*>(array.ptr())->tp_as_buffer;
  if (buffers != nullptr && buffers->bf_getbuffer != nullptr) {
    mlx_getbuffer = buffers->bf_getbuffer;
    buffers->bf_getbuffer = getbuffer;
  }
}

const char* class_of(Failure::Kind kind) {
  switch (kind) {
    case Failure::Kind::peer_lost:
      return "PeerLost";
    case Failure::Kind::job_stopping:
      return "JobStopping";
    case Failure::Kind::control_lost:
      return "ControlLost";
    case Failure::Kind::verbs:
      return "VerbsError";
    case Failure::Kind::none:
      break;
  }
  return "CollectiveError";
}

} // namespace

Delivery& delivery() {
  static auto* of_process = new Delivery(&request_pending_call);
  return *of_process;
}

bool on_main_thread() {
  return PyThread_get_thread_ident() == main_thread;
}

void install_channels() {
  main_thread = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::register_exception_translator(&translate);
  watch_buffers();
}

void close_channels() {
  closed = true;
}

nb::object exception_from(const Failure& failure) {
  nb::dict reasons;
  for (const auto& peer : failure.lost) {
    reasons[nb::int_(peer.rank)] = static_cast<int>(peer.reason);
  }
  auto errors = nb::module_::import_("jlaunch.backend.errors");
  return errors.attr("from_native")(
      class_of(failure.kind),
      failure.detail,
      reasons,
      static_cast<int>(failure.collective),
      failure.seq,
      failure.epoch,
      failure.waited_s);
}

bool claim_stop() {
  if (!delivery().claim_stop()) {
    return false;
  }
  drain();
  return true;
}

} // namespace jlaunch
