// Owns the exchange of results between ranks that a launcher started; see results.h.
#include "bench/results.h"

#include <vector>

#include "ferry/status.h"

namespace ferry::bench {
namespace {

template <typename T>
void gather_array(SharedArray<T>& array, Group& group) {
  const std::size_t count = array.size() / static_cast<std::size_t>(group.size());
  T* const all = &array[0];
  T* const begin = all + count * static_cast<std::size_t>(group.rank());
  const std::vector<T> mine(begin, begin + count);
  const Status status = group.all_gather(mine.data(), count * sizeof(T), all);
  if (!status.ok()) throw Error(status.code(), status.message());
}

}  // namespace

void Results::gather(Group& group) {
  for (SharedArray<Interval>* intervals : {&dispatch, &combine, &pairs}) {
    for (std::size_t i = 0; i < intervals->size(); ++i) {
      Interval& interval = (*intervals)[i];
      interval = {0, interval.end_ns - interval.begin_ns};
    }
    gather_array(*intervals, group);
  }
  gather_array(summary, group);
}

}  // namespace ferry::bench
