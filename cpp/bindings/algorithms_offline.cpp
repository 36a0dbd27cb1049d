#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <vector>

#include "algorithms.h"
#include "memory/block_hashes.h"
#include "offline/offline_pool.h"
#include "offline/plan_search.h"

namespace py = pybind11;

namespace hocket {
namespace {

using Hashes = Array<uint64_t>;

// The cache is a Python function (request id, path) -> leading blocks cached.
class CachedPrefixFunction : public CachedPrefixQuery {
 public:
  explicit CachedPrefixFunction(const py::function& function) : function_(function) {}

  int32_t num_cached_blocks(uint64_t request_id, std::span<const uint64_t> path) const override {
    return function_(request_id, as_array(path)).cast<int32_t>();
  }

 private:
  const py::function& function_;
};

void bind_pool(py::module_& m) {
  py::class_<OfflinePool>(m, "OfflinePool")
      .def(py::init<>())
      .def_static("bucket_of", &OfflinePool::bucket_of, py::arg("num_tokens"))
      .def(
          "insert",
          [](OfflinePool& self, uint64_t request_id, int32_t num_prompt_tokens, const Hashes& path,
             int32_t num_cached) {
            require(num_prompt_tokens >= 1, "num_prompt_tokens must be at least 1");
            return self.insert(request_id, num_prompt_tokens, as_span(path), num_cached);
          },
          py::arg("request_id"), py::arg("num_prompt_tokens"), py::arg("path"), py::arg("num_cached") = 0)
      .def("remove", &OfflinePool::remove, py::arg("request_id"))
      .def("take", &OfflinePool::take, py::arg("request_id"))
      .def(
          "next",
          [](OfflinePool& self, int32_t bucket, const py::function& num_cached_blocks) {
            require(bucket >= 0 && bucket < OfflinePool::kNumBuckets, "no such bucket");
            return self.next(bucket, CachedPrefixFunction(num_cached_blocks));
          },
          py::arg("bucket"), py::arg("num_cached_blocks"))
      .def(
          "collect",
          [](OfflinePool& self, int32_t bucket, int32_t max_requests, const py::function& num_cached_blocks) {
            require(bucket >= 0 && bucket < OfflinePool::kNumBuckets, "no such bucket");
            require(max_requests >= 0, "max_requests must not be negative");
            std::vector<uint64_t> request_ids;
            self.collect(bucket, max_requests, CachedPrefixFunction(num_cached_blocks), &request_ids);
            return request_ids;
          },
          py::arg("bucket"), py::arg("max_requests"), py::arg("num_cached_blocks"))
      .def("nearest_bucket", &OfflinePool::nearest_bucket, py::arg("num_tokens"))
      .def("best_cached_bucket", &OfflinePool::best_cached_bucket)
      .def(
          "note_cached",
          [](OfflinePool& self, const Hashes& path, int32_t num_blocks) {
            self.note_cached(as_span(path), num_blocks);
          },
          py::arg("path"), py::arg("num_blocks"))
      .def(
          "reference_counts",
          [](const OfflinePool& self, const Hashes& path) {
            Array<uint32_t> counts(path.size());
            self.reference_counts(as_span(path), {counts.mutable_data(), static_cast<size_t>(counts.size())});
            return counts;
          },
          py::arg("path"))
      .def("__len__", [](const OfflinePool& self) { return self.size(); })
      .def("check_invariants", &OfflinePool::check_invariants);
  m.def(
      "block_hashes",
      [](const Array<int32_t>& tokens, int32_t block_size, uint64_t seed) {
        require(block_size >= 1, "block_size must be at least 1");
        std::vector<uint64_t> hashes;
        append_block_hashes(as_span(tokens), block_size, seed, &hashes);
        return as_array(hashes);
      },
      py::arg("tokens"), py::arg("block_size"), py::arg("seed") = 0);
}

void bind_plan_structs(py::module_& m) {
  py::class_<PlanCandidate>(m, "PlanCandidate")
      .def(py::init([](int32_t context, int32_t remaining, int32_t cached_tokens, int32_t last_tokens, bool is_resident,
                       double value) {
             require(context >= 0 && remaining >= 1, "context must not be negative, remaining at least 1");
             return PlanCandidate{context, remaining, cached_tokens, last_tokens, is_resident, value};
           }),
           py::kw_only(), py::arg("context"), py::arg("remaining") = 1, py::arg("cached_tokens") = 0,
           py::arg("last_tokens") = 0, py::arg("is_resident") = true, py::arg("value") = 0.0);
  py::class_<PlanBudgets>(m, "PlanBudgets")
      .def(py::init([](double max_seconds, int32_t max_tokens, int32_t max_requests, int64_t free_units,
                       int64_t valuable_units, double tokens_per_unit) {
             return PlanBudgets{max_seconds, max_tokens, max_requests, free_units, valuable_units, tokens_per_unit};
           }),
           py::kw_only(), py::arg("max_seconds"), py::arg("max_tokens"), py::arg("max_requests"), py::arg("free_units"),
           py::arg("valuable_units"), py::arg("tokens_per_unit"));
}

void bind_plan_search(py::module_& m) {
  py::class_<PlanSearch>(m, "PlanSearch")
      .def(py::init([](int32_t block_size, int32_t units_per_block, int32_t chunk_quantum, int32_t max_plans,
                       double decode_value) {
             require(block_size >= 1 && units_per_block >= 1 && chunk_quantum >= 1 && max_plans >= 1,
                     "all options must be at least 1");
             return PlanSearch({block_size, units_per_block, chunk_quantum, max_plans, decode_value});
           }),
           py::kw_only(), py::arg("block_size") = PlanSearchOptions{}.block_size,
           py::arg("units_per_block") = PlanSearchOptions{}.units_per_block,
           py::arg("chunk_quantum") = PlanSearchOptions{}.chunk_quantum,
           py::arg("max_plans") = PlanSearchOptions{}.max_plans,
           py::arg("decode_value") = PlanSearchOptions{}.decode_value)
      .def(
          "search",
          [](PlanSearch& self, const LatencyModel& model, const std::vector<PlanCandidate>& candidates,
             const PlanBudgets& budgets, double online_tokens, LatencyBatch& batch) {
            for (const PlanCandidate& c : candidates) {
              require(c.context < batch.max_context(), "a context exceeds the batch's max_context");
            }
            const PlanResult result = self.search(model, candidates, budgets, online_tokens, &batch);
            py::dict fields;
            fields["tokens"] = as_array(result.tokens);
            fields["score"] = result.score;
            fields["seconds"] = result.seconds;
            fields["benefit"] = result.benefit;
            fields["punishment"] = result.punishment;
            fields["num_plans"] = result.num_plans;
            return fields;
          },
          py::arg("model"), py::arg("candidates"), py::arg("budgets"), py::arg("online_tokens"), py::arg("batch"));
}

}  // namespace

void bind_offline(py::module_& m) {
  bind_pool(m);
  bind_plan_structs(m);
  bind_plan_search(m);
}

}  // namespace hocket
