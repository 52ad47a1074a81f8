// Owns the steps of the pipeline with one row per (token, expert); see mpi_job.h.
#include <cstring>
#include <numeric>

#include "mpi_job.h"

namespace ferry::bench {

AllToAll::AllToAll(const Job& job)
    : job_(job),
      row_type_(element_of(job.row_bytes)),
      traffic_(job.num_ranks),
      sent_of_expert_(static_cast<std::size_t>(job.num_ranks * job.local_experts)),
      received_of_(sent_of_expert_.size()),
      place_(job.experts.size()),
      next_(sent_of_expert_.size()),
      expert_major_of_(sent_of_expert_.size()),
      copies_(job.top_k),
      summands_(job.top_k) {
  exchange_counts();
  sorted_ = Rows(traffic_.num_sent(), job.row_bytes);
  received_ = Rows(traffic_.num_received(), job.row_bytes);
  expert_rows_ = Rows(traffic_.num_received(), job.row_bytes);
}

void AllToAll::exchange_counts() {
  std::fill(sent_of_expert_.begin(), sent_of_expert_.end(), 0);
  for (const int expert : job_.experts) ++sent_of_expert_[static_cast<std::size_t>(expert)];
  const int each = job_.local_experts;
  MPI_Alltoall(sent_of_expert_.data(), each, MPI_INT, received_of_.data(), each, MPI_INT,
               MPI_COMM_WORLD);
  for (int rank = 0; rank < job_.num_ranks; ++rank) {
    const std::size_t index = static_cast<std::size_t>(rank);
    const std::ptrdiff_t first = std::ptrdiff_t{rank} * each;
    const auto sum = [&](const std::vector<int>& counts) {
      return std::accumulate(counts.begin() + first, counts.begin() + first + each, 0);
    };
    traffic_.send_counts[index] = sum(sent_of_expert_);
    traffic_.receive_counts[index] = sum(received_of_);
  }
  traffic_.find_begins();
}

// Reads each token once and writes its top_k copies.
void AllToAll::sort_by_expert() {
  std::size_t begin = 0;
  for (std::size_t expert = 0; expert < next_.size(); ++expert) {
    next_[expert] = begin;
    begin += static_cast<std::size_t>(sent_of_expert_[expert]);
  }
  for (std::size_t token = 0; token < job_.num_tokens; ++token) {
    for (std::size_t k = 0; k < job_.top_k; ++k) {
      const std::size_t place = next_[static_cast<std::size_t>(job_.expert(token, k))]++;
      place_[token * job_.top_k + k] = place;
      copies_[k] = sorted_[place];
    }
    internal::copy_row_to_many(copies_.data(), static_cast<int>(job_.top_k), job_.tokens[token],
                               job_.row_bytes, internal::Stores::kCached);
  }
}

// Rows arrive as [source, local expert]; experts want [local expert, source].
void AllToAll::to_expert_major() {
  const std::size_t local = static_cast<std::size_t>(job_.local_experts);
  std::size_t begin = 0;
  for (std::size_t expert = 0; expert < local; ++expert) {
    for (std::size_t block = expert; block < received_of_.size(); block += local) {
      expert_major_of_[block] = begin;
      begin += static_cast<std::size_t>(received_of_[block]);
    }
  }
  std::size_t from = 0;
  for (std::size_t block = 0; block < received_of_.size(); ++block) {
    const std::size_t rows = static_cast<std::size_t>(received_of_[block]);
    std::memcpy(expert_rows_[expert_major_of_[block]], received_[from], rows * job_.row_bytes);
    from += rows;
  }
}

void AllToAll::dispatch() {
  exchange_counts();
  sort_by_expert();
  traffic_.forth(sorted_[0], received_[0], row_type_);
  to_expert_major();
}

void AllToAll::combine() {
  std::size_t to = 0;
  for (std::size_t block = 0; block < received_of_.size(); ++block) {
    const std::size_t rows = static_cast<std::size_t>(received_of_[block]);
    std::memcpy(received_[to], expert_rows_[expert_major_of_[block]], rows * job_.row_bytes);
    to += rows;
  }
  traffic_.back(received_[0], sorted_[0], row_type_);
  for (std::size_t token = 0; token < job_.num_tokens; ++token) {
    for (std::size_t k = 0; k < job_.top_k; ++k) {
      summands_[k] = sorted_[place_[token * job_.top_k + k]];
    }
    job_.sum_rows(summands_, &job_.weights[token * job_.top_k], job_.out[token]);
  }
}

}  // namespace ferry::bench
