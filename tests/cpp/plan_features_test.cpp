#include "offline/plan_features.h"

#include "testing.h"

namespace hocket {
namespace {

// A decode at context 10, a decode at 30, and a chunk of 5 behind 7.
BatchPlan plan_of_three() {
  BatchPlan plan;
  plan.rows = {0, 1, 2};
  plan.query_start = {0, 1, 2, 7};
  plan.seq_lens = {10, 30, 12};
  return plan;
}

HostTransfer transfer(int32_t begin, int32_t end, bool is_to_host, CacheKind kind) {
  return {.request_id = 1,
          .row = 0,
          .begin_token = begin,
          .end_token = end,
          .num_units = 1,
          .is_to_host = is_to_host,
          .kind = kind};
}

TEST(plan_features, equal_those_of_the_batch_that_the_policies_built) {
  LatencyBatch batch(100);
  batch.add_decode(10);
  batch.add_decode(30);
  batch.add_chunk(7, 5);
  const BatchFeatures built = batch.features();
  const BatchFeatures written = plan_features(plan_of_three());
  LatencyModel::Linear ones;
  ones.fill(1.0);
  LatencyModel model;
  model.set_linear(ones);
  CHECK_EQ(model.regressors(written), model.regressors(built));
  CHECK_EQ(written.chunk_squares, built.chunk_squares);
  CHECK_EQ(written.chunk_context, built.chunk_context);
}

TEST(plan_features, without_forms_nothing_is_projected_and_nothing_computed_again) {
  const BatchFeatures features = plan_features(plan_of_three());
  CHECK_EQ(features.hidden_tokens, 0.0);
  CHECK_EQ(features.num_chunks, 1.0);
}

TEST(plan_features, hidden_tokens_are_projected_in_every_step) {
  BatchPlan plan = plan_of_three();
  plan.forms.cache_kinds = {1, 0, 1};
  plan.forms.uncached_tokens = {0, 0, 0};
  plan.forms.hidden_tokens = {9, 0, 7};
  const BatchFeatures features = plan_features(plan);
  CHECK_EQ(features.hidden_tokens, 16.0);
  CHECK_EQ(features.num_decodes, 2.0);
  CHECK_EQ(features.chunk_tokens, 5.0);
}

TEST(plan_features, uncached_tokens_are_a_chunk_from_the_start) {
  BatchPlan plan = plan_of_three();
  plan.forms.cache_kinds = {0, 0, 0};
  plan.forms.uncached_tokens = {8, 0, 4};
  plan.forms.hidden_tokens = {0, 0, 0};
  const BatchFeatures features = plan_features(plan);
  CHECK_EQ(features.num_chunks, 3.0);
  CHECK_EQ(features.chunk_tokens, 5.0 + 8 + 4);
  CHECK_EQ(features.chunk_squares, 25.0 + 64 + 16);
  CHECK_EQ(features.chunk_pairs, (12.0 * 12 - 7 * 7) + 64 + 16);
  CHECK_EQ(features.num_decodes, 2.0);  // the decode is one as before
}

TEST(plan_features, what_comes_from_the_host_as_hidden_states_is_projected) {
  BatchPlan plan = plan_of_three();
  plan.transfers = {transfer(0, 40, true, CacheKind::kHidden), transfer(0, 30, true, CacheKind::kKv),
                    transfer(4, 20, false, CacheKind::kKv), transfer(8, 28, false, CacheKind::kHidden)};
  CHECK_EQ(plan_features(plan).hidden_tokens, 20.0);
}

}  // namespace
}  // namespace hocket
