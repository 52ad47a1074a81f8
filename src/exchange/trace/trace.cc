#include "exchange/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>
#include <vector>

#include "base/environment.h"
#include "bootstrap/launcher.h"
#include "exchange/setup/configuration.h"
#include "traffic/choose.h"

namespace ferry::internal {

namespace {

// A digest that begins with `digest` and goes on with these bytes. Each step is a bijection of the
// digest so far, so two inputs of one length that differ in one word have different digests.
std::uint64_t digest_on(std::uint64_t digest, const void* data, std::size_t bytes) noexcept {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  const auto* at = static_cast<const std::byte*>(data);
  for (std::uint64_t word = 0; bytes > 0;) {
    const std::size_t taken = std::min(bytes, sizeof word);
    word = 0;
    std::memcpy(&word, at, taken);
    digest = (digest ^ word) * kOdd;
    digest ^= digest >> 32;
    at += taken, bytes -= taken;
  }
  return digest;
}

// Row `row` of an array whose rows have `row_bytes` each; null stays null.
const void* at_row(const void* data, std::int64_t row, std::size_t row_bytes) noexcept {
  return data ? static_cast<const std::byte*>(data) + row * row_bytes : nullptr;
}

// The digest of all parts of a row or a token.
class RowDigest {
 public:
  void add(const void* data, std::size_t bytes) noexcept {
    if (data) digest_ = digest_on(digest_, data, bytes);
  }
  // Half of the digest, since a word of a detail has 32 bits.
  std::uint32_t word() const noexcept { return static_cast<std::uint32_t>(digest_ >> 32); }

 private:
  std::uint64_t digest_ = 1;
};

std::int64_t id_of(const TopkIds& ids, std::int64_t entry) noexcept {
  return ids.type == IndexType::kInt32 ? static_cast<const std::int32_t*>(ids.data)[entry]
                                       : static_cast<const std::int64_t*>(ids.data)[entry];
}

// The number in the name of a rank's file. Groups that meet through a caller's all-gather may be
// parts of a job, so there the launcher's number of the process is taken, if there is one.
int number_in_job(const GroupState& group) {
  if (group.origin().launcher != "callback") return group.rank();
  try {
    return launch_from_environment(environment).rank;
  } catch (const Error&) {
    return group.rank();  // no launcher
  }
}

// Calls use(index in [T, K], whether the entry is sent) for each entry. Ids and weights that are
// not sent may be anything, so they are not recorded.
template <typename Use>
void for_entries(const Route& route, const Use& use) {
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    for (int k = 0; k < route.top_k; ++k)
      use(token * route.top_k + k, route.columns[token * route.num_entries + k] != -1);
  }
}

bool is_sent(const Route& route, std::int64_t token) noexcept {
  const auto first = route.columns.begin() + token * route.num_entries;
  return std::any_of(first, first + route.num_entries, [](int column) { return column != -1; });
}

// Calls use(row, local expert, row of the expert) for each received row, without gaps and padding.
template <typename Use>
void for_rows(const Handle& handle, const Use& use) {
  const std::span<const std::int64_t> offsets = handle.expert_offsets();
  if (offsets.empty()) {
    for (std::int64_t row = 0; row < handle.num_rows(); ++row) use(row, 0, row);
    return;
  }
  for (std::size_t expert = 0; expert + 1 < offsets.size(); ++expert) {
    for (std::int64_t row = 0; row < handle.tokens_per_expert()[expert]; ++row)
      use(offsets[expert] + row, static_cast<std::int64_t>(expert), row);
  }
}

}  // namespace

// The record of a half while it is made.
class Trace::Entry {
 public:
  Entry(const TraceRecord& record, bool detailed) : record(record), detailed_(detailed) {}

  // Begins a part: the words of later add() calls belong to it.
  void begin(TracePart part) noexcept {
    digest_ = &record.digests[static_cast<std::size_t>(part)];
    *digest_ = 1;  // not 0, which stands for a missing part
  }
  void add(std::uint32_t word) {
    *digest_ = digest_on(*digest_, &word, sizeof word);
    if (detailed_) detail_.push_back(word);
  }
  std::span<const std::byte> detail() const noexcept { return std::as_bytes(std::span(detail_)); }

