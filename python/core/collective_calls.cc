#include "core/collective_calls.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/arrays.h"
#include "core/errors.h"
#include "core/libraries.h"
#include "core/tensor.h"

namespace ferry::python {

namespace {

using Counts = std::vector<std::int64_t>;

// The limit for the bytes of one element, so that counts of bytes fit 64 bits too.
constexpr std::int64_t kMostBytesEach = 1024;

// The elements of a message: those of the DataType, or single bytes for a type that ferry does not
// know, such as complex numbers.
struct Buffer {
  Tensor tensor;
  DataType dtype = DataType::kBytes;
  std::int64_t bytes_each = 1;  // bytes per element if elements are sent as bytes, else 1
  std::int64_t size() const noexcept { return tensor.given() ? tensor.size() : 0; }
  void* data() const noexcept { return tensor.data; }
};

DataType travelling_type(const Tensor& tensor) {
  switch (tensor.element) {
    case Element::kBf16: return DataType::kBf16;
    case Element::kFp16: return DataType::kFp16;
    case Element::kFp32: return DataType::kFp32;
    case Element::kFp64: return DataType::kFp64;
    case Element::kInt8: return DataType::kInt8;
    case Element::kInt16: return DataType::kInt16;
    case Element::kInt32: return DataType::kInt32;
    case Element::kInt64: return DataType::kInt64;
    case Element::kUint16: return DataType::kUint16;
    case Element::kUint32: return DataType::kUint32;
    case Element::kUint64: return DataType::kUint64;
    case Element::kFp8E4m3: return DataType::kFp8E4m3;
    default: return DataType::kBytes;
  }
}

Buffer read_buffer(nb::handle object, const char* name, bool writable) {
  Buffer buffer{.tensor = read_tensor(object, name, writable)};
  if (!buffer.tensor.given()) return buffer;
  if (!buffer.tensor.dense()) refuse("{} ({}) is not contiguous", name, buffer.tensor.describe());
  buffer.dtype = travelling_type(buffer.tensor);
  if (buffer.tensor.element == Element::kOther)
    buffer.bytes_each = static_cast<std::int64_t>(buffer.tensor.item_bytes);
  if (buffer.bytes_each > kMostBytesEach)
    refuse("{} has elements of {} bytes, need at most {}", name, buffer.bytes_each, kMostBytesEach);
  return buffer;
}

Buffer read_needed(nb::handle object, const char* name, bool writable) {
  if (object.is_none()) refuse("{} is None, need a tensor", name);
  return read_buffer(object, name, writable);
}

void check_same_type(const Buffer& a, const char* name, const Buffer& b, const char* other) {
  if (!a.tensor.given() || !b.tensor.given()) return;
  if (a.tensor.element == b.tensor.element && a.tensor.item_bytes == b.tensor.item_bytes) return;
  refuse("{} is {} and {} is {}: need one dtype", name, a.tensor.describe(), other,
         b.tensor.describe());
}

void check_size(const Buffer& buffer, const char* name, std::int64_t need, const char* reason) {
  if (buffer.size() == need) return;
  refuse("{} has {} elements, need {}: {}", name, buffer.size(), need, reason);
}

std::int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts read_counts(nb::handle object, const char* name, int size) {
  Counts counts;
  if (!nb::try_cast(object, counts)) refuse("{} is not a sequence of integers", name);
  if (static_cast<int>(counts.size()) != size)
    refuse("{} has {} elements, need one for each of {} ranks", name, counts.size(), size);
  std::int64_t most = std::numeric_limits<std::int64_t>::max() / kMostBytesEach;
  for (const std::int64_t count : counts) {
    if (count < 0 || count > most)
      refuse("{} has a count of {}, need 0 to {} elements in all", name, count,
             std::numeric_limits<std::int64_t>::max() / kMostBytesEach);
    most -= count;
  }
  return counts;
}

// Counts of tensor elements as counts of sent elements.
Counts travelling(Counts counts, const Buffer& buffer) {
  for (std::int64_t& count : counts) count *= buffer.bytes_each;
  return counts;
}

// bool is reduced as 0 and 1, and so are its results.
ReduceOp read_op(const std::string& name, const Buffer& buffer) {
  const Element element = buffer.tensor.element;
  if (element == Element::kOther)
    refuse("elements of {} bytes cannot be reduced", buffer.tensor.item_bytes);
  for (int op = 0; op <= static_cast<int>(ReduceOp::kBxor); ++op) {
    const auto found = static_cast<ReduceOp>(op);
    if (name != reduce_op_name(found)) continue;
    if (element == Element::kBool && found == ReduceOp::kAvg) refuse("bool has no avg");
    return element == Element::kBool && found == ReduceOp::kSum ? ReduceOp::kBor : found;
  }
  refuse("op is \"{}\", need sum, avg, product, min, max, band, bor or bxor", name);
}

std::chrono::nanoseconds read_deadline(nb::handle seconds) {
  if (seconds.is_none()) return {};
  double value = 0;
  if (!nb::try_cast(seconds, value)) refuse("deadline is not a number of seconds");
  return to_deadline(value);
}

// Reads arguments by `read`, which returns a function that makes the call. Where an argument is
// refused, the other ranks get PeerRejected.
template <typename Read>
void collective(const PyCollectives& self, const Read& read) {
  const Turn turn(self);
  Collectives& collectives = turn->collectives;
  std::optional<decltype(read(collectives))> call;
  read_or_refuse([&] { call.emplace(read(collectives)); },
                 [&](const Status& why) {
                   return collectives.refuse({why.code(), why.message(), collectives.rank()});
                 });
  check(without_gil(*call));
}

}  // namespace

void all_to_all_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle out_counts,
                  nb::handle in_counts, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_needed(out, "out", true), from = read_needed(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    const Counts received = read_counts(out_counts, "out_counts", collectives.size());
    const Counts sent = read_counts(in_counts, "in_counts", collectives.size());
    check_size(to, "out", sum(received), "the sum of out_counts");
    check_size(from, "rows", sum(sent), "the sum of in_counts");
    return [&collectives, to, from, received = travelling(received, to),
            sent = travelling(sent, from), limit = read_deadline(deadline)] {
      return collectives.all_to_all_v(from.data(), sent, to.data(), received, to.dtype, limit);
    };
  });
}

