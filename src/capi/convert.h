// One function per struct, C to C++ and back. The functions check only what the conversion itself
// depends on; the engine checks its own rules.
#pragma once

#include "capi/config.h"
#include "capi/objects.h"
#include "ferry/exchange.h"
#include "ferry/ferry.h"
#include "ferry/group.h"

namespace ferry::capi {

struct GroupSettings {
  GroupOptions options = {};
  Allocator allocator = {};
};

GroupSettings to_group_settings(const ferry_group_options* given);  // NULL: the defaults
AllGather to_all_gather(const ferry_all_gather* given);
DispatchArgs to_dispatch_args(const ferry_dispatch_args* given);
// If the caller gave a `dispatched`, it is converted into `dispatched`, to which the result points.
CombineArgs to_combine_args(const ferry_combine_args* given, DispatchArgs& dispatched);

ferry_config from_config(const ExchangeConfig& config, const FlatReplicas& replicas);
ferry_received from_received(ReceivedOwner& owner);
ferry_output_rows from_output_rows(OutputsOwner& owner);
ferry_counts from_handle(const Handle& handle);
ferry_window from_window_bytes(const WindowBytes& bytes);
ferry_stats from_stats(const ExchangeStats& stats);
ferry_times from_times(const OperationTimes& times);
ferry_span from_span(const OperationTimes::Span& span);

}  // namespace ferry::capi
