#include "group.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "dtype.h"
#include "fabric.h"
#include "group_impl.h"
#include "mesh.h"
#include "platform.h"
#include "progress.h"
#include "ring.h"
#include "supervision.h"

namespace jlaunch {

namespace {

/** Whom a rank is connected to: in a ring its neighbours. */
std::vector<int> peers_of(const GroupConfig& config) {
  std::vector<int> peers;
  for (int peer = 0; peer < config.size; ++peer) {
    const int apart = (peer - config.rank + config.size) % config.size;
    const bool near = apart == 1 || apart == config.size - 1;
    if (peer != config.rank && (near || !config.ring)) {
      peers.push_back(peer);
    }
  }
  return peers;
}

void require_wires(const GroupConfig& config, std::size_t wires, int peer) {
  if (wires < 1 || wires > kMostWires) {
    throw std::invalid_argument(
        std::to_string(wires) + " devices lead from rank " +
        std::to_string(config.rank) + " to rank " + std::to_string(peer) +
        ": expected 1 to " + std::to_string(kMostWires) + " for each " +
        (config.ring ? "neighbour in the ring" : "pair of the mesh"));
  }
}

Fabric::Config fabric_config(const GroupConfig& config) {
  if (!config.devices.empty() &&
      config.devices.size() != static_cast<std::size_t>(config.size)) {
    throw std::invalid_argument(
        "devices are given for " + std::to_string(config.devices.size()) +
        " ranks, the group has " + std::to_string(config.size));
  }
  Fabric::Config out;
  out.rank = config.rank;
  out.size = config.size;
  out.epoch = config.epoch;
  out.group = config.id;
  out.devices = config.devices;
  out.wires = static_cast<std::uint32_t>(config.wires);
  out.peers = peers_of(config);
  for (const int peer : out.peers) {
    const auto wires = config.devices.empty()
        ? static_cast<std::size_t>(std::max(config.wires, 0))
        : config.devices[static_cast<std::size_t>(peer)].size();
    require_wires(config, wires, peer);
  }
  if (config.block != nullptr) {
    out.bell_path = config.block_path;
    out.bell_offset = offsetof(ControlBlock, bell);
  }
  return out;
}

Supervision::Config supervision_config(const GroupConfig& config) {
  Supervision::Config out;
  out.rank = config.rank;
  out.size = config.size;
  out.epoch = config.epoch;
  out.group = config.id;
  out.world_ranks = config.world_ranks;
  out.deadline = config.deadline;
  out.block = config.block;
  out.host_block = config.host_block;
  return out;
}

// The provider's peers find the sleepers word right behind the bell.
static_assert(
    offsetof(ControlBlock, sleepers) ==
    offsetof(ControlBlock, bell) + sizeof(std::uint32_t));

/** The group of one: nobody to wait for. */
class Alone final : public Step {
 public:
  using Step::Step;

  bool advance() override {
    return true;
  }
  bool done() const override {
    return true;
  }
  bool waits_for(int) const override {
    return false;
  }
};

/** Deletes only in the process that made it: a forked child has none of our
 *  shared memory, and must not close what its parent uses. */
struct DeleteInMaker {
  std::uint32_t maker = process_generation();

  template <class T>
  void operator()(T* made) const {
    if (process_generation() == maker) {
      delete made;
    }
  }
};

template <class T>
using OwnedHere = std::unique_ptr<T, DeleteInMaker>;

template <class T, class... Args>
OwnedHere<T> make_here(Args&&... args) {
  return OwnedHere<T>(
      std::make_unique<T>(std::forward<Args>(args)...).release());
}

class MeshGroup final : public Group {
 public:
  MeshGroup(GroupConfig config, std::shared_ptr<const VerbsApi> api)
      : rank_(config.rank),
        size_(config.size),
        epoch_(config.epoch),
        ring_(config.ring && config.size > 2),
        bell_(words_of(config)),
        supervision_owner_(make_here<Supervision>(supervision_config(config))),
        fabric_owner_(make_here<Fabric>(std::move(api), fabric_config(config))),
        supervision_(*supervision_owner_),
        fabric_(*fabric_owner_),
        loop_(
            fabric_,
            supervision_,
            bell_,
            IdlePlan::for_ranks(
                ranks_here(config),
                usable_cores(),
                fabric_.has_bell())),
        scratch_(config.size),
        sent_(static_cast<std::size_t>(config.size)),
        received_(static_cast<std::size_t>(config.size)),
        connected_(config.size == 1) {}

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return size_;
  }
  std::uint32_t epoch() const override {
    return epoch_;
  }

  std::vector<std::byte> address() const override {
    return fabric_.address();
  }
  void connect(std::span<const std::vector<std::byte>> addresses) override {
    std::scoped_lock lock(call_mutex_);
    fabric_.connect(addresses);
    supervision_.formed();
    connected_ = true;
  }

