// The table of kernels: one per CPU level and dtype, chosen once, above every loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/problem.hpp"
#include "numbers/philox.hpp"

namespace fedbuff {

struct DelayModel;
struct Distribution;

// How the sum of a buffer moves the model.
//   SGD   v <- momentum v + sum / norm;  w <- w - lr v        (momentum 0: w <- w - (lr / norm) sum, v unused)
//   Adam  as in the paper of that name on g = sum / norm + weight_decay w, with bias correction
//   those of Optimizer, as fedbuff.h says of them
enum class Optimizer : int { Nesterov, AdamUncorrected, Adagrad, Yogi, AmsGrad, DelayedNesterov };

struct StepConfig {
  double lr;
  double norm;
  double momentum;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  std::int64_t step;  // 1 at the first server step; Adam's bias correction, DelayedNesterov's period
  Optimizer optimizer = Optimizer::Nesterov;
  std::int64_t period = 1;
  double activation = 0;
};

// An arrival of a client that has a row in a table: delta (dim), what it is multiplied by, where start (dim) is not
// null what it was computed from, the row (dim), null where it is zero, and where the delta is stored as the next row,
// which may be the row or null.
template <class T>
struct RowTerm {
  const T* delta;
  const T* start;
  T weight;
  const void* row;
  void* row_out;
};

// How often the row is added to a delta; whether rows are halves of floats (bfloat16, rounded to nearest, ties to
// even); and the model (dim), where a term has a start.
template <class T>
struct RowConfig {
  T own;
  bool half;
  const T* current;
};

// Loops that do one thing as fast as the level can: the limits that kernels are compared with.
template <class T>
struct Limits {
  // The sum of n_streams vectors x[k] (dim), read side by side.
  T (*read)(std::int64_t dim, std::int64_t n_streams, const T* const* x);

  // Writes value to out (dim), or copies x (dim) there; with past_caches by stores that bypass the caches.
  void (*write)(std::int64_t dim, T value, bool past_caches, T* out);
  void (*copy)(std::int64_t dim, const T* x, bool past_caches, T* out);

  // rounds times c <- c * factor + addend in as many independent registers as keep the CPU busy; the sum of all
  // numbers. Number j of them, j < flops_per_round / 2, starts at j.
  T (*multiply_add)(std::int64_t rounds, T factor, T addend);
  std::int64_t flops_per_round;

  // rounds times additions_per_round additions of step, each to the sum of those before it: a clock cycle each.
  std::uint64_t (*dependent_additions)(std::int64_t rounds, std::uint64_t step);
  std::int64_t additions_per_round;

  std::int64_t lanes;  // numbers in a vector of this level
};

// How numbers become words. x = factor * number, rounded in the number's type; cut to [-clip, clip]; divided by step, a
// power of two; and rounded to a whole number: the nearest, ties to even, or by chance to the one on the other side of
// it, with the probability that makes the mean right. Number j takes word j % 4 of the counter (client, task,
// block >> 28, Rounding << 28 | block), block = j / 4, and moves where (word + 1/2) / 2^32 is below its distance.
// clip is a float32 number, and clip / step at most 2^30 for words of 32 bits and 2^50 for words of 64.
struct FixedPointConfig {
  double clip;
  double step;
  double factor;
  bool stochastic;
  std::uint64_t seed;
  std::uint32_t client;
  std::uint32_t task;
};

// QSGD. A number of sign s and size a = |x| becomes s k norm / levels, where u = a levels / norm lies between k and k +
// 1 or goes on to k + 1 with the probability u - k, so that the mean is x. norm is the vector's length, levels a whole
// number up to 2^20. Number j takes word j % 4 of the counter (counter[0], counter[1], block >> 28,
// stream << 28 | block), block = j / 4.
inline constexpr std::int32_t kMostLevels = 1 << 20;
struct QuantizeConfig {
  double norm;
  double levels;
  std::uint64_t seed;
  std::uint32_t counter[2];
  Stream stream;
};

// The bits of a number without its sign, as a whole number: the order of sizes, in which what is not finite is larger
// than all others.
template <class T>
using SizeKey = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

// Every function is total on finite and non-finite numbers, allocates nothing and throws nothing. Outputs are last and
// end in _out; they alias no input unless said.
template <class T>
struct Kernels {
  // Bytes of scratch memory that one thread needs, 64-byte aligned and zero before its first use with a problem.
  std::size_t (*scratch_bytes)(const Problem<T>& problem);

