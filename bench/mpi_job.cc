// Owns the making of a job and the exchange of rows by counts; see mpi_job.h.
#include "mpi_job.h"

#include <fmt/format.h>

#include <numeric>
#include <stdexcept>

#include "tools/bench/plan.h"
#include "tools/bench/routing.h"
#include "tools/shape_options.h"

namespace ferry::bench {
namespace {

void check_options(const Options& options, int num_ranks) {
  if (options.shape.num_experts % num_ranks != 0) {
    throw std::invalid_argument(fmt::format("--experts {} must be a multiple of the {} ranks",
                                            options.shape.num_experts, num_ranks));
  }
  tools::check_shape(options.shape);
}

}  // namespace

Rows::Rows(std::size_t num_rows, std::size_t row_bytes)
    : mapping_(num_rows * row_bytes, Mapping::Kind::kPrivate), row_bytes_(row_bytes) {
  touch(mapping_.data(), num_rows * row_bytes);
}

Job::Job(const Options& options)
    : num_tokens(static_cast<std::size_t>(options.shape.max_tokens)),
      top_k(static_cast<std::size_t>(options.shape.top_k)),
      row_bytes(static_cast<std::size_t>(options.shape.hidden) * element_bytes(DataType::kBf16)),
      hidden(options.shape.hidden) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  check_options(options, num_ranks);
  local_experts = options.shape.num_experts / num_ranks;
  const RoutingSpec routing = parse_routing(options.routing_text);
  const std::vector<double> shares =
      expert_shares(routing, options.shape.num_experts, options.shape.max_tokens, options.seed);
  const Gate gate = gate_of(routing, options.shape.top_k, options.top_groups);
  Choices choices = choose_experts(shares, options.shape.max_tokens, gate, options.seed, rank);
  replay(ids_of(routing, options.shape.top_k, options.shape.num_experts), rank, choices);
  experts.assign(choices.topk_ids.begin(), choices.topk_ids.end());
  weights = choices.topk_weights;
  tokens = Rows(num_tokens, row_bytes);
  out = Rows(num_tokens, row_bytes);
  for (std::int64_t token = 0; token < options.shape.max_tokens; ++token) {
    fill_token({options.seed, 0, rank, token}, DataType::kBf16, hidden,
               tokens[static_cast<std::size_t>(token)]);
  }
}

void Job::sum_rows(const std::vector<const void*>& rows, const float* row_weights,
                   void* sum) const noexcept {
  internal::reduce_rows({.rows = rows.data(),
                         .weights = row_weights,
                         .num_rows = static_cast<int>(rows.size()),
                         .row_type = DataType::kBf16,
                         .out = sum,
                         .out_type = DataType::kBf16,
                         .hidden = hidden,
                         .stores = internal::Stores::kCached});
}

void Traffic::find_begins() {
  std::partial_sum(send_counts.begin(), send_counts.end(), send_begins.begin() + 1);
  std::partial_sum(receive_counts.begin(), receive_counts.end(), receive_begins.begin() + 1);
}

void Traffic::forth(const void* sent, void* received, MPI_Datatype type) const {
  MPI_Alltoallv(sent, send_counts.data(), send_begins.data(), type, received, receive_counts.data(),
                receive_begins.data(), type, MPI_COMM_WORLD);
}

void Traffic::back(const void* received, void* sent, MPI_Datatype type) const {
  MPI_Alltoallv(received, receive_counts.data(), receive_begins.data(), type, sent,
                send_counts.data(), send_begins.data(), type, MPI_COMM_WORLD);
}

MPI_Datatype element_of(std::size_t bytes) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  return type;
}

}  // namespace ferry::bench
