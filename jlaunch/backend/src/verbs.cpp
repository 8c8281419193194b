#include "verbs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <dlfcn.h>

#include "platform.h"

namespace jlaunch {

using namespace abi;

namespace {

constexpr std::uint8_t kPort = 1;

[[noreturn]] void fail(std::string detail) {
  Failure failure;
  failure.kind = Failure::Kind::verbs;
  failure.detail = std::move(detail);
  throw_failure(failure);
}

/** dlopen of the first name that works; `tried` collects the reasons. */
std::shared_ptr<void> open_library(
    std::span<const char* const> names,
    std::string& tried) {
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return {handle, [](void* h) { dlclose(h); }};
    }
    const char* reason = dlerror();
    tried += std::string(tried.empty() ? "" : "; ") +
        (reason != nullptr ? reason : name);
  }
  return nullptr;
}

template <class Function>
void optional_symbol(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
}

template <class Function>
void symbol(const VerbsApi& api, const char* name, Function& out) {
  optional_symbol(api.library.get(), name, out);
  if (out == nullptr) {
    fail(
        api.provider + " has no " + name +
        ": it is not a verbs library; on macOS 26.2 or later use the "
        "system's, else --verbs soft");
  }
}

bool is_ipv4_mapped(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> prefix{
      0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(prefix.begin(), prefix.end(), gid.raw);
}

struct Remedy {
  int error; // errno here
  int on_macos; // the same errno's number there: what reports name
  const char* words;
};

constexpr Remedy kRemedies[] = {
    {ENOENT,
     2,
     "stale: the peer has closed, or its queue pair is of an old run; start "
     "all ranks again"},
    {ENOMEM,
     12,
     "out of memory regions or pinned memory (before macOS 26.3 also after "
     "some 40000 operations): fewer connections, or a reboot if a killed "
     "process left its memory pinned"},
    {EBUSY,
     16,
     "out of queue pairs (10 per device), or resources that a killed process "
     "left: wait 30 s, after several rounds reboot; check that every peer has "
     "a device of its own"},
    {EINVAL,
     22,
     "the port is a member of a bridge with an address in common, or its GID "
     "changed: give every Thunderbolt interface an own IPv4 address and take "
     "it out of bridge0"},
    {ETIMEDOUT,
     60,
     "the peer's GID cannot be reached: check the cable and the address of "
     "the peer's interface"},
    {EHOSTUNREACH,
     65,
     "no route: check the address, and macOS's Local Network privacy setting "
     "for the terminal"},
    {ENODATA,
     96,
     "the link's state is stale after idling, or the port is in a bridge: "
     "take it out of bridge0, or unplug and replug the cable"},
    {EOPNOTSUPP,
     102,
     "this kind of queue pair is not supported: only unreliable-connected "
     "(UC) ones are"},
};

} // namespace

std::string explain(int error) {
  std::string words = std::string(std::strerror(error)) + " (errno " +
      std::to_string(error) + ")";
  for (const Remedy& remedy : kRemedies) {
    if (remedy.error == error) {
      return words + ": " + remedy.words;
    }
  }
  for (const Remedy& remedy : kRemedies) {
    if (remedy.on_macos == error) {
      return words + ": " + remedy.words;
    }
  }
  return words;
}

std::string_view explain(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "the message was longer than the buffer";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the queue pair could not do it";
    case IBV_WC_LOC_PROT_ERR:
      return "our buffer is not registered for this";
    case IBV_WC_WR_FLUSH_ERR:
      return "flushed: the queue pair had failed before";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer sent something invalid";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer refused access";
    case IBV_WC_REM_OP_ERR:
      return "the peer could not do it";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer did not answer";
    case IBV_WC_FATAL_ERR:
      return "the device failed: it may have vanished";
    default:
      return "the device reported an error";
  }
}

void throw_verbs(
    const VerbsApi& api,
    std::string_view call,
    int error,
    std::string_view where) {
  // The soft provider knows what it found; the map is for the real driver.
  const char* found = api.last_error != nullptr ? api.last_error() : "";
  std::string detail = std::string(call) + " failed for " + std::string(where) +
      " (" + api.provider + "): ";
  detail += *found != '\0'
      ? std::string(found) + " (errno " + std::to_string(error) + ")"
      : explain(error);
  fail(std::move(detail));
}

