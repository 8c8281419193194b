#include "progress.h"

namespace jlaunch {

IdlePlan IdlePlan::for_ranks(int ranks, int cores, bool bell) {
  IdlePlan plan;
  plan.bell = bell;
  plan.polls = ranks <= cores ? 1000 : 20;
  plan.yields = bell && ranks > cores ? 10 : 100;
  return plan;
}

} // namespace jlaunch
