// ferry_collectives_*, the collective calls and the messages of two ranks.
#include "ferry/collectives.h"

#include <cstdint>
#include <limits>

#include "capi/boundary.h"
#include "capi/objects.h"

using namespace ferry::capi;
using ferry::Collectives;
using ferry::Status;
using Counts = Collectives::Counts;

namespace {

// The fields of the C struct in the form that the C++ calls take.
struct Read {
  ferry_collective_args c;
  ferry::DataType dtype;
  ferry::ReduceOp op;
  int root;
  Counts counts, out_counts;
  std::chrono::nanoseconds deadline;
};

// A number that an int cannot hold becomes -1, which the engine refuses.
int rank_of(std::int64_t rank) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  return rank < 0 || rank > kMost ? -1 : static_cast<int>(rank);
}

// NULL: no counts, which the engine refuses where the call needs them.
Counts counts_of(const std::int64_t* counts, int size) noexcept {
  return counts ? Counts(counts, static_cast<std::size_t>(size)) : Counts();
}

Read read_args(const ferry_collective_args* args, int size) {
  const auto c = ferry::capi::read(args, "ferry_collective_args");
  return {.c = c,
          .dtype = enum_of<ferry::DataType>(c.dtype),
          .op = enum_of<ferry::ReduceOp>(c.op),
          .root = rank_of(c.root),
          .counts = counts_of(c.counts, size),
          .out_counts = counts_of(c.out_counts, size),
          .deadline = std::chrono::nanoseconds(c.deadline_ns)};
}

// A call whose struct is refused here is refused by the engine: it fails on the other ranks too.
template <typename Call>
ferry_code collective(ferry_collectives* collectives, const ferry_collective_args* args,
                      const Call& call) {
  return guarded([&] {
    ferry_collectives& used = required(collectives, "collectives");
    Read given{};
    const Status refusal = attempt(used.rank, [&] { given = read_args(args, used.size); });
    if (!refusal.ok()) return used.collectives.refuse(refusal);
    return call(used.collectives, given);
  });
}

ferry::CollectivesOptions to_options(const ferry_collectives_options* given) {
  ferry::CollectivesOptions options;
  if (given == nullptr) return options;
  const auto c = ferry::capi::read(given, "ferry_collectives_options");
  auto& [deadline, window_bytes, creation_deadline, shared_bytes] = options;
  deadline = std::chrono::nanoseconds(c.deadline_ns);
  window_bytes = or_default(c.window_bytes, window_bytes);
  static_cast<void>(creation_deadline);  // that of the group
  shared_bytes = c.shared_bytes;
  return options;
}

}  // namespace

ferry_code ferry_collectives_create(const ferry_group* group,
                                    const ferry_collectives_options* options,
                                    ferry_collectives** collectives) {
  return guarded([&] {
    if (collectives) *collectives = nullptr;
    const ferry_group& member = required(group, "group");
    ferry::CollectivesOptions wanted;
    void* memory = nullptr;
    const Status refusal = attempt(member.group.rank(), [&] {
      required(collectives, "collectives");
      wanted = to_options(options);
      memory = member.allocator.allocate(sizeof(ferry_collectives));
    });
    if (!refusal.ok()) Collectives::refuse(member.group, refusal);
    *collectives = make_in<ferry_collectives>(memory, member.allocator, member.group, wanted);
  });
}

void ferry_collectives_destroy(ferry_collectives* collectives) { destroy(collectives); }

ferry_code ferry_collectives_allocate(const ferry_collectives* collectives, int64_t bytes,
                                      ferry_memory** memory) {
  return guarded([&] {
    required(memory, "memory");
    *memory = nullptr;
    const ferry_collectives& used = required(collectives, "collectives");
    *memory = make<ferry_memory>(used.allocator, used.collectives.allocate(bytes));
  });
}

void* ferry_memory_data(const ferry_memory* memory) {
  return memory ? memory->data.get() : nullptr;
}

void ferry_memory_release(ferry_memory* memory) { destroy(memory); }

ferry_code ferry_all_to_all_v(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.all_to_all_v(a.c.in, a.counts, a.c.out, a.out_counts, a.dtype, a.deadline);
  });
}

ferry_code ferry_all_gather_v(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.all_gather_v(a.c.in, a.c.count, a.c.out, a.counts, a.dtype, a.deadline);
  });
}

ferry_code ferry_reduce_scatter_v(ferry_collectives* collectives,
                                  const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.reduce_scatter_v(a.c.in, a.counts, a.c.out, a.dtype, a.op, a.deadline);
  });
}

ferry_code ferry_all_reduce(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.all_reduce(a.c.in, a.c.out, a.c.count, a.dtype, a.op, a.deadline);
  });
}

ferry_code ferry_reduce(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.reduce(a.c.in, a.c.out, a.c.count, a.dtype, a.op, a.root, a.deadline);
  });
}

ferry_code ferry_broadcast(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.broadcast(a.c.out, a.c.count, a.dtype, a.root, a.deadline);
  });
}

ferry_code ferry_gather_v(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.gather_v(a.c.in, a.c.out, a.counts, a.dtype, a.root, a.deadline);
  });
}

ferry_code ferry_scatter_v(ferry_collectives* collectives, const ferry_collective_args* args) {
  return collective(collectives, args, [](Collectives& self, const Read& a) {
    return self.scatter_v(a.c.in, a.c.out, a.counts, a.dtype, a.root, a.deadline);
  });
}

ferry_code ferry_barrier(ferry_collectives* collectives, int64_t deadline_ns) {
  return guarded([&] {
    return required(collectives, "collectives")
        .collectives.barrier(std::chrono::nanoseconds(deadline_ns));
  });
}

ferry_code ferry_send(ferry_collectives* collectives, const ferry_message_args* args) {
  return guarded([&] {
    ferry_collectives& used = required(collectives, "collectives");
    const auto c = ferry::capi::read(args, "ferry_message_args");
    return used.collectives.send(c.in, c.count, enum_of<ferry::DataType>(c.dtype), c.peer, c.tag,
                                 std::chrono::nanoseconds(c.deadline_ns));
  });
}

ferry_code ferry_recv(ferry_collectives* collectives, const ferry_message_args* args,
                      int32_t* source) {
  return guarded([&] {
    ferry_collectives& used = required(collectives, "collectives");
    const auto c = ferry::capi::read(args, "ferry_message_args");
    return used.collectives.recv(c.out, c.count, enum_of<ferry::DataType>(c.dtype), c.peer, c.tag,
                                 source, std::chrono::nanoseconds(c.deadline_ns));
  });
}