std::shared_ptr<const VerbsApi> load_verbs(const std::string& provider) {
  auto api = std::make_shared<VerbsApi>();
  std::string tried;
  if (provider.empty()) {
    api->library = open_library(system_verbs_libraries(), tried);
    api->provider = system_verbs_libraries().front();
  } else {
    const char* name = provider.c_str();
    api->library = open_library({&name, 1}, tried);
    api->provider = provider;
  }
  if (api->library == nullptr) {
    fail(
        "no verbs library: " + tried +
        "; RDMA needs macOS 26.2 on Thunderbolt 5 or rdma-core on Linux, "
        "--verbs soft needs no hardware");
  }
  symbol(*api, "ibv_get_device_list", api->get_device_list);
  symbol(*api, "ibv_free_device_list", api->free_device_list);
  symbol(*api, "ibv_get_device_name", api->get_device_name);
  symbol(*api, "ibv_open_device", api->open_device);
  symbol(*api, "ibv_close_device", api->close_device);
  symbol(*api, "ibv_alloc_pd", api->alloc_pd);
  symbol(*api, "ibv_dealloc_pd", api->dealloc_pd);
  symbol(*api, "ibv_reg_mr", api->reg_mr);
  symbol(*api, "ibv_dereg_mr", api->dereg_mr);
  symbol(*api, "ibv_create_cq", api->create_cq);
  symbol(*api, "ibv_destroy_cq", api->destroy_cq);
  symbol(*api, "ibv_create_qp", api->create_qp);
  symbol(*api, "ibv_destroy_qp", api->destroy_qp);
  symbol(*api, "ibv_modify_qp", api->modify_qp);
  symbol(*api, "ibv_query_port", api->query_port);
  symbol(*api, "ibv_query_gid", api->query_gid);
  void* library = api->library.get();
  optional_symbol(library, "jlaunch_soft_set_bell", api->set_bell);
  optional_symbol(library, "jlaunch_soft_seal", api->seal);
  optional_symbol(library, "jlaunch_soft_error", api->last_error);
  return api;
}

Device::Device(std::shared_ptr<const VerbsApi> api, const Config& config)
    : api_(std::move(api)) {
  open(config.name);
  if (!config.bell_path.empty() && api_->set_bell != nullptr) {
    const int error = api_->set_bell(
        context_.get(), config.bell_path.c_str(), config.bell_offset);
    if (error != 0) {
      throw_verbs(*api_, "jlaunch_soft_set_bell", error, name_);
    }
    has_bell_ = true;
  }
  query();
  domain_ = {api_->alloc_pd(context_.get()), api_->dealloc_pd};
  if (domain_.get() == nullptr) {
    throw_verbs(*api_, "ibv_alloc_pd", errno, name_);
  }
  cq_ = {
      api_->create_cq(context_.get(), config.completions, nullptr, nullptr, 0),
      api_->destroy_cq};
  if (cq_.get() == nullptr) {
    throw_verbs(*api_, "ibv_create_cq", errno, name_);
  }
  region_ = {
      api_->reg_mr(
          domain_.get(),
          config.arena.data(),
          config.arena.size(),
          IBV_ACCESS_LOCAL_WRITE),
      api_->dereg_mr};
  if (region_.get() == nullptr) {
    throw_verbs(*api_, "ibv_reg_mr", errno, name_);
  }
}

void Device::open(const std::string& wanted) {
  int count = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(
      api_->get_device_list(&count), api_->free_device_list);
  std::string known;
  for (int i = 0; list != nullptr && i < count; ++i) {
    ibv_device* device = list.get()[i];
    const std::string name = api_->get_device_name(device);
    if (wanted.empty() || name == wanted) {
      name_ = name;
      context_ = {api_->open_device(device), api_->close_device};
      if (context_.get() == nullptr) {
        throw_verbs(*api_, "ibv_open_device", errno, name_);
      }
      return;
    }
    known += (known.empty() ? "" : ", ") + name;
  }
  fail(
      api_->provider + " has no device " +
      (wanted.empty() ? "at all" : wanted) +
      "; it has: " + (known.empty() ? "none" : known) +
      ". Names may change after a reboot or re-cabling: check ibv_devices "
      "against the hosts file");
}

void Device::query() {
  ibv_port_attr port{};
  int error = api_->query_port(context_.get(), kPort, &port);
  if (error != 0) {
    throw_verbs(*api_, "ibv_query_port", error, name_);
  }
  address_.lid = port.lid;
  max_message_ = port.max_msg_sz;
  for (int index = 0; index < port.gid_tbl_len && index < 256; ++index) {
    ibv_gid gid{};
    error = api_->query_gid(context_.get(), kPort, index, &gid);
    if (error == 0 && is_ipv4_mapped(gid)) {
      std::memcpy(address_.gid, gid.raw, sizeof(address_.gid));
      gid_index_ = static_cast<std::uint8_t>(index);
      return;
    }
  }
  fail(
      "device " + name_ + " (" + api_->provider +
      ") has no IPv4-mapped GID: give its network interface an IPv4 address");
}

void Device::seal() const {
  if (api_->seal != nullptr) {
    api_->seal(context_.get());
  }
}

} // namespace jlaunch
