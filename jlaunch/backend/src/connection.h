#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "verbs.h"
#include "wire.h"

/**
 * One queue pair to one peer: made and walked to INIT on construction, to RTR
 * and RTS by connect. Borrows its device. One thread at a time.
 */
namespace jlaunch {

class Connection {
 public:
  /** `depth` work requests may be outstanding each way. Throws VerbsError. */
  Connection(const Device& device, int peer, std::uint32_t depth);

  const Device& device() const {
    return *device_;
  }
  Destination address() const;

  /** Does not wait for the peer. Throws VerbsError, naming it. */
  void connect(const Destination& peer);

  /** Both return 0 or an errno. REQUIRES: the bytes lie in the device's arena
   *  and stay untouched until the completion. */
  int post_send(const std::byte* frame, std::uint32_t bytes, WorkId id) const;
  int post_recv(std::byte* frame, std::uint32_t bytes, WorkId id) const;

 private:
  void modify(abi::ibv_qp_attr& attr, unsigned mask, const char* step) const;

  const Device* device_;
  int peer_;
  QpHandle qp_;
};

} // namespace jlaunch
