#include "ring.h"

#include <algorithm>
#include <cstring>

namespace jlaunch {

namespace {

/** Up to here one direction is faster than starting both. */
constexpr std::size_t kOneWayBytes = 32 << 10;

/**
 * Blocks that a rank has under way, for each wire. Fewer than the frames that a
 * wire holds: were every wire of the ring full of pieces that have to go on,
 * none could.
 */
constexpr std::uint32_t kBlocksUnderWay = Fabric::kDepth / 2;

void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

} // namespace

std::uint32_t RingStep::hops(RingShape shape, int size) {
  const auto once = static_cast<std::uint32_t>(size - 1);
  return shape == RingShape::reduced ? 2 * once : once;
}

RingStep::RingStep(
    Fabric& fabric,
    MeshScratch& scratch,
    const Call& call,
    RingShape shape,
    ReduceOp op,
    const void* in,
    void* out)
    : MeshStep(fabric, call),
      shape_(shape),
      op_(op),
      item_(size_of(call.dtype)),
      in_(static_cast<const std::byte*>(in)),
      out_(static_cast<std::byte*>(out)),
      ranks_(fabric.size()),
      hops_(hops(shape, fabric.size())) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const auto all =
      shape == RingShape::scattered ? call.count / ranks : call.count;
  const auto there = all * item_ <= kOneWayBytes ? all : all - all / 2;
  open_lane(scratch.first, 0, there);
  if (there < all) {
    open_lane(scratch.second, there, all - there);
  }
  if (shape == RingShape::gathered) {
    copy_piece(
        out_ + static_cast<std::size_t>(fabric.rank()) * call.bytes,
        in_,
        call.bytes);
  }
}

void RingStep::open_lane(
    std::vector<std::uint32_t>& received,
    std::size_t first,
    std::size_t count) {
  const int rank = fabric_.rank();
  const int right = (rank + 1) % ranks_;
  const int left = (rank + ranks_ - 1) % ranks_;
  Lane& lane = lanes_[lane_count_];
  lane.forward = lane_count_ == 0;
  lane.to = lane.forward ? right : left;
  lane.from = lane.forward ? left : right;
  lane.place = lane.forward ? rank : (ranks_ - rank) % ranks_;
  lane.first = first;
  lane.count = count;
  const auto pieces = shape_ == RingShape::reduced ? ranks_ : 1;
  const auto block =
      fabric_.frame_bytes() / item_ * static_cast<std::size_t>(pieces);
  lane.blocks = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, (count + block - 1) / block));
  received.assign(hops_, 0);
  lane.received = received;
  ++lane_count_;
}

RingStep::Place RingStep::piece(
    const Lane& lane,
    int place,
    std::uint32_t block) const {
  const auto frame = fabric_.frame_bytes() / item_;
  if (shape_ == RingShape::reduced) {
    const auto ranks = static_cast<std::size_t>(ranks_);
    const auto before = block * frame * ranks;
    const auto count = std::min(frame * ranks, lane.count - before);
    const auto index = static_cast<std::size_t>(place);
    const auto longer = count % ranks; // these have one element more
    const auto offset = count / ranks * index + std::min(index, longer);
    const auto length = count / ranks + (index < longer ? 1 : 0);
    return {(lane.first + before + offset) * item_, length * item_};
  }
  // The place counts in the lane's direction, the array in that of the ranks.
  const auto rank = static_cast<std::size_t>(
      lane.forward ? place : (ranks_ - place) % ranks_);
  const auto each = shape_ == RingShape::scattered
      ? call().count / static_cast<std::size_t>(ranks_)
      : call().count;
  const auto before = block * frame;
  const auto count = std::min(frame, lane.count - before);
  return {(rank * each + lane.first + before) * item_, count * item_};
}

int RingStep::owner(const Lane& lane, int hop) const {
  // A scattered piece ends where it belongs, so it begins one rank further.
  const int shift = shape_ == RingShape::scattered ? 1 : 0;
  return ((lane.place - hop - 1 - shift) % ranks_ + ranks_) % ranks_;
}

const std::byte* RingStep::input(const Place& place) const {
  // A gathered input is only our part of the whole, which `out` has by now.
  return (shape_ == RingShape::gathered ? out_ : in_) + place.offset;
}

