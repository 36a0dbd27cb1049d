#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "advisor/advisor.h"
#include "base/block_key.h"
#include "bindings.h"
#include "tiers/tier_index.h"
#include "token_ids.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

std::span<const int32_t> view_of(const Int32Array& array) {
  if (array.ndim() != 1) throw py::value_error("slots and counts are arrays of one dimension");
  return {array.data(), static_cast<size_t>(array.size())};
}

Int32Array copy_of(const std::vector<int32_t>& values) {
  return Int32Array(static_cast<py::ssize_t>(values.size()), values.data());
}

// Most steps have nothing to name: then there is nothing to copy, and the array is always the same.
py::object named(const std::vector<int32_t>& values, const py::object& nobody) {
  return values.empty() ? nobody : py::object(copy_of(values));
}

py::tuple tuple_of(const Advice& advice) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  const py::object& nobody = storage.call_once_and_store_result([] { return py::object(copy_of({})); }).get_stored();
  return py::make_tuple(advice.num_tokens, advice.granted.size(), named(advice.preempted, nobody),
                        named(advice.admitted, nobody), named(advice.limited, nobody), named(advice.limits, nobody),
                        named(advice.order, nobody));
}

Slot add_advised(Advisor& advisor, const py::object& prompt_token_ids, int64_t max_tokens, int32_t request_class,
                 int64_t priority, double arrival_time, std::optional<double> ttft_target,
                 std::optional<double> itl_target, std::optional<double> tpot_target, const std::string& cache_salt,
                 const std::string& tenant, int64_t num_prior_tokens, double last_token_time) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const TokenIds prompt(prompt_token_ids);
  RequestSpec spec;
  spec.prompt = prompt.view();
  spec.max_tokens = max_tokens;
  spec.request_class = request_class;
  spec.priority = priority;
  spec.arrival_time = arrival_time;
  spec.targets = {ttft_target.value_or(kNever), itl_target.value_or(kNever), tpot_target.value_or(kNever)};
  spec.cache_salt = cache_salt;
  spec.tenant = tenant;
  spec.num_prior_tokens = num_prior_tokens;
  spec.last_token_time = last_token_time;
  return advisor.add_request(spec);
}

bool accepts(Advisor& advisor, const py::object& prompt_token_ids, int32_t num_cached, int32_t request_class,
             const std::string& tenant) {
  const TokenIds prompt(prompt_token_ids);
  RequestSpec spec;
  spec.prompt = prompt.view();
  spec.request_class = request_class;
  spec.tenant = tenant;
  return advisor.accepts(spec, num_cached);
}

py::tuple compose(Advisor& advisor, double now, const Int32Array& running, const Int32Array& num_computed,
                  int32_t num_free_blocks) {
  return tuple_of(advisor.compose(now, view_of(running), view_of(num_computed), num_free_blocks));
}

py::object compose_known(Advisor& advisor, double now, int32_t num_running, int32_t num_free_blocks) {
  const Advice* advice = advisor.compose_known(now, num_running, num_free_blocks);
  if (advice == nullptr) return py::none();
  return tuple_of(*advice);
}

py::dict advisor_stats(const Advisor& advisor) {
  const AdvisorCounters& counters = advisor.counters();
  return py::dict("num_running"_a = advisor.num_running(), "num_waiting"_a = advisor.num_waiting(),
                  "num_steps"_a = counters.num_steps, "num_preempted"_a = counters.num_preempted,
                  "class_seconds"_a = counters.class_seconds, "offline_only_seconds"_a = counters.offline_only_seconds,
                  "predicted_ttft_seconds"_a = advisor.predicted_ttft(),
                  "step_time_error_ratio"_a = advisor.latency().mean_relative_error());
}

// ---- blocks of an engine that moves them itself ----

BlockKey key_of(const py::bytes& bytes) {
  const std::string_view view = bytes;
  if (view.size() != sizeof(BlockKey)) throw std::invalid_argument("a key has 16 bytes");
  BlockKey key;
  std::memcpy(&key, view.data(), sizeof(key));
  return key;
}

py::bytes bytes_of(const BlockKey& key) { return {reinterpret_cast<const char*>(&key), sizeof(key)}; }

