#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <vector>

#include "algorithms.h"
#include "block_hashes.h"
#include "offline_pool.h"

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

}  // namespace

void bind_offline(py::module_& m) { bind_pool(m); }

}  // namespace hocket
