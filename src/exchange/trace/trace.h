// Trace: records the operations of one exchange in the file of its rank, while FERRY_TRACE is set.
// `ferry trace diff` compares the files of two runs. trace_format.h describes a record.
#pragma once

#include <cstdint>
#include <memory>

#include "exchange/setup/setup.h"
#include "exchange/trace/trace_file.h"
#include "ferry/exchange.h"
#include "group/state.h"
#include "routing/route.h"

namespace ferry::internal {

class Trace {
 public:
  // Null unless FERRY_TRACE is set. Throws Error(kInvalidArgument) if its file cannot be written.
  static std::unique_ptr<Trace> open(const GroupState& group, const Setup& setup);
  Trace(TraceFile& file, const GroupState& group, const Setup& setup);

  // Call when a half of an operation in which this rank takes part has ended well. They do not
  // fail: a record that cannot be written ends the recording.
  void dispatch_sent(std::uint64_t number, const Route& route, const DispatchArgs& args) noexcept;
  void dispatch_received(std::uint64_t number, const Received& received) noexcept;
  void combine_sent(std::uint64_t number, const Route& route, const CombineArgs& args) noexcept;
  void combine_received(std::uint64_t number, const Route& route, const CombineArgs& args) noexcept;

 private:
  class Entry;
  // `route`: the number of the dispatch whose handle is used; 0: none.
  TraceRecord start(TraceKind kind, std::uint64_t number, std::uint64_t route = 0) const noexcept;
  template <typename Fill>
  void record(const TraceRecord& record, const Fill& fill) noexcept;
  static void count_tokens(Entry& entry, const Route& route) noexcept;
  static void add_weights(Entry& entry, const Route& route, const float* weights);
  void add_outputs(Entry& entry, const CombineArgs& args) const;

  TraceFile& file_;
  const Setup& setup_;
  const std::uint32_t exchange_;
};

}  // namespace ferry::internal