// Names the blocks of a text that grows.
class KeyChain {
 public:
  KeyChain(const std::string& fingerprint, const std::string& salt, int32_t block_size)
      : block_size_(block_size), last_(root_key(fingerprint, salt)) {
    if (block_size < 1) throw std::invalid_argument("block_size must be at least 1");
  }

  py::list append(const py::object& token_ids) {
    const TokenIds tokens(token_ids);
    if (tokens.view().size() % static_cast<size_t>(block_size_) != 0) {
      throw std::invalid_argument("only complete blocks have keys");
    }
    std::vector<BlockKey> keys;
    append_block_keys(last_, tokens.view(), block_size_, &keys);
    if (!keys.empty()) last_ = keys.back();
    py::list made;
    for (const BlockKey& key : keys) made.append(bytes_of(key));
    return made;
  }

 private:
  const int32_t block_size_;
  BlockKey last_;
};

// A TierIndex by keys: what it requires is checked here, since Python may ask anything.
class IndexObject {
 public:
  explicit IndexObject(int32_t num_host_slots) : index_(checked(num_host_slots)) {}

  py::object take_slot(const py::bytes& bytes) {
    const BlockKey key = key_of(bytes);
    const EntryId found = index_.find(key);
    if (found != kNone && index_.host_slot(found) != kNone) throw std::invalid_argument("the block has a slot");
    const EntryId entry = index_.take_slot(key);
    return entry == kNone ? py::object(py::none()) : py::int_(index_.host_slot(entry));
  }
  void arrive(const py::bytes& key) { index_.arrive(arriving(key)); }
  void fail_arrival(const py::bytes& key) { index_.fail_arrival(arriving(key)); }
  void begin_read(const py::bytes& key) { index_.begin_read(on_host(key)); }
  void end_read(const py::bytes& key) { index_.end_read(on_host(key)); }
  void touch(const py::bytes& key) {
    const EntryId entry = index_.find(key_of(key));
    if (entry != kNone && index_.is_on_host(entry)) index_.touch(entry);
  }
  py::object host_slot(const py::bytes& key) const {
    const EntryId entry = index_.find(key_of(key));
    const bool is_there = entry != kNone && index_.is_on_host(entry);
    return is_there ? py::object(py::int_(index_.host_slot(entry))) : py::none();
  }
  bool is_arriving(const py::bytes& key) const {
    const EntryId entry = index_.find(key_of(key));
    return entry != kNone && index_.is_arriving(entry);
  }
  bool is_on_disk(const py::bytes& key) const {
    const EntryId entry = index_.find(key_of(key));
    return entry != kNone && index_.is_on_disk(entry);
  }
  void set_on_disk(const py::bytes& key) { index_.set_on_disk(key_of(key)); }
  void clear_on_disk(const py::bytes& key) { index_.clear_on_disk(key_of(key)); }
  void queue_write(const py::bytes& key) { index_.queue_write(on_host(key)); }
  py::object take_unwritten() {
    const EntryId entry = index_.take_unwritten();
    return entry == kNone ? py::object(py::none()) : bytes_of(index_.key(entry));
  }
  bool has_unwritten() const { return index_.has_unwritten(); }
  int32_t num_slots() const { return index_.num_slots(); }
  int32_t num_free_slots() const { return index_.num_free_slots(); }
  void check_invariants() const { index_.check_invariants(); }

 private:
  static int32_t checked(int32_t num_host_slots) {
    if (num_host_slots < 0) throw std::invalid_argument("num_host_slots must not be negative");
    return num_host_slots;
  }
  EntryId arriving(const py::bytes& key) const {
    const EntryId entry = index_.find(key_of(key));
    if (entry == kNone || !index_.is_arriving(entry)) throw std::invalid_argument("the block is not arriving");
    return entry;
  }
  EntryId on_host(const py::bytes& key) const {
    const EntryId entry = index_.find(key_of(key));
    if (entry == kNone || !index_.is_on_host(entry)) throw std::invalid_argument("the block is not on the host");
    return entry;
  }

  TierIndex index_;
};

}  // namespace