void all_gather_v(const PyCollectives& self, nb::handle out, nb::handle mine, nb::handle counts,
                  nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_needed(out, "out", true), from = read_needed(mine, "mine", false);
    check_same_type(to, "out", from, "mine");
    const Counts parts = read_counts(counts, "counts", collectives.size());
    check_size(to, "out", sum(parts), "the sum of counts");
    check_size(from, "mine", parts[collectives.rank()], "counts[rank]");
    return
        [&collectives, to, from, parts = travelling(parts, to), limit = read_deadline(deadline)] {
          return collectives.all_gather_v(from.data(), from.size() * from.bytes_each, to.data(),
                                          parts, to.dtype, limit);
        };
  });
}

void reduce_scatter_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
                      const std::string& op, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_needed(out, "out", true), from = read_needed(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    const Counts blocks = read_counts(counts, "counts", collectives.size());
    check_size(to, "out", blocks[collectives.rank()], "counts[rank]");
    check_size(from, "rows", sum(blocks), "the sum of counts");
    return
        [&collectives, to, from, blocks, how = read_op(op, from), limit = read_deadline(deadline)] {
          return collectives.reduce_scatter_v(from.data(), blocks, to.data(), to.dtype, how, limit);
        };
  });
}

void all_reduce(const PyCollectives& self, nb::handle out, nb::handle rows, const std::string& op,
                nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_needed(out, "out", true), from = read_needed(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    check_size(to, "out", from.size(), "the elements of rows");
    return [&collectives, to, from, how = read_op(op, from), limit = read_deadline(deadline)] {
      return collectives.all_reduce(from.data(), to.data(), from.size(), to.dtype, how, limit);
    };
  });
}

void reduce(const PyCollectives& self, nb::handle out, nb::handle rows, int root,
            const std::string& op, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_buffer(out, "out", true), from = read_needed(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    if (root == collectives.rank()) check_size(to, "out", from.size(), "the elements of rows");
    return [&collectives, to, from, root, how = read_op(op, from),
            limit = read_deadline(deadline)] {
      return collectives.reduce(from.data(), to.data(), from.size(), from.dtype, how, root, limit);
    };
  });
}

void broadcast(const PyCollectives& self, nb::handle rows, int root, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    // The root's rows are only read.
    const Buffer data = read_needed(rows, "rows", root != collectives.rank());
    return [&collectives, data, root, limit = read_deadline(deadline)] {
      return collectives.broadcast(data.data(), data.size() * data.bytes_each, data.dtype, root,
                                   limit);
    };
  });
}

void gather_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
              int root, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_buffer(out, "out", true), from = read_needed(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    const Counts parts = read_counts(counts, "counts", collectives.size());
    check_size(from, "rows", parts[collectives.rank()], "counts[rank]");
    if (root == collectives.rank()) check_size(to, "out", sum(parts), "the sum of counts");
    return [&collectives, to, from, root, parts = travelling(parts, from),
            limit = read_deadline(deadline)] {
      return collectives.gather_v(from.data(), to.data(), parts, from.dtype, root, limit);
    };
  });
}

