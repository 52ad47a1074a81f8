// Owns the steps of the pipeline with one row per (token, rank); see mpi_job.h.
#include <fmt/format.h>

#include <bit>
#include <numeric>
#include <stdexcept>

#include "mpi_job.h"

namespace ferry::bench {
namespace {

constexpr int kMostRanks = 64;  // bits of Dedup::ranks_of_

// Calls visit(rank) for each rank of the set, ascending.
template <typename Visit>
void for_each_rank(std::uint64_t ranks, const Visit& visit) {
  for (; ranks != 0; ranks &= ranks - 1) visit(static_cast<std::size_t>(std::countr_zero(ranks)));
}

}  // namespace

Dedup::Dedup(const Job& job)
    : job_(job),
      row_type_(element_of(job.row_bytes)),
      choices_type_(element_of(job.top_k * sizeof(Choice))),
      traffic_(job.num_ranks),
      ranks_of_(job.num_tokens),
      next_of_expert_(static_cast<std::size_t>(job.local_experts) + 1) {
  if (job.num_ranks > kMostRanks) {
    throw std::invalid_argument(
        fmt::format("dedup: {} ranks, at most {}", job.num_ranks, kMostRanks));
  }
  exchange_counts();
  sent_ = Rows(traffic_.num_sent(), job.row_bytes);
  received_ = Rows(traffic_.num_received(), job.row_bytes);
  gather_rows();
  traffic_.forth(sent_choices_.data(), choices_.data(), choices_type_);
  place_rows();
  expert_rows_ = Rows(expert_place_.size(), job.row_bytes);
}

void Dedup::exchange_counts() {
  std::fill(traffic_.send_counts.begin(), traffic_.send_counts.end(), 0);
  for (std::size_t token = 0; token < job_.num_tokens; ++token) {
    std::uint64_t ranks = 0;
    for (std::size_t k = 0; k < job_.top_k; ++k) {
      ranks |= std::uint64_t{1} << job_.owner(job_.expert(token, k));
    }
    ranks_of_[token] = ranks;
    for_each_rank(ranks, [&](std::size_t rank) { ++traffic_.send_counts[rank]; });
  }
  MPI_Alltoall(traffic_.send_counts.data(), 1, MPI_INT, traffic_.receive_counts.data(), 1, MPI_INT,
               MPI_COMM_WORLD);
  traffic_.find_begins();
  sent_choices_.resize(traffic_.num_sent() * job_.top_k);
  choices_.resize(traffic_.num_received() * job_.top_k);
}

void Dedup::gather_rows() {
  next_.assign(traffic_.send_begins.begin(), traffic_.send_begins.end() - 1);
  sent_place_.clear();
  for (std::size_t token = 0; token < job_.num_tokens; ++token) {
    copies_.clear();
    for_each_rank(ranks_of_[token], [&](std::size_t rank) {
      const std::size_t place = static_cast<std::size_t>(next_[rank]++);
      sent_place_.push_back(place);
      copies_.push_back(sent_[place]);
      for (std::size_t k = 0; k < job_.top_k; ++k) {
        sent_choices_[place * job_.top_k + k] = {job_.expert(token, k), job_.weight(token, k)};
      }
    });
    internal::copy_row_to_many(copies_.data(), static_cast<int>(copies_.size()), job_.tokens[token],
                               job_.row_bytes, internal::Stores::kCached);
  }
}

// Where the copies of each received row go: experts ascending, then in order of arrival.
void Dedup::place_rows() {
  std::fill(next_of_expert_.begin(), next_of_expert_.end(), 0);
  const int first = job_.rank * job_.local_experts;
  for (const Choice& choice : choices_) {
    if (job_.owner(choice.expert) == job_.rank)
      ++next_of_expert_[static_cast<std::size_t>(choice.expert - first) + 1];
  }
  std::partial_sum(next_of_expert_.begin(), next_of_expert_.end(), next_of_expert_.begin());
  expert_place_.clear();
  for (const Choice& choice : choices_) {
    if (job_.owner(choice.expert) == job_.rank)
      expert_place_.push_back(next_of_expert_[static_cast<std::size_t>(choice.expert - first)]++);
  }
}

void Dedup::expand() {
  std::size_t next = 0;  // in expert_place_
  for (std::size_t row = 0; row < traffic_.num_received(); ++row) {
    copies_.clear();
    for (std::size_t k = 0; k < job_.top_k; ++k) {
      if (job_.owner(choices_[row * job_.top_k + k].expert) == job_.rank)
        copies_.push_back(expert_rows_[expert_place_[next++]]);
    }
    internal::copy_row_to_many(copies_.data(), static_cast<int>(copies_.size()), received_[row],
                               job_.row_bytes, internal::Stores::kCached);
  }
}

void Dedup::dispatch() {
  exchange_counts();
  gather_rows();
  traffic_.forth(sent_choices_.data(), choices_.data(), choices_type_);
  traffic_.forth(sent_[0], received_[0], row_type_);
  place_rows();
  expand();
}

void Dedup::combine() {
  std::size_t next = 0;  // in expert_place_
  for (std::size_t row = 0; row < traffic_.num_received(); ++row) {
    summands_.clear();
    summand_weights_.clear();
    for (std::size_t k = 0; k < job_.top_k; ++k) {
      const Choice& choice = choices_[row * job_.top_k + k];
      if (job_.owner(choice.expert) != job_.rank) continue;
      summands_.push_back(expert_rows_[expert_place_[next++]]);
      summand_weights_.push_back(choice.weight);
    }
    job_.sum_rows(summands_, summand_weights_.data(), received_[row]);
  }
  traffic_.back(received_[0], sent_[0], row_type_);
  next = 0;  // in sent_place_
  for (std::size_t token = 0; token < job_.num_tokens; ++token) {
    summands_.clear();
    for_each_rank(ranks_of_[token],
                  [&](std::size_t) { summands_.push_back(sent_[sent_place_[next++]]); });
    job_.sum_rows(summands_, nullptr, job_.out[token]);
  }
}

}  // namespace ferry::bench
