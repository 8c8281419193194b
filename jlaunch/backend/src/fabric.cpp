#include "fabric.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "group.h"

namespace jlaunch {

namespace {

constexpr std::uint32_t kAddressMagic = 0x4a4c4144; // "JLAD"
constexpr std::uint32_t kMostFrameBytes = 128U << 10;
constexpr std::uint32_t kLeastFrameBytes = 4U << 10;
constexpr int kRanksAtMost = 4; // with frames of kMostFrameBytes
constexpr std::size_t kBatch = 16;

/**
 * A connection's frames fill 1 MiB up to 4 ranks, and half of it each time the
 * ranks double, so that an arena stays at 3 to 4 MiB however many there are
 * (4 KiB frames above 128 ranks). Every rank computes the same.
 */
std::uint32_t frame_bytes_for(int size) {
  std::uint32_t bytes = kMostFrameBytes;
  for (int ranks = kRanksAtMost; ranks < size && bytes > kLeastFrameBytes;
       ranks *= 2) {
    bytes /= 2;
  }
  return bytes;
}

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void refuse(std::string detail) {
  Failure failure;
  failure.kind = Failure::Kind::verbs;
  failure.detail = std::move(detail);
  throw_failure(failure);
}

} // namespace

Arena::Arena(std::size_t bytes) {
  const auto page = page_size();
  const auto whole = (bytes + page - 1) / page * page;
  void* base = mmap(
      nullptr,
      whole,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS,
      -1,
      0);
  if (base == MAP_FAILED) {
    throw std::bad_alloc();
  }
  bytes_ = {static_cast<std::byte*>(base), whole};
}

Arena::~Arena() {
  munmap(bytes_.data(), bytes_.size());
}

Fabric::Fabric(std::shared_ptr<const VerbsApi> api, Config config)
    : api_(std::move(api)),
      config_(std::move(config)),
      frame_bytes_(frame_bytes_for(
          config_.peers.empty() ? config_.size
                                : static_cast<int>(config_.peers.size()) + 1)),
      stride_(frame_bytes_ + sizeof(FrameHeader)),
      peers_(index(config_.size)) {
  if (config_.size == 1) {
    return;
  }
  std::size_t wires = 0;
  for (int peer = 0; peer < config_.size; ++peer) {
    wires += devices_to(peer).size();
  }
  const auto frames = static_cast<std::uint32_t>(wires * kDepth);
  arena_.emplace(2 * frames * stride_);
  users_.assign(frames, 0);
  free_frames_.reserve(frames);
  for (FrameIndex frame = frames; frame > 0; --frame) {
    free_frames_.push_back(frame - 1);
  }
  open_devices();
  for (int peer = 0; peer < config_.size; ++peer) {
    for (std::uint32_t wire = 0; wire < this->wires(peer); ++wire) {
      for (FrameIndex frame = 0; frame < kDepth; ++frame) {
        post_receive(peer, wire, frame);
      }
    }
  }
  if (failure_) {
    throw_failure(*failure_);
  }
}

std::vector<std::string> Fabric::devices_to(int peer) const {
  const bool is_peer = config_.peers.empty()
      ? peer != config_.rank
      : std::ranges::find(config_.peers, peer) != config_.peers.end();
  if (!is_peer) {
    return {};
  }
  return config_.devices.empty() ? std::vector<std::string>(config_.wires)
                                 : config_.devices.at(index(peer));
}

Device& Fabric::device(const std::string& name, int completions) {
  const auto same = std::ranges::find_if(devices_, [&](const auto& device) {
    return name.empty() || device->name() == name;
  });
  if (same != devices_.end()) {
    return **same;
  }
  Device::Config wanted;
  wanted.name = name;
  wanted.completions = completions;
  wanted.arena = arena_->bytes();
  wanted.bell_path = config_.bell_path;
  wanted.bell_offset = config_.bell_offset;
  devices_.push_back(std::make_unique<Device>(api_, wanted));
  Device& opened = *devices_.back();
  const auto most = opened.max_message();
  if (most > sizeof(FrameHeader) && most < stride_) {
    frame_bytes_ =
        (most - static_cast<std::uint32_t>(sizeof(FrameHeader))) / 64 * 64;
  }
  return opened;
}

void Fabric::open_devices() {
  // Each frame, out or in, completes once: so many at most wait to be polled.
  const auto completions = static_cast<int>(2 * users_.size());
  std::uint32_t first_frame = 0;
  for (int peer = 0; peer < config_.size; ++peer) {
    auto& wires = peers_[index(peer)].wires;
    for (const auto& name : devices_to(peer)) {
      wires.push_back(
          {Connection(device(name, completions), peer, kDepth), first_frame});
      first_frame += kDepth;
    }
  }
}

bool Fabric::has_bell() const {
  return !devices_.empty() && std::ranges::all_of(devices_, [](const auto& d) {
    return d->has_bell();
  });
}

std::vector<std::byte> Fabric::address() const {
  std::size_t wires = 1;
  for (const auto& peer : peers_) {
    wires = std::max(wires, peer.wires.size());
  }
  AddressHeader header{};
  header.magic = kAddressMagic;
  header.version = kWireVersion;
  header.rank = static_cast<std::uint16_t>(config_.rank);
  header.epoch = config_.epoch;
  header.size = static_cast<std::uint32_t>(config_.size);
  header.group = config_.group;
  header.frame_bytes = frame_bytes_;
  header.depth = kDepth;
  header.wires = static_cast<std::uint16_t>(wires);
  std::vector<std::byte> out(
      sizeof(header) + peers_.size() * wires * sizeof(Destination));
  std::memcpy(out.data(), &header, sizeof(header));
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (std::size_t wire = 0; wire < peers_[peer].wires.size(); ++wire) {
      auto destination = peers_[peer].wires[wire].connection.address();
      destination.present = 1;
      std::memcpy(
          out.data() + sizeof(header) +
              (peer * wires + wire) * sizeof(Destination),
          &destination,
          sizeof(Destination));
    }
  }
  return out;
}

