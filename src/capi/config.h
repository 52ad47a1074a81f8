// Conversion of ferry_config from C to C++, which libferry and libferry_plan both use.
#pragma once

#include "ferry/config.h"
#include "ferry/ferry.h"

namespace ferry::capi {

ExchangeConfig to_config(const ferry_config* given);

}  // namespace ferry::capi
