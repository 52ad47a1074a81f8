// journey <ranks> [<topology>]: one dispatch and combine on a libferry that was compiled with
// -finstrument-functions. Prints "<operation> <rank> <address in the library>" for each function
// that a rank enters, in the order in which it enters them first. Run by journey.py.
#include <dlfcn.h>
#include <ferry/exchange.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace {

constexpr int kTokens = 16, kHidden = 256, kExperts = 16, kTopK = 4;
constexpr auto kType = ferry::DataType::kBf16;

struct Entered {
  std::vector<void*> in_order;
  std::unordered_set<void*> all;
};
// Where this thread records the functions that it enters; null: nowhere.
thread_local Entered* recording = nullptr;
std::mutex printing;

void print(const char* operation, int rank, const Entered& entered) {
  const std::lock_guard lock(printing);
  for (void* const function : entered.in_order) {
    Dl_info library;
    if (dladdr(function, &library) == 0) continue;
    const auto offset = static_cast<char*>(function) - static_cast<char*>(library.dli_fbase);
    std::printf("%s %d %s %#tx\n", operation, rank, library.dli_fname, offset);
  }
}

template <typename Call>
void record(const char* operation, int rank, const Call& call) {
  Entered entered;
  recording = &entered;
  const ferry::Status status = call();
  recording = nullptr;
  ferry::require_ok(status);
  print(operation, rank, entered);
}

void run(ferry::Group group) {
  std::vector<std::uint16_t> tokens(kTokens * kHidden, 0x3f80), out(tokens.size());
  std::vector<float> weights(kTokens * kTopK, 0.25f);
  std::vector<std::int64_t> experts;
  for (int i = 0; i < kTokens * kTopK; ++i) experts.push_back(i * 5 % kExperts);
  ferry::Exchange exchange(group, {.max_tokens = kTokens,
                                   .hidden = kHidden,
                                   .num_experts = kExperts,
                                   .top_k = kTopK,
                                   .dtype = kType,
                                   .combine_wire = ferry::CombineWire::kInt8Block128});
  ferry::Received received;
  record("dispatch", group.rank(), [&] {
    return exchange.dispatch({.tokens = {tokens.data(), kTokens, kHidden, kType},
                              .topk_ids = {experts.data(), kTokens, kTopK}},
                             received);
  });
  record("combine", group.rank(), [&] {
    return exchange.combine({.handle = received.handle,
                             .expert_rows = received.rows(),
                             .topk_weights = weights.data(),
                             .out = out.data(),
                             .out_dtype = kType});
  });
}

}  // namespace

extern "C" {

void __cyg_profile_func_enter(void* function, void* /*caller*/) {
  Entered* const entered = recording;
  if (entered == nullptr) return;
  recording = nullptr;  // what the containers call is not recorded
  if (entered->all.insert(function).second) entered->in_order.push_back(function);
  recording = entered;
}

void __cyg_profile_func_exit(void* /*function*/, void* /*caller*/) {}

}  // extern "C"

int main(int argc, char** argv) {
  ferry::run_threads(std::atoi(argv[1]), run, {.topology = argc > 2 ? argv[2] : ""});
}
