#pragma once

#include <memory>

#include "group.h"
#include "verbs.h"

namespace jlaunch {

/** Group::open over a given table of verbs: the tests' way in. */
std::unique_ptr<Group> open_group(
    GroupConfig config,
    std::shared_ptr<const VerbsApi> api);

} // namespace jlaunch
