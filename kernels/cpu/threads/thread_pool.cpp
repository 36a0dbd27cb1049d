// How a job is handed out.
//
// `ticket_` holds (job number, tasks not yet taken). A thread takes the last task of those, r - 1, by compare-and-swap
// of (j, r) to (j, r - 1). The job's fields are written before its ticket is published and not again until all its
// tasks are done. So a successful swap, r > 0, proves that the fields read just before it are those of job j: a worker
// that wakes late can neither run a task of a finished job nor mix the fields of two. Nobody waits for workers that
// sleep through a job.
//
// Somebody waits for a thread that lost its CPU in the middle of a task, though, for as long as the operating system
// lets others run there: milliseconds. So who has nothing left to do looks for one whose CPU time stands still, and
// lets it have the CPU that it waits on itself. Then the caller works alone for kRest, so that workers do not contend
// for the CPU that somebody else wanted; where a CPU did not help, for as long as it has waited, at most for kMaxAlone.
#include "threads/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
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
constexpr std::chrono::microseconds kLoss{200};  // of waiting for others' tasks, and more than kLossTasks tasks take
constexpr int kLossTasks = 2;
constexpr std::chrono::milliseconds kMaxAlone{4};
constexpr std::chrono::milliseconds kRest{1};  // for whoever took a CPU to be done there

using Clock = std::chrono::steady_clock;

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

// That this process may run on; empty where the system does not say.
std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// A thread of batch class takes no core from others when it wakes. A worker wakes in every step, on the core where
// somebody else may be passing on tokens: they would wait for the whole step.
void stand_behind_others() {
#if defined(SCHED_BATCH)
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);  // of this thread; a wish
#endif
}

// A thread that computes, as the others see it. Written by itself.
struct Seat {
  std::atomic<pid_t> thread{0};
  std::atomic<clockid_t> clock{0};
  std::atomic<bool> has_task{false};
  std::atomic<bool> is_guest{false};  // comes to the CPU of one that waits for it

  void take() {
    static thread_local const pid_t own = gettid();  // a call of the system
    if (thread.load(std::memory_order_relaxed) == own) return;
    clockid_t own_clock;
    pthread_getcpuclockid(pthread_self(), &own_clock);
    clock.store(own_clock, std::memory_order_relaxed);
    thread.store(own, std::memory_order_release);
  }

  // Whether it has not run for some microseconds.
  bool stands_still() const {
    timespec before{};
    timespec after{};
    if (clock_gettime(clock.load(std::memory_order_relaxed), &before) != 0) return false;
    for (int spins = 0; spins < 256; ++spins) pause();
    if (clock_gettime(clock.load(std::memory_order_relaxed), &after) != 0) return false;
    return before.tv_sec == after.tv_sec && before.tv_nsec == after.tv_nsec;
  }
};

class ThreadPool {
 public:
  ThreadPool() : cpus_(usable_cpus()) {
    const size_t known = cpus_.empty() ? std::thread::hardware_concurrency() : cpus_.size();
    num_threads_ = static_cast<int>(std::max<size_t>(1, known));
  }
  ~ThreadPool() { stop(); }

  int num_threads() const { return num_threads_; }

  void set_num_threads(int n) {
    stop();
    num_threads_ = std::max(1, n);
  }

  void run(int64_t num_tasks, TaskBody body, void* context) {
    const bool fork = num_threads_ > 1 && num_tasks > 1 && num_tasks < kMaxTasks;
    if (!fork || busy_.exchange(true, std::memory_order_acquire)) return run_alone(num_tasks, body, context);
    const Clock::time_point begin = Clock::now();
    if (was_taken_in_.load(std::memory_order_relaxed)) {
      was_taken_in_.store(false, std::memory_order_relaxed);
      alone_until_ = std::max(alone_until_, begin + kRest);
    }
    if (begin < alone_until_) {
      run_alone(num_tasks, body, context);
    } else {
      start();
      caller_.take();
      keep_workers_off(sched_getcpu());
      publish(num_tasks, body, context);
      const int64_t num_own = take_tasks(ticket_.load(std::memory_order_relaxed), caller_);
      if (!is_done_soon(num_tasks)) wait_long(num_tasks, begin, num_own);
    }
    busy_.store(false, std::memory_order_release);
  }

