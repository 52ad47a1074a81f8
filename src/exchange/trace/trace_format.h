// The file that FERRY_TRACE writes for each rank: a TraceHead, then a TraceRecord for each exchange
// and each half of an operation, in the order of the calls. trace_file.cc writes it, `ferry trace
// diff` (tools/trace) reads it. Numbers have the byte order of the host.
//
// A record has one digest for each part of the half, such as the ids of a dispatch or the rows that
// it sends. Its detail, 32-bit words behind it, names the elements of the parts, part after part in
// the order of TracePart:
//   ids, weights    [tokens, top_k]  the id, -1 where nothing is sent; the bits of the float
//   addends         [tokens]         a digest of the biases, the shared output, and the residual
//                                    with gamma and epsilon of its norm
//   rows sent       [tokens]         of a dispatch: a digest of the row and the caller's scales
//                   [rows]           of a combine: a digest of the output row and its row weights
//   rows received   [rows, 4]        source rank, token, k; a digest of the row with its scales,
//                                    weights and ids
//   results         [tokens]         a digest of all results of the token
// Rows of gaps and padding are not recorded. The detail of the settings of an exchange is text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ferry::internal {

inline constexpr std::array<char, 8> kTraceMagic = {'f', 'e', 'r', 'r', 'y', 't', 'r', '1'};

// Details are recorded while the file is smaller than the first; after that a record takes
// sizeof(TraceRecord), and recording ends when the file has the second size.
inline constexpr std::uint64_t kTraceDetailBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kTraceMostBytes = std::uint64_t{512} << 20;

enum class TraceKind : std::uint32_t {
  kSettings,
  kDispatchSent,
  kDispatchReceived,
  kCombineSent,
  kCombineReceived,
};

// The parts of a record, in the order in which one causes the next.
enum class TracePart : std::uint32_t {
  kIds,
  kWeights,
  kAddends,
  kRowsSent,
  kRowsReceived,
  kResults
};
inline constexpr int kNumTraceParts = 6;
inline constexpr std::array<std::string_view, kNumTraceParts> kTracePartNames = {
    "ids", "weights", "addends", "rows sent", "rows received", "results"};

struct TraceHead {
  std::array<char, 8> magic = kTraceMagic;
  std::int32_t rank = 0;  // the number in the name of the file
  std::int32_t reserved = 0;
};

struct TraceRecord {
  TraceKind kind = TraceKind::kSettings;
  std::uint32_t exchange = 0;      // exchanges of this file are numbered from 0
  std::uint64_t number = 0;        // number of the operation in its exchange
  std::uint64_t route = 0;         // send half: the dispatch whose handle it uses; 0: none
  std::uint64_t detail_bytes = 0;  // bytes of the detail behind the record
  std::int64_t tokens = 0, rows = 0;
  std::int32_t top_k = 0, rank = 0;                        // `rank`: in the group
  std::array<std::uint64_t, kNumTraceParts> digests = {};  // by TracePart; 0: no such part
};
static_assert(sizeof(TraceRecord) == 104);

}  // namespace ferry::internal
