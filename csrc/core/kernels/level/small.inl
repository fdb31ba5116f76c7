// Many short tasks on a small linear model with one output: most of such a task's time would be overhead. The rows of
// several tasks are drawn and prefetched together, pass through the head together, and each model stays in a few
// vectors. Element by element the operations and their order are those of the general path.

inline constexpr int kSmallVecs = 4;    // vectors that a model fills at most
inline constexpr int kSmallTasks = 32;  // tasks that go together, with at most kBlockRows rows in all

template <class T>
bool is_small(const Problem<T>& p, const LocalConfig& config) {
  return p.family == Family::Net && p.n_layers == 1 && p.size[1] == 1 && !p.intercept && p.head != Head::Softmax &&
         p.dim <= kSmallVecs * Vec<T>::kLanes && config.plain() && config.lr_factors == nullptr && config.scale == 1;
}

constexpr std::int64_t in_fours(std::int64_t n) { return (n + 3) / 4 * 4; }

// Tasks of one seed whose batches, each filled up to a multiple of four, fit one block of rows.
template <class T>
struct SmallGroup {
  const LocalTask<T>* tasks;
  int n_tasks = 0;
  std::int64_t n_rows = 0;
  std::int64_t begin[kSmallTasks];                            // of each task's rows in the block
  std::int64_t n_distinct[kSmallTasks];                       // rows of the present step
  alignas(64) T w[kSmallTasks][kSmallVecs * Vec<T>::kLanes];  // the tasks' models; zero beyond dim

  explicit SmallGroup(const LocalTask<T>* first) : tasks(first) {}

  bool take(const LocalTask<T>& next) {
    const Task& task = next.task;
    if (n_tasks == kSmallTasks || next.shift != nullptr || task.batch == 0 || task.steps_per_pass > 0 ||
        n_rows + in_fours(task.batch) > kBlockRows || task.seed != tasks->task.seed) {
      return false;
    }
    begin[n_tasks++] = n_rows;
    n_rows += in_fours(task.batch);
    return true;
  }
};

// The rows of one local step of all tasks, into s.row, s.scale, s.target and s.x.
template <class T>
void draw_small(const Problem<T>& p, const Scratch<T>& s, SmallGroup<T>& group, std::int64_t step, double numerator) {
  constexpr int kWide = 8;
  std::uint32_t c0[kBlockRows / 4], c1[kBlockRows / 4], c2[kBlockRows / 4], c3[kBlockRows / 4];
  int n_blocks = 0;
  for (int t = 0; t < group.n_tasks; ++t) {
    const Task& task = group.tasks[t].task;
    for (std::int64_t i = 0; i < task.batch; i += 4, ++n_blocks) {
      c0[n_blocks] = static_cast<std::uint32_t>(task.client);
      c1[n_blocks] = task.number;
      c2[n_blocks] = static_cast<std::uint32_t>(step);
      c3[n_blocks] = stream_word(Stream::Batches, static_cast<std::uint32_t>(i / 4));
    }
  }
  for (int b = n_blocks; b % kWide != 0; ++b) {
    c0[b] = c1[b] = c2[b] = c3[b] = 0;
  }
  for (int b = 0; b < n_blocks; b += kWide) {
    philox_rounds<kWide>(group.tasks->task.seed, c0 + b, c1 + b, c2 + b, c3 + b);
  }
  for (int t = 0; t < group.n_tasks; ++t) {
    const Task& task = group.tasks[t].task;
    const std::int64_t begin = group.begin[t], first = p.offsets[task.client];
    std::uint32_t* row = s.row + begin;
    T* scale = s.scale + begin;
    if (task.rows != nullptr) {
      draw_rows(task, step, 0, task.batch, 0, row);
    } else {
      const auto n_rows = static_cast<std::uint32_t>(p.rows(task.client));
      for (std::int64_t i = 0; i < task.batch; i += 4) {
        const std::int64_t b = (begin + i) / 4;
        row[i] = index_below(c0[b], n_rows);
        row[i + 1] = index_below(c1[b], n_rows);
        row[i + 2] = index_below(c2[b], n_rows);
        row[i + 3] = index_below(c3[b], n_rows);
      }
    }
    const T share = static_cast<T>(numerator / static_cast<double>(task.batch));
    std::int64_t n = task.batch;
    if (p.max_rows <= kMostRowsMerged) {
      n = merge_repeats(row, n, s.seen, row, scale);
    } else {
      for (std::int64_t r = 0; r < n; ++r) {
        scale[r] = T(1);
      }
    }
    group.n_distinct[t] = n;
    for (std::int64_t r = 0; r < n; ++r) {
      scale[r] *= share;
      s.x[begin + r] = p.x + (first + row[r]) * p.n_features;
      for (std::int64_t j = 0; step == 0 && j < p.n_features; j += static_cast<std::int64_t>(64 / sizeof(T))) {
        __builtin_prefetch(s.x[begin + r] + j);
      }
      __builtin_prefetch(p.target + first + row[r]);
    }
    for (std::int64_t r = n; r < in_fours(task.batch); ++r) {
      row[r] = row[0];
      scale[r] = T(0);
      s.x[begin + r] = s.x[begin];
    }
  }
}

