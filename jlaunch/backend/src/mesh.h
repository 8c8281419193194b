#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric.h"
#include "progress.h"
#include "reduce.h"

/**
 * MLX's collectives over a full mesh, as steps. None has a loop of its own: all
 * are driven by progress.h.
 *
 * Every message is cut into pieces of a frame's payload. In both reductions the
 * inputs of a piece are combined in the order of the ranks, in one pass, once
 * the pieces of all ranks are there; so the result does not depend on who was
 * first, nor on which of the two algorithms was chosen.
 */
namespace jlaunch {

/** Lists of one entry per rank that a step uses; kept by the group, so that a
 *  call allocates nothing. */
struct MeshScratch {
  explicit MeshScratch(int size)
      : inputs(static_cast<std::size_t>(size)),
        first(static_cast<std::size_t>(size)),
        second(static_cast<std::size_t>(size)) {}

  std::vector<const std::byte*> inputs;
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> second;
};

/** What all steps over a fabric have in common. */
class MeshStep : public Step {
 public:
  MeshStep(Fabric& fabric, const Call& call);

  /** Whom it needs; once it is done, those whom our last frames have not
   *  reached yet. */
  bool waits_for(int peer) const final;

 protected:
  /** Asked only while it is not done, and never about ourselves. */
  virtual bool needs(int peer) const = 0;
  /** The peer's next frame of this collective, if it is there; puts frames of
   *  send aside, notices a desync. */
  Fabric::View next(int peer);
  /** Checks that a frame is the expected piece, of the expected length. */
  bool in_order(
      int peer,
      const FrameHeader& header,
      std::uint32_t chunk,
      std::size_t bytes);
  FrameHeader header(Stage stage, std::uint32_t chunk, std::size_t bytes) const;
  bool room_everywhere() const;
  bool has_frame(int peer) const {
    return static_cast<bool>(fabric_.front(peer));
  }
  /** Copies a piece into a frame and sends it to all. */
  void broadcast(
      Stage stage,
      std::uint32_t chunk,
      const std::byte* piece,
      std::size_t bytes);

  Fabric& fabric_;
  const std::uint64_t print_;
};

/** A message in pieces: at least one, since even an empty one is sent. */
class Pieces {
 public:
  Pieces(std::size_t bytes, std::size_t piece) : bytes_(bytes), piece_(piece) {}

  std::uint32_t count() const {
    return bytes_ == 0
        ? 1
        : static_cast<std::uint32_t>((bytes_ + piece_ - 1) / piece_);
  }
  std::size_t offset(std::uint32_t chunk) const {
    return chunk * piece_;
  }
  std::size_t length(std::uint32_t chunk) const {
    return std::min(piece_, bytes_ - offset(chunk));
  }

 private:
  std::size_t bytes_;
  std::size_t piece_;
};

/** Everyone sends all to everyone, and reduces: fewest hops. */
class DirectReduce final : public MeshStep {
 public:
  DirectReduce(
      Fabric& fabric,
      MeshScratch& scratch,
      const Call& call,
      ReduceOp op,
      const void* in,
      void* out);

  bool advance() override;
  bool done() const override;

 private:
  bool needs(int peer) const override;
  bool gather_inputs();
  void reduce_piece();

  MeshScratch& scratch_;
  const ReduceOp op_;
  const std::byte* in_;
  std::byte* out_;
  const Pieces pieces_;
  std::uint32_t sent_ = 0;
  std::uint32_t reduced_ = 0;
  int ready_ = 0; // ranks below it have their piece `reduced_` here
};

/**
 * Everyone gets one segment from everyone and reduces it (sum_scatter); with
 * `gather`, sends the result to everyone (the reductions of big messages).
 */
class ScatterReduce final : public MeshStep {
 public:
  enum class Result { scattered, gathered };

  ScatterReduce(
      Fabric& fabric,
      MeshScratch& scratch,
      const Call& call,
      ReduceOp op,
      Result result,
      const void* in,
      void* out);

  bool advance() override;
  bool done() const override;

 private:
  bool needs(int peer) const override;
  struct Segment {
    std::size_t offset; // bytes
    std::size_t bytes;
  };

  Segment segment(int rank) const;
  Pieces pieces(int rank) const {
    return {segment(rank).bytes, fabric_.frame_bytes()};
  }
  bool scatter();
  bool receive();
  bool take_results(int peer);
  bool reduce_pieces();
  bool send_results();

  MeshScratch& scratch_;
  const ReduceOp op_;
  const bool gather_;
  const std::size_t item_;
  const std::byte* in_;
  std::byte* out_;
  std::byte* mine_; // where the reduced segment goes
  std::vector<std::uint32_t>& scattered_; // pieces sent, by rank
  std::vector<std::uint32_t>& gathered_; // results received, by rank
  const std::uint32_t pieces_of_mine_;
  std::uint32_t reduced_ = 0;
  std::uint32_t results_sent_ = 0;
};

class Gather final : public MeshStep {
 public:
  Gather(
      Fabric& fabric,
      MeshScratch& scratch,
      const Call& call,
      const void* in,
      void* out);

  bool advance() override;
  bool done() const override;

 private:
  bool needs(int peer) const override;
  bool receive(int peer);

  std::vector<std::uint32_t>& received_; // pieces, by rank
  const std::byte* in_;
  std::byte* out_;
  const Pieces pieces_;
  std::uint32_t sent_ = 0;
  int complete_ = 0; // peers of whom all has been received
};

class Send final : public MeshStep {
 public:
  Send(Fabric& fabric, const Call& call, const void* in);

  bool advance() override;
  bool done() const override;

 private:
  bool needs(int peer) const override;
  const std::byte* in_;
  const Pieces pieces_;
  std::uint32_t sent_ = 0;
};

class Receive final : public MeshStep {
 public:
  Receive(Fabric& fabric, const Call& call, void* out);

  bool advance() override;
  bool done() const override;

 private:
  bool needs(int peer) const override;
  /** True if a frame was taken. */
  bool take(Fabric::View view);

  std::byte* out_;
  const Pieces pieces_;
  std::uint32_t received_ = 0;
};

/** Which of the two reductions is used: the same on every rank. */
bool prefers_direct(int size, std::uint64_t bytes);

} // namespace jlaunch