  // delta_out = w - (w after config.steps steps), for each task. What a task gives does not depend on the others.
  void (*local_sgd)(const Problem<T>& problem, const LocalConfig& config, const LocalTask<T>* tasks,
                    std::int64_t n_tasks, void* scratch);

  // sum (dim), unless null, += the gradient at w of the sum of weight[i] f_i over clients begin .. end; its value is
  // returned. A null weight is one. Rows in their order, short ones in a few sums that take them in turn; a few hundred
  // at a time in T, those sums in double.
  double (*clients_gradient)(const Problem<T>& problem, std::int64_t begin, std::int64_t end, const double* weight,
                             const T* w, void* scratch, double* sum);

  // How many of rows [begin, end) the model puts in the right class. Net and Sparse with Logistic or Softmax heads.
  std::int64_t (*count_correct)(const Problem<T>& problem, std::int64_t begin, std::int64_t end, const T* w,
                                void* scratch);

  // sum_out = sum + weight * (delta + (current - start)), the inner bracket only where start is not null; a null sum is
  // zero. Returns whether sum_out is finite; it is not where the delta is not. sum_out may be sum.
  bool (*accumulate)(std::int64_t dim, const T* sum, const T* delta, T weight, const T* current, const T* start,
                     T* sum_out);

  // sum_out = sum + sum_k weight[k] * (start[k] - model[k]), added in the order of k in one pass: the bits of
  // accumulate with each delta in turn. A null sum is zero, sum_out may be sum. Returns whether sum_out is finite.
  bool (*accumulate_models)(std::int64_t dim, const T* sum, std::int64_t n_models, const T* const* start,
                            const T* const* model, const T* weight, T* sum_out);

  // w_out = w - scale * sum_k weight[k] * delta[k], elements begin .. end of each, in one pass, added in the order of
  // k. w_out may be w.
  void (*aggregate)(std::int64_t begin, std::int64_t end, const T* w, std::int64_t n_deltas, const T* const* delta,
                    const T* weight, T scale, T* w_out);

  // sum_out = sum + weight * ((delta + own * row) + (current - start)); change_out = change + (stored delta - row); the
  // delta is stored in row_out. Null sums are zero, outputs may be their inputs. Returns whether both are finite.
  bool (*add_row)(std::int64_t dim, const T* sum, const T* change, const RowTerm<T>& term, const RowConfig<T>& config,
                  T* sum_out, T* change_out);

  // add_row of all terms in their order, from zero, elements of the vectors in blocks that stay in the cache; then
  // w_out = w - scale * (sum + mean * total) and total += change. w_out may be w. Rows of two terms may be the same.
  // Returns whether w_out is finite.
  bool (*step_rows)(std::int64_t dim, const T* w, std::int64_t n_terms, const RowTerm<T>* terms,
                    const RowConfig<T>& config, T mean, T scale, T* total, T* w_out);

  // Stores a delta (dim) in a row.
  void (*store_row)(std::int64_t dim, const T* delta, bool half, void* row_out);

  // Moves w to w_out (which may be w) by the sum of a buffer. velocity (dim) is read and written where momentum != 0.
  // Returns whether w_out is finite.
  bool (*sgd_step)(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* velocity, T* w_out);

  // The same with Adam; first and second (dim) are its moments.
  bool (*adam_step)(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second,
                    T* w_out);

  // The same with config.optimizer. first (dim): the velocity, else the first moment; second (dim): but for Nesterov;
  // third (dim): the largest second moment of AmsGrad. The others may be null.
  bool (*optimizer_step)(std::int64_t dim, const T* w, const T* sum, const StepConfig& config, T* first, T* second,
                         T* third, T* w_out);

  // Whether no element is NaN or infinite.
  bool (*all_finite)(std::int64_t dim, const T* x);

  // sum of x[j] * y[j] in double: norms and distances.
  double (*dot)(std::int64_t dim, const T* x, const T* y);