  TraceRecord record;

 private:
  bool detailed_;
  std::uint64_t* digest_ = nullptr;
  std::vector<std::uint32_t> detail_;
};

std::unique_ptr<Trace> Trace::open(const GroupState& group, const Setup& setup) {
  const TracePlace place = trace_in_environment();
  if (place.file.empty()) return nullptr;
  const int number = number_in_job(group);
  TraceFile& file = TraceFile::open(place.name_of(number), number, place.from);
  return std::make_unique<Trace>(file, group, setup);
}

Trace::Trace(TraceFile& file, const GroupState& group, const Setup& setup)
    : file_(file), setup_(setup), exchange_(file.next_exchange()) {
  std::string text =
      fmt::format("ranks={} topology={} algorithm={}", group.size(), group.topology().to_text(),
                  algorithm_name(setup.choice.algorithm));
  for (const auto& [name, value] : config_fields(setup.config)) {
    if (name != "algorithm") text += fmt::format(" {}={}", name, value);
  }
  file_.append(start(TraceKind::kSettings, 0), std::as_bytes(std::span(text)));
}

TraceRecord Trace::start(TraceKind kind, std::uint64_t number, std::uint64_t route) const noexcept {
  return {
      .kind = kind, .exchange = exchange_, .number = number, .route = route, .rank = setup_.rank};
}

// If there is no memory for the digests and the detail, the record is written without both, and
// `ferry trace diff` names it if the other run has them.
template <typename Fill>
void Trace::record(const TraceRecord& record, const Fill& fill) noexcept {
  try {
    Entry entry(record, file_.wants_detail());
    fill(entry);
    file_.append(entry.record, entry.detail());
  } catch (const std::exception&) {
    file_.append(record, {});
  }
}

void Trace::dispatch_sent(std::uint64_t number, const Route& route,
                          const DispatchArgs& args) noexcept {
  record(start(TraceKind::kDispatchSent, number, args.cached ? route.number : 0),
         [&](Entry& entry) {
           count_tokens(entry, route);
           if (!args.cached) {
             entry.begin(TracePart::kIds);
             for_entries(route, [&](std::int64_t i, bool sent) {
               entry.add(sent ? static_cast<std::uint32_t>(id_of(args.topk_ids, i)) : ~0U);
             });
           }
           add_weights(entry, route, args.topk_weights);
           entry.begin(TracePart::kRowsSent);
           for (std::int64_t token = 0; token < route.num_tokens; ++token) {
             RowDigest row;
             if (is_sent(route, token)) {
               row.add(at_row(args.tokens.data, token, pitch_of(args.tokens)),
                       dense_pitch(args.tokens));
               row.add(at_row(args.token_scales, token, setup_.config.scale_bytes),
                       setup_.config.scale_bytes);
             }
             entry.add(row.word());
           }
         });
}

void Trace::dispatch_received(std::uint64_t number, const Received& received) noexcept {
  record(start(TraceKind::kDispatchReceived, number), [&](Entry& entry) {
    const std::int64_t most = received.num_rows;
    const std::size_t per_row = most ? received.weights.size() / most : 0;
    const std::size_t ids = most ? received.topk_ids.size() / most : 0;
    entry.begin(TracePart::kRowsReceived);
    for_rows(received.handle, [&](std::int64_t row, std::int64_t section, std::int64_t in_section) {
      for (int i = 0; i < 3; ++i) entry.add(received.sources[3 * row + i]);
      RowDigest digest;
      digest.add(at_row(received.data, row, dense_pitch(received.rows())),
                 dense_pitch(received.rows()));
      const Scales& scales = received.scales;
      const bool sections = scales.section_stride != 0;
      const std::byte* scale = static_cast<const std::byte*>(scales.data) +
                               (sections ? section * scales.section_stride : 0) +
                               (sections ? in_section : row) * scales.row_stride;
      for (std::int64_t i = 0; scales.data && i < scales.columns; ++i)
        digest.add(scale + i * scales.column_stride, scales.element_bytes);
      if (per_row) digest.add(&received.weights[row * per_row], per_row * sizeof(float));
      if (ids) digest.add(&received.topk_ids[row * ids], ids * sizeof(std::int32_t));
      entry.add(digest.word());
      ++entry.record.rows;
    });
  });
}

