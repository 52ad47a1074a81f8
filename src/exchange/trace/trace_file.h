// TraceFile: the file of one rank of the job, to which all exchanges of the rank append records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "exchange/trace/trace_format.h"

namespace ferry::internal {

class TraceFile {
 public:
  // The file `name`, made when this process first asks for it and open until the process ends.
  // Throws Error(kInvalidArgument) if it cannot be written, or if another process writes it.
  // `from`: the first record that has a detail (FERRY_TRACE_FROM).
  static TraceFile& open(const std::string& name, int rank, std::uint64_t from);
  TraceFile(const std::string& name, int rank, std::uint64_t from);

  // The number of an exchange that begins. All ranks make exchanges in the same order, and so give
  // an exchange the same number.
  std::uint32_t next_exchange() noexcept;
  // Whether the next record has a detail.
  bool wants_detail() noexcept;
  // Writes a record. After a failed write, or at kTraceMostBytes, nothing is written any more.
  void append(TraceRecord record, std::span<const std::byte> detail) noexcept;

 private:
  const std::string name_;
  const std::uint64_t from_;
  std::mutex mutex_;  // guards the members below
  Descriptor file_;   // empty when recording has ended
  std::uint32_t num_exchanges_ = 0;
  std::uint64_t bytes_ = 0, num_records_ = 0;
};

}  // namespace ferry::internal
