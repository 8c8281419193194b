#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

/**
 * What two processes see of each other: the layout of a node file.
 *
 * A process has one node file: its queue pairs and the memory that it sends
 * from. Its owner maps it read-write, peers map it READ-ONLY: nobody writes
 * into another process, so a dead, stopped or mad peer can corrupt nobody. What
 * a peer wrote here is still only a claim: every index, offset and length is
 * checked against the reader's own mapping before it is used.
 *
 *     0             NodeHeader (identity, directory of queue pairs)
 *     kHeaderBytes  queue areas and memory extents, page-aligned, as they come
 *
 * A message is a descriptor in the sender's queue area; the receiver copies
 * the bytes out of the sender's extent (pull) and advances its own `tail`.
 */
namespace jlaunch::soft {

inline constexpr std::uint32_t kNodeMagic = 0x4a4c534e; // "JLSN"
inline constexpr std::uint32_t kNodeVersion = 1;

/** A queue pair's number: 12 bits of directory index, 12 bits of salt. */
inline constexpr std::size_t kMaxQueues = 4096;
inline constexpr std::uint32_t kQueueIndexMask = kMaxQueues - 1;
inline constexpr std::uint32_t kQueueSaltShift = 12;

inline constexpr std::size_t kHeaderBytes = 65536;
inline constexpr std::size_t kBellPathBytes = 768;

struct NodeHeader {
  std::atomic<std::uint32_t> magic; // set last
  std::uint32_t version;
  /** Offset of the queue area, by directory index; 0 if there is none. */
  std::array<std::atomic<std::uint64_t>, kMaxQueues> queues;
};

static_assert(sizeof(NodeHeader) <= kHeaderBytes);

/** One message that waits to be pulled: where it lies in this node file. */
struct Descriptor {
  std::atomic<std::uint64_t> offset;
  std::atomic<std::uint32_t> length;
  std::uint32_t reserved;
};

/**
 * One queue pair. Only its owner writes; all that a peer polls is in the first
 * cache line. Messages are counted from 0 and never wrap (64 bits).
 */
struct QueueArea {
  /** 0 once destroyed; what was posted before may still be pulled. */
  alignas(64) std::atomic<std::uint32_t> qp_num;
  /** The queue pair that this one is connected to, set when it has mapped it
   *  (so `attached` and `paired` are read from here by the peer). */
  std::atomic<std::uint32_t> dest_qp_num;
  std::atomic<std::uint64_t> dest_node;
  /** Messages posted: slots below it may be read. */
  std::atomic<std::uint64_t> head;
  /** Messages pulled from the peer: the peer may reuse those buffers. */
  std::atomic<std::uint64_t> tail;

  /** Set before qp_num is, constant afterwards. */
  alignas(64) std::uint32_t slots; // a power of two
  std::uint32_t depth; // sends that the owner may have outstanding
  std::uint64_t bell_offset; // in the file below: bell word, sleepers word
  std::array<char, kBellPathBytes> bell_path; // "" if the owner has no bell

  alignas(64) Descriptor first; // `slots` of them follow

  Descriptor& slot(std::uint64_t message) {
    return (&first)[message & (slots - 1)];
  }
};

inline constexpr std::size_t queue_area_bytes(std::uint32_t slots) {
  return offsetof(QueueArea, first) + slots * sizeof(Descriptor);
}

/** Two words in a file that the owner of a queue pair sleeps on. */
struct Bell {
  std::atomic<std::uint32_t> rung;
  std::atomic<std::uint32_t> sleepers;
};

} // namespace jlaunch::soft
