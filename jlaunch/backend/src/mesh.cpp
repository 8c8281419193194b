#include "mesh.h"

#include <algorithm>
#include <cstring>

namespace jlaunch {

namespace {

/** Up to here one hop with n times the data is faster than two hops. */
constexpr std::uint64_t kDirectBytes = 32 << 10;

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/** memcpy, for which an empty piece may have no address. */
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

/** What the frames of this call carry. */
std::uint64_t print_of(const Call& call) {
  const auto kind =
      call.kind == Collective::recv ? Collective::send : call.kind;
  return fingerprint(kind, call.dtype, call.count);
}

} // namespace

bool prefers_direct(int size, std::uint64_t bytes) {
  return size <= 2 || bytes <= kDirectBytes;
}

MeshStep::MeshStep(Fabric& fabric, const Call& call)
    : Step(call), fabric_(fabric), print_(print_of(call)) {}

bool MeshStep::waits_for(int peer) const {
  if (peer == fabric_.rank()) {
    return false;
  }
  return done() ? fabric_.outstanding(peer) > 0 : needs(peer);
}

Fabric::View MeshStep::next(int peer) {
  for (;;) {
    const auto view = fabric_.front(peer);
    if (!view) {
      return {};
    }
    const FrameHeader& found = *view.header;
    if (found.fingerprint == print_ && found.seq == call().seq) {
      return view;
    }
    if (!is_point_to_point(kind_of(found.fingerprint))) {
      mismatch_ = Mismatch{peer, print_, found.fingerprint, found.seq};
      return {};
    }
    if (!fabric_.hold(peer)) {
      return {};
    }
  }
}

bool MeshStep::in_order(
    int peer,
    const FrameHeader& header,
    std::uint32_t chunk,
    std::size_t bytes) {
  if (header.chunk == chunk && header.length == bytes) {
    return true;
  }
  mismatch_ = Mismatch{peer, print_, header.fingerprint, header.seq};
  return false;
}

FrameHeader MeshStep::header(
    Stage stage,
    std::uint32_t chunk,
    std::size_t bytes) const {
  FrameHeader header{};
  header.length = static_cast<std::uint32_t>(bytes);
  header.seq = call().seq;
  header.fingerprint = print_;
  header.chunk = chunk;
  header.stage = stage;
  return header;
}

bool MeshStep::room_everywhere() const {
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer != fabric_.rank() && !fabric_.room(peer)) {
      return false;
    }
  }
  return true;
}

void MeshStep::broadcast(
    Stage stage,
    std::uint32_t chunk,
    const std::byte* piece,
    std::size_t bytes) {
  const auto frame = fabric_.take();
  copy(fabric_.payload(frame), piece, bytes);
  fabric_.broadcast(frame, header(stage, chunk, bytes));
}

DirectReduce::DirectReduce(
    Fabric& fabric,
    MeshScratch& scratch,
    const Call& call,
    ReduceOp op,
    const void* in,
    void* out)
    : MeshStep(fabric, call),
      scratch_(scratch),
      op_(op),
      in_(static_cast<const std::byte*>(in)),
      out_(static_cast<std::byte*>(out)),
      pieces_(call.bytes, fabric.frame_bytes()) {}

bool DirectReduce::advance() {
  const auto sent = sent_;
  const auto reduced = reduced_;
  while (sent_ < pieces_.count() && room_everywhere()) {
    broadcast(
        Stage::data, sent_, in_ + pieces_.offset(sent_), pieces_.length(sent_));
    ++sent_;
  }
  // Our own piece must be on its way before `out`, which may be `in`, is
  // written.
  while (reduced_ < sent_ && gather_inputs()) {
    reduce_piece();
  }
  return sent_ != sent || reduced_ != reduced;
}

bool DirectReduce::gather_inputs() {
  const auto bytes = pieces_.length(reduced_);
  for (; ready_ < fabric_.size(); ++ready_) {
    if (ready_ == fabric_.rank()) {
      scratch_.inputs[at(ready_)] = in_ + pieces_.offset(reduced_);
      continue;
    }
    const auto view = next(ready_);
    if (!view || !in_order(ready_, *view.header, reduced_, bytes)) {
      return false;
    }
    scratch_.inputs[at(ready_)] = view.payload;
  }
  return true;
}

void DirectReduce::reduce_piece() {
  reduce(
      op_,
      call().dtype,
      out_ + pieces_.offset(reduced_),
      scratch_.inputs,
      pieces_.length(reduced_) / size_of(call().dtype));
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer != fabric_.rank()) {
      fabric_.pop(peer);
    }
  }
  ++reduced_;
  ready_ = 0;
}

bool DirectReduce::done() const {
  return reduced_ == pieces_.count();
}