void bind_advisor(py::module_& module) {
  py::class_<KeyChain>(module, "KeyChain")
      .def(py::init<const std::string&, const std::string&, int32_t>(), "fingerprint"_a, "salt"_a, "block_size"_a)
      .def("append", &KeyChain::append, "token_ids"_a);
  py::class_<IndexObject>(module, "TierIndex")
      .def(py::init<int32_t>(), "num_host_slots"_a)
      .def("take_slot", &IndexObject::take_slot, "key"_a)
      .def("arrive", &IndexObject::arrive, "key"_a)
      .def("fail_arrival", &IndexObject::fail_arrival, "key"_a)
      .def("begin_read", &IndexObject::begin_read, "key"_a)
      .def("end_read", &IndexObject::end_read, "key"_a)
      .def("touch", &IndexObject::touch, "key"_a)
      .def("host_slot", &IndexObject::host_slot, "key"_a)
      .def("is_arriving", &IndexObject::is_arriving, "key"_a)
      .def("is_on_disk", &IndexObject::is_on_disk, "key"_a)
      .def("set_on_disk", &IndexObject::set_on_disk, "key"_a)
      .def("clear_on_disk", &IndexObject::clear_on_disk, "key"_a)
      .def("queue_write", &IndexObject::queue_write, "key"_a)
      .def("take_unwritten", &IndexObject::take_unwritten)
      .def("has_unwritten", &IndexObject::has_unwritten)
      .def_property_readonly("num_slots", &IndexObject::num_slots)
      .def_property_readonly("num_free_slots", &IndexObject::num_free_slots)
      .def("check_invariants", &IndexObject::check_invariants);
  py::class_<Advisor>(module, "Advisor")
      .def(py::init([](const SchedulerConfig& config, const std::optional<Estimates>& estimates) {
             return std::make_unique<Advisor>(config, estimates.value_or(Estimates()));
           }),
           "config"_a, "estimates"_a = py::none())
      .def("add_request", &add_advised, "prompt_token_ids"_a, py::kw_only(), "max_tokens"_a, "request_class"_a = 0,
           "priority"_a = 0, "arrival_time"_a = 0.0, "ttft_target"_a = py::none(), "itl_target"_a = py::none(),
           "tpot_target"_a = py::none(), "cache_salt"_a = "", "tenant"_a = "", "num_prior_tokens"_a = 0,
           "last_token_time"_a = 0.0)
      .def("accepts", &accepts, "prompt_token_ids"_a, "num_cached"_a, "request_class"_a = 0, "tenant"_a = "")
      .def("retry_seconds", &Advisor::retry_seconds)
      .def("set_cached", &Advisor::set_cached, "slot"_a, "num_tokens"_a)
      .def("remove", &Advisor::remove, "slot"_a, "is_complete"_a)
      .def("compose", &compose, "now"_a, "running"_a, "num_computed"_a, "num_free_blocks"_a)
      .def("compose_known", &compose_known, "now"_a, "num_running"_a, "num_free_blocks"_a)
      .def(
          "note_scheduled",
          [](Advisor& self, double now, const Int32Array& slots, const Int32Array& num_tokens,
             const Int32Array& num_computed) {
            self.note_scheduled(now, view_of(slots), view_of(num_tokens), view_of(num_computed));
          },
          "now"_a, "slots"_a, "num_tokens"_a, "num_computed"_a)
      .def(
          "commit",
          [](Advisor& self, double now, const Int32Array& slots, const Int32Array& num_sampled) {
            self.commit(now, view_of(slots), view_of(num_sampled));
          },
          "now"_a, "slots"_a, "num_sampled"_a)
      .def(
          "note_advised",
          [](Advisor& self, double now, const Int32Array& admitted, const Int32Array& num_found) {
            self.note_advised(now, view_of(admitted), view_of(num_found));
          },
          "now"_a, "admitted"_a, "num_found"_a)
      .def(
          "note_preempted", [](Advisor& self, const Int32Array& slots) { self.note_preempted(view_of(slots)); },
          "slots"_a)
      .def("commit_expected", &Advisor::commit_expected, "now"_a, "num_outputs"_a)
      .def("running",
           [](const Advisor& self) {
             py::dict found;
             for (const auto& [slot, num_computed] : self.running()) found[py::int_(slot)] = num_computed;
             return found;
           })
      .def("stats", &advisor_stats)
      .def("check_invariants", &Advisor::check_invariants);
}

}  // namespace hocket
