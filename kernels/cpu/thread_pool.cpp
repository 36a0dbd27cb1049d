// How a job is handed out.
//
// `ticket_` holds (job number, tasks not yet taken). A thread takes the last task of those, r - 1, by compare-and-swap
// of (j, r) to (j, r - 1). The job's fields are written before its ticket is published and not again until all its
// tasks are done. So a successful swap, r > 0, proves that the fields read just before it are those of job j: a worker
// that wakes late can neither run a task of a finished job nor mix the fields of two. Nobody waits for workers that
// sleep through a job.
#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace hocket::cpu {
namespace {

constexpr int64_t kMaxTasks = int64_t{1} << 32;
constexpr std::chrono::microseconds kSpin{40};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

uint64_t make_ticket(uint64_t job, int64_t remaining) { return job << 32 | static_cast<uint64_t>(remaining); }
uint64_t job_of(uint64_t ticket) { return ticket >> 32; }
int64_t remaining_of(uint64_t ticket) { return static_cast<int64_t>(ticket & 0xffffffffu); }

int num_usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

class ThreadPool {
 public:
  ThreadPool() : num_threads_(num_usable_cpus()) {}
  ~ThreadPool() { stop(); }

  int num_threads() const { return num_threads_; }

  void set_num_threads(int n) {
    stop();
    num_threads_ = std::max(1, n);
  }

  void run(int64_t num_tasks, TaskBody body, void* context) {
    const bool fork = num_threads_ > 1 && num_tasks > 1 && num_tasks < kMaxTasks;
    if (!fork || busy_.exchange(true, std::memory_order_acquire)) {
      for (int64_t i = 0; i < num_tasks; ++i) body(context, i);
      return;
    }
    start();
    publish(num_tasks, body, context);
    take_tasks(ticket_.load(std::memory_order_relaxed));
    wait_until_done(num_tasks);
    busy_.store(false, std::memory_order_release);
  }

 private:
  void start() {
    if (!workers_.empty()) return;
    stopping_.store(false, std::memory_order_relaxed);
    const uint64_t ticket = ticket_.load(std::memory_order_relaxed);
    for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, ticket] { work(job_of(ticket)); });
  }

  void stop() {
    {
      std::lock_guard lock(sleep_mutex_);
      stopping_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void publish(int64_t num_tasks, TaskBody body, void* context) {
    body_.store(body, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    const uint64_t job = job_of(ticket_.load(std::memory_order_relaxed)) + 1;
    // Sequentially consistent with num_sleeping_: either we see the sleeper or it sees the job.
    ticket_.store(make_ticket(job, num_tasks), std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(sleep_mutex_);
      wake_.notify_all();
    }
  }

  void take_tasks(uint64_t ticket) {
    const uint64_t job = job_of(ticket);
    while (job_of(ticket) == job && remaining_of(ticket) > 0) {
      TaskBody body = body_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      // On failure `ticket` is loaded anew.
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      body(context, remaining_of(ticket) - 1);
      num_done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void wait_until_done(int64_t num_tasks) {
    for (int spins = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++spins) {
      // A worker that lost its CPU holds the last task: let it have ours.
      spins < 4096 ? pause() : std::this_thread::yield();
    }
  }

  void work(uint64_t last_job) {
    for (;;) {
      const uint64_t ticket = wait_for_job(last_job);
      if (stopping_.load(std::memory_order_relaxed)) return;
      last_job = job_of(ticket);
      take_tasks(ticket);
    }
  }

  uint64_t wait_for_job(uint64_t last_job) {
    const auto has_work = [&] {
      return job_of(ticket_.load(std::memory_order_seq_cst)) != last_job || stopping_.load(std::memory_order_relaxed);
    };
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (!has_work() && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < 16 && job_of(ticket_.load(std::memory_order_acquire)) == last_job; ++i) pause();
    }
    if (!has_work()) {
      std::unique_lock lock(sleep_mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, has_work);
      num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    return ticket_.load(std::memory_order_acquire);
  }

  // Touched by the thread that holds busy_, or under set_num_threads().
  int num_threads_;
  std::vector<std::thread> workers_;

  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};

  // The job; see the top of this file.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<TaskBody> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  alignas(64) std::atomic<int64_t> num_done_{0};

  alignas(64) std::atomic<int> num_sleeping_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

// Never destroyed: its threads may outlive the statics of this module when the process exits.
ThreadPool& pool() {
  static ThreadPool* const instance = new ThreadPool;
  return *instance;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
struct Buffer {
  std::unique_ptr<void, Free> memory;
  size_t size = 0;
};

}  // namespace

void set_num_threads(int n) { pool().set_num_threads(n); }
int num_threads() { return pool().num_threads(); }

void run_tasks(int64_t num_tasks, TaskBody body, void* context) { pool().run(num_tasks, body, context); }

void* scratch(Scratch slot, size_t bytes) {
  thread_local std::array<Buffer, 5> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  if (buffer.size < bytes) {
    const size_t size = (bytes + bytes / 2 + 63) / 64 * 64;
    buffer.memory.reset(std::aligned_alloc(64, size));
    if (!buffer.memory) std::abort();
    buffer.size = size;
  }
  return buffer.memory.get();
}

}  // namespace hocket::cpu
