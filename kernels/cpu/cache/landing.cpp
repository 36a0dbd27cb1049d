#include "landing.h"

#include <atomic>

namespace hocket {

void land(int32_t* num_landed, int32_t num_groups) {
  std::atomic_ref<int32_t> counter(*num_landed);
  counter.store(num_groups);  // sequentially consistent: it must be seen before notify_all() looks for who waits
  counter.notify_all();
}

void wait_until_landed(const int32_t* num_landed, int64_t group) {
  if (num_landed == nullptr) return;
  const std::atomic_ref<int32_t> counter(*const_cast<int32_t*>(num_landed));
  for (int32_t seen; (seen = counter.load(std::memory_order_acquire)) <= group;) {
    counter.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace hocket
