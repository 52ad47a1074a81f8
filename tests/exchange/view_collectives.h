// Collectives that are made in a view of a group.
#pragma once

#include "ferry/group.h"

namespace ferry::test {

// Makes collectives and calls all of them, with results that must be right. `lost`: a rank that the
// view lacks, which they must refuse.
void require_collectives(const Group& group, int lost);

}  // namespace ferry::test
