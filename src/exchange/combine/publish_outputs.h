// Publishes the outputs of this rank's experts. Other ranks read them in place, or in a buffer of
// the window to which they were copied. This rank's record says where they lie.
#pragma once

#include "exchange/combine/combine_call.h"
#include "ferry/status.h"

namespace ferry::internal {

// Writes the record of the combine. With CombineArgs::in_place, rows and weights that lie in a
// pinned buffer of the window are read there. All others are copied into a free buffer; kCapacity:
// there is no memory for that.
Status publish_outputs(const CombineCall& call);

}  // namespace ferry::internal