bool DirectReduce::needs(int peer) const {
  return reduced_ < sent_ ? peer >= ready_ && !has_frame(peer)
                          : !fabric_.room(peer);
}

ScatterReduce::ScatterReduce(
    Fabric& fabric,
    MeshScratch& scratch,
    const Call& call,
    ReduceOp op,
    Result result,
    const void* in,
    void* out)
    : MeshStep(fabric, call),
      scratch_(scratch),
      op_(op),
      gather_(result == Result::gathered),
      item_(size_of(call.dtype)),
      in_(static_cast<const std::byte*>(in)),
      out_(static_cast<std::byte*>(out)),
      mine_(out_ + (gather_ ? segment(fabric.rank()).offset : 0)),
      scattered_(scratch.first),
      gathered_(scratch.second),
      pieces_of_mine_(pieces(fabric.rank()).count()) {
  std::ranges::fill(scattered_, 0);
  std::ranges::fill(gathered_, 0);
}

ScatterReduce::Segment ScatterReduce::segment(int rank) const {
  const auto ranks = at(fabric_.size());
  const auto each = call().count / ranks;
  const auto longer = call().count % ranks; // these have one element more
  const auto before = each * at(rank) + std::min<std::size_t>(at(rank), longer);
  const auto count = each + (at(rank) < longer ? 1 : 0);
  return {before * item_, count * item_};
}

bool ScatterReduce::advance() {
  bool moved = scatter();
  moved = receive() || moved;
  return send_results() || moved;
}

bool ScatterReduce::scatter() {
  bool moved = false;
  // One frame's room is left for the results, so that they flow meanwhile.
  const std::uint32_t room = gather_ ? 2 : 1;
  for (int i = 1; i < fabric_.size(); ++i) {
    const int peer = (fabric_.rank() + i) % fabric_.size();
    const auto parts = pieces(peer);
    auto& sent = scattered_[at(peer)];
    while (sent < parts.count() && fabric_.room(peer, room)) {
      const auto bytes = parts.length(sent);
      const auto frame = fabric_.take();
      copy(
          fabric_.payload(frame),
          in_ + segment(peer).offset + parts.offset(sent),
          bytes);
      fabric_.send(frame, header(Stage::data, sent, bytes), peer);
      ++sent;
      moved = true;
    }
  }
  return moved;
}

bool ScatterReduce::receive() {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (int peer = 0; gather_ && peer < fabric_.size(); ++peer) {
      again = (peer != fabric_.rank() && take_results(peer)) || again;
    }
    again = reduce_pieces() || again;
    moved = moved || again;
  }
  return moved;
}

bool ScatterReduce::take_results(int peer) {
  const auto parts = pieces(peer);
  auto& got = gathered_[at(peer)];
  bool moved = false;
  while (got < parts.count()) {
    const auto view = next(peer);
    if (!view || view.header->stage != Stage::result ||
        !in_order(peer, *view.header, got, parts.length(got))) {
      break;
    }
    copy(
        out_ + segment(peer).offset + parts.offset(got),
        view.payload,
        parts.length(got));
    fabric_.pop(peer);
    ++got;
    moved = true;
  }
  return moved;
}

bool ScatterReduce::reduce_pieces() {
  if (reduced_ == pieces_of_mine_) {
    return false;
  }
  const auto parts = pieces(fabric_.rank());
  const auto bytes = parts.length(reduced_);
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer == fabric_.rank()) {
      scratch_.inputs[at(peer)] =
          in_ + segment(peer).offset + parts.offset(reduced_);
      continue;
    }
    const auto view = next(peer);
    if (!view || view.header->stage != Stage::data ||
        !in_order(peer, *view.header, reduced_, bytes)) {
      return false;
    }
    scratch_.inputs[at(peer)] = view.payload;
  }
  reduce(
      op_,
      call().dtype,
      mine_ + parts.offset(reduced_),
      scratch_.inputs,
      bytes / item_);
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer != fabric_.rank()) {
      fabric_.pop(peer);
    }
  }
  ++reduced_;
  return true;
}

bool ScatterReduce::send_results() {
  bool moved = false;
  const auto parts = pieces(fabric_.rank());
  while (gather_ && results_sent_ < reduced_ && room_everywhere()) {
    broadcast(
        Stage::result,
        results_sent_,
        mine_ + parts.offset(results_sent_),
        parts.length(results_sent_));
    ++results_sent_;
    moved = true;
  }
  return moved;
}

bool ScatterReduce::done() const {
  if (reduced_ < pieces_of_mine_ || (gather_ && results_sent_ < reduced_)) {
    return false;
  }
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer == fabric_.rank()) {
      continue;
    }
    const auto count = pieces(peer).count();
    if (scattered_[at(peer)] < count ||
        (gather_ && gathered_[at(peer)] < count)) {
      return false;
    }
  }
  return true;
}

