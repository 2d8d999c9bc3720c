// Threads that share the tasks of one call after another, many thousand calls a second. Invariant: `run` returns when all
// tasks are done, and waits for no thread that has none of them: one that the system gave no time is not missed. Threads
// spin for a moment between calls, and sleep when none comes. No Node type here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace refrain {

class ThreadPool {
 public:
  /// `threads` in all, the caller of `run` among them; at least 1.
  explicit ThreadPool(size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return workers_.size() + 1; }

  /// Calls work(task, thread) for every task in [0, tasks), thread in [0, threads). REQUIRES: one caller at a time.
  template <typename Work>
  void run(size_t tasks, const Work& work) {
    call(tasks, [](const void* what, size_t task, size_t thread) { (*static_cast<const Work*>(what))(task, thread); },
         &work);
  }

 private:
  using Call = void (*)(const void* what, size_t task, size_t thread);

  void call(size_t tasks, Call call, const void* what);
  void serve(size_t thread);
  bool claim(uint64_t round, size_t& task);

  // The round in the upper half, the next task in the lower. What a thread read of a round holds once it has claimed a
  // task of it, since a round ends when its last task is done.
  std::atomic<uint64_t> next_{0};
  std::atomic<size_t> tasks_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> what_{nullptr};
  std::atomic<size_t> done_{0};
  std::atomic<bool> over_{false};
  std::atomic<size_t> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace refrain
