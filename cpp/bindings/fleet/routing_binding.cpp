#include "fleet/routing_binding.h"

#include <pybind11/native_enum.h>

#include <array>
#include <memory>
#include <string>

#include "algorithms.h"
#include "routing/route.h"

namespace py = pybind11;
using namespace py::literals;

namespace hocket {
namespace {

using Keys = Array<uint64_t>;

// Keeps the array of keys that the request looks at.
struct RequestObject {
  RouteRequest request;
  py::object keys;
};

py::object optional(NodeId node) { return node == kNoNode ? py::none() : py::object(py::int_(node)); }

NodeId checked(const NodeTable& table, NodeId node) {
  if (node < 0 || static_cast<size_t>(node) >= table.size()) throw py::index_error("there is no such node");
  return node;
}

std::unique_ptr<RequestObject> make_request(uint64_t id, double num_tokens, const py::object& keys,
                                            double tokens_per_key, uint64_t session, double expected_outputs,
                                            double age_seconds, double ttft_target_seconds, RequestClass request_class,
                                            int64_t priority, double lead_seconds, const py::object& excluded) {
  require(num_tokens >= 1, "a prompt has at least one token");
  auto object = std::make_unique<RequestObject>();
  object->request = {.id = id,
                     .num_tokens = num_tokens,
                     .expected_outputs = expected_outputs,
                     .age_seconds = age_seconds,
                     .ttft_target_seconds = ttft_target_seconds,
                     .request_class = request_class,
                     .priority = priority,
                     .lead_seconds = lead_seconds,
                     .session = session,
                     .tokens_per_key = tokens_per_key,
                     .excluded = excluded.is_none() ? kNoNode : excluded.cast<NodeId>()};
  if (!keys.is_none()) {
    if (!py::isinstance<Keys>(keys)) throw py::type_error("keys must be a contiguous array of uint64");
    object->keys = keys;
    object->request.keys = as_span(py::reinterpret_borrow<Keys>(keys));
  }
  return object;
}

void bind_values(py::module_& m) {
  py::native_enum<NodeState>(m, "NodeState", "enum.IntEnum")
      .value("UP", NodeState::kUp)
      .value("SUSPECT", NodeState::kSuspect)
      .value("DRAINING", NodeState::kDraining)
      .value("GONE", NodeState::kGone)
      .finalize();
  py::native_enum<Routing>(m, "Routing", "enum.IntEnum")
      .value("COST", Routing::kCost)
      .value("ADVISED", Routing::kAdvised)
      .value("LEAST_LOADED", Routing::kLeastLoaded)
      .value("STICKY", Routing::kSticky)
      .value("ROUND_ROBIN", Routing::kRoundRobin)
      .value("PREFILL_DECODE", Routing::kPrefillDecode)
      .finalize();
  py::native_enum<RouteReason>(m, "RouteReason", "enum.IntEnum")
      .value("NONE", RouteReason::kNone)
      .value("CHEAPEST", RouteReason::kCheapest)
      .value("HOME", RouteReason::kHome)
      .value("ADVISED", RouteReason::kAdvised)
      .value("LEAST_LOADED", RouteReason::kLeastLoaded)
      .value("TURN", RouteReason::kTurn)
      .value("SPLIT", RouteReason::kSplit)
      .finalize();
  py::class_<NodeTraits>(m, "NodeTraits")
      .def(py::init([](const LatencyModel& latency, double max_batched_tokens, double device_tokens, double kept_tokens,
                       double bytes_per_token, double restore_bytes_per_second, int32_t machine, bool pulls,
                       bool prefills, bool decodes) {
             return NodeTraits{latency,         max_batched_tokens,
                               device_tokens,   kept_tokens,
                               bytes_per_token, restore_bytes_per_second,
                               machine,         pulls,
                               prefills,        decodes};
           }),
           "latency"_a, py::kw_only(), "max_batched_tokens"_a = NodeTraits().max_batched_tokens,
           "device_tokens"_a = NodeTraits().device_tokens, "kept_tokens"_a = NodeTraits().kept_tokens,
           "bytes_per_token"_a = 0.0, "restore_bytes_per_second"_a = 0.0, "machine"_a = 0, "pulls"_a = true,
           "prefills"_a = true, "decodes"_a = true);
  py::class_<NodeLoad>(m, "NodeLoad")
      .def(py::init(
               [](double as_of, double queue_seconds, double num_waiting, double num_running, double running_tokens) {
                 return NodeLoad{as_of, queue_seconds, num_waiting, num_running, running_tokens};
               }),
           "as_of"_a, "queue_seconds"_a, "num_waiting"_a, "num_running"_a, "running_tokens"_a);
}

void bind_request(py::module_& m) {
  const RouteRequest defaults;
  py::class_<RouteOptions>(m, "RouteOptions")
      .def(py::init([](Routing routing, double stay_seconds, double stay_ratio, double equal_seconds,
                       double equal_ratio, double advised_ratio, double miss_weight, double decode_weight,
                       int32_t num_least, int32_t num_drawn, uint64_t salt) {
             return RouteOptions{routing,     stay_seconds,  stay_ratio, equal_seconds, equal_ratio, advised_ratio,
                                 miss_weight, decode_weight, num_least,  num_drawn,     salt};
           }),
           "routing"_a = RouteOptions().routing, py::kw_only(), "stay_seconds"_a = RouteOptions().stay_seconds,
           "stay_ratio"_a = RouteOptions().stay_ratio, "equal_seconds"_a = RouteOptions().equal_seconds,
           "equal_ratio"_a = RouteOptions().equal_ratio, "advised_ratio"_a = RouteOptions().advised_ratio,
           "miss_weight"_a = RouteOptions().miss_weight, "decode_weight"_a = RouteOptions().decode_weight,
           "num_least"_a = RouteOptions().num_least, "num_drawn"_a = RouteOptions().num_drawn, "salt"_a = 0)
      .def_readonly("routing", &RouteOptions::routing);
  py::class_<RequestObject>(m, "RouteRequest")
      .def(py::init(&make_request), "number"_a, "num_tokens"_a, py::kw_only(), "keys"_a = py::none(),
           "tokens_per_key"_a = defaults.tokens_per_key, "session"_a = 0,
           "expected_outputs"_a = defaults.expected_outputs, "age_seconds"_a = 0.0,
           "ttft_target_seconds"_a = defaults.ttft_target_seconds, "request_class"_a = kOnlineClass, "priority"_a = 0,
           "lead_seconds"_a = 0.0, "excluded"_a = py::none());
  py::class_<Choice>(m, "Choice")
      .def_property_readonly("node", [](const Choice& self) { return optional(self.node); })
      .def_property_readonly("source", [](const Choice& self) { return optional(self.source); })
      .def_readonly("reason", &Choice::reason)
      .def_readonly("cost", &Choice::cost)
      .def_readonly("ttft_seconds", &Choice::ttft_seconds)
      .def_readonly("prefill_seconds", &Choice::prefill_seconds)
      .def_readonly("pull_seconds", &Choice::pull_seconds)
      .def_readonly("cached_tokens", &Choice::cached_tokens);
}

void bind_table(py::module_& m) {
  const TableLimits limits;
  py::class_<NodeTable>(m, "NodeTable")
      .def(py::init([](size_t max_sessions, size_t max_prefixes, double pull_bytes_per_second) {
             return std::make_unique<NodeTable>(TableLimits{max_sessions, max_prefixes, pull_bytes_per_second});
           }),
           py::kw_only(), "max_sessions"_a = limits.max_sessions, "max_prefixes"_a = limits.max_prefixes,
           "pull_bytes_per_second"_a = limits.pull_bytes_per_second)
      .def("add_node", &NodeTable::add_node, "traits"_a, "incarnation"_a)
      .def("restart_node", &NodeTable::restart_node, "node"_a, "traits"_a, "incarnation"_a)
      .def("set_state", &NodeTable::set_state, "node"_a, "state"_a)
      .def("note_load", &NodeTable::note_load, "node"_a, "incarnation"_a, "load"_a)
      .def("note_open", &NodeTable::note_open, "node"_a, "num_open"_a)
      .def("note_pull_rate", &NodeTable::note_pull_rate, "from_machine"_a, "to_machine"_a, "bytes_per_second"_a)
      .def("note_session", &NodeTable::note_session, "digest"_a, "node"_a, "incarnation"_a, "num_tokens"_a)
      .def("expect_session", &NodeTable::expect_session, "digest"_a, "node"_a, "until"_a)
      .def("meet_session", &NodeTable::meet_session, "digest"_a)
      .def("forget_session", &NodeTable::forget_session, "digest"_a, "node"_a)
      .def(
          "note_choice",
          [](NodeTable& self, const RequestObject& request, const Choice& choice, double now) {
            note_choice(request.request, choice, now, self);
          },
          "request"_a, "choice"_a, "now"_a)
      .def("__len__", &NodeTable::size)
      .def_property_readonly("num_sessions", &NodeTable::num_sessions)
      .def_property_readonly("num_prefixes", [](const NodeTable& self) { return self.prefixes().size(); })
      .def(
          "state", [](const NodeTable& self, NodeId node) { return self.node(checked(self, node)).state; }, "node"_a)
      .def(
          "num_open", [](const NodeTable& self, NodeId node) { return self.node(checked(self, node)).num_open(); },
          "node"_a)
      .def(
          "busy_until", [](const NodeTable& self, NodeId node) { return self.node(checked(self, node)).busy_until; },
          "node"_a)
      .def(
          "num_routed", [](const NodeTable& self, NodeId node) { return self.node(checked(self, node)).num_routed; },
          "node"_a)
      .def(
          "session_nodes",
          [](const NodeTable& self, uint64_t digest) {
            py::list found;
            if (const RoutedSession* session = self.session(digest)) {
              for (const CacheHolder& holder : session->holders) {
                if (holder.node != kNoNode) found.append(py::make_tuple(holder.node, holder.tokens));
              }
            }
            return found;
          },
          "digest"_a)
      .def(
          "expected_node",
          [](const NodeTable& self, uint64_t digest) {
            const RoutedSession* session = self.session(digest);
            return optional(session == nullptr ? kNoNode : session->expected);
          },
          "digest"_a);
}

}  // namespace

void bind_routing(py::module_& core) {
  py::module_ m = core.def_submodule("routing", "Which node of a fleet serves a request.");
  bind_values(m);
  bind_request(m);
  bind_table(m);
  bind_fleet_simulation(m);
  m.def(
      "route",
      [](const RequestObject& request, const NodeTable& table, const RouteOptions& options, double now) {
        return route(request.request, table, options, now);
      },
      "request"_a, "table"_a, "options"_a, "now"_a);
  m.def(
      "cost_of",
      [](const RequestObject& request, const NodeTable& table, const RouteOptions& options, double now, NodeId node) {
        return cost_of(request.request, table, options, now, checked(table, node));
      },
      "request"_a, "table"_a, "options"_a, "now"_a, "node"_a);
  m.def(
      "prefix_keys",
      [](uint64_t secret, const Array<int32_t>& token_ids, size_t tokens_per_key) {
        std::vector<uint64_t> keys;
        append_prefix_keys(secret, as_span(token_ids), tokens_per_key, keys);
        return as_array(keys);
      },
      "secret"_a, "token_ids"_a, "tokens_per_key"_a);
}

}  // namespace hocket