 private:
  static void run_alone(int64_t num_tasks, TaskBody body, void* context) {
    for (int64_t i = 0; i < num_tasks; ++i) body(context, i);
  }

  void start() {
    if (!workers_.empty()) return;
    stopping_.store(false, std::memory_order_relaxed);
    const uint64_t ticket = ticket_.load(std::memory_order_relaxed);
    for (int i = 1; i < num_threads_; ++i) {
      Seat& seat = seats_.emplace_back();
      workers_.emplace_back([this, ticket, &seat] { work(job_of(ticket), seat); });
    }
    if (static_cast<size_t>(num_threads_) != cpus_.size()) return;
    for (int i = 1; i < num_threads_; ++i) place(static_cast<size_t>(i) - 1, cpus_[static_cast<size_t>(i)]);
  }

  // A worker that wakes on the CPU of the caller takes it away from it, and spins there when it has nothing to do.
  void keep_workers_off(int callers_cpu) {
    for (size_t worker = 0; worker < cpu_of_worker_.size(); ++worker) {
      if (cpu_of_worker_[worker] != callers_cpu) continue;
      const auto free = std::find_if(cpus_.begin(), cpus_.end(), [&](int cpu) {
        return cpu != callers_cpu &&
               std::find(cpu_of_worker_.begin(), cpu_of_worker_.end(), cpu) == cpu_of_worker_.end();
      });
      if (free == cpus_.end()) return;
      place(worker, *free);
    }
  }

  void place(size_t worker, int cpu) {
    cpu_of_worker_.resize(workers_.size(), -1);
    cpu_of_worker_[worker] = cpu;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(workers_[worker].native_handle(), sizeof(set), &set);  // a wish: it may fail
  }

