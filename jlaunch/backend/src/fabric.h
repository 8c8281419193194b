#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "connection.h"
#include "error.h"
#include "verbs.h"
#include "wire.h"

/**
 * The fabric: a group's devices, its connections, and the frames that travel
 * over them. All frames lie in one arena, registered once per device.
 *
 * Sending: take a frame, fill it, send it to one peer or to several (it is free
 * again when all have it). Receiving: arrived frames wait in their peer's inbox,
 * in order; the front one is looked at and popped, which posts its buffer anew.
 * A frame that nobody pops holds its peer back: that is the flow control.
 *
 * Between two ranks run 1 to 4 wires, a queue pair each. The frames to a peer
 * take them in turns, so a big message is striped over all, and the receiver,
 * taking them in the same turns, has them in order.
 *
 * One thread at a time. After a failure nothing more is sent or received.
 */
namespace jlaunch {

/** Whole pages of private memory. */
class Arena {
 public:
  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::span<std::byte> bytes() const {
    return bytes_;
  }

 private:
  std::span<std::byte> bytes_;
};

class Fabric {
 public:
  struct Config {
    int rank = 0;
    int size = 1;
    std::uint32_t epoch = 1;
    std::uint64_t group = 0;
    /** By peer, one device for each wire; none to a peer: no connection. Empty:
     *  the provider's first device, with `wires` to each of `peers`. */
    std::vector<std::vector<std::string>> devices;
    std::uint32_t wires = 1;
    /** Who is connected to us; empty: all others. */
    std::vector<int> peers;
    std::string bell_path;
    std::uint64_t bell_offset = 0;
  };

  /** A frame that was received and not popped. */
  struct View {
    const FrameHeader* header = nullptr;
    const std::byte* payload = nullptr;

    explicit operator bool() const {
      return header != nullptr;
    }
  };

  using FrameIndex = std::uint32_t;

  /** Frames each way per wire: one is copied while one travels, and two
   *  more for a peer that is late by a time slice. */
  static constexpr std::uint32_t kDepth = 4;
  /** Point-to-point bytes per peer that are put aside while something else is
   *  waited for. */
  static constexpr std::size_t kHeldBytes = std::size_t{8} << 20;

  Fabric(std::shared_ptr<const VerbsApi> api, Config config);

  int rank() const {
    return config_.rank;
  }
  int size() const {
    return config_.size;
  }
  /** Payload bytes of a frame: a multiple of 64. The group's least, once
   *  connected. */
  std::uint32_t frame_bytes() const {
    return frame_bytes_;
  }
  /** True if peers wake us through the bell. */
  bool has_bell() const;
  /** True if what was sent arrives even if we exit. */
  bool outlives_us() const {
    return api_->outlives_us();
  }

  std::vector<std::byte> address() const;
  /** Throws VerbsError naming the peer. */
  void connect(std::span<const std::vector<std::byte>> addresses);

  /** Handles what has completed; returns how much that was. */
  int poll();

  /** True if one more frame may be sent to the peer. */
  bool room(int peer, std::uint32_t frames = 1) const {
    const auto& to = peers_[index(peer)];
    const auto wires = to.wires.size();
    for (std::uint32_t i = 0; i < frames; ++i) {
      const auto& wire = to.wires[(to.sent + i) % wires];
      if (wire.outstanding + i / wires >= kDepth) {
        return false;
      }
    }
    return true;
  }
  /** Wires to the peer; 0 if it is not connected to us. */
  std::uint32_t wires(int peer) const {
    return static_cast<std::uint32_t>(peers_[index(peer)].wires.size());
  }
  /** Frames sent to the peer that have not left yet. */
  std::uint32_t outstanding(int peer) const {
    return peers_[index(peer)].outstanding;
  }
  /** An unused frame. REQUIRES: some peer has room. */
  FrameIndex take();
  std::byte* payload(FrameIndex frame) {
    return send_frame(frame) + sizeof(FrameHeader);
  }
  /** Sends a taken frame; the header's magic, version, source, epoch and group
   *  are filled in here. To all that are connected, or to one. REQUIRES: room. */
  void broadcast(FrameIndex frame, const FrameHeader& header);
  void send(FrameIndex frame, const FrameHeader& header, int peer);
  /** True if everything sent has left. */
  bool all_sent() const;

  View front(int peer) const;
  void pop(int peer);

  /** Puts the front frame of the inbox aside, so that those behind it come
   *  forward; false if no more can be held. */
  bool hold(int peer);
  View held_front(int peer) const;
  void pop_held(int peer);

  /** The first failure of a call or a completion. */
  const std::optional<Failure>& failure() const {
    return failure_;
  }
  /** Frames of an older epoch or another group that were dropped. */
  std::uint64_t dropped() const {
    return dropped_;
  }

 private:
  struct Held {
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  struct Wire {
    Connection connection;
    std::uint32_t first_frame = 0; // number of its first receive frame
    std::uint32_t outstanding = 0; // sends
    std::array<bool, kDepth> posted{}; // receive frames that are posted
    std::array<FrameIndex, kDepth> inbox{}; // ring
    std::uint64_t arrived = 0;
    std::uint64_t popped = 0;
  };
  struct Peer {
    std::vector<Wire> wires; // none to ourselves
    std::uint64_t sent = 0; // frames: the next takes wire sent % wires
    std::uint64_t popped = 0;
    std::uint32_t outstanding = 0; // sends, on all wires
    std::deque<Held> held;
    std::size_t held_bytes = 0;
  };

  static std::size_t index(int peer) {
    return static_cast<std::size_t>(peer);
  }
  std::size_t stride() const {
    return stride_;
  }
  std::byte* send_frame(FrameIndex frame) {
    return arena_->bytes().data() + frame * stride();
  }
  std::byte* recv_frame(const Wire& wire, FrameIndex frame) const {
    return arena_->bytes().data() +
        (users_.size() + wire.first_frame + frame) * stride_;
  }
  std::vector<std::string> devices_to(int peer) const;
  Device& device(const std::string& name, int completions);
  void open_devices();
  void connect_peer(int peer, std::span<const std::byte> address);
  void complete(const abi::ibv_wc& wc);
  void sent(const WorkId& id);
  void received(const WorkId& id, std::uint32_t bytes);
  void post(FrameIndex frame, std::uint32_t bytes, int peer);
  void post_receive(int peer, std::uint32_t wire, FrameIndex frame);
  void stamp(FrameIndex frame, const FrameHeader& header);
  void fail(int peer, std::string what);

  const std::shared_ptr<const VerbsApi> api_;
  const Config config_;
  std::uint32_t frame_bytes_;
  std::size_t stride_;
  // Closed in reverse order: connections, then devices, then the memory.
  std::optional<Arena> arena_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Peer> peers_;
  std::vector<FrameIndex> free_frames_;
  std::vector<std::uint32_t> users_; // peers that a sent frame is going to
  std::optional<Failure> failure_;
  std::uint64_t dropped_ = 0;
};

} // namespace jlaunch
