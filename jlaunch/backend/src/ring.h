#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mesh.h"

/**
 * MLX's collectives over a ring of three ranks or more (a ring of two is a
 * mesh), as a step. Each rank is connected to its two neighbours only.
 *
 * What has to go round is cut into blocks; in a block each rank has one piece,
 * of a frame at most, that goes once round the ring being reduced, and once
 * more as the result. A big message goes round both ways, half of it each way:
 * a lane for each direction. A piece is reduced from the frame that it came in
 * straight into the one in which it goes on.
 *
 * The order of a reduction is that of the ring, beginning with the rank whose
 * piece it is: fixed, so all ranks get the same bits, run after run. float16 and
 * bfloat16 are rounded at every rank (docs/adr).
 */
namespace jlaunch {

/** Where the pieces of a collective lie. */
enum class RingShape {
  reduced, // all of `in` is reduced into all of `out`
  gathered, // `in` is the rank's part of `out`
  scattered, // `out` is the rank's part of the reduced `in`
};

class RingStep final : public MeshStep {
 public:
  RingStep(
      Fabric& fabric,
      MeshScratch& scratch,
      const Call& call,
      RingShape shape,
      ReduceOp op,
      const void* in,
      void* out);

  bool advance() override;
  bool done() const override;

  /** Hops that a piece makes in a ring of so many ranks. */
  static std::uint32_t hops(RingShape shape, int size);

 private:
  /** A place in the array that all ranks' pieces make up. */
  struct Place {
    std::size_t offset; // bytes
    std::size_t bytes;
  };

  /** One direction round the ring, and what goes that way. */
  struct Lane {
    int to;
    int from;
    bool forward; // towards the next rank
    int place; // of this rank, counted in the lane's direction
    std::size_t first; // elements: its part of the message, or of each part
    std::size_t count;
    std::uint32_t blocks;
    std::uint32_t sent; // own pieces
    std::span<std::uint32_t> received; // blocks, by hop
  };

  bool needs(int peer) const override;
  void open_lane(
      std::vector<std::uint32_t>& received,
      std::size_t first,
      std::size_t count);
  std::span<Lane> lanes() {
    return {lanes_.data(), lane_count_};
  }
  std::span<const Lane> lanes() const {
    return {lanes_.data(), lane_count_};
  }
  bool is_done(const Lane& lane) const;
  /** The piece of a block that belongs to a place of the lane. */
  Place piece(const Lane& lane, int place, std::uint32_t block) const;
  /** Whose piece arrives after so many hops (-1: our own, that we send). */
  int owner(const Lane& lane, int hop) const;
  const std::byte* input(const Place& place) const;
  std::byte* output(const Lane& lane, const Place& place, std::uint32_t block);
  bool inject(Lane& lane);
  bool take(Lane& lane);
  void pass(
      Lane& lane,
      std::uint32_t block,
      std::uint32_t hop,
      const std::byte* came);

  const RingShape shape_;
  const ReduceOp op_;
  const std::size_t item_;
  const std::byte* in_;
  std::byte* out_;
  const int ranks_;
  const std::uint32_t hops_;
  std::array<Lane, 2> lanes_{};
  std::size_t lane_count_ = 0;
};

} // namespace jlaunch
