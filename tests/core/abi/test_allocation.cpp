// Every allocation of the C ABI fails once: FB_ERR_MEMORY, nothing has changed, the same call works then, the results
// are those of a run without a fault, and nothing leaks.
#if !defined(__APPLE__)  // where a program does not replace the functions of its libraries

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "fedbuff/fedbuff.h"

namespace {

// Of this thread: the tests of others that run meanwhile see no fault.
thread_local std::int64_t countdown = 0, n_live = 0, n_made = 0;
thread_local bool counting = false;

bool fails() {
  if (!counting) {
    return false;
  }
  ++n_made;
  return countdown > 0 && --countdown == 0;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = nullptr;
  if (fails() || posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0) {
    return nullptr;
  }
  n_live += counting ? 1 : 0;
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* memory = allocate(bytes, alignment);
  return memory != nullptr ? memory : throw std::bad_alloc();
}

void release(void* memory) noexcept {
  n_live -= counting && memory != nullptr ? 1 : 0;
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t n) { return allocate_or_throw(n, alignof(std::max_align_t)); }
void* operator new[](std::size_t n) { return allocate_or_throw(n, alignof(std::max_align_t)); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, alignof(std::max_align_t)); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return allocate(n, alignof(std::max_align_t)); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }
// Models and scratch memory; their blocks are freed by free(), so they are counted by no one: LeakSanitizer sees them.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  void* memory = nullptr;
  return fails() || posix_memalign(&memory, alignment, bytes) != 0 ? nullptr : memory;
}

namespace {

// What came out, as bits that two runs must agree on; its own memory is not that of the ABI.
class Answers {
 public:
  void add(const void* from, std::size_t n_bytes) {
    const auto* bytes = static_cast<const std::uint8_t*>(from);
    for (std::size_t i = 0; i < n_bytes; ++i) {
      hash_ = (hash_ ^ bytes[i]) * 1099511628211u;
    }
  }
  bool operator==(const Answers& other) const { return hash_ == other.hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037u;
};

// Makes calls; the one that fails for lack of memory once more.
class Caller {
 public:
  template <class Call>
  void operator()(Call call) {
    fb_status status = call();
    if (status == FB_ERR_MEMORY) {
      ++n_failed_;
      status = call();
    }
    CHECK_EQ(status, FB_OK);
  }
  int n_failed() const { return n_failed_; }