void Fabric::connect(std::span<const std::vector<std::byte>> addresses) {
  const auto size = peers_.size();
  if (addresses.size() != size) {
    refuse(
        "the group has " + std::to_string(size) + " ranks, but " +
        std::to_string(addresses.size()) + " addresses were given");
  }
  for (int peer = 0; peer < config_.size; ++peer) {
    if (wires(peer) > 0) {
      connect_peer(peer, addresses[index(peer)]);
    }
  }
  for (const auto& device : devices_) {
    device->seal();
  }
}

void Fabric::connect_peer(int peer, std::span<const std::byte> address) {
  AddressHeader header{};
  if (address.size() >= sizeof(header)) {
    std::memcpy(&header, address.data(), sizeof(header));
  }
  const auto ranks = peers_.size();
  if (header.magic != kAddressMagic || header.version != kWireVersion ||
      header.rank != peer || header.epoch != config_.epoch ||
      header.size != ranks || header.group != config_.group ||
      header.depth != kDepth || header.frame_bytes < 64 ||
      header.frame_bytes % 64 != 0 || header.wires == 0 ||
      header.wires > kMostWires ||
      address.size() !=
          sizeof(header) + ranks * header.wires * sizeof(Destination)) {
    refuse(
        "the address of rank " + std::to_string(peer) +
        " is not one of this group, epoch and version of jlaunch: all ranks "
        "must run the same jlaunch");
  }
  frame_bytes_ = std::min(frame_bytes_, header.frame_bytes);
  std::array<Destination, kMostWires> theirs{};
  std::memcpy(
      theirs.data(),
      address.data() + sizeof(header) +
          index(config_.rank) * header.wires * sizeof(Destination),
      header.wires * sizeof(Destination));
  const auto there = std::ranges::count_if(
      theirs, [](const auto& destination) { return destination.present == 1; });
  auto& ours = peers_[index(peer)].wires;
  if (static_cast<std::size_t>(there) != ours.size()) {
    refuse(
        "rank " + std::to_string(config_.rank) + " has " +
        std::to_string(ours.size()) + " wires to rank " + std::to_string(peer) +
        ", which has " + std::to_string(there) +
        " back: the matrix of devices must name as many both ways");
  }
  for (std::size_t wire = 0; wire < ours.size(); ++wire) {
    ours[wire].connection.connect(theirs[wire]);
  }
}