  void all_sum(const void* in, void* out, std::size_t count, Dtype dtype)
      override {
    all_reduce(Collective::all_sum, ReduceOp::sum, in, out, count, dtype);
  }
  void all_max(const void* in, void* out, std::size_t count, Dtype dtype)
      override {
    all_reduce(Collective::all_max, ReduceOp::max, in, out, count, dtype);
  }
  void all_min(const void* in, void* out, std::size_t count, Dtype dtype)
      override {
    all_reduce(Collective::all_min, ReduceOp::min, in, out, count, dtype);
  }
  void all_gather(const void* in, void* out, std::size_t count, Dtype dtype)
      override;
  void sum_scatter(const void* in, void* out, std::size_t count, Dtype dtype)
      override;
  void send(const void* in, std::size_t count, Dtype dtype, int to) override;
  void recv(void* out, std::size_t count, Dtype dtype, int from) override;

  Failure failure() const override;
  void abort(Failure failure) override;

 private:
  BellWords words_of(const GroupConfig& config) {
    return config.block != nullptr
        ? BellWords{&config.block->bell, &config.block->sleepers}
        : BellWords{&own_bell_, &own_sleepers_};
  }
  /** The soft provider's ranks are all on this host; a system device's peers
   *  are behind a cable. */
  int ranks_here(const GroupConfig& config) const {
    return fabric_.outlives_us() ? config.size : 1;
  }

  void all_reduce(
      Collective kind,
      ReduceOp op,
      const void* in,
      void* out,
      std::size_t count,
      Dtype dtype);
  void copy_alone(const Call& call, const void* in, void* out);
  void go_round(
      const Call& call,
      RingShape shape,
      ReduceOp op,
      const void* in,
      void* out);
  void refuse_if_failed() const;
  void check_peer(const char* what, int peer) const;
  Call numbered(Collective kind, std::size_t count, Dtype dtype);
  void run(Step& step);

  const int rank_;
  const int size_;
  const std::uint32_t epoch_;
  const bool ring_; // of three or more: a ring of two is a mesh
  std::atomic<std::uint32_t> own_bell_{0};
  std::atomic<std::uint32_t> own_sleepers_{0};
  const BellWords bell_;

  std::mutex call_mutex_; // one collective at a time; guards what follows
  const OwnedHere<Supervision> supervision_owner_;
  const OwnedHere<Fabric> fabric_owner_;
  Supervision& supervision_;
  Fabric& fabric_;
  ProgressLoop<Supervision> loop_;
  MeshScratch scratch_;
  std::uint64_t seq_ = 0;
  std::vector<std::uint64_t> sent_; // messages, by peer
  std::vector<std::uint64_t> received_;
  bool connected_;

  std::atomic<bool> sticky_{false};
  mutable std::mutex failure_mutex_; // guards what follows
  Failure failure_;
};

void MeshGroup::refuse_if_failed() const {
  if (sticky_.load(std::memory_order_acquire)) {
    throw_failure(failure());
  }
  if (process_generation() != fabric_owner_.get_deleter().maker) {
    throw std::logic_error(
        "this process is a fork of the rank that formed the group: only that "
        "rank may use it");
  }
  if (!connected_) {
    throw std::logic_error("the group is not connected yet");
  }
}

void MeshGroup::run(Step& step) {
  auto failed = loop_.run(step);
  if (!failed) {
    return;
  }
  {
    std::scoped_lock lock(failure_mutex_);
    if (!failure_) {
      failure_ = *failed;
    }
    // Ranks that left in peace are missed only by calls that need them.
    if (!supervision_.lost_only_clean() && !sticky_) {
      failure_ = *failed;
      sticky_.store(true, std::memory_order_release);
    }
  }
  throw_failure(*failed);
}

Call MeshGroup::numbered(Collective kind, std::size_t count, Dtype dtype) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.count = count;
  call.bytes = count * size_of(dtype);
  call.seq = ++seq_;
  return call;
}

void MeshGroup::copy_alone(const Call& call, const void* in, void* out) {
  Alone step(call);
  run(step);
  if (call.bytes > 0) {
    std::memmove(out, in, call.bytes);
  }
}

void MeshGroup::go_round(
    const Call& call,
    RingShape shape,
    ReduceOp op,
    const void* in,
    void* out) {
  RingStep step(fabric_, scratch_, call, shape, op, in, out);
  run(step);
}