std::byte* RingStep::output(
    const Lane& lane,
    const Place& place,
    std::uint32_t block) {
  if (shape_ != RingShape::scattered) {
    return out_ + place.offset;
  }
  const auto frame = fabric_.frame_bytes() / item_;
  return out_ + (lane.first + block * frame) * item_;
}

bool RingStep::advance() {
  bool moved = false;
  for (auto& lane : lanes()) {
    bool again = true;
    while (again) {
      again = take(lane);
      again = inject(lane) || again;
      moved = moved || again;
    }
  }
  return moved;
}

bool RingStep::inject(Lane& lane) {
  const auto window = kBlocksUnderWay * fabric_.wires(lane.to);
  bool moved = false;
  while (lane.sent < lane.blocks && lane.sent < lane.received.back() + window &&
         fabric_.room(lane.to)) {
    const auto place = piece(lane, owner(lane, -1), lane.sent);
    const auto frame = fabric_.take();
    copy_piece(fabric_.payload(frame), input(place), place.bytes);
    fabric_.send(
        frame, header(Stage::data, lane.sent * hops_, place.bytes), lane.to);
    ++lane.sent;
    moved = true;
  }
  return moved;
}

bool RingStep::take(Lane& lane) {
  bool moved = false;
  while (!is_done(lane)) {
    const auto view = next(lane.from);
    if (!view) {
      break;
    }
    const auto block = view.header->chunk / hops_;
    const auto hop = view.header->chunk % hops_;
    const auto expected = lane.received[hop];
    if (expected == lane.blocks) { // there are no more of them
      const auto& found = *view.header;
      mismatch_ = {lane.from, print_, found.fingerprint, found.seq};
      break;
    }
    const auto place =
        piece(lane, owner(lane, static_cast<int>(hop)), expected);
    if (!in_order(
            lane.from, *view.header, expected * hops_ + hop, place.bytes)) {
      break;
    }
    // Our own piece must be on its way before `out`, which may be `in`, is
    // written; so pieces of a block follow one another in the order of hops.
    if (block >= lane.sent) {
      break;
    }
    if (hop + 1 < hops_ && !fabric_.room(lane.to)) {
      break;
    }
    pass(lane, block, hop, view.payload);
    fabric_.pop(lane.from);
    ++lane.received[hop];
    moved = true;
  }
  return moved;
}

void RingStep::pass(
    Lane& lane,
    std::uint32_t block,
    std::uint32_t hop,
    const std::byte* came) {
  const auto place = piece(lane, owner(lane, static_cast<int>(hop)), block);
  const auto turn = static_cast<std::uint32_t>(ranks_ - 1);
  const bool reduces = shape_ != RingShape::gathered && hop < turn;
  const bool final = !reduces || hop + 1 == turn; // here the piece is whole
  const bool goes_on = hop + 1 < hops_;
  const auto frame = goes_on ? fabric_.take() : 0;
  auto* onward = goes_on ? fabric_.payload(frame) : nullptr;
  auto* target = final ? output(lane, place, block) : onward;
  if (reduces) {
    const std::array inputs{came, input(place)};
    reduce(op_, call().dtype, target, inputs, place.bytes / item_);
  } else {
    copy_piece(target, came, place.bytes);
  }
  if (goes_on) {
    if (target != onward) {
      copy_piece(onward, target, place.bytes);
    }
    fabric_.send(
        frame,
        header(Stage::data, block * hops_ + hop + 1, place.bytes),
        lane.to);
  }
}

bool RingStep::is_done(const Lane& lane) const {
  return lane.sent == lane.blocks &&
      std::ranges::all_of(lane.received, [&](std::uint32_t blocks) {
           return blocks == lane.blocks;
         });
}

bool RingStep::done() const {
  return std::ranges::all_of(
      lanes(), [this](const Lane& lane) { return is_done(lane); });
}

bool RingStep::needs(int peer) const {
  return std::ranges::any_of(lanes(), [&](const Lane& lane) {
    return !is_done(lane) &&
        ((peer == lane.from && !has_frame(peer)) ||
         (peer == lane.to && !fabric_.room(peer)));
  });
}

} // namespace jlaunch
