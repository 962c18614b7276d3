// A map that keeps its latest entries only. One thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

namespace newmoon {

template <class Key, class Value>
class RecentMap {
 public:
  explicit RecentMap(std::size_t entries_max) : entries_max_(entries_max) {}

  // Replaces the value of a key that is there, which does not make it younger.
  void set(const Key& key, Value value) {
    if (entries_max_ == 0) return;
    if (!values_.insert_or_assign(key, std::move(value)).second) return;
    order_.push_back(key);
    if (order_.size() <= entries_max_) return;
    values_.erase(order_.front());
    order_.pop_front();
  }

  // nullptr: not there, or forgotten.
  const Value* find(const Key& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  std::size_t entries_max_;
  std::unordered_map<Key, Value> values_;
  std::deque<Key> order_;  // oldest first
};

}  // namespace newmoon