  // dot of x - y, rounded to T, with itself.
  double (*squared_distance)(std::int64_t dim, const T* x, const T* y);

  // total_out = total + weight * (delta in fixed point), modulo 2^32 or 2^64; a null total is zero. Returns how many
  // numbers were cut to the range; one that is not finite is among them. total_out may be total.
  std::int64_t (*encode_add_32)(std::int64_t dim, const std::uint32_t* total, const T* delta, std::uint32_t weight,
                                const FixedPointConfig& config, std::uint32_t* total_out);
  std::int64_t (*encode_add_64)(std::int64_t dim, const std::uint64_t* total, const T* delta, std::uint64_t weight,
                                const FixedPointConfig& config, std::uint64_t* total_out);

  // total_out = total + weight * words, modulo 2^32 (in the table of float) or 2^64 (of double). total_out may be total
  // or words.
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  void (*add_words)(std::int64_t dim, const Word* total, const Word* words, Word weight, Word* total_out);

  // values_out = scale * words, taken as signed numbers; the product is made in double.
  void (*decode_32)(std::int64_t dim, const std::uint32_t* words, double scale, T* values_out);
  void (*decode_64)(std::int64_t dim, const std::uint64_t* words, double scale, T* values_out);

  // Elements begin .. end of x, quantised, into those of out, which may be x; begin is a multiple of 4. A vector whose
  // norm is not finite gives numbers that are not.
  void (*quantize)(std::int64_t begin, std::int64_t end, const T* x, const QuantizeConfig& config, T* out);

  // Compression. Outputs may be x.
  // The sizes that are at least `least`, in their order, to the beginning of sizes_out (dim), of which the rest is
  // undefined; returns how many there are.
  std::int64_t (*gather_sizes)(std::int64_t dim, const T* x, SizeKey<T> least, SizeKey<T>* sizes_out);
  // Numbers larger than `least`, and the first n_least of that size; the others become zero.
  void (*keep_sizes)(std::int64_t dim, const T* x, SizeKey<T> least, std::int64_t n_least, T* out);
  double (*sum_of_sizes)(std::int64_t dim, const T* x);
  // -size for numbers below zero, else size.
  void (*take_signs)(std::int64_t dim, const T* x, T size, T* out);
  // The nearest bfloat16, ties to even; double goes through float.
  void (*round_to_half)(std::int64_t dim, const T* x, T* out);

  Limits<T> limits;
};

inline constexpr int kDrawBatch = 16;
inline constexpr std::size_t kMostRanked = 32;
using DrawWords = std::uint32_t[4][kDrawBatch];  // word j of counter i at [j][i]

// What the event loop does many at a time. The same bits on every level.
struct ScheduleKernels {
  // Wait and duration of kDrawBatch tasks, as draw_wait and draw_duration give them.
  void (*draw_tasks)(const DelayModel& model, const std::uint32_t* client, const std::uint32_t* task, double* wait_out,
                     double* duration_out);

  // What kDrawBatch tasks draw of one law, as `draw` gives it.
  void (*draw_law)(const Distribution& law, std::uint64_t seed, const std::uint32_t* client, const std::uint32_t* task,
                   std::uint32_t component, double* out);

  // The 64-bit selection words of the kDrawBatch starts first, first + 1, ...
  void (*draw_selection)(std::uint64_t seed, std::uint64_t first, std::uint64_t* words_out);

  // How many of n <= kMostRanked times are less than each, into rank_out; false where two are equal. `time` has room
  // for kMostRanked, of which those after n are written to.
  bool (*rank_times)(double* time, std::size_t n, std::uint32_t* rank_out);

  // The slots whose time is before `bound`, in their order, into slot_out (room for n + 8); how many they are. n is a
  // multiple of 8.
  std::size_t (*pick_early)(const double* time, std::size_t n, double bound, std::uint32_t* slot_out);

  std::int64_t most_listed_slots;  // up to which an EventList is faster than an EventQueue
};

struct KernelTable {
  const char* name;
  Kernels<float> f32;
  Kernels<double> f64;
  ScheduleKernels schedule;

  template <class T>
  const Kernels<T>& of() const {
    if constexpr (sizeof(T) == 4) {
      return f32;
    } else {
      return f64;
    }
  }
};

}  // namespace fedbuff