int Fabric::poll() {
  std::array<abi::ibv_wc, kBatch> batch;
  int handled = 0;
  for (const auto& device : devices_) {
    const int count = device->poll(batch);
    if (count < 0) {
      fail(-1, "ibv_poll_cq failed on device " + device->name());
      return handled;
    }
    for (int i = 0; i < count && !failure_; ++i) {
      complete(batch[index(i)]);
    }
    handled += count;
  }
  return handled;
}

void Fabric::complete(const abi::ibv_wc& wc) {
  if (wc.status != abi::IBV_WC_SUCCESS) {
    const auto id = WorkId::unpack(wc.wr_id);
    const bool known = id.peer < peers_.size();
    fail(
        known ? static_cast<int>(id.peer) : -1,
        "a completion failed with status " + std::to_string(wc.status) + ": " +
            std::string(explain(wc.status)));
    return;
  }
  const auto id = WorkId::unpack(wc.wr_id);
  if (id.peer >= peers_.size() || id.wire >= peers_[id.peer].wires.size()) {
    fail(
        -1,
        "a completion names nobody: work request " + std::to_string(wc.wr_id));
  } else if (id.kind == WorkId::Kind::send) {
    sent(id);
  } else if (id.kind == WorkId::Kind::recv) {
    received(id, wc.byte_len);
  } else {
    fail(static_cast<int>(id.peer), "a completion is of no known kind");
  }
}

void Fabric::sent(const WorkId& id) {
  auto& peer = peers_[id.peer];
  auto& wire = peer.wires[id.wire];
  if (id.frame >= users_.size() || users_[id.frame] == 0 ||
      wire.outstanding == 0) {
    fail(static_cast<int>(id.peer), "a send completed twice");
    return;
  }
  --wire.outstanding;
  --peer.outstanding;
  if (--users_[id.frame] == 0) {
    free_frames_.push_back(id.frame);
  }
}

void Fabric::received(const WorkId& id, std::uint32_t bytes) {
  const int from = static_cast<int>(id.peer);
  auto& wire = peers_[id.peer].wires[id.wire];
  if (id.frame >= kDepth || !wire.posted[id.frame]) {
    fail(from, "a receive completed twice");
    return;
  }
  wire.posted[id.frame] = false;
  const auto* header =
      reinterpret_cast<const FrameHeader*>(recv_frame(wire, id.frame));
  if (bytes < sizeof(FrameHeader) ||
      header->length != bytes - sizeof(FrameHeader)) {
    fail(
        from,
        "a frame of " + std::to_string(bytes) +
            " bytes does not have the length that it says");
    return;
  }
  if (header->magic != kFrameMagic || header->version != kWireVersion ||
      header->source != id.peer) {
    fail(from, "a frame is not one of this version of jlaunch");
    return;
  }
  if (header->epoch != config_.epoch || header->group != config_.group) {
    ++dropped_;
    post_receive(from, id.wire, id.frame);
    return;
  }
  wire.inbox[wire.arrived % kDepth] = id.frame;
  ++wire.arrived;
}

void Fabric::post_receive(int peer, std::uint32_t wire, FrameIndex frame) {
  auto& over = peers_[index(peer)].wires[wire];
  const int error = over.connection.post_recv(
      recv_frame(over, frame),
      static_cast<std::uint32_t>(stride_),
      {WorkId::Kind::recv, static_cast<std::uint32_t>(peer), frame, wire});
  if (error != 0) {
    fail(peer, "ibv_post_recv: " + explain(error));
    return;
  }
  over.posted[frame] = true;
}

Fabric::FrameIndex Fabric::take() {
  const FrameIndex frame = free_frames_.back();
  free_frames_.pop_back();
  return frame;
}

