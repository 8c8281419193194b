#include "error.h"

namespace jlaunch {

void throw_failure(const Failure& failure) {
  switch (failure.kind) {
    case Failure::Kind::peer_lost:
      throw PeerLost(failure);
    case Failure::Kind::job_stopping:
      throw JobStopping(failure);
    case Failure::Kind::control_lost:
      throw ControlLost(failure);
    case Failure::Kind::verbs:
    case Failure::Kind::none:
      break;
  }
  throw VerbsError(failure);
}

} // namespace jlaunch
