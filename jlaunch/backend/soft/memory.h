#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "node.h"
#include "verbs_abi.h"

/**
 * Registered memory. Whole pages are put onto an extent of the node file (their
 * content is kept), so that a peer can pull from them without a copy on our
 * side. What is not whole pages, or lies across another region, gets a shadow:
 * an extent of the same size into which each message is copied when it is
 * posted.
 */
namespace jlaunch::soft {

/** Whole pages of this process that lie on an extent of its node file. Shared
 *  by all regions inside them; the last one turns them back into private
 *  memory. */
class SharedPages {
 public:
  /** Throws std::system_error; then nothing was changed. */
  SharedPages(std::shared_ptr<Node> node, void* address, std::size_t bytes);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  bool contains(const std::byte* address, std::size_t bytes) const {
    return address >= address_ && bytes <= bytes_ &&
        static_cast<std::size_t>(address - address_) <= bytes_ - bytes;
  }
  bool overlaps(const std::byte* address, std::size_t bytes) const {
    return address < address_ + bytes_ && address_ < address + bytes;
  }
  std::uint64_t offset_of(const std::byte* address) const {
    return extent_.offset + static_cast<std::size_t>(address - address_);
  }
  const Node& node() const {
    return *node_;
  }
  /** Never hand the extent out again: a peer may still pull from it. */
  void keep_extent() {
    keep_ = true;
  }

 private:
  std::shared_ptr<Node> node_;
  std::byte* address_;
  std::size_t bytes_;
  Extent extent_;
  std::atomic<bool> keep_{false};
};

class Region : public abi::ibv_mr {
 public:
  Region(
      std::shared_ptr<Node> node,
      abi::ibv_pd& owner,
      void* at,
      std::size_t bytes);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  bool contains(std::uint64_t at, std::uint64_t bytes) const {
    const auto start = reinterpret_cast<std::uintptr_t>(addr);
    return at >= start && bytes <= length && at - start <= length - bytes;
  }

  /** Where a peer finds these bytes in the node file; copies them there first
   *  if the region has a shadow. REQUIRES: contains(at, bytes). */
  std::uint64_t publish(std::uint64_t at, std::uint32_t bytes);

  void keep_extent();

 private:
  std::shared_ptr<Node> node_;
  std::shared_ptr<SharedPages> pages_; // null: shadow
  Extent extent_;
  Mapping shadow_;
  bool keep_ = false;
};

/** The regions of this process by lkey; lock-free to read. */
class RegionTable {
 public:
  static constexpr std::size_t kCapacity = 65536;

  /** Gives the region its keys; false if the table is full. */
  bool add(Region& region);
  void remove(const Region& region);
  /** Null if there is none. The caller keeps it from being deregistered. */
  Region* find(std::uint32_t lkey) const {
    return lkey < kCapacity ? regions_[lkey].load(std::memory_order_acquire)
                            : nullptr;
  }

 private:
  std::array<std::atomic<Region*>, kCapacity> regions_{};
};

RegionTable& regions();

} // namespace jlaunch::soft
