// The view of a group, and the objects that go on in the next view.
#include "group/survival.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ferry::internal {

Survival::Survival(int size) : is_member_(size, true), messages_(size) {
  view_.members.resize(size);
  std::iota(view_.members.begin(), view_.members.end(), 0);
  met_for_ = view_;
}

void Survival::add(Lasting* object) {
  const std::lock_guard lock(mutex_);
  objects_.push_back(object);
}

void Survival::remove(Lasting* object) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(objects_, object);
}

std::vector<Offer> Survival::offers() {
  const std::lock_guard lock(mutex_);
  std::vector<Offer> offers;
  for (const Lasting* const object : objects_) offers.push_back(object->offer());
  return offers;
}

void Survival::make_place(const Segment& segment, int rank, std::uint64_t next) {
  const std::lock_guard lock(mutex_);
  for (Lasting* const object : objects_)
    if (object->offer().segment.get() == &segment) object->make_place(rank, next);
}

void Survival::set_open_offers(std::vector<Offer> offers) {
  const std::lock_guard lock(mutex_);
  open_offers_ = std::move(offers);
}

std::optional<Offer> Survival::take_offer(
    const std::function<bool(const std::string& terms)>& fit) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(open_offers_, [&](const Offer& offer) { return fit(offer.terms); });
  if (found == open_offers_.end()) return std::nullopt;
  Offer taken = std::move(*found);
  open_offers_.erase(found);
  return taken;
}

void Survival::prepare(std::uint64_t next) noexcept {
  const std::lock_guard lock(mutex_);
  prepared_ = next;
  for (Lasting* const object : objects_) object->prepare(next);
}

void Survival::depart_in_next_view(std::function<void()> depart) noexcept {
  const std::lock_guard lock(mutex_);
  if (prepared_ > view_.number) departures_.push_back(std::move(depart));
}

std::vector<Lasting::Prepared> Survival::prepared(std::uint64_t next) {
  std::vector<Lasting::Prepared> known;
  const std::lock_guard lock(mutex_);
  for (const Lasting* const object : objects_) object->append_prepared(next, known);
  return known;
}

void Survival::store_prepared(std::uint64_t next,
                              const std::vector<Lasting::Prepared>& known) noexcept {
  const std::lock_guard lock(mutex_);
  for (Lasting* const object : objects_) object->store_prepared(next, known);
}

void Survival::set_view(View view) noexcept {
  view_ = std::move(view);
  is_member_.assign(is_member_.size(), false);
  for (const int rank : view_.members) is_member_[rank] = true;
}

void Survival::begin(View view) noexcept {
  set_view(std::move(view));
  meeting_ = {.group = meeting_.group};
  const std::lock_guard lock(mutex_);
  open_offers_.clear();
  for (Lasting* const object : objects_) object->renew(view_);
  for (const std::function<void()>& depart : departures_) depart();
  departures_.clear();
}

}  // namespace ferry::internal
