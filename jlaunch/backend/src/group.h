#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "control_block.h"
#include "error.h"

/**
 * A group: the ranks that communicate in one epoch. Knows neither MLX nor
 * Python. Collectives are blocking calls of one communication thread; the
 * verdict, the deadline and the loss of a peer reach it inside the only poll
 * loop (progress.h).
 */
namespace jlaunch {

/** MLX's 14 dtypes, in MLX's order. */
enum class Dtype : std::uint8_t {
  bool_,
  uint8,
  uint16,
  uint32,
  uint64,
  int8,
  int16,
  int32,
  int64,
  float16,
  float32,
  float64,
  bfloat16,
  complex64,
};

std::size_t size_of(Dtype dtype);

struct GroupConfig {
  int rank = 0;
  int size = 1;
  std::uint32_t epoch = 1;
  std::uint64_t id = 0; // 0 is the world
  /** World rank of each rank of this group; empty: the same (the world). Masks
   *  in the control block and Failure::lost are by world rank. */
  std::vector<int> world_ranks;
  /** Name or path of the provider's library, for dlopen. */
  std::string provider;
  /** By rank, one device for each wire to that peer (1 to 4); empty: the
   *  provider's first device, with `wires` to each peer. */
  std::vector<std::vector<std::string>> devices;
  int wires = 1;
  /** Only neighbours are connected, and collectives go round (ring.h). */
  bool ring = false;
  /** No progress for so long: ask. Zero or negative: never. */
  std::chrono::nanoseconds deadline = std::chrono::seconds(10);
  /** This rank's control block; may be null (tests): then the deadline itself
   *  decides, with Reason::stuck. */
  ControlBlock* block = nullptr;
  /** The host's block, whose doorbell is rung with a question; may be null. */
  HostBlock* host_block = nullptr;
  /** Path of the file that `block` is mapped from ("" with a null block): the
   *  soft provider's peers ring the bell in it. */
  std::string block_path;
};

class Group {
 public:
  /** Opens devices, arenas and queue pairs (to INIT). Throws VerbsError. */
  static std::unique_ptr<Group> open(GroupConfig config);

  virtual ~Group() = default;
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::uint32_t epoch() const = 0;

  /** What the other ranks need to connect: opaque, versioned, bounded. */
  virtual std::vector<std::byte> address() const = 0;

  /** Walks the queue pairs to RTS. `addresses` is indexed by rank.
   *  Throws VerbsError naming the peer. Never blocks on a peer. */
  virtual void connect(std::span<const std::vector<std::byte>> addresses) = 0;

  /**
   * Collectives. `count` is in elements of the input (recv: of the output);
   * buffers do not overlap, except that `in == out` is allowed for the three
   * reductions of equal size. All throw the exception of the group's failure,
   * at once if it already has one (sticky). Called by one thread at a time;
   * calls from several threads are serialised by a mutex.
   */
  virtual void all_sum(const void* in, void* out, std::size_t count, Dtype) = 0;
  virtual void all_max(const void* in, void* out, std::size_t count, Dtype) = 0;
  virtual void all_min(const void* in, void* out, std::size_t count, Dtype) = 0;
  /** `out` holds size() * count elements, by rank. */
  virtual void all_gather(
      const void* in,
      void* out,
      std::size_t count,
      Dtype) = 0;
  /** `in` holds count elements, `out` count / size(); throws
   *  std::invalid_argument if size() does not divide count. */
  virtual void sum_scatter(
      const void* in,
      void* out,
      std::size_t count,
      Dtype) = 0;
  virtual void send(const void* in, std::size_t count, Dtype, int to) = 0;
  virtual void recv(void* out, std::size_t count, Dtype, int from) = 0;

  /** The first failure, kind none if there is none. Any thread. */
  virtual Failure failure() const = 0;

  /** Breaks the running and all later collectives with this failure (used by
   *  the keeper: ControlLost). Any thread; the first failure wins. */
  virtual void abort(Failure failure) = 0;
};

} // namespace jlaunch
