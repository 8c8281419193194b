#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "error.h"
#include "verbs_abi.h"
#include "wire.h"

/**
 * Verbs: the functions that JACCL uses, from a provider opened at run time (or
 * a fake, in tests), and owners for what they make. Each handle is made
 * complete or throws VerbsError, and is closed in reverse order.
 *
 * Facts about Apple's librdma (operators' reports, 2026; macOS 26.2 and later):
 * UC queue pairs only; 10 per device; 100 regions per protection domain; one
 * sge, nothing inline, no shared receive queue; a receive posted beyond the
 * queue's depth does not fail but corrupts; a region of 2^32 bytes or more
 * corrupts. The three hot calls are no symbols: they go through context->ops.
 */
namespace jlaunch {

struct VerbsApi {
  std::string provider; // what was opened, for messages
  std::shared_ptr<void> library; // keeps the functions in memory

  abi::ibv_device** (*get_device_list)(int*) = nullptr;
  void (*free_device_list)(abi::ibv_device**) = nullptr;
  const char* (*get_device_name)(abi::ibv_device*) = nullptr;
  abi::ibv_context* (*open_device)(abi::ibv_device*) = nullptr;
  int (*close_device)(abi::ibv_context*) = nullptr;
  abi::ibv_pd* (*alloc_pd)(abi::ibv_context*) = nullptr;
  int (*dealloc_pd)(abi::ibv_pd*) = nullptr;
  abi::ibv_mr* (*reg_mr)(abi::ibv_pd*, void*, std::size_t, int) = nullptr;
  int (*dereg_mr)(abi::ibv_mr*) = nullptr;
  abi::ibv_cq* (*create_cq)(abi::ibv_context*, int, void*, void*, int) =
      nullptr;
  int (*destroy_cq)(abi::ibv_cq*) = nullptr;
  abi::ibv_qp* (*create_qp)(abi::ibv_pd*, abi::ibv_qp_init_attr*) = nullptr;
  int (*destroy_qp)(abi::ibv_qp*) = nullptr;
  int (*modify_qp)(abi::ibv_qp*, abi::ibv_qp_attr*, int) = nullptr;
  int (*query_port)(abi::ibv_context*, std::uint8_t, abi::ibv_port_attr*) =
      nullptr;
  int (*query_gid)(abi::ibv_context*, std::uint8_t, int, abi::ibv_gid*) =
      nullptr;

  // The soft provider's extensions; null elsewhere.
  int (*set_bell)(abi::ibv_context*, const char*, std::uint64_t) = nullptr;
  void (*seal)(abi::ibv_context*) = nullptr;
  const char* (*last_error)() = nullptr;

  /** True if what was posted can be received even after we have exited. */
  bool outlives_us() const {
    return seal != nullptr;
  }
};

/** Opens a provider by name or path. Throws VerbsError: what was tried, what
 *  is missing. */
std::shared_ptr<const VerbsApi> load_verbs(const std::string& provider);

/** The errno in words, with what usually is behind it and what to do. */
std::string explain(int error);

/** A completion's status in words. */
std::string_view explain(abi::ibv_wc_status status);

/** Throws VerbsError: the call, its errno in words, a remedy. `where` names the
 *  device or the peer. */
[[noreturn]] void throw_verbs(
    const VerbsApi& api,
    std::string_view call,
    int error,
    std::string_view where);

/** Owns what one verbs call made and another destroys. */
template <class T>
class VerbsHandle {
 public:
  using Destroy = int (*)(T*);

  VerbsHandle() = default;
  VerbsHandle(T* made, Destroy destroy) : owned_(made, Closer{destroy}) {}

  T* get() const {
    return owned_.get();
  }
  T* operator->() const {
    return owned_.get();
  }

 private:
  struct Closer {
    Destroy destroy = nullptr;
    void operator()(T* made) const {
      destroy(made); // nothing to be done about an error while closing
    }
  };
  std::unique_ptr<T, Closer> owned_;
};

using ContextHandle = VerbsHandle<abi::ibv_context>;
using DomainHandle = VerbsHandle<abi::ibv_pd>;
using RegionHandle = VerbsHandle<abi::ibv_mr>;
using CqHandle = VerbsHandle<abi::ibv_cq>;
using QpHandle = VerbsHandle<abi::ibv_qp>;

/** An open device with its protection domain, completion queue, and the memory
 *  that its queue pairs use. One thread at a time. */
class Device {
 public:
  struct Config {
    std::string name; // "": the provider's first
    int completions = 64; // outstanding work requests, of all queue pairs
    std::span<std::byte> arena; // registered; outlives the device
    std::string bell_path; // file with our bell; "" if we have none
    std::uint64_t bell_offset = 0;
  };

  /** Throws VerbsError. */
  Device(std::shared_ptr<const VerbsApi> api, const Config& config);

  const VerbsApi& api() const {
    return *api_;
  }
  const std::string& name() const {
    return name_;
  }
  abi::ibv_pd* domain() const {
    return domain_.get();
  }
  abi::ibv_cq* completions() const {
    return cq_.get();
  }
  std::uint32_t lkey() const {
    return region_->lkey;
  }
  std::uint8_t gid_index() const {
    return gid_index_;
  }
  /** Largest message that the port takes; 0 if it does not say. */
  std::uint32_t max_message() const {
    return max_message_;
  }
  /** True if peers can wake us through the bell. */
  bool has_bell() const {
    return has_bell_;
  }
  /** Our address, less the queue pair's number. */
  const Destination& address() const {
    return address_;
  }

  /** Number of completions, negative on error, as ibv_poll_cq. */
  int poll(std::span<abi::ibv_wc> out) const {
    return context_->ops.poll_cq(
        cq_.get(), static_cast<int>(out.size()), out.data());
  }

  /** No more queue pairs will be made. */
  void seal() const;

 private:
  void open(const std::string& wanted);
  void query();

  std::shared_ptr<const VerbsApi> api_;
  std::string name_;
  ContextHandle context_;
  DomainHandle domain_;
  CqHandle cq_;
  RegionHandle region_;
  Destination address_{};
  std::uint8_t gid_index_ = 0;
  std::uint32_t max_message_ = 0;
  bool has_bell_ = false;
};

} // namespace jlaunch
