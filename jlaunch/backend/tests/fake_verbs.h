#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "verbs.h"
#include "wire.h"

/**
 * A provider that does nothing on its own: the test scripts its completions.
 * One device, one completion queue; all posts are recorded. For one group at a
 * time, in one thread.
 */
namespace jlaunch::test {

struct FakeVerbs {
  struct Posted {
    std::uint64_t wr_id;
    std::byte* at;
    std::uint32_t bytes;
  };

  std::vector<Posted> sends;
  std::deque<Posted> receives; // posted and not completed
  std::deque<abi::ibv_wc> completions; // what the next polls give
  int post_error = 0; // what post_send returns
  int poll_error = 0; // what poll_cq returns, if not 0
  int modify_error = 0;

  /** Completes the oldest receive with this frame. */
  void deliver(
      const FrameHeader& header,
      const std::vector<std::byte>& payload);
  /** The same with a byte count of the test's choice. */
  void deliver_bytes(
      const FrameHeader& header,
      const std::vector<std::byte>& payload,
      std::uint32_t bytes);
  /** Completes every send so far that was not completed. */
  void complete_sends();
  void complete(std::uint64_t wr_id, abi::ibv_wc_status status);

  /** The table; uses the one FakeVerbs that is alive. */
  static std::shared_ptr<const VerbsApi> api();

  FakeVerbs();
  ~FakeVerbs();
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;

 private:
  std::size_t completed_sends_ = 0;
};

/** A good header of a frame from rank 1 of a group of two. */
FrameHeader frame_from_peer(
    Collective kind,
    Dtype dtype,
    std::uint64_t count,
    std::uint64_t seq);

} // namespace jlaunch::test
