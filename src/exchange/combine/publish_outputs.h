// The outputs of this rank's experts, as other ranks read them: in place, or copied into a buffer
// of the window. What other ranks must know of them is in this rank's record.
#pragma once

#include "exchange/combine/combine_call.h"
#include "ferry/status.h"

namespace ferry::internal {

// Writes the record of the combine. Rows and weights that lie in a pinned buffer of the window are
// read in place, all others are copied into a free buffer. kCapacity: there is no memory for that.
Status publish_outputs(const CombineCall& call);

}  // namespace ferry::internal