void scatter_v(const PyCollectives& self, nb::handle out, nb::handle rows, nb::handle counts,
               int root, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    const Buffer to = read_needed(out, "out", true), from = read_buffer(rows, "rows", false);
    check_same_type(to, "out", from, "rows");
    const Counts parts = read_counts(counts, "counts", collectives.size());
    check_size(to, "out", parts[collectives.rank()], "counts[rank]");
    if (root == collectives.rank()) check_size(from, "rows", sum(parts), "the sum of counts");
    return [&collectives, to, from, root, parts = travelling(parts, to),
            limit = read_deadline(deadline)] {
      return collectives.scatter_v(from.data(), to.data(), parts, to.dtype, root, limit);
    };
  });
}

void barrier(const PyCollectives& self, nb::handle deadline) {
  collective(self, [&](Collectives& collectives) {
    return [&collectives, limit = read_deadline(deadline)] { return collectives.barrier(limit); };
  });
}

void refuse_call(const PyCollectives& self, const std::string& why) {
  const Turn turn(self);
  Collectives& collectives = turn->collectives;
  const Status refusal(Code::kInvalidArgument, why, collectives.rank());
  const Status status = without_gil([&] { return collectives.refuse(refusal); });
  if (status.code() != refusal.code()) check(status);  // not the error of this refusal
}

std::vector<std::string> latest_calls(const PyCollectives& self, int rank) {
  const Turn turn(self);
  return turn->collectives.latest_calls(rank);
}

void send(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
          nb::handle deadline) {
  const Turn turn(self, &HeldCollectives::moves_messages);
  const Buffer data = read_needed(rows, "rows", false);
  const auto limit = read_deadline(deadline);
  check(without_gil([&] {
    return turn->collectives.send(data.data(), data.size() * data.bytes_each, data.dtype, peer, tag,
                                  limit);
  }));
}

int recv(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
         nb::handle deadline) {
  const Turn turn(self, &HeldCollectives::moves_messages);
  const Buffer data = read_needed(rows, "rows", true);
  const auto limit = read_deadline(deadline);
  int source = -1;
  check(without_gil([&] {
    return turn->collectives.recv(data.data(), data.size() * data.bytes_each, data.dtype, peer, tag,
                                  &source, limit);
  }));
  return source;
}

namespace {

// begin(collectives): begins a message to or from `data`. The message and its tensor are kept until
// it has ended.
template <typename Begin>
PyMessage keep_in_flight(const PyCollectives& self, const Buffer& data, const Begin& begin) {
  const std::shared_ptr<HeldCollectives> held = self.get();
  held->in_flight.push_back({begin(held->collectives), data.tensor.owner});
  return held->in_flight.back();
}

}  // namespace

PyMessage begin_send(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
                     nb::handle deadline) {
  const Buffer data = read_needed(rows, "rows", false);
  return keep_in_flight(self, data, [&](Collectives& collectives) {
    return collectives.begin_send(data.data(), data.size() * data.bytes_each, data.dtype, peer, tag,
                                  read_deadline(deadline));
  });
}

PyMessage begin_recv(const PyCollectives& self, nb::handle rows, int peer, std::int64_t tag,
                     nb::handle deadline) {
  const Buffer data = read_needed(rows, "rows", true);
  return keep_in_flight(self, data, [&](Collectives& collectives) {
    return collectives.begin_recv(data.data(), data.size() * data.bytes_each, data.dtype, peer, tag,
                                  read_deadline(deadline));
  });
}

void progress(const PyCollectives& self, bool wait) {
  const Turn turn(self, &HeldCollectives::moves_messages);
  check(without_gil([&] { return turn->collectives.progress(wait); }));
}

int finish(const PyMessage& self) {
  if (!self.message.ended()) refuse("the message has not ended");
  check(self.message.status());
  return self.message.source();
}

PyCollectives make_collectives(const PyGroup& group, nb::handle deadline, std::int64_t window_bytes,
                               nb::handle creation_deadline, std::int64_t shared_bytes) {
  Group members = group.get();
  CollectivesOptions options;
  options.window_bytes = window_bytes;
  options.shared_bytes = shared_bytes;
  try {
    options.deadline = read_deadline(deadline);
    options.creation_deadline = read_deadline(creation_deadline);
  } catch (const Error& error) {
    const Status refusal(error.code(), error.what(), members.rank());
    without_gil([&] { Collectives::refuse(members, refusal); });
  }
  auto held = std::make_shared<HeldCollectives>();
  held->collectives = without_gil([&] { return Collectives(members, options); });
  return PyCollectives(std::move(held), "Collectives");
}

nb::object empty(const PyCollectives& self, std::int64_t size, nb::handle dtype) {
  const Element element = element_from_object(dtype);
  const auto bytes = static_cast<std::int64_t>(element_bytes(element));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / bytes;
  if (size < 0 || size > most) refuse("size is {}, need 0 to {}", size, most);
  const std::shared_ptr<void> memory = self.get()->collectives.allocate(size * bytes);
  return make_array({.data = memory.get(), .shape = {size}, .element = element, .pin = memory},
                    loaded_library());
}

}  // namespace ferry::python