 private:
  int n_failed_ = 0;
};

constexpr std::int64_t kDim = 20000;  // more than two parts

std::int32_t run_inline(void*, std::int64_t n, fb_work work, void* argument) {
  for (std::int64_t i = 0; i < n; ++i) {
    work(argument, i);
  }
  return 0;
}

fb_executor inline_executor() {
  fb_executor executor = FB_EXECUTOR_INIT;
  executor.run = &run_inline;
  return executor;
}

double vector_of_ones[kDim];
float floats_of_ones[kDim];

void add_server(fb_server* server, std::size_t n_bytes, Answers& answers) {
  fb_model* model = fb_server_model(server);
  answers.add(fb_model_data(model), n_bytes);
  fb_model_release(model);
  const std::int64_t numbers[] = {fb_server_version(server), fb_server_fill(server), fb_server_outstanding(server),
                                  fb_server_live_models(server)};
  answers.add(numbers, sizeof numbers);
}

template <class T, fb_dtype kDtype>
void use_server(fb_base base, fb_optimizer optimizer, double unit, Caller& call, Answers& answers) {
  constexpr std::size_t kBytes = sizeof(T) * kDim;
  const T* ones = nullptr;
  if constexpr (sizeof(T) == sizeof(double)) {
    ones = vector_of_ones;
  } else {
    ones = floats_of_ones;
  }
  fb_rule rule = FB_RULE_INIT;
  rule.base = base;
  rule.optimizer = optimizer;
  rule.buffer_size = 2;
  rule.unit = unit;
  fb_server *server = nullptr, *other = nullptr, *restored = nullptr;
  call([&] { return fb_server_create(&rule, kDtype, kDim, ones, &server); });
  const fb_executor executor = inline_executor();
  call([&] { return fb_server_set_executor(server, &executor); });
  const double weight[] = {1.0, 0.5, 0.25, 0.125};
  call([&] { return fb_server_set_staleness(server, weight, 4); });
  call([&] { return fb_server_set_staleness_at(server, 70000, 0.5); });
  static std::int32_t whole[kDim];
  const fb_dtype given = unit > 0 ? FB_I32 : kDtype;
  const void* delta = unit > 0 ? static_cast<const void*>(whole) : ones;
  for (int round = 0; round < 6; ++round) {
    std::int64_t version = 0, ticket = FB_NO_TICKET;
    fb_model* model = nullptr;
    call([&] { return fb_server_download(server, &version, &model); });
    fb_model_release(model);
    call([&] { return fb_server_download(server, &version, &model); });  // one more task stays due on it
    fb_model_release(model);
    if (round % 2 == 1) {
      call([&] { return fb_server_take_ticket(server, &ticket); });
    }
    call([&] {
      const fb_status status = fb_server_upload(server, given, kDim, delta, version, 1.0, ticket, nullptr);
      ticket = FB_NO_TICKET;  // a lack of memory used it up
      return status;
    });
  }
  call([&] { return fb_server_clone(server, &other); });
  fb_server_state state = FB_SERVER_STATE_INIT;
  std::int64_t due_version[8], due[8];
  const void* kept[8];
  state.due_version = due_version;
  state.due = due;
  state.kept = kept;
  call([&] { return fb_server_get_state(server, &state); });
  call([&] { return fb_server_restore(&rule, kDtype, kDim, &state, &restored); });
  add_server(server, kBytes, answers);
  add_server(other, kBytes, answers);
  add_server(restored, kBytes, answers);
  fb_server_destroy(&server);
  fb_server_destroy(&other);
  fb_server_destroy(&restored);
}

// A rule that keeps a row per client and three moments, from two clients; and its state, restored.
void use_table(fb_table table, Caller& call, Answers& answers) {
  fb_rule rule = FB_RULE_INIT;
  rule.optimizer = FB_AMSGRAD;
  rule.buffer_size = 2;
  rule.n_clients = 3;
  rule.table = table;
  rule.table_own = -1;
  rule.table_mean = 1;
  fb_server *server = nullptr, *restored = nullptr;
  call([&] { return fb_server_create(&rule, FB_F64, kDim, vector_of_ones, &server); });
  for (std::int64_t round = 0; round < 5; ++round) {
    std::int64_t version = 0;
    fb_model* model = nullptr;
    call([&] { return fb_server_download(server, &version, &model); });
    fb_model_release(model);
    call([&] {
      return fb_server_upload_from(server, FB_F64, kDim, vector_of_ones, version, 1.0, round % 2, FB_NO_TICKET,
                                   nullptr);
    });
  }
  fb_server_state state = FB_SERVER_STATE_INIT;
  std::int64_t due_version[8], due[8];
  const void* kept[8];
  fb_array arrays[16];
  state.due_version = due_version;
  state.due = due;
  state.kept = kept;
  state.arrays = arrays;
  call([&] { return fb_server_get_state(server, &state); });
  CHECK(state.n_arrays > 3 && state.n_arrays <= 16);
  call([&] { return fb_server_restore(&rule, FB_F64, kDim, &state, &restored); });
  add_server(server, sizeof(double) * kDim, answers);
  add_server(restored, sizeof(double) * kDim, answers);
  fb_server_destroy(&server);
  fb_server_destroy(&restored);
}

// Models that came back in two parts each, many in one call. Where memory is short none was uploaded, or all but one.
void use_models(Caller& call, Answers& answers) {
  fb_rule rule = FB_RULE_INIT;
  rule.base = FB_BASE_CURRENT;
  rule.buffer_size = 3;
  fb_server* server = nullptr;
  call([&] { return fb_server_create(&rule, FB_F64, kDim, vector_of_ones, &server); });
  static double model[kDim];
  const void* const parts[] = {model, model + 7};
  const std::int64_t ends[] = {7, kDim};
  for (int round = 0; round < 2; ++round) {
    fb_model_upload uploads[5];
    for (fb_model_upload& upload : uploads) {
      std::int64_t version = 0;
      fb_model* held = nullptr;
      call([&] { return fb_server_download(server, &version, &held); });
      fb_model_release(held);
      upload = {vector_of_ones, parts, ends, 2, version, -1, 1.0, FB_OK, 0};
    }
    std::int64_t n = 5;
    call([&] {
      const fb_status status = fb_server_upload_models(server, FB_F64, kDim, n, uploads);
      fb_model_upload* const failed =
          std::find_if(uploads, uploads + n, [](const fb_model_upload& upload) { return upload.status != FB_OK; });
      if (status != FB_OK || failed == uploads + n) {
        return status;
      }
      const fb_status why = failed->status;
      uploads[0] = *failed;  // the others are alike, so that it may come after them
      n = 1;
      return why;
    });
  }
  add_server(server, sizeof(double) * kDim, answers);
  fb_server_destroy(&server);
}

void use_buffer(Caller& call, Answers& answers) {
  static double out[kDim];
  fb_buffer* buffer = nullptr;
  call([&] { return fb_buffer_create(FB_F64, kDim, 0.0, &buffer); });
  const fb_executor executor = inline_executor();
  call([&] { return fb_buffer_set_executor(buffer, &executor); });
  std::int64_t ticket = FB_NO_TICKET;
  call([&] { return fb_buffer_take_ticket(buffer, &ticket); });
  call([&] {
    const fb_status status = fb_buffer_add(buffer, FB_F64, kDim, vector_of_ones, 0.5, ticket);
    ticket = FB_NO_TICKET;
    return status;
  });
  call([&] { return fb_buffer_add(buffer, FB_F64, kDim, vector_of_ones, 0.25, FB_NO_TICKET); });
  answers.add(fb_buffer_sum(buffer), sizeof out);
  call([&] { return fb_buffer_step(buffer, FB_F64, kDim, vector_of_ones, 0.1, out); });
  answers.add(out, sizeof out);
  const void* deltas[] = {vector_of_ones, out};
  const double weight[] = {1.0, 2.0};
  call([&] { return fb_aggregate(FB_F64, kDim, vector_of_ones, 2, deltas, weight, 0.5, &executor, out); });
  answers.add(out, sizeof out);
  fb_buffer_destroy(&buffer);
}

std::int32_t gradient(std::int64_t, std::int64_t, const std::int64_t*, const void* w, void* gradient_out, void*) {
  std::memcpy(gradient_out, w, 3 * sizeof(double));
  return 0;
}

void use_local(Caller& call, Answers& answers) {
  const std::int32_t size[] = {2, 4, 3}, label[] = {0, 1, 2, 0, 1, 2};
  const std::int64_t offsets[] = {0, 4, 6}, samples[] = {4, 2};
  const double x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  fb_problem problem = FB_PROBLEM_INIT;
  problem.head = FB_SOFTMAX;
  problem.n_layers = 2;
  problem.intercept = 1;
  problem.layer_size = size;
  problem.n_clients = 2;
  problem.offsets = offsets;
  problem.x = x;
  problem.label = label;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.steps = 2;
  config.batch_size = 3;
  config.lr = 0.1;
  config.momentum = 0.9;
  fb_local *net = nullptr, *custom = nullptr;
  call([&] { return fb_local_create(&problem, &config, FB_F64, &net); });
  double delta[27];
  for (std::int64_t client : {0, 1, 0}) {
    call([&] { return fb_local_delta(net, FB_F64, fb_local_dim(net), client, 0, vector_of_ones, delta); });
    answers.add(delta, sizeof(double) * static_cast<std::size_t>(fb_local_dim(net)));
  }
  call([&] { return fb_local_create_custom(&gradient, nullptr, 2, samples, &config, FB_F64, 3, &custom); });
  call([&] { return fb_local_delta(custom, FB_F64, 3, 1, 0, vector_of_ones, delta); });
  answers.add(delta, 3 * sizeof(double));
  fb_local_destroy(&net);
  fb_local_destroy(&custom);
}

void use_network(Caller& call, Answers& answers) {
  const std::int32_t label[] = {0, 1, 2, 0}, shape[] = {1, 4, 4};
  const std::int64_t offsets[] = {0, 2, 4};
  static double x[4 * 16];
  fb_layer layers[] = {FB_LAYER_INIT, FB_LAYER_INIT, FB_LAYER_INIT, FB_LAYER_INIT, FB_LAYER_INIT};
  const std::int32_t kinds[] = {FB_LAYER_CONV2D, FB_LAYER_GROUP_NORM, FB_LAYER_GELU, FB_LAYER_FLATTEN, FB_LAYER_DENSE};
  for (int i = 0; i < 5; ++i) {
    layers[i].kind = kinds[i];
    layers[i].number = 0.5;
  }
  layers[0].out = layers[0].kernel[0] = layers[0].kernel[1] = 2;
  layers[1].out = 1;
  layers[4].out = 3;
  fb_network network = FB_NETWORK_INIT;
  network.n_layers = 5;
  network.layers = layers;
  std::copy(shape, shape + 3, network.input_shape);
  std::int64_t dim = 0;
  char text[80];
  call([&] { return fb_network_check(&network, &dim, text, sizeof text); });
  fb_problem problem = FB_PROBLEM_INIT;
  problem.family = FB_LAYERS;
  problem.head = FB_SOFTMAX;
  problem.network = &network;
  problem.n_clients = 2;
  problem.offsets = offsets;
  problem.x = x;
  problem.label = label;
  fb_local_config config = FB_LOCAL_CONFIG_INIT;
  config.epochs = 2;
  config.batch_size = 1;
  config.lr = 0.1;
  fb_local* net = nullptr;
  call([&] { return fb_local_create(&problem, &config, FB_F64, &net); });
  double delta[200];
  CHECK(dim < 200);
  for (std::int64_t client : {0, 1, 0}) {
    call([&] { return fb_local_delta(net, FB_F64, dim, client, 0, vector_of_ones, delta); });
    answers.add(delta, sizeof(double) * static_cast<std::size_t>(dim));
  }
  fb_local_destroy(&net);
}

void use_queue(Caller& call, Answers& answers) {
  fb_queue* queue = nullptr;
  call([&] { return fb_queue_create(&queue); });
  for (std::int64_t i = 0; i < 5000; ++i) {
    call([&] {
      return fb_queue_push(queue, static_cast<double>(i * 7919 % 5003), i, static_cast<std::int32_t>(i % 4));
    });
  }
  for (std::int64_t i = 0; i < 5000; ++i) {
    fb_event event;
    call([&] { return fb_queue_pop(queue, &event); });
    answers.add(&event.item, sizeof event.item);
    if (i == 2000) {
      std::int64_t ticket = 0;
      call([&] { return fb_queue_push(queue, 6000.0, i, 0); });
      call([&] { return fb_queue_push_ticket(queue, 6001.0, i, 0, &ticket); });
      call([&] { return fb_queue_cancel(queue, ticket); });
    }
  }
  fb_queue_destroy(&queue);
}

void use_recorder(Caller& call, Answers& answers) {
  fb_recorder* recorder = nullptr;
  call([&] { return fb_recorder_create(&recorder); });
  for (std::int64_t i = 0; i < 60; ++i) {
    call([&] { return fb_recorder_started(recorder, i, i / 4, static_cast<double>(i)); });
    if (i >= 5) {
      call([&] { return fb_recorder_arrived(recorder, i - 5, static_cast<double>(i) + 0.5); });
    }
  }
  const std::int64_t numbers[] = {fb_recorder_count(recorder), fb_recorder_in_flight(recorder)};
  answers.add(numbers, sizeof numbers);
  fb_recorder_destroy(&recorder);
}

// Runs it without a fault, then once for each allocation that it makes.
template <class Scenario>
void fail_each_allocation(Scenario scenario) {
  const auto run = [&](std::int64_t fail_at, int& n_failed_out) {
    Caller call;
    Answers answers;
    n_live = n_made = 0;
    countdown = fail_at;
    counting = true;
    try {
      scenario(call, answers);
    } catch (...) {
      counting = false;
      throw;
    }
    counting = false;
    CHECK_EQ(n_live, std::int64_t{0});
    n_failed_out = call.n_failed();
    return answers;
  };
  int n_failed = 0;
  run(0, n_failed);  // what is made once in a process, as the choice of kernels
  const Answers expected = run(0, n_failed);
  const std::int64_t n_allocations = n_made;
  CHECK(n_failed == 0 && n_allocations > 0);
  for (std::int64_t at = 1; at <= n_allocations; ++at) {
    CHECK(run(at, n_failed) == expected);
    CHECK_EQ(n_failed, 1);
  }
}

}  // namespace

TEST(every_allocation_of_a_server_may_fail) {
  std::fill(vector_of_ones, vector_of_ones + kDim, 1.0);
  std::fill(floats_of_ones, floats_of_ones + kDim, 1.0f);
  for (const fb_base base : {FB_BASE_START, FB_BASE_CURRENT}) {
    for (const fb_optimizer optimizer : {FB_SGD, FB_ADAM}) {
      fail_each_allocation(
          [=](Caller& call, Answers& answers) { use_server<double, FB_F64>(base, optimizer, 0.0, call, answers); });
      fail_each_allocation(
          [=](Caller& call, Answers& answers) { use_server<float, FB_F32>(base, optimizer, 0.0, call, answers); });
    }
  }
  fail_each_allocation(
      [](Caller& call, Answers& answers) { use_server<double, FB_F64>(FB_BASE_START, FB_SGD, 0.5, call, answers); });
}

TEST(every_allocation_of_a_server_with_rows_may_fail) {
  std::fill(vector_of_ones, vector_of_ones + kDim, 1.0);
  for (const fb_table table : {FB_TABLE_ROWS, FB_TABLE_BF16}) {
    fail_each_allocation([=](Caller& call, Answers& answers) { use_table(table, call, answers); });
  }
}

TEST(every_allocation_of_models_in_parts_may_fail) {
  std::fill(vector_of_ones, vector_of_ones + kDim, 1.0);
  fail_each_allocation(use_models);
}

TEST(every_allocation_of_a_network_may_fail) {
  std::fill(vector_of_ones, vector_of_ones + kDim, 1.0);
  fail_each_allocation(use_network);
}

TEST(every_allocation_of_a_buffer_may_fail) { fail_each_allocation(use_buffer); }
TEST(every_allocation_of_local_sgd_may_fail) { fail_each_allocation(use_local); }
TEST(every_allocation_of_the_queue_may_fail) { fail_each_allocation(use_queue); }
TEST(every_allocation_of_a_recorder_may_fail) { fail_each_allocation(use_recorder); }

#endif
