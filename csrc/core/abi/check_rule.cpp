#include "abi/check_rule.hpp"

#include <cmath>

#include "server/rule.hpp"

namespace fedbuff {

namespace {

constexpr std::int64_t kMostState = std::int64_t{1} << 59;  // its bytes can be counted

bool is_plain_base(const fb_rule& rule) { return rule.base == FB_BASE_START; }

void check_optimizer(const fb_rule& rule, FieldChecks& checks) {
  checks.between("optimizer", rule.optimizer, FB_SGD, FB_DELAYED_NESTEROV);
  checks.not_negative("momentum", rule.momentum);
  checks.not_negative("beta1", rule.beta1);
  checks.not_negative("beta2", rule.beta2);
  checks.not_negative("epsilon", rule.epsilon);
  checks.not_negative("weight_decay", rule.weight_decay);
  checks.not_negative("initial", rule.initial);
  if (rule.optimizer == FB_DELAYED_NESTEROV) {
    checks.at_least("period", rule.period, 1);
    checks.not_negative("activation", rule.activation);
  }
}

void check_lr(const fb_rule& rule, FieldChecks& checks) {
  checks.not_negative("lr", rule.lr);
  checks.between("decay", rule.decay, FB_DECAY_NONE, FB_DECAY_INVERSE_SQRT);
  if (rule.decay != FB_DECAY_NONE) {
    checks.at_least("decay_steps", rule.decay_steps, 1);
  }
  checks.not_negative("decay_factor", rule.decay_factor);
  checks.not_negative("decay_floor", rule.decay_floor);
  checks.at_least("warm_up", rule.warm_up, 0);
  checks.between("delay_lr", rule.delay_lr, FB_DELAY_LR_NONE, FB_DELAY_LR_DIVIDE);
  checks.at_least("tau_c", rule.tau_c, 0);
}

void check_weights(const fb_rule& rule, FieldChecks& checks) {
  checks.between("weight_by", rule.weight_by, FB_WEIGHT_NONE, FB_WEIGHT_SUM);
  checks.not_negative("weight_clip", rule.weight_clip);
  checks.not_negative("weight_epsilon", rule.weight_epsilon);
  if (rule.weight_by >= FB_WEIGHT_NORM && rule.weight_by <= FB_WEIGHT_RATIO) {
    checks.positive("weight_epsilon", rule.weight_epsilon);
  }
  checks.require(rule.unit == 0 || !weighs_numbers(rule), "weight_by", "none, and no weight_clip, with a unit");
  checks.flag("weight_shared", rule.weight_shared);
  if (rule.weight_shared == 1) {
    checks.at_least("n_clients", rule.n_clients, 1);
    checks.require(is_plain_base(rule) && rule.table == FB_TABLE_NONE && rule.unit == 0 && !weighs_numbers(rule),
                   "weight_shared", "FB_BASE_START, and no table, unit or weights of numbers with it");
  }
}

// A table, and what it keeps instead of last deltas: that goes with nothing else that decides what an arrival counts.
void check_table(const fb_rule& rule, FieldChecks& checks) {
  checks.between("table", rule.table, FB_TABLE_NONE, FB_TABLE_BF16);
  if (rule.table != FB_TABLE_NONE) {
    checks.at_least("n_clients", rule.n_clients, 1);
    checks.require(rule.unit == 0, "unit", "0 with a table", rule.unit);
    checks.finite("table_own", rule.table_own);
    checks.finite("table_mean", rule.table_mean);
  }
  checks.between("table_keeps", rule.table_keeps, FB_KEEPS_DELTA, FB_KEEPS_MODELS);
  if (rule.table_keeps == FB_KEEPS_DELTA) {
    return;
  }
  checks.require(rule.table == FB_TABLE_ROWS && rule.norm == FB_NORM_CLIENTS && is_plain_base(rule) &&
                     !weighs_numbers(rule) && rule.table_wait == 0 && rule.weight_shared == 0,
                 "table_keeps", "FB_TABLE_ROWS, FB_NORM_CLIENTS, FB_BASE_START and plain weights with it");
  if (rule.table_keeps == FB_KEEPS_MEANS) {
    checks.require(rule.trigger == FB_TRIGGER_RINGLEADER, "trigger", "FB_TRIGGER_RINGLEADER with FB_KEEPS_MEANS");
  } else {
    checks.require(rule.trigger == FB_TRIGGER_BUFFER && rule.buffer_size == 1, "buffer_size",
                   "1, and FB_TRIGGER_BUFFER, with FB_KEEPS_MODELS");
    checks.require(rule.table_own == -1 && rule.table_mean == 0, "table_own",
                   "-1, and table_mean 0, with FB_KEEPS_MODELS", rule.table_own);
  }
}

void check_trigger(const fb_rule& rule, FieldChecks& checks) {
  checks.between("trigger", rule.trigger, FB_TRIGGER_BUFFER, FB_TRIGGER_RINGLEADER);
  if (rule.trigger != FB_TRIGGER_BUFFER) {
    checks.at_least("n_clients", rule.n_clients, 1);
    checks.require(std::isfinite(rule.per_client) && rule.per_client >= 1, "per_client",
                   "a finite number of at least 1", rule.per_client);
  }
}

void check_own_step(const fb_rule& rule, FieldChecks& checks) {
  checks.between("own_state", rule.own_state, 0, rule.own_step == nullptr ? 0 : kMostState);
  if (rule.own_step != nullptr) {
    checks.require(
        is_plain_base(rule) && rule.optimizer == FB_SGD && rule.momentum == 0 && rule.norm == FB_NORM_ONE &&
            rule.unit == 0 && rule.table == FB_TABLE_NONE && rule.hidden_levels == 0 && !weighs_numbers(rule),
        "own_step", "FB_BASE_START, FB_SGD, FB_NORM_ONE, and no unit, table, hidden model or weights of numbers");
  }
}

void check_control(const fb_rule& rule, FieldChecks& checks) {
  checks.between("control", rule.control, FB_CONTROL_NONE, FB_CONTROL_MEAN);
  checks.not_negative("control_pull", rule.control_pull);
  if (rule.control == FB_CONTROL_NONE) {
    checks.require(rule.control_pull == 0, "control_pull", "0 without a control variate", rule.control_pull);
    return;
  }
  checks.at_least("n_clients", rule.n_clients, 1);
  checks.require(rule.unit == 0 && rule.table == FB_TABLE_NONE && rule.trigger == FB_TRIGGER_BUFFER &&
                     rule.weight_shared == 0 && rule.hidden_levels == 0 && rule.own_step == nullptr,
                 "control", "FB_TRIGGER_BUFFER, and no unit, table, weight_shared, hidden model or own step");
}

}  // namespace

void check_rule(const fb_rule& rule, FieldChecks& checks) {
  checks.between("base", rule.base, FB_BASE_START, FB_BASE_CURRENT);
  checks.between("norm", rule.norm, FB_NORM_ONE, FB_NORM_CLIENTS);
  checks.at_least("buffer_size", rule.buffer_size, 1);
  if (rule.norm == FB_NORM_CLIENTS) {
    checks.at_least("n_clients", rule.n_clients, 1);
  }
  checks.at_least("max_staleness", rule.max_staleness, -1);
  check_optimizer(rule, checks);
  check_lr(rule, checks);
  checks.not_negative("unit", rule.unit);
  checks.require(rule.unit == 0 || is_plain_base(rule), "unit", "0 with FB_BASE_CURRENT", rule.unit);
  check_weights(rule, checks);
  check_table(rule, checks);
  check_trigger(rule, checks);
  checks.between("hidden_levels", rule.hidden_levels, 0, kMostLevels);
  checks.require(rule.hidden_levels == 0 || is_plain_base(rule), "hidden_levels", "0 with FB_BASE_CURRENT");
  check_own_step(rule, checks);
  checks.at_least("stop_stale", rule.stop_stale, 0);
  check_control(rule, checks);
}

}  // namespace fedbuff
