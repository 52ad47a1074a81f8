// aclnnop/aclnn_moe_distribute_combine_add_rms_norm.h of CANN, for programs that are compiled
// against ferry.
#pragma once

#include "ferry/aclnn.h"