void Trace::combine_sent(std::uint64_t number, const Route& route,
                         const CombineArgs& args) noexcept {
  record(start(TraceKind::kCombineSent, number, args.handle ? route.number : 0), [&](Entry& entry) {
    count_tokens(entry, route);
    add_weights(entry, route, args.topk_weights);
    const std::size_t bytes = args.expert_rows.hidden * element_bytes(args.out_dtype);
    const void* const addends[] = {args.bias[0], args.bias[1], args.shared_output,
                                   args.norm.residual};
    if (std::ranges::any_of(addends, [](const void* data) { return data != nullptr; })) {
      entry.begin(TracePart::kAddends);
      RowDigest common;
      if (args.norm.residual != nullptr) {
        common.add(args.norm.gamma, bytes);
        common.add(&args.norm.epsilon, sizeof args.norm.epsilon);
      }
      for (std::int64_t token = 0; token < route.num_tokens; ++token) {
        RowDigest row = common;
        for (const void* data : addends) row.add(at_row(data, token, bytes), bytes);
        entry.add(row.word());
      }
    }
    if (args.handle) add_outputs(entry, args);
  });
}

// The outputs of the experts. Without a handle it is not known which rows are gaps, so there are no
// rows in the record then.
void Trace::add_outputs(Entry& entry, const CombineArgs& args) const {
  const Rows& rows = args.expert_rows;
  const std::size_t weight_bytes = (setup_.rank_major() ? setup_.config.top_k : 1) * sizeof(float);
  entry.begin(TracePart::kRowsSent);
  for_rows(args.handle, [&](std::int64_t row, std::int64_t, std::int64_t) {
    RowDigest digest;
    digest.add(at_row(rows.data, row, pitch_of(rows)), dense_pitch(rows));
    digest.add(at_row(args.row_weights, row, weight_bytes), weight_bytes);
    entry.add(digest.word());
    ++entry.record.rows;
  });
}

void Trace::combine_received(std::uint64_t number, const Route& route,
                             const CombineArgs& args) noexcept {
  record(start(TraceKind::kCombineReceived, number), [&](Entry& entry) {
    count_tokens(entry, route);
    const std::size_t bytes = args.expert_rows.hidden * element_bytes(args.out_dtype);
    const std::size_t pitch = args.out_pitch_bytes ? args.out_pitch_bytes : bytes;
    const std::size_t weight_bytes = route.top_k * sizeof(float);
    entry.begin(TracePart::kResults);
    for (std::int64_t token = 0; token < route.num_tokens; ++token) {
      RowDigest row;
      row.add(at_row(args.out, token, pitch), bytes);
      row.add(at_row(args.norm.y, token, bytes), bytes);
      row.add(at_row(args.norm.rstd, token, sizeof(float)), sizeof(float));
      row.add(at_row(args.out_topk_weights, token, weight_bytes), weight_bytes);
      entry.add(row.word());
    }
  });
}

void Trace::count_tokens(Entry& entry, const Route& route) noexcept {
  entry.record.tokens = route.num_tokens;
  entry.record.top_k = route.top_k;
}

void Trace::add_weights(Entry& entry, const Route& route, const float* weights) {
  if (!weights) return;
  entry.begin(TracePart::kWeights);
  for_entries(route, [&](std::int64_t i, bool sent) {
    entry.add(sent ? std::bit_cast<std::uint32_t>(weights[i]) : 0);
  });
}

}  // namespace ferry::internal
