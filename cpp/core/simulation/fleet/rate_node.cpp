#include "simulation/fleet/rate_node.h"

#include <algorithm>
#include <cmath>

namespace hocket {

namespace {

constexpr size_t kLookAhead = 16;  // requests whose blocks are still on their way are passed by so many
constexpr double kTiny = 1e-9;     // of a step

}  // namespace

double RateNode::room() const {
  return std::max(1.0, options_.max_batched_tokens - static_cast<double>(running_.size()));
}

double RateNode::step_seconds(double tokens, double pairs, double context, double num_steps) const {
  BatchFeatures step;
  if (tokens > 0) {
    step.num_chunks = std::max(1.0, static_cast<double>(batch_.size()) / num_steps);
    step.chunk_tokens = tokens / num_steps;
    step.chunk_pairs = pairs / num_steps;
    step.chunk_squares = step.chunk_tokens * step.chunk_tokens;
    step.chunk_context = context;
  }
  step.num_decodes = static_cast<double>(running_.size());
  step.decode_context = running_tokens_;
  step.max_context = running_.empty() ? 0.0 : running_tokens_ / step.num_decodes;
  return options_.latency.predict(step);
}

// ---- blocks ----

double RateNode::leading(std::span<const uint64_t> keys, double max_age) const {
  size_t count = 0;
  for (; count < keys.size(); ++count) {
    const double* used = blocks_.find(keys[count]);
    if (used == nullptr || clock_ - *used > max_age) break;
  }
  return static_cast<double>(count) * options_.tokens_per_key;
}

double RateNode::held(std::span<const uint64_t> keys) const { return leading(keys, kNever); }

void RateNode::keep(std::span<const uint64_t> keys) {
  for (size_t i = keys.size(); i-- > 0;) {  // a beginning outlives what follows it
    clock_ += options_.tokens_per_key;
    blocks_.touch(keys[i]) = clock_;
  }
  const double most = std::max(options_.kept_tokens, options_.device_tokens);
  while (static_cast<double>(blocks_.size()) * options_.tokens_per_key > most) blocks_.erase(blocks_.oldest_key());
}

// ---- requests come ----

void RateNode::arrive(const RateJob& job, std::span<const uint64_t> keys, double pulled, double pulled_at, double now) {
  advance(now);
  const double most = std::max(0.0, job.num_tokens - 1);
  const double device = std::max(0.0, options_.device_tokens - running_tokens_ / 2);  // prompts that run are in it
  const double on_device = std::min(most, leading(keys, device));
  const double below = options_.kept_tokens > options_.device_tokens ? std::min(most, held(keys)) : on_device;
  RateJob arrived = job;
  arrived.cached = std::max(on_device, below);
  arrived.ready_at = now + std::max(0.0, below - on_device) * options_.restore_seconds_per_token;
  if (std::min(most, pulled) > arrived.cached) {
    arrived.cached = std::min(most, pulled);
    arrived.ready_at = std::max(arrived.ready_at, pulled_at);
  }
  keep(keys);  // it will have them: a second request with the same prompt finds them, a little too early
  waiting_.push_back(arrived);
  waiting_tokens_ += arrived.num_tokens - arrived.cached;
  refresh();
}

bool RateNode::fits(const RateJob& job) const {
  if (running_.empty() && batch_.empty()) return true;
  return static_cast<double>(running_.size() + batch_.size()) < options_.max_running &&
         reserved_ + job.num_tokens + job.num_outputs <= options_.device_tokens;
}

// ---- time ----

void RateNode::advance(double now) {
  if (now <= now_) return;
  if (seconds_ > 0) {
    const double steps = (now - now_) / seconds_;
    step_ += steps;
    running_tokens_ += steps * static_cast<double>(running_.size());
    busy_seconds_ += now - now_;
  }
  now_ = now;
}

// When begin_batch() would find something to begin, were a step to end then. Who is ready and does not fit holds up
// those behind it until a request ends.
double RateNode::may_begin_at() const {
  double first = kNever;
  for (size_t i = 0; i < std::min(kLookAhead, waiting_.size()); ++i) {
    const RateJob& job = waiting_[i];
    if (job.ready_at <= now_ + kTiny) return fits(job) ? now_ : first;
    first = std::min(first, job.ready_at);
  }
  return first;
}

double RateNode::next_event() const {
  double next = kNever;
  if (!batch_.empty()) next = now_ + std::max(0.0, batch_end_step_ - step_) * seconds_;
  if (!running_.empty()) next = std::min(next, now_ + std::max(0.0, running_.top().end_step - step_) * seconds_);
  if (batch_.empty() && !waiting_.empty()) {
    // At the end of the step that runs.
    const double begin = running_.empty() ? now_ : now_ + (std::ceil(step_ - kTiny) - step_) * seconds_;
    next = std::min(next, std::max(begin, may_begin_at()));
  }
  return next;
}

void RateNode::run(double now, std::vector<RateEnd>& ended) {
  advance(now);
  if (!batch_.empty() && batch_end_step_ <= step_ + kTiny) end_batch(now, ended);
  end_running(now, ended);
  if (batch_.empty() && !waiting_.empty()) begin_batch();
  refresh();
}

void RateNode::begin_batch() {
  if (!running_.empty() && std::ceil(step_ - kTiny) - step_ > kTiny) return;  // in the middle of a step
  double left = 0.0;                                                          // of the last step
  batch_tokens_ = batch_pairs_ = batch_context_ = batch_steps_ = 0.0;
  for (size_t i = 0; i < std::min(kLookAhead, waiting_.size());) {
    RateJob& job = waiting_[i];
    if (job.ready_at > now_ + kTiny) {
      ++i;
      continue;
    }
    if (!fits(job)) break;
    const double needed = job.num_tokens - job.cached - job.computed;
    const double context = job.cached + job.computed;
    if (batch_.empty()) {
      batch_steps_ = std::ceil(needed / room());
      left = batch_steps_ * room();
    }
    const double taken = std::min(needed, left);
    if (taken <= 0) break;
    left -= taken;
    batch_tokens_ += taken;
    batch_pairs_ += taken * (taken + 2 * context);
    batch_context_ += context;
    waiting_tokens_ -= taken;
    computed_tokens_ += taken;
    if (taken < needed) {
      job.computed += taken;
      break;
    }
    reserved_ += job.num_tokens + job.num_outputs;
    batch_.push_back(job);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (waiting_.empty()) waiting_tokens_ = 0.0;  // not what rounding has left
  batch_end_step_ = std::round(step_) + batch_steps_;
  step_ = std::round(step_);
}

void RateNode::end_batch(double now, std::vector<RateEnd>& ended) {
  for (const RateJob& job : batch_) {
    if (job.num_outputs <= 1) {
      ended.push_back({job.request, now, now, job.cached});
      reserved_ -= job.num_tokens + job.num_outputs;
      continue;
    }
    running_.push({batch_end_step_ + job.num_outputs - 1, now, job});
    running_tokens_ += job.num_tokens;
  }
  batch_.clear();
  batch_tokens_ = batch_pairs_ = batch_context_ = batch_steps_ = 0.0;
}

void RateNode::end_running(double now, std::vector<RateEnd>& ended) {
  while (!running_.empty() && running_.top().end_step <= step_ + kTiny) {
    const Running& top = running_.top();
    ended.push_back({top.job.request, top.first_token, now, top.job.cached});
    reserved_ -= top.job.num_tokens + top.job.num_outputs;
    running_tokens_ -= top.job.num_tokens + top.job.num_outputs - 1;
    running_.pop();
  }
  if (running_.empty()) running_tokens_ = 0.0;  // not what rounding has left
}

void RateNode::refresh() {
  seconds_ = batch_.empty() && running_.empty()
                 ? 0.0
                 : step_seconds(batch_tokens_, batch_pairs_, batch_context_, std::max(1.0, batch_steps_));
}

NodeLoad RateNode::load(double now) const {
  const double full = options_.max_batched_tokens;
  const double chunk = step_seconds(full, full * full, 0.0, 1.0);
  const double steps = seconds_ > 0 ? (now - now_) / seconds_ : 0.0;
  NodeLoad load;
  load.as_of = now;
  load.queue_seconds = waiting_tokens_ / room() * chunk;
  if (!batch_.empty()) load.queue_seconds += std::max(0.0, batch_end_step_ - step_ - steps) * seconds_;
  load.num_waiting = static_cast<double>(waiting_.size() + batch_.size());
  load.num_running = static_cast<double>(running_.size());
  load.running_tokens = running_tokens_ + steps * load.num_running;
  return load;
}

}  // namespace hocket
