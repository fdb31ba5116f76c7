// What a client does with the model that it downloaded, as the replay engine calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fedbuff {

// One arrival of a schedule. s and e weigh its delta; `step` is the server step that it enters. Steps ascend from row
// to row. With s below 0 no step uses the delta: the task counts for what it leaves of its client's state, and its step
// is that of the used row after it.
struct ReplayRow {
  std::int32_t client;
  std::uint32_t task;
  std::int64_t version;
  std::int64_t step;
  double s;
  double e;

  bool is_used() const { return s >= 0; }
};

// The owner of the models that tasks run on.
class ModelStore {
 public:
  // Shares the memory of a version's model, for a caller that uses it after its task has ended. The memory is not used
  // for another model then. Call it from the run of a task on that version.
  virtual std::shared_ptr<const void> keep(std::int64_t version) = 0;

 protected:
  ~ModelStore() = default;
};

// A row, the model w (dim) that its client downloaded, and where its delta (dim) is written. The two do not overlap.
// Where the work keeps a state of clients: the state (dim) before the task, null for zeros, and where that after it is
// written; and the rule's control variate (dim) of the version, where it has one.
template <class T>
struct ClientTask {
  const ReplayRow* row;
  const T* w;
  T* delta_out;
  ModelStore* store = nullptr;  // null: the model cannot be kept
  const T* control = nullptr;
  const T* state = nullptr;
  T* state_out = nullptr;
};

inline constexpr std::int64_t kMaxTasksPerRun = 64;

// delta_out = w - (w after the local work), for each task. A delta depends on the other tasks of the call only where
// the work takes groups.
template <class T>
class ClientWork {
 public:
  virtual ~ClientWork() = default;
  virtual std::size_t scratch_bytes() const = 0;  // for one thread; zeroed before the thread's first call
  // At most kMaxTasksPerRun tasks, or a group. Called from several threads at once, each with its own scratch memory.
  // May throw.
  virtual void run(const ClientTask<T>* tasks, std::int64_t n_tasks, void* scratch) = 0;
  virtual double flops() const = 0;               // of one task, an estimate: it sets how many a worker takes at once
  virtual bool is_tiny() const { return false; }  // whether a task costs less than passing it to another core
  // Whether a client's task reads what its task before it left. Such work is not tiny, and takes no groups.
  virtual bool keeps_state() const { return false; }
  // Above 0: each call is given a group (replay/groups.hpp) of at most so many tasks. 0: any tasks.
  virtual std::int64_t most_in_group() const { return 0; }
};

}  // namespace fedbuff
