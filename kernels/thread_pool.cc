// Claims go through one word, so that a thread that comes late to a round finds it over instead of taking another's task.
#include "thread_pool.h"

#include "cpu.h"

namespace refrain {

namespace {

// About a tenth of a millisecond: longer than what lies between two calls of a pass.
constexpr int kSpins = 2000;
// A caller that waits for others' last tasks gives its time away after this many turns.
constexpr int kPatience = 4000;

inline void pause() {
#if REFRAIN_X86
  __builtin_ia32_pause();
#endif
}

constexpr uint64_t kOneRound = uint64_t{1} << 32;

uint64_t round_of(uint64_t next) { return next & ~(kOneRound - 1); }

}  // namespace

ThreadPool::ThreadPool(size_t threads) {
  for (size_t thread = 1; thread < threads; thread++) workers_.emplace_back([this, thread] { serve(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::claim(uint64_t round, size_t& task) {
  uint64_t next = next_.load();
  while (round_of(next) == round && static_cast<size_t>(next - round) < tasks_.load()) {
    if (next_.compare_exchange_weak(next, next + 1)) {
      task = static_cast<size_t>(next - round);
      return true;
    }
  }
  return false;
}

void ThreadPool::call(size_t tasks, Call call, const void* what) {
  if (workers_.empty() || tasks <= 1) {
    for (size_t task = 0; task < tasks; task++) call(what, task, 0);
    return;
  }
  // Nobody can claim while the round is closed: no task of the last one is left, and the new one is not told yet.
  const uint64_t round = round_of(next_.load()) + kOneRound;
  tasks_ = 0;
  next_ = round;
  done_ = 0;
  call_ = call;
  what_ = what;
  tasks_ = tasks;
  if (asleep_.load() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  size_t task;
  while (claim(round, task)) {
    call(what, task, 0);
    done_++;
  }
  for (int spins = 0; done_.load() < tasks; spins++) {
    pause();
    if (spins > kPatience) std::this_thread::yield();
  }
}

void ThreadPool::serve(size_t thread) {
  uint64_t seen = 0;
  int spins = 0;
  while (!over_) {
    const uint64_t next = next_.load();
    const uint64_t round = round_of(next);
    size_t task;
    if (round != seen && claim(round, task)) {
      const Call call = call_;
      const void* const what = what_;
      do {
        call(what, task, thread);
        done_++;
      } while (claim(round, task));
      seen = round;
      spins = 0;
      continue;
    }
    if (++spins < kSpins) {
      pause();
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_++;
    // A round that began before the count was raised is seen here; one that begins later sees the count.
    wake_.wait(lock, [&] {
      return over_ || (round_of(next_.load()) != seen && static_cast<size_t>(next_.load() & (kOneRound - 1)) < tasks_.load());
    });
    asleep_--;
    spins = 0;
  }
}

}  // namespace refrain
