#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "contract.h"

/**
 * What went wrong, as a plain value, and the exceptions made from it. The value
 * is what a group keeps (it is sticky); the exception is thrown once per call.
 */
namespace jlaunch {

struct LostPeer {
  int rank = -1;
  Reason reason = Reason::none;
};

struct Failure {
  enum class Kind { none, peer_lost, job_stopping, control_lost, verbs };

  Kind kind = Kind::none;
  std::vector<LostPeer> lost; // by rank, ascending
  Collective collective = Collective::none; // the one that failed first
  std::uint64_t seq = 0;
  std::uint64_t group = 0;
  std::uint32_t epoch = 0;
  double waited_s = 0;
  std::string detail; // who, what was found, what to do; one line

  explicit operator bool() const {
    return kind != Kind::none;
  }
};

/** Base: a collective could not be completed. The group is sticky after it. */
class CollectiveError : public std::runtime_error {
 public:
  explicit CollectiveError(Failure failure)
      : std::runtime_error(failure.detail), failure_(std::move(failure)) {}

  const Failure& failure() const {
    return failure_;
  }

 private:
  Failure failure_;
};

/** A peer is lost: exited, killed, paused past the limit, … */
class PeerLost : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/** The job is being stopped. */
class JobStopping : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/** The agent is gone or silent past the lease. */
class ControlLost : public JobStopping {
 public:
  using JobStopping::JobStopping;
};

/** A verbs call failed: the call, its errno in words, and a remedy. */
class VerbsError : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

/** Throws the exception of the failure's kind. */
[[noreturn]] void throw_failure(const Failure& failure);

} // namespace jlaunch
