#include <pybind11/stl.h>

#include <string>

#include "algorithms.h"
#include "base/max_tracker.h"
#include "bindings.h"
#include "estimates/latency_model.h"
#include "estimates/latency_refiner.h"
#include "estimates/recursive_least_squares.h"
#include "offline/plan_features.h"

namespace py = pybind11;

namespace hocket {
namespace {

LatencyForm latency_form(const std::string& name) {
  if (name == "corrected") return LatencyForm::kCorrected;
  if (name == "echo") return LatencyForm::kEcho;
  throw std::invalid_argument("form must be corrected or echo, not " + name);
}

template <typename Struct>
Struct from_keywords(const py::kwargs& keywords) {
  const py::object result = py::cast(Struct{});
  for (const auto& [name, value] : keywords)
    py::setattr(result, py::cast<py::str>(name), py::reinterpret_borrow<py::object>(value));
  return result.cast<Struct>();
}

void bind_latency_batch(py::module_& m) {
  py::class_<BatchFeatures>(m, "BatchFeatures")
      .def(py::init(&from_keywords<BatchFeatures>))
      .def_readwrite("num_chunks", &BatchFeatures::num_chunks)
      .def_readwrite("chunk_tokens", &BatchFeatures::chunk_tokens)
      .def_readwrite("chunk_pairs", &BatchFeatures::chunk_pairs)
      .def_readwrite("chunk_squares", &BatchFeatures::chunk_squares)
      .def_readwrite("chunk_context", &BatchFeatures::chunk_context)
      .def_readwrite("num_decodes", &BatchFeatures::num_decodes)
      .def_readwrite("decode_context", &BatchFeatures::decode_context)
      .def_readwrite("max_context", &BatchFeatures::max_context)
      .def_readwrite("hidden_tokens", &BatchFeatures::hidden_tokens);
  py::class_<LatencyBatch>(m, "LatencyBatch")
      .def(py::init<int32_t>(), py::arg("max_context"))
      .def_property_readonly("features", &LatencyBatch::features)
      .def("add_chunk", &LatencyBatch::add_chunk, py::arg("context"), py::arg("tokens"))
      .def("remove_chunk", &LatencyBatch::remove_chunk, py::arg("context"), py::arg("tokens"))
      .def(
          "add_decode",
          [](LatencyBatch& self, int32_t context) {
            require(context >= 0 && context <= self.max_context(), "context must lie in [0, max_context]");
            self.add_decode(context);
          },
          py::arg("context"))
      .def("remove_decode", &LatencyBatch::remove_decode, py::arg("context"))
      .def("add_hidden", &LatencyBatch::add_hidden, py::arg("tokens"))
      .def("remove_hidden", &LatencyBatch::remove_hidden, py::arg("tokens"))
      .def("clear", &LatencyBatch::clear);
  m.def("plan_features", [](const PlanObject& plan) { return plan_features(*plan.plan); }, py::arg("plan"));
}

void bind_latency_model(py::module_& m) {
  py::class_<LatencyCoefficients>(m, "LatencyCoefficients")
      .def(py::init(&from_keywords<LatencyCoefficients>))
      .def_readwrite("step_base", &LatencyCoefficients::step_base)
      .def_readwrite("prefill_floor", &LatencyCoefficients::prefill_floor)
      .def_readwrite("prefill_pair", &LatencyCoefficients::prefill_pair)
      .def_readwrite("prefill_token", &LatencyCoefficients::prefill_token)
      .def_readwrite("prefill_context", &LatencyCoefficients::prefill_context)
      .def_readwrite("prefill_chunk", &LatencyCoefficients::prefill_chunk)
      .def_readwrite("decode_base", &LatencyCoefficients::decode_base)
      .def_readwrite("decode_seq", &LatencyCoefficients::decode_seq)
      .def_readwrite("decode_context", &LatencyCoefficients::decode_context)
      .def_readwrite("decode_max_context", &LatencyCoefficients::decode_max_context)
      .def_readwrite("decode_far_context", &LatencyCoefficients::decode_far_context)
      .def_readwrite("hidden_token", &LatencyCoefficients::hidden_token)
      .def_readwrite("overlap", &LatencyCoefficients::overlap)
      .def_readwrite("near_context", &LatencyCoefficients::near_context)
      .def_readwrite("near_evicted", &LatencyCoefficients::near_evicted);
  py::class_<LatencyModel>(m, "LatencyModel")
      .def(py::init([](const std::string& form, const LatencyCoefficients& coefficients) {
             return LatencyModel(latency_form(form), coefficients);
           }),
           py::arg("form"), py::arg("coefficients"))
      .def_property_readonly(
          "form", [](const LatencyModel& self) { return self.form() == LatencyForm::kEcho ? "echo" : "corrected"; })
      .def_property_readonly("coefficients", &LatencyModel::coefficients)
      .def("predict", &LatencyModel::predict, py::arg("features"))
      .def("regressors", [](const LatencyModel& self, const BatchFeatures& f) { return as_array(self.regressors(f)); })
      .def("linear", [](const LatencyModel& self) { return as_array(self.linear()); });
}

void bind_refiner(py::module_& m) {
  py::class_<LatencyRefiner>(m, "LatencyRefiner")
      .def(py::init([](const LatencyModel& model, double forgetting, double prior_deviation, double max_surprise,
                       double speed_gain, int32_t held_out_every, double error_memory) {
             require(forgetting > 0 && forgetting <= 1, "forgetting must lie in (0, 1]");
             require(speed_gain >= 0 && speed_gain <= 1, "speed_gain must lie in [0, 1]");
             require(max_surprise >= 0 && max_surprise < 1, "max_surprise must lie in [0, 1)");
             require(held_out_every >= 2, "held_out_every must be at least 2");
             return LatencyRefiner(
                 model, {forgetting, prior_deviation, max_surprise, speed_gain, held_out_every, error_memory});
           }),
           py::arg("model"), py::kw_only(), py::arg("forgetting") = LatencyRefinerOptions{}.forgetting,
           py::arg("prior_deviation") = LatencyRefinerOptions{}.prior_deviation,
           py::arg("max_surprise") = LatencyRefinerOptions{}.max_surprise,
           py::arg("speed_gain") = LatencyRefinerOptions{}.speed_gain,
           py::arg("held_out_every") = LatencyRefinerOptions{}.held_out_every,
           py::arg("error_memory") = LatencyRefinerOptions{}.error_memory)
      .def("observe", &LatencyRefiner::observe, py::arg("features"), py::arg("seconds"))
      .def_property_readonly("model", &LatencyRefiner::model)
      .def_property_readonly("mean_relative_error", &LatencyRefiner::mean_relative_error)
      .def_property_readonly("num_held_out", &LatencyRefiner::num_held_out)
      .def_property_readonly("num_observed", &LatencyRefiner::num_observed);
}

void bind_least_squares(py::module_& m) {
  py::class_<RecursiveLeastSquares>(m, "RecursiveLeastSquares")
      .def(py::init([](const Array<double>& theta, const Array<double>& variance, double forgetting) {
             require(theta.size() >= 1 && theta.size() <= RecursiveLeastSquares::kMaxSize &&
                         theta.size() == variance.size(),
                     "expected 1 to 16 coefficients and as many variances");
             require(forgetting > 0 && forgetting <= 1, "forgetting must lie in (0, 1]");
             return RecursiveLeastSquares(as_span(theta), as_span(variance), forgetting);
           }),
           py::arg("theta"), py::arg("variance"), py::arg("forgetting"))
      .def(
          "update",
          [](RecursiveLeastSquares& self, const Array<double>& x, double y, double weight) {
            require(x.size() == self.size(), "expected one regressor per coefficient");
            return self.update(as_span(x), y, weight);
          },
          py::arg("x"), py::arg("y"), py::arg("weight") = 1.0)
      .def_property_readonly("theta", [](const RecursiveLeastSquares& self) { return as_array(self.theta()); })
      .def("variance", &RecursiveLeastSquares::variance);
  py::class_<MaxTracker>(m, "MaxTracker")
      .def(py::init<int32_t>(), py::arg("limit"))
      .def("add", &MaxTracker::add)
      .def("remove", &MaxTracker::remove)
      .def("max", &MaxTracker::max)
      .def("clear", &MaxTracker::clear);
}

}  // namespace

void bind_latency(py::module_& m) {
  bind_latency_batch(m);
  bind_latency_model(m);
  bind_refiner(m);
  bind_least_squares(m);
}

}  // namespace hocket