bool ScatterReduce::needs(int peer) const {
  const auto count = pieces(peer).count();
  const bool to_send =
      scattered_[at(peer)] < count || (gather_ && results_sent_ < reduced_);
  const bool to_receive =
      reduced_ < pieces_of_mine_ || (gather_ && gathered_[at(peer)] < count);
  return (to_send && !fabric_.room(peer)) || (to_receive && !has_frame(peer));
}

Gather::Gather(
    Fabric& fabric,
    MeshScratch& scratch,
    const Call& call,
    const void* in,
    void* out)
    : MeshStep(fabric, call),
      received_(scratch.first),
      in_(static_cast<const std::byte*>(in)),
      out_(static_cast<std::byte*>(out)),
      pieces_(call.bytes, fabric.frame_bytes()) {
  std::ranges::fill(received_, 0);
  copy(out_ + at(fabric.rank()) * call.bytes, in_, call.bytes);
}

bool Gather::advance() {
  bool moved = false;
  while (sent_ < pieces_.count() && room_everywhere()) {
    broadcast(
        Stage::data, sent_, in_ + pieces_.offset(sent_), pieces_.length(sent_));
    ++sent_;
    moved = true;
  }
  for (int peer = 0; peer < fabric_.size(); ++peer) {
    if (peer != fabric_.rank()) {
      moved = receive(peer) || moved;
    }
  }
  return moved;
}

bool Gather::receive(int peer) {
  auto& got = received_[at(peer)];
  bool moved = false;
  while (got < pieces_.count()) {
    const auto bytes = pieces_.length(got);
    const auto view = next(peer);
    if (!view || !in_order(peer, *view.header, got, bytes)) {
      break;
    }
    copy(
        out_ + at(peer) * call().bytes + pieces_.offset(got),
        view.payload,
        bytes);
    fabric_.pop(peer);
    ++got;
    complete_ += got == pieces_.count() ? 1 : 0;
    moved = true;
  }
  return moved;
}

bool Gather::done() const {
  return sent_ == pieces_.count() && complete_ == fabric_.size() - 1;
}

bool Gather::needs(int peer) const {
  return received_[at(peer)] < pieces_.count() ||
      (sent_ < pieces_.count() && !fabric_.room(peer));
}

Send::Send(Fabric& fabric, const Call& call, const void* in)
    : MeshStep(fabric, call),
      in_(static_cast<const std::byte*>(in)),
      pieces_(call.bytes, fabric.frame_bytes()) {}

bool Send::advance() {
  const auto before = sent_;
  while (!done() && fabric_.room(call().peer)) {
    const auto bytes = pieces_.length(sent_);
    const auto frame = fabric_.take();
    copy(fabric_.payload(frame), in_ + pieces_.offset(sent_), bytes);
    fabric_.send(frame, header(Stage::data, sent_, bytes), call().peer);
    ++sent_;
  }
  return sent_ != before;
}

bool Send::done() const {
  return sent_ == pieces_.count();
}

bool Send::needs(int peer) const {
  return peer == call().peer;
}

Receive::Receive(Fabric& fabric, const Call& call, void* out)
    : MeshStep(fabric, call),
      out_(static_cast<std::byte*>(out)),
      pieces_(call.bytes, fabric.frame_bytes()) {}

bool Receive::take(Fabric::View view) {
  const FrameHeader& found = *view.header;
  if (found.fingerprint != print_ || found.seq != call().seq) {
    mismatch_ = Mismatch{call().peer, print_, found.fingerprint, found.seq};
    return false;
  }
  const auto bytes = pieces_.length(received_);
  if (!in_order(call().peer, found, received_, bytes)) {
    return false;
  }
  copy(out_ + pieces_.offset(received_), view.payload, bytes);
  ++received_;
  return true;
}

bool Receive::advance() {
  const auto before = received_;
  const int peer = call().peer;
  while (!done() && !mismatch_) {
    if (const auto held = fabric_.held_front(peer)) {
      if (take(held)) {
        fabric_.pop_held(peer);
      }
      continue;
    }
    const auto view = fabric_.front(peer);
    // A collective that the peer has entered before us stays where it is.
    if (!view || !is_point_to_point(kind_of(view.header->fingerprint))) {
      break;
    }
    if (take(view)) {
      fabric_.pop(peer);
    }
  }
  return received_ != before;
}

bool Receive::done() const {
  return received_ == pieces_.count();
}

bool Receive::needs(int peer) const {
  return peer == call().peer;
}

} // namespace jlaunch
