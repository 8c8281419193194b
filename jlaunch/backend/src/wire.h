#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "contract.h"
#include "group.h"

/**
 * All that a peer notices: the header of each message, the fingerprint of a
 * call, the numbers of work requests, the address by which a rank is reached.
 *
 * Every frame begins with a header that is checked before its data is used.
 * That, and not a comparison of control blocks, is what makes a desync (ranks
 * that call different things) impossible to miss, and a frame of an old epoch
 * harmless. Little-endian, as all machines that MLX runs on are.
 */
namespace jlaunch {

inline constexpr std::uint32_t kFrameMagic = 0x4a4c4652; // "JLFR"
inline constexpr std::uint16_t kWireVersion = 2;

/** What a frame carries, within its collective. */
enum class Stage : std::uint32_t {
  data = 0, // the sender's input: reduced or gathered by the receiver
  result = 1, // a reduced piece, final
};

struct alignas(64) FrameHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t source; // rank in the group
  std::uint32_t epoch;
  std::uint32_t length; // bytes of payload after the header
  std::uint64_t group;
  /** Collectives: number in the group, from 1. send, recv: number between the
   *  two ranks in this direction, from 1. */
  std::uint64_t seq;
  std::uint64_t fingerprint; // of the sender's call
  std::uint32_t chunk; // number of the piece, per stage, from 0
  Stage stage;
};

static_assert(sizeof(FrameHeader) == 64);
static_assert(std::is_trivially_copyable_v<FrameHeader>);

/**
 * A call in one number, without loss up to 2^48 - 1 elements, so that a desync
 * can name both: kind (8 bits), dtype (8), count (48). A recv has the
 * fingerprint of the send that it matches.
 */
constexpr std::uint64_t fingerprint(
    Collective kind,
    Dtype dtype,
    std::uint64_t count) {
  return (static_cast<std::uint64_t>(kind) << 56) |
      (static_cast<std::uint64_t>(dtype) << 48) | (count & 0xFFFF'FFFF'FFFF);
}

constexpr Collective kind_of(std::uint64_t fingerprint) {
  return static_cast<Collective>(fingerprint >> 56);
}

constexpr bool is_point_to_point(Collective kind) {
  return kind == Collective::send || kind == Collective::recv;
}

/** wr_id: what completed, with whom, over which wire, in which frame. */
struct WorkId {
  enum class Kind : std::uint8_t { send = 1, recv = 2 };

  Kind kind{};
  std::uint32_t peer = 0;
  std::uint32_t frame = 0;
  std::uint32_t wire = 0;

  constexpr std::uint64_t pack() const {
    return (static_cast<std::uint64_t>(kind) << 56) |
        (static_cast<std::uint64_t>(wire & 0xFF) << 48) |
        (static_cast<std::uint64_t>(peer & 0xFFFF) << 32) | frame;
  }
  static constexpr WorkId unpack(std::uint64_t wr_id) {
    return {
        static_cast<Kind>(wr_id >> 56),
        static_cast<std::uint32_t>(wr_id >> 32) & 0xFFFF,
        static_cast<std::uint32_t>(wr_id),
        static_cast<std::uint32_t>(wr_id >> 48) & 0xFF};
  }
};

static_assert(
    WorkId::unpack(WorkId{WorkId::Kind::recv, 7, 9}.pack()).peer == 7);

/** How one queue pair is reached. */
struct Destination {
  std::uint8_t gid[16];
  std::uint32_t qp_num;
  std::uint16_t lid;
  std::uint16_t present; // 1; 0 where there is no such wire
};

/** Queue pairs between two ranks, at most. */
inline constexpr std::uint32_t kMostWires = 4;

/** The address of a rank: this, then for each rank of the group as many
 *  Destinations as `wires` says; all zero where there is no such wire. */
struct AddressHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t rank;
  std::uint32_t epoch;
  std::uint32_t size;
  std::uint64_t group;
  std::uint32_t frame_bytes; // payload per frame that this rank offers
  std::uint16_t depth; // frames each way, per wire
  std::uint16_t wires; // Destinations per rank
};

static_assert(sizeof(Destination) == 24);
static_assert(sizeof(AddressHeader) == 32);

} // namespace jlaunch
