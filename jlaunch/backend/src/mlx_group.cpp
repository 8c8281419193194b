#include "mlx_group.h"

#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>

#include <mlx/allocator.h>
#include <mlx/array.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/scheduler.h>

namespace jlaunch {

namespace {

constexpr std::byte kPoison{0xA5};

Dtype dtype_of(const mx::array& a) {
  static_assert(
      static_cast<int>(mx::Dtype::Val::bool_) ==
      static_cast<int>(Dtype::bool_));
  static_assert(
      static_cast<int>(mx::Dtype::Val::float16) ==
      static_cast<int>(Dtype::float16));
  static_assert(
      static_cast<int>(mx::Dtype::Val::complex64) ==
      static_cast<int>(Dtype::complex64));
  return static_cast<Dtype>(a.dtype().val());
}

const void* memory_of(const mx::array& a) {
  return a.size() == 0 ? nullptr : a.data<char>();
}

/** Outputs that MLX left to us have no memory yet. */
void* allocated(mx::array& a) {
  if (a.data_shared_ptr() == nullptr) {
    a.set_data(mx::allocator::malloc(a.nbytes()));
  }
  return a.size() == 0 ? nullptr : a.data<char>();
}

void require_contiguous(const mx::array& a) {
  if (!a.flags().row_contiguous) {
    throw std::logic_error(
        "[jlaunch] a collective got a non-contiguous input: this MLX differs "
        "from the one that jlaunch was built against");
  }
}

/**
 * At exit, the end of a task that a daemon thread waits for: that thread would
 * wake up and want the GIL of an interpreter that is being finalized, which ends
 * it by force in the middle of C++ frames, and so the process by abort. MLX
 * joins no stream's thread.
 */
[[noreturn]] void sleep_for_ever() {
  static const std::atomic<bool> woken{false};
  for (;;) {
    woken.wait(false);
  }
}

template <typename T>
void fill(void* out, std::size_t bytes, T value) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    std::memcpy(static_cast<char*>(out) + at, &value, sizeof(T));
  }
}

} // namespace

/** The memory that a failed task poisons; null for send. */
struct MlxGroup::Output {
  void* data = nullptr;
  std::size_t bytes = 0;
  Dtype dtype = Dtype::uint8;

  void poison() const {
    if (data == nullptr) {
      return;
    }
    switch (dtype) {
      case Dtype::float16:
        return fill(data, bytes, std::uint16_t{0x7e00});
      case Dtype::bfloat16:
        return fill(data, bytes, std::uint16_t{0x7fc0});
      case Dtype::float32:
      case Dtype::complex64:
        return fill(data, bytes, std::numeric_limits<float>::quiet_NaN());
      case Dtype::float64:
        return fill(data, bytes, std::numeric_limits<double>::quiet_NaN());
      default:
        std::memset(data, std::to_integer<int>(kPoison), bytes);
    }
  }
};

/** Tickets: handed out in the order of encoding, served in that order. */
class MlxGroup::Order {
 public:
  /** Calls put(ticket) with the next ticket; spent only if put returns. */
  template <typename Put>
  void next(Put put) {
    std::lock_guard lock(mutex_);
    put(next_);
    ++next_;
  }

  void wait_for(std::uint64_t ticket) const {
    for (auto now = served_.load(); now != ticket; now = served_.load()) {
      served_.wait(now);
    }
  }

  void pass() {
    served_.fetch_add(1);
    served_.notify_all();
  }

 private:
  // Held while a task is put on its stream: else two threads could put tickets
  // 2, 1 on one stream, where 2 would wait for 1 for ever.
  std::mutex mutex_;
  std::uint64_t next_ = 0;
  std::atomic<std::uint64_t> served_{0};
};

MlxGroup::MlxGroup(
    std::shared_ptr<GroupCell> cell,
    Delivery& delivery,
    bool (*is_main_thread)())
    : cell_(std::move(cell)),
      delivery_(delivery),
      is_main_thread_(is_main_thread),
      order_(std::make_shared<Order>()) {}

mx::Stream MlxGroup::communication_stream(mx::StreamOrDevice s) {
  const auto stream = mx::to_stream(s, mx::Device::cpu);
  return stream.device == mx::Device::cpu ? stream
                                          : mx::default_stream(mx::Device::cpu);
}

int MlxGroup::rank() {
  return cell_->require()->rank();
}

int MlxGroup::size() {
  return cell_->require()->size();
}

std::shared_ptr<mx::distributed::detail::GroupImpl> MlxGroup::split(int, int) {
  throw std::runtime_error(
      "[jlaunch] Group.split is not supported yet by jlaunch's backend: use "
      "the whole group (mx.distributed.init())");
}

void MlxGroup::all_sum(const mx::array& in, mx::array& out, mx::Stream s) {
  put_collective(&Group::all_sum, Shape::same, in, out, s);
}

