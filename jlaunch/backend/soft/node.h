#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "layout.h"
#include "mapping.h"

/**
 * A node: this process's file in $JLAUNCH_SOFT_DIR, what lies in it, and how a
 * peer finds it.
 *
 * Found by name: the name is made of the lid and the low 24 bits of the GID,
 * all that verbs lets two ranks exchange. The name is taken away as soon as
 * every peer has mapped the file (see seal), else when the node is closed; what
 * a SIGKILL leaves goes with the directory, which belongs to the job's epoch.
 */
namespace jlaunch::soft {

/** What a node is called, within its directory. */
struct NodeId {
  std::uint16_t lid = 0;
  std::uint32_t low = 0; // 24 bits: the last three bytes of the GIDs

  std::uint64_t packed() const {
    return (std::uint64_t{lid} << 32) | low;
  }
  std::string file_name() const;
};

/** A page-aligned piece of the node file. */
struct Extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

class Node {
 public:
  /**
   * The node of this process for the directory $JLAUNCH_SOFT_DIR: shared by
   * its contexts as long as it still has its name. Throws std::system_error
   * (ENOENT: no directory is given; EACCES: it is not private to this user).
   */
  static std::shared_ptr<Node> acquire();

  Node(std::string directory);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& directory() const {
    return directory_;
  }
  NodeId id() const {
    return id_;
  }
  const File& file() const {
    return file_;
  }

  /** Space in the file, really there. Throws std::system_error (ENOSPC). */
  Extent allocate(std::size_t bytes);
  /** Gives an extent back; its pages may be handed out again. */
  void release(Extent extent);

  /** A new number for a queue pair whose area is at `offset`; 0 if full. */
  std::uint32_t enter_queue(std::uint64_t offset);
  void leave_queue(std::uint32_t qp_num);

  /** True while peers can still find the file by its name. */
  bool named() const {
    return named_.load(std::memory_order_relaxed);
  }
  void remove_name();

 private:
  NodeHeader& header() const {
    return *reinterpret_cast<NodeHeader*>(header_.data());
  }

  const std::string directory_;
  NodeId id_;
  File file_;
  Mapping header_;
  std::atomic<bool> named_{false};
  const int pid_;

  std::mutex mutex_; // guards what follows
  std::size_t end_ = 0;
  std::vector<Extent> free_;
  std::uint32_t next_salt_ = 1;
};

/** Opens a peer's node file by its name. Throws std::system_error. */
File open_node(const std::string& directory, NodeId id);

} // namespace jlaunch::soft