  void stop() {
    {
      std::lock_guard lock(sleep_mutex_);
      stopping_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    seats_.clear();
    cpu_of_worker_.clear();
  }

  void publish(int64_t num_tasks, TaskBody body, void* context) {
    body_.store(body, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_done_.store(0, std::memory_order_relaxed);
    num_tasks_.store(num_tasks, std::memory_order_relaxed);
    const uint64_t job = job_of(ticket_.load(std::memory_order_relaxed)) + 1;
    // Sequentially consistent with num_sleeping_: either we see the sleeper or it sees the job.
    ticket_.store(make_ticket(job, num_tasks), std::memory_order_seq_cst);
    if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(sleep_mutex_);
      wake_.notify_all();
    }
  }

  // Returns how many.
  int64_t take_tasks(uint64_t ticket, Seat& seat) {
    const uint64_t job = job_of(ticket);
    int64_t num_taken = 0;
    seat.has_task.store(true, std::memory_order_relaxed);
    while (job_of(ticket) == job && remaining_of(ticket) > 0) {
      TaskBody body = body_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      // On failure `ticket` is loaded anew.
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      body(context, remaining_of(ticket) - 1);
      num_done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
      ++num_taken;
    }
    seat.has_task.store(false, std::memory_order_relaxed);
    return num_taken;
  }

  bool is_done(int64_t num_tasks) const { return num_done_.load(std::memory_order_acquire) >= num_tasks; }

  bool is_done_soon(int64_t num_tasks) const {
    for (int spins = 0; spins < 4096; ++spins) {
      if (is_done(num_tasks)) return true;
      pause();
    }
    return false;
  }

  // A worker holds the last task and may have lost its CPU.
  void wait_long(int64_t num_tasks, Clock::time_point job_begin, int64_t num_own) {
    const Clock::time_point wait_begin = Clock::now();
    while (!is_done(num_tasks)) {
      take_in_workers();
      std::this_thread::yield();
    }
    const Clock::time_point now = Clock::now();
    const Clock::duration lost = now - wait_begin;
    const Clock::duration of_tasks = kLossTasks * (wait_begin - job_begin) / std::max<int64_t>(1, num_own);
    if (lost > kLoss && lost > of_tasks) alone_until_ = now + std::min<Clock::duration>(lost, kMaxAlone);
  }

  // The caller's: those that were put aside in the middle of a task come to its CPU, which it does not use.
  void take_in_workers() {
    for (size_t i = 0; i < cpu_of_worker_.size(); ++i) {
      const int cpu = sched_getcpu();
      Seat& seat = seats_[i];
      if (cpu_of_worker_[i] == cpu || !seat.has_task.load(std::memory_order_relaxed) || !seat.stands_still()) continue;
      seat.is_guest.store(true, std::memory_order_relaxed);
      place(i, cpu);
      was_taken_in_.store(true, std::memory_order_relaxed);
    }
  }

  // A worker's: the same for the caller, who may then go on wherever it might before.
  void take_in_caller() {
    if (is_done(num_tasks_.load(std::memory_order_relaxed)) || !caller_.has_task.load(std::memory_order_relaxed))
      return;
    if (!caller_.stands_still() || caller_.is_guest.exchange(true, std::memory_order_acquire)) return;
    const pid_t thread = caller_.thread.load(std::memory_order_acquire);
    const int cpu = sched_getcpu();
    cpu_set_t usual;
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(cpu, &here);
    if (sched_getaffinity(thread, sizeof(usual), &usual) == 0 && CPU_ISSET(cpu, &usual) &&
        sched_setaffinity(thread, sizeof(here), &here) == 0) {
      sched_setaffinity(thread, sizeof(usual), &usual);
      was_taken_in_.store(true, std::memory_order_relaxed);
    }
    caller_.is_guest.store(false, std::memory_order_release);
  }

  void work(uint64_t last_job, Seat& seat) {
    stand_behind_others();
    seat.take();
    for (;;) {
      const uint64_t ticket = wait_for_job(last_job);
      if (stopping_.load(std::memory_order_relaxed)) return;
      last_job = job_of(ticket);
      take_tasks(ticket, seat);
      if (seat.is_guest.exchange(false, std::memory_order_relaxed)) std::this_thread::yield();
    }
  }

  uint64_t wait_for_job(uint64_t last_job) {
    const auto has_work = [&] {
      return job_of(ticket_.load(std::memory_order_seq_cst)) != last_job || stopping_.load(std::memory_order_relaxed);
    };
    const Clock::time_point deadline = Clock::now() + kSpin;
    while (!has_work() && Clock::now() < deadline) {
      for (int i = 0; i < 16 && job_of(ticket_.load(std::memory_order_acquire)) == last_job; ++i) pause();
    }
    if (!has_work()) take_in_caller();
    if (!has_work()) {
      std::unique_lock lock(sleep_mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, has_work);
      num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }
    return ticket_.load(std::memory_order_acquire);
  }

  // Touched by the thread that holds busy_, or under set_num_threads().
  const std::vector<int> cpus_;
  int num_threads_;
  std::vector<std::thread> workers_;
  std::deque<Seat> seats_;          // of workers
  std::vector<int> cpu_of_worker_;  // empty where there are CPUs to spare: then the system places them
  Clock::time_point alone_until_{};

  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};

  // The job; see the top of this file.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<TaskBody> body_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> num_tasks_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
  Seat caller_;
  std::atomic<bool> was_taken_in_{false};  // somebody, since the last job

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

void* scratch(Scratch which, size_t bytes) {
  thread_local std::array<Buffer, kNumScratches> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(which)];
  if (buffer.size < bytes) {
    const size_t size = (bytes + bytes / 2 + 63) / 64 * 64;
    buffer.memory.reset(std::aligned_alloc(64, size));
    if (!buffer.memory) std::abort();
    buffer.size = size;
  }
  return buffer.memory.get();
}

}  // namespace hocket::cpu