void Fabric::stamp(FrameIndex frame, const FrameHeader& header) {
  auto& stamped = *reinterpret_cast<FrameHeader*>(send_frame(frame));
  stamped = header;
  stamped.magic = kFrameMagic;
  stamped.version = kWireVersion;
  stamped.source = static_cast<std::uint16_t>(config_.rank);
  stamped.epoch = config_.epoch;
  stamped.group = config_.group;
}

void Fabric::post(FrameIndex frame, std::uint32_t bytes, int peer) {
  auto& to = peers_[index(peer)];
  const auto turn = static_cast<std::uint32_t>(to.sent++ % to.wires.size());
  auto& wire = to.wires[turn];
  ++wire.outstanding;
  ++to.outstanding;
  const int error = wire.connection.post_send(
      send_frame(frame),
      bytes,
      {WorkId::Kind::send, static_cast<std::uint32_t>(peer), frame, turn});
  if (error != 0) {
    fail(peer, "ibv_post_send: " + explain(error));
  }
}

void Fabric::broadcast(FrameIndex frame, const FrameHeader& header) {
  stamp(frame, header);
  users_[frame] = static_cast<std::uint32_t>(std::ranges::count_if(
      peers_, [](const auto& peer) { return !peer.wires.empty(); }));
  const auto bytes =
      static_cast<std::uint32_t>(sizeof(FrameHeader)) + header.length;
  for (int peer = 0; peer < config_.size; ++peer) {
    if (wires(peer) > 0) {
      post(frame, bytes, peer);
    }
  }
}

void Fabric::send(FrameIndex frame, const FrameHeader& header, int peer) {
  stamp(frame, header);
  users_[frame] = 1;
  post(
      frame,
      static_cast<std::uint32_t>(sizeof(FrameHeader)) + header.length,
      peer);
}

bool Fabric::all_sent() const {
  return free_frames_.size() == users_.size();
}

Fabric::View Fabric::front(int peer) const {
  const auto& from = peers_[index(peer)];
  if (from.wires.empty()) {
    return {};
  }
  const auto& wire = from.wires[from.popped % from.wires.size()];
  if (wire.popped == wire.arrived) {
    return {};
  }
  const auto* frame = recv_frame(wire, wire.inbox[wire.popped % kDepth]);
  return {
      reinterpret_cast<const FrameHeader*>(frame), frame + sizeof(FrameHeader)};
}

void Fabric::pop(int peer) {
  auto& from = peers_[index(peer)];
  const auto turn =
      static_cast<std::uint32_t>(from.popped++ % from.wires.size());
  auto& wire = from.wires[turn];
  post_receive(peer, turn, wire.inbox[wire.popped++ % kDepth]);
}

bool Fabric::hold(int peer) {
  auto& from = peers_[index(peer)];
  const View view = front(peer);
  const std::size_t bytes = view.header->length;
  if (from.held_bytes + bytes > kHeldBytes) {
    return false;
  }
  from.held.push_back({*view.header, {view.payload, view.payload + bytes}});
  // An empty message must not be free, or they could pile up without a bound.
  from.held_bytes += std::max(bytes, sizeof(FrameHeader));
  pop(peer);
  return true;
}

Fabric::View Fabric::held_front(int peer) const {
  const auto& held = peers_[index(peer)].held;
  return held.empty() ? View{}
                      : View{&held.front().header, held.front().payload.data()};
}

void Fabric::pop_held(int peer) {
  auto& from = peers_[index(peer)];
  from.held_bytes -= std::max<std::size_t>(
      from.held.front().header.length, sizeof(FrameHeader));
  from.held.pop_front();
}

void Fabric::fail(int peer, std::string what) {
  if (failure_) {
    return;
  }
  Failure failure;
  failure.kind = Failure::Kind::verbs;
  failure.group = config_.group;
  failure.epoch = config_.epoch;
  failure.detail = (peer >= 0 ? "connection to rank " + std::to_string(peer) +
                            " (" + api_->provider + "): "
                              : "") +
      std::move(what);
  failure_ = std::move(failure);
}

} // namespace jlaunch
