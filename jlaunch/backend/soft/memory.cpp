#include "memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <vector>

#include <sys/mman.h>

namespace jlaunch::soft {

namespace {

bool whole_pages_only(const void* at, std::size_t bytes) {
  const auto page = page_size();
  return reinterpret_cast<std::uintptr_t>(at) % page == 0 &&
      bytes % page == 0 && bytes > 0;
}

/** All shared pages of this process, so that none is put onto two files. */
struct SharedRanges {
  std::mutex mutex;
  std::vector<std::weak_ptr<SharedPages>> ranges;
};

SharedRanges& shared_ranges() {
  static SharedRanges ranges;
  return ranges;
}

/** The shared pages that hold these bytes, made if need be; null if the memory
 *  cannot be shared. */
std::shared_ptr<SharedPages> share(
    const std::shared_ptr<Node>& node,
    void* at,
    std::size_t bytes) {
  auto* address = static_cast<std::byte*>(at);
  auto& known = shared_ranges();
  std::scoped_lock lock(known.mutex);
  std::erase_if(known.ranges, [](const auto& r) { return r.expired(); });
  bool free = true;
  for (const auto& weak : known.ranges) {
    const auto pages = weak.lock();
    if (pages == nullptr) {
      continue;
    }
    if (&pages->node() == node.get() && pages->contains(address, bytes)) {
      return pages;
    }
    free = free && !pages->overlaps(address, bytes);
  }
  if (!free || !whole_pages_only(at, bytes)) {
    return nullptr;
  }
  auto pages = std::make_shared<SharedPages>(node, at, bytes);
  known.ranges.push_back(pages);
  return pages;
}

} // namespace

SharedPages::SharedPages(
    std::shared_ptr<Node> node,
    void* address,
    std::size_t bytes)
    : node_(std::move(node)),
      address_(static_cast<std::byte*>(address)),
      bytes_(bytes),
      extent_(node_->allocate(bytes)) {
  try {
    const Mapping copy(
        node_->file(), extent_.offset, bytes_, PROT_READ | PROT_WRITE);
    std::memcpy(copy.data(), address_, bytes_);
  } catch (...) {
    node_->release(extent_);
    throw;
  }
  if (mmap(
          address_,
          bytes_,
          PROT_READ | PROT_WRITE,
          MAP_SHARED | MAP_FIXED,
          node_->file().fd(),
          static_cast<off_t>(extent_.offset)) == MAP_FAILED) {
    const int error = errno;
    node_->release(extent_);
    throw std::system_error(error, std::generic_category(), "mmap");
  }
#if defined(MADV_DONTFORK)
  madvise(address_, bytes_, MADV_DONTFORK);
#endif
}

SharedPages::~SharedPages() {
  // The program goes on using this memory: back to private pages, same content.
  const std::vector<std::byte> content(address_, address_ + bytes_);
  if (mmap(
          address_,
          bytes_,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
          -1,
          0) == MAP_FAILED) {
    return; // stays shared: the extent must stay as well
  }
  std::memcpy(address_, content.data(), bytes_);
  if (!keep_) {
    node_->release(extent_);
  }
}

Region::Region(
    std::shared_ptr<Node> node,
    abi::ibv_pd& owner,
    void* at,
    std::size_t bytes)
    : abi::ibv_mr{}, node_(std::move(node)), pages_(share(node_, at, bytes)) {
  context = owner.context;
  pd = &owner;
  addr = at;
  length = bytes;
  if (pages_ == nullptr) {
    extent_ = node_->allocate(bytes);
    shadow_ = Mapping(
        node_->file(), extent_.offset, extent_.bytes, PROT_READ | PROT_WRITE);
  }
}

Region::~Region() {
  if (pages_ == nullptr && !keep_) {
    node_->release(extent_);
  }
}

std::uint64_t Region::publish(std::uint64_t at, std::uint32_t bytes) {
  const auto* from = reinterpret_cast<const std::byte*>(at);
  if (pages_ != nullptr) {
    return pages_->offset_of(from);
  }
  const auto within = at - reinterpret_cast<std::uintptr_t>(addr);
  std::memcpy(shadow_.data() + within, from, bytes);
  return extent_.offset + within;
}

void Region::keep_extent() {
  keep_ = true;
  if (pages_ != nullptr) {
    pages_->keep_extent();
  }
}

bool RegionTable::add(Region& region) {
  for (std::uint32_t key = 1; key < kCapacity; ++key) {
    Region* empty = nullptr;
    if (regions_[key].compare_exchange_strong(empty, &region)) {
      region.lkey = key;
      region.rkey = key;
      region.handle = key;
      return true;
    }
  }
  return false;
}

void RegionTable::remove(const Region& region) {
  regions_[region.lkey].store(nullptr, std::memory_order_release);
}

RegionTable& regions() {
  static RegionTable table;
  return table;
}

} // namespace jlaunch::soft