void MlxGroup::all_max(const mx::array& in, mx::array& out, mx::Stream s) {
  put_collective(&Group::all_max, Shape::same, in, out, s);
}

void MlxGroup::all_min(const mx::array& in, mx::array& out, mx::Stream s) {
  put_collective(&Group::all_min, Shape::same, in, out, s);
}

void MlxGroup::all_gather(const mx::array& in, mx::array& out, mx::Stream s) {
  put_collective(&Group::all_gather, Shape::gathered, in, out, s);
}

void MlxGroup::sum_scatter(const mx::array& in, mx::array& out, mx::Stream s) {
  put_collective(&Group::sum_scatter, Shape::scattered, in, out, s);
}

void MlxGroup::send(const mx::array& in, int dst, mx::Stream s) {
  require_contiguous(in);
  put(s,
      Output{},
      [from = memory_of(in), n = in.size(), dtype = dtype_of(in), dst](
          Group& group) { group.send(from, n, dtype, dst); });
}

void MlxGroup::recv(mx::array& out, int src, mx::Stream s) {
  const Output to{allocated(out), out.nbytes(), dtype_of(out)};
  put(s, to, [to, n = out.size(), src](Group& group) {
    group.recv(to.data, n, to.dtype, src);
  });
}

void MlxGroup::put_collective(
    Collective collective,
    Shape shape,
    const mx::array& in,
    mx::array& out,
    mx::Stream stream) {
  require_contiguous(in);
  const Output to{allocated(out), out.nbytes(), dtype_of(out)};
  put(stream,
      to,
      [collective,
       shape,
       from = memory_of(in),
       to,
       in_count = in.size(),
       out_count = out.size()](Group& group) {
        // The graph may be older than the group's present size.
        const auto ranks = static_cast<std::size_t>(group.size());
        const auto wide = shape == Shape::scattered ? in_count : out_count;
        const auto narrow = shape == Shape::scattered ? out_count : in_count;
        const auto factor = shape == Shape::same ? 1 : ranks;
        if (wide != narrow * factor) {
          throw std::runtime_error(
              "[jlaunch] an array of " + std::to_string(in_count) +
              " elements was to give one of " + std::to_string(out_count) +
              ", but the group has " + std::to_string(ranks) +
              " ranks: build the graph again after the group has changed");
        }
        (group.*collective)(from, to.data, in_count, to.dtype);
      });
}

template <typename Call>
void MlxGroup::put(mx::Stream stream, const Output& output, Call call) {
  const auto origin = delivery_.origin(is_main_thread_());
  auto run = [cell = cell_,
              order = order_,
              &delivery = delivery_,
              call,
              output,
              origin](std::uint64_t ticket) {
    order->wait_for(ticket);
    std::optional<std::string> error;
    try {
      call(*cell->require());
    } catch (const CollectiveError& e) {
      output.poison();
      error = delivery.failed(e.failure(), origin);
    } catch (const std::exception& e) {
      output.poison();
      error = e.what();
    }
    order->pass();
    if (!origin.main_thread && cell->is_closed()) {
      sleep_for_ever();
    }
    if (error) {
      throw std::runtime_error(*error);
    }
  };
  order_->next([&](std::uint64_t ticket) {
    mx::scheduler::enqueue(
        stream, [run = std::move(run), ticket] { run(ticket); });
  });
}

namespace {

/** The CPU streams that this thread may use: its own and the shared ones. */
std::vector<mx::Stream> usable_streams() {
  std::vector<mx::Stream> usable;
  for (const auto& stream : mx::get_streams()) {
    if (stream.device != mx::Device::cpu) {
      continue;
    }
    try {
      mx::cpu::get_command_encoder(stream);
      usable.push_back(stream);
    } catch (const std::exception&) {
      // Another thread's: its errors are that thread's to meet.
    }
  }
  return usable;
}

/** Takes the error that a stream holds, if it holds one. */
void clear_error(mx::Stream stream) {
  try {
    mx::scheduler::check_error(stream);
  } catch (const std::runtime_error&) {
    // This is the error: reported by whoever drains.
  }
}

} // namespace

void drain_streams(std::chrono::nanoseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  const auto streams = usable_streams();
  std::vector<std::future<void>> passed;
  for (const auto& stream : streams) {
    // In the main thread enqueue throws the stream's error instead, if it has
    // one.
    clear_error(stream);
    auto promise = std::make_shared<std::promise<void>>();
    passed.push_back(promise->get_future());
    try {
      mx::scheduler::enqueue(stream, [promise] { promise->set_value(); });
    } catch (const std::runtime_error&) {
      promise->set_value();
    }
  }
  for (auto& one : passed) {
    one.wait_until(until);
  }
  for (const auto& stream : streams) {
    clear_error(stream);
  }
}

} // namespace jlaunch