// x . w of the rows of every task, into s.z. The last of kVecs vectors has `tail` lanes.
template <class T, int kVecs>
void score_small(const Scratch<T>& s, const SmallGroup<T>& group, int tail) {
  using V = Vec<T>;
  for (int t = 0; t < group.n_tasks; ++t) {
    const T* w = group.w[t];
    const std::int64_t end = t + 1 < group.n_tasks ? group.begin[t + 1] : group.n_rows;
    for (std::int64_t i = group.begin[t]; i < end; i += 4) {
      V sum[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const V at = V::load(w + v * V::kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const T* x = s.x[i + r] + v * V::kLanes;
          sum[r] = madd(v + 1 < kVecs ? V::load(x) : V::load_part(x, tail), at, sum[r]);
        }
      }
      sum_lanes_of_4(sum[0], sum[1], sum[2], sum[3], s.z + i);
    }
  }
}

// Moves every task's model by its rows' gradients, which s.z scales. Without regularisers the rows are added straight
// to the model, -lr being in their scale.
template <class T, int kVecs>
void step_small(const Problem<T>& p, const Scratch<T>& s, const LocalConfig& config, SmallGroup<T>& group, int tail,
                bool straight) {
  using V = Vec<T>;
  const V minus_lr = V::set(static_cast<T>(-config.lr)), one = V::set(T(1));
  const V l2 = V::set(static_cast<T>(p.l2)), twice = V::set(static_cast<T>(2 * p.nonconvex));
  for (int t = 0; t < group.n_tasks; ++t) {
    T* w = group.w[t];
    V sum[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sum[v] = straight ? V::load(w + v * V::kLanes) : V::zero();
    }
    for (std::int64_t i = group.begin[t]; i < group.begin[t] + group.n_distinct[t]; ++i) {
      const V factor = V::set(s.z[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const T* x = s.x[i] + v * V::kLanes;
        sum[v] = madd(factor, v + 1 < kVecs ? V::load(x) : V::load_part(x, tail), sum[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      if (!straight) {
        const V at = V::load(w + v * V::kLanes);
        const V q = madd(at, at, one);
        sum[v] = madd(minus_lr, madd(at, l2 + twice / (q * q), sum[v]), at);
      }
      sum[v].store(w + v * V::kLanes);
    }
  }
}

template <class T, int kVecs>
void local_sgd_small(const Problem<T>& p, const Scratch<T>& s, const LocalConfig& config, SmallGroup<T>& group) {
  using V = Vec<T>;
  constexpr int kWhole = (kVecs - 1) * V::kLanes;
  const int tail = static_cast<int>(p.dim) - kWhole;
  for (int t = 0; t < group.n_tasks; ++t) {
    const T* w = group.tasks[t].w;
#pragma GCC unroll 4
    for (int v = 0; v + 1 < kVecs; ++v) {
      V::load(w + v * V::kLanes).store(group.w[t] + v * V::kLanes);
    }
    V::load_part(w + kWhole, tail).store(group.w[t] + kWhole);
  }
  const bool straight = p.l2 == 0 && p.nonconvex == 0;
  for (std::int64_t q = 0; q < config.steps; ++q) {
    draw_small(p, s, group, q, straight ? -config.lr : 1.0);
    score_small<T, kVecs>(s, group, tail);
    for (int t = 0; t < group.n_tasks; ++t) {
      const T* target = p.target + p.offsets[group.tasks[t].task.client];
      for (std::int64_t i = group.begin[t]; i < group.begin[t] + in_fours(group.tasks[t].task.batch); ++i) {
        s.target[i] = target[s.row[i]];
      }
    }
    apply_head(p, s, group.n_rows, {});
    step_small<T, kVecs>(p, s, config, group, tail, straight);
  }
  for (int t = 0; t < group.n_tasks; ++t) {
    const T* w = group.tasks[t].w;
    T* delta = group.tasks[t].delta_out;
#pragma GCC unroll 4
    for (int v = 0; v + 1 < kVecs; ++v) {
      (V::load(w + v * V::kLanes) - V::load(group.w[t] + v * V::kLanes)).store(delta + v * V::kLanes);
    }
    (V::load_part(w + kWhole, tail) - V::load(group.w[t] + kWhole)).store_part(delta + kWhole, tail);
  }
}

// As many of the tasks as go together, from the first on; returns how many that were, 0 where the first is too large.
template <class T>
std::int64_t local_sgd_small(const Problem<T>& p, const LocalConfig& config, const LocalTask<T>* tasks,
                             std::int64_t n_tasks, void* memory) {
  SmallGroup<T> group(tasks);
  while (group.n_tasks < n_tasks && group.take(tasks[group.n_tasks])) {
  }
  if (group.n_tasks == 0) {
    return 0;
  }
  const Scratch<T> s(p, memory);
  switch ((p.dim + Vec<T>::kLanes - 1) / Vec<T>::kLanes) {
    case 1: local_sgd_small<T, 1>(p, s, config, group); break;
    case 2: local_sgd_small<T, 2>(p, s, config, group); break;
    case 3: local_sgd_small<T, 3>(p, s, config, group); break;
    default: local_sgd_small<T, kSmallVecs>(p, s, config, group); break;
  }
  return group.n_tasks;
}
