#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include <mlx/distributed/distributed_impl.h>

#include "delivery.h"
#include "group_cell.h"

/**
 * A Group as MLX sees it: the only header that includes MLX.
 *
 * Each operation is called by MLX on the thread that evaluates ("encodes"), with
 * inputs allocated and contiguous, and puts one task on the stream that MLX
 * chose; that stream's thread runs it once the inputs are there. What the task
 * needs of the arrays is their memory alone, which MLX holds until the stream
 * has passed it.
 *
 * One order. The collectives of a group run in the order in which they were
 * encoded, on whatever streams: two streams cannot run A, B here and B, A on
 * another rank. No deadlock can come of it, since a task waits only for tasks
 * that were encoded before it, by its stream, by its inputs and by this rule
 * alike.
 *
 * A task that fails fills its output (NaN, or bytes 0xA5 where there is none;
 * not for send, whose output is its input's memory), tells `delivery` and
 * throws, so that MLX carries the news to whoever waits for the output.
 */
namespace jlaunch {

namespace mx = mlx::core;

class MlxGroup : public mx::distributed::detail::GroupImpl {
 public:
  /** `cell` has a group by now. `delivery` outlives every stream of the process.
   *  `is_main_thread` is asked on the encoding thread. */
  MlxGroup(
      std::shared_ptr<GroupCell> cell,
      Delivery& delivery,
      bool (*is_main_thread)());

  /** The stream asked for if it is a CPU stream, else the CPU's default one. */
  mx::Stream communication_stream(mx::StreamOrDevice s) override;

  int rank() override;
  int size() override;

  /** Not supported yet: throws std::runtime_error that says so. */
  std::shared_ptr<GroupImpl> split(int color, int key) override;

  void all_sum(const mx::array& in, mx::array& out, mx::Stream s) override;
  void all_max(const mx::array& in, mx::array& out, mx::Stream s) override;
  void all_min(const mx::array& in, mx::array& out, mx::Stream s) override;
  void all_gather(const mx::array& in, mx::array& out, mx::Stream s) override;
  void sum_scatter(const mx::array& in, mx::array& out, mx::Stream s) override;
  void send(const mx::array& in, int dst, mx::Stream s) override;
  void recv(mx::array& out, int src, mx::Stream s) override;

 private:
  class Order;
  struct Output;
  using Collective = void (Group::*)(const void*, void*, std::size_t, Dtype);
  /** How many elements the output has, for one element of the input. */
  enum class Shape { same, gathered, scattered };

  void put_collective(
      Collective collective,
      Shape shape,
      const mx::array& in,
      mx::array& out,
      mx::Stream stream);
  template <typename Call>
  void put(mx::Stream stream, const Output& output, Call call);

  std::shared_ptr<GroupCell> cell_;
  Delivery& delivery_;
  bool (*is_main_thread_)();
  std::shared_ptr<Order> order_;
};

/**
 * Waits until the CPU streams that the calling thread may use have run what is
 * queued on them, at most `limit` (a stream may be waiting for something that
 * has nothing to do with us), and takes the errors that are left in them: after
 * this, no evaluation of this thread meets an error from before. Call without
 * the GIL.
 */
void drain_streams(std::chrono::nanoseconds limit);

} // namespace jlaunch
