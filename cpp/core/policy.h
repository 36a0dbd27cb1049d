// Who computes, in which order, and who gives way: the seam between the scheduler and its policies.
//
// A policy is a pure function of a snapshot: it reads the request arrays and answers with a composition. It keeps no
// state between calls (scratch memory aside), sees no clock but `now`, and owns no memory. The scheduler carries the
// answer out: it looks up the prefix cache, allocates, evicts, preempts, and cuts grants to what tokens and memory are
// left. A policy may therefore promise too much; it can never break an invariant.
//
// One policy per file. A new one is a class behind these four questions and a line in make_policy().
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ids.h"
#include "request.h"

namespace hocket {

struct Snapshot {
  double now;                     // seconds
  const RequestTable& requests;   // indexed by the slots below
  std::span<const Slot> running;  // in order of admission
  std::span<const Slot> waiting;  // sorted by Policy::precedes()
  int32_t max_num_tokens;         // budget of the step
  int32_t num_free_rows;          // requests that can be admitted without preemption
};

// Up to `max_tokens` of the request's uncomputed tokens in this step. A waiting request is admitted by it; what the
// prefix cache holds of it costs nothing.
struct Grant {
  Slot slot;
  int32_t max_tokens;
  bool is_admission;  // the request is waiting
};

// Offered in this order until the step's tokens are spent. The first admission that does not fit, or that would
// overtake a request preempted in this step, closes admission for the step, so that a large request is not overtaken
// for ever.
struct Composition {
  std::vector<Grant> grants;
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Whether `a` stands before `b` in the waiting list. A strict total order over live requests that does not change
  // while they live: a preempted request returns to its place.
  virtual bool precedes(const RequestTable& requests, Slot a, Slot b) const = 0;

  // Appends the step's grants, each request at most once. Waiting requests beyond the first max_num_tokens need none.
  virtual void compose(const Snapshot& snapshot, Composition* composition) = 0;

  // Appends the running requests that may be preempted for `needy`, in any order.
  // If `needy` is running, it is among them: at its turn it gives way itself, and somebody always runs on.
  // If it is waiting, they are those that it may displace, for memory or for a row.
  virtual void victims(const Snapshot& snapshot, Slot needy, std::vector<Slot>* victims) const = 0;

  // Whether victim `a` goes before victim `b`. A strict total order over running requests.
  virtual bool yields_before(const RequestTable& requests, Slot a, Slot b) const = 0;
};

// The policy of that name: "fcfs", "priority". Throws std::invalid_argument for any other.
std::unique_ptr<Policy> make_policy(std::string_view name);
std::unique_ptr<Policy> make_fcfs_policy();
std::unique_ptr<Policy> make_priority_policy();

}  // namespace hocket