void MeshGroup::all_reduce(
    Collective kind,
    ReduceOp op,
    const void* in,
    void* out,
    std::size_t count,
    Dtype dtype) {
  std::scoped_lock lock(call_mutex_);
  refuse_if_failed();
  const Call call = numbered(kind, count, dtype);
  if (size_ == 1) {
    copy_alone(call, in, out);
  } else if (ring_) {
    go_round(call, RingShape::reduced, op, in, out);
  } else if (prefers_direct(size_, call.bytes)) {
    DirectReduce step(fabric_, scratch_, call, op, in, out);
    run(step);
  } else {
    ScatterReduce step(
        fabric_, scratch_, call, op, ScatterReduce::Result::gathered, in, out);
    run(step);
  }
}

void MeshGroup::all_gather(
    const void* in,
    void* out,
    std::size_t count,
    Dtype dtype) {
  std::scoped_lock lock(call_mutex_);
  refuse_if_failed();
  const Call call = numbered(Collective::all_gather, count, dtype);
  if (size_ == 1) {
    copy_alone(call, in, out);
    return;
  }
  if (ring_) {
    go_round(call, RingShape::gathered, ReduceOp::sum, in, out);
    return;
  }
  Gather step(fabric_, scratch_, call, in, out);
  run(step);
}

void MeshGroup::sum_scatter(
    const void* in,
    void* out,
    std::size_t count,
    Dtype dtype) {
  if (count % static_cast<std::size_t>(size_) != 0) {
    throw std::invalid_argument(
        "sum_scatter of " + std::to_string(count) +
        " elements: not divisible by the " + std::to_string(size_) + " ranks");
  }
  std::scoped_lock lock(call_mutex_);
  refuse_if_failed();
  const Call call = numbered(Collective::sum_scatter, count, dtype);
  if (size_ == 1) {
    copy_alone(call, in, out);
    return;
  }
  if (ring_) {
    go_round(call, RingShape::scattered, ReduceOp::sum, in, out);
    return;
  }
  ScatterReduce step(
      fabric_,
      scratch_,
      call,
      ReduceOp::sum,
      ScatterReduce::Result::scattered,
      in,
      out);
  run(step);
}

void MeshGroup::check_peer(const char* what, int peer) const {
  if (peer < 0 || peer >= size_ || peer == rank_) {
    throw std::invalid_argument(
        std::string(what) + ": rank " + std::to_string(peer) +
        " is not another rank of this group of " + std::to_string(size_) +
        " (this is rank " + std::to_string(rank_) + ")");
  }
  if (fabric_.wires(peer) == 0) {
    throw std::invalid_argument(
        std::string(what) + ": rank " + std::to_string(peer) +
        " is not a neighbour of rank " + std::to_string(rank_) +
        " in this ring of " + std::to_string(size_) +
        ": a ring sends to and receives from neighbours only; start the job "
        "with --backend jaccl for a mesh");
  }
}

void MeshGroup::send(const void* in, std::size_t count, Dtype dtype, int to) {
  check_peer("send", to);
  std::scoped_lock lock(call_mutex_);
  refuse_if_failed();
  const Call call{
      Collective::send,
      dtype,
      count,
      count * size_of(dtype),
      ++sent_[static_cast<std::size_t>(to)],
      to};
  Send step(fabric_, call, in);
  run(step);
}

void MeshGroup::recv(void* out, std::size_t count, Dtype dtype, int from) {
  check_peer("recv", from);
  std::scoped_lock lock(call_mutex_);
  refuse_if_failed();
  const Call call{
      Collective::recv,
      dtype,
      count,
      count * size_of(dtype),
      ++received_[static_cast<std::size_t>(from)],
      from};
  Receive step(fabric_, call, out);
  run(step);
}

Failure MeshGroup::failure() const {
  std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void MeshGroup::abort(Failure failure) {
  {
    std::scoped_lock lock(failure_mutex_);
    if (sticky_) {
      return;
    }
    failure_ = failure;
    sticky_.store(true, std::memory_order_release);
  }
  supervision_.abort(std::move(failure));
  bell_.ring();
}

} // namespace

std::unique_ptr<Group> open_group(
    GroupConfig config,
    std::shared_ptr<const VerbsApi> api) {
  if (config.size < 1 || config.rank < 0 || config.rank >= config.size ||
      static_cast<std::size_t>(config.size) > kMaxRanks) {
    throw std::invalid_argument(
        "rank " + std::to_string(config.rank) + " of a group of " +
        std::to_string(config.size) + " (at most " + std::to_string(kMaxRanks) +
        ")");
  }
  return std::make_unique<MeshGroup>(std::move(config), std::move(api));
}

std::unique_ptr<Group> Group::open(GroupConfig config) {
  auto api = config.size > 1 ? load_verbs(config.provider)
                             : std::make_shared<const VerbsApi>();
  return open_group(std::move(config), std::move(api));
}

} // namespace jlaunch
