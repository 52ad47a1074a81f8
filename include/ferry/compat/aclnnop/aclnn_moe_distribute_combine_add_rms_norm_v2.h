// aclnnop/aclnn_moe_distribute_combine_add_rms_norm_v2.h of CANN, for programs that are compiled
// against ferry.
#pragma once

#include "ferry/aclnn.h"
