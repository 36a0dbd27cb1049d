// decoder_step, allow_tokens, allowed_argmax and draw_tokens as Python functions. What changes from step to step are
// numpy arrays, used in place.
#include <pybind11/numpy.h>

#include <array>
#include <utility>
#include <vector>

#include "allow_tokens.h"
#include "bindings.h"
#include "decoder_step.h"
#include "draw_tokens.h"
#include "step_bounds.h"

namespace py = pybind11;

namespace hocket {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

LinearWeight make_linear_weight(Pointer packed, Pointer bias, int64_t in_features, int64_t out_features,
                                int64_t panel_width, int dtype, bool is_gated) {
  return {to_pointer(packed), to_const<float>(bias),     in_features, out_features,
          panel_width,        static_cast<DType>(dtype), is_gated};
}

DecoderLayer make_layer(Pointer attention_norm, const LinearWeight& qkv, Pointer q_norm, Pointer k_norm,
                        const LinearWeight& output, int64_t sliding_window, Pointer mlp_norm,
                        const LinearWeight& gate_up, const LinearWeight& down) {
  return {to_const<float>(attention_norm), qkv,     to_const<float>(q_norm),
          to_const<float>(k_norm),         output,  sliding_window,
          to_const<float>(mlp_norm),       gate_up, down};
}

// The model and the pool it runs on; Python keeps the tensors.
class Decoder {
 public:
  Decoder(const PagedPool& pool, Pointer embedding, int embedding_dtype, Pointer cos_sin, const py::list& layers,
          Pointer final_norm, const LinearWeight& head, int64_t hidden_size, int64_t num_heads, int64_t rotary_dim,
          float norm_eps, float attention_scale, Pointer num_landed, int64_t max_positions, int64_t num_rows)
      : pool_(pool),
        bounds_{head.out_features, max_positions, pool.max_blocks * pool.block_size, num_rows},
        num_landed_(to_const<int32_t>(num_landed)) {
    for (const py::handle& layer : layers) layers_.push_back(layer.cast<DecoderLayer>());
    model_ = {to_pointer(embedding),
              to_const<float>(cos_sin),
              layers_.data(),
              to_const<float>(final_norm),
              head,
              static_cast<int64_t>(layers_.size()),
              hidden_size,
              num_heads,
              rotary_dim,
              norm_eps,
              attention_scale,
              static_cast<DType>(embedding_dtype)};
  }

  void run(const Array<int32_t>& token_ids, const Array<int32_t>& positions, const Array<int32_t>& token_row,
           const Array<int32_t>& query_start, const Array<int32_t>& seq_lens, const Array<int32_t>& rows,
           const Array<int32_t>& sample_tokens, Pointer hidden, Pointer logits) {
    const DecoderStepArgs args =
        checked_args(token_ids, positions, token_row, query_start, seq_lens, rows, sample_tokens, hidden, logits);
    py::gil_scoped_release no_lock;
    check(decoder_step_cpu(args));
  }

  // The likeliest token of each sequence that samples.
  Array<int32_t> run_greedy(const Array<int32_t>& token_ids, const Array<int32_t>& positions,
                            const Array<int32_t>& token_row, const Array<int32_t>& query_start,
                            const Array<int32_t>& seq_lens, const Array<int32_t>& rows,
                            const Array<int32_t>& sample_seqs, Pointer hidden, Pointer logits) {
    StepBounds::within("sample_seqs", span(sample_seqs), query_start.size() - 1);
    Array<int32_t> tokens(sample_seqs.size());
    int32_t* sampled = tokens.mutable_data();  // first where they are, then what they are
    for (py::ssize_t i = 0; i < sample_seqs.size(); ++i) sampled[i] = query_start.data()[sample_seqs.data()[i] + 1] - 1;
    const DecoderStepArgs step =
        checked_args(token_ids, positions, token_row, query_start, seq_lens, rows, tokens, hidden, logits);
    const DrawTokensArgs likeliest{
        sampled, to_const<float>(logits), {}, {}, {}, {}, {}, {}, sample_seqs.size(), model_.head.out_features};
    py::gil_scoped_release no_lock;  // once: others may have it for a while
    check(decoder_step_cpu(step));
    check(draw_tokens_cpu(likeliest));
    return tokens;
  }

  // Starts timing, too.
  std::array<int64_t, kNumDecoderStages> take_stage_ns() {
    is_timed_ = true;
    return std::exchange(stage_ns_, {});
  }

 private:
  DecoderStepArgs checked_args(const Array<int32_t>& token_ids, const Array<int32_t>& positions,
                               const Array<int32_t>& token_row, const Array<int32_t>& query_start,
                               const Array<int32_t>& seq_lens, const Array<int32_t>& rows,
                               const Array<int32_t>& sample_tokens, Pointer hidden, Pointer logits) {
    bounds_.check(span(token_ids), span(positions), span(token_row), span(query_start), span(seq_lens), span(rows),
                  span(sample_tokens));
    return {static_cast<float*>(to_pointer(hidden)),
            static_cast<float*>(to_pointer(logits)),
            &model_,
            pool_,
            token_ids.data(),
            positions.data(),
            token_row.data(),
            query_start.data(),
            seq_lens.data(),
            rows.data(),
            sample_tokens.data(),
            token_ids.size(),
            rows.size(),
            sample_tokens.size(),
            is_timed_ ? stage_ns_.data() : nullptr,
            num_landed_};
  }

  static std::span<const int32_t> span(const Array<int32_t>& array) {
    return {array.data(), static_cast<size_t>(array.size())};
  }

  PagedPool pool_;
  StepBounds bounds_;
  const int32_t* num_landed_;
  std::vector<DecoderLayer> layers_;
  DecoderModel model_;
  std::array<int64_t, kNumDecoderStages> stage_ns_{};
  bool is_timed_ = false;
};

py::tuple take_stage_ns(Decoder& decoder) {
  py::tuple result(kNumDecoderStages);
  const auto stage_ns = decoder.take_stage_ns();
  for (size_t i = 0; i < stage_ns.size(); ++i) result[i] = stage_ns[i];
  return result;
}

void argmax(Pointer logits, int64_t vocab_size, Array<int32_t> tokens) {
  const DrawTokensArgs args{
      tokens.mutable_data(), to_const<float>(logits), {}, {}, {}, {}, {}, {}, tokens.size(), vocab_size};
  py::gil_scoped_release no_lock;
  check(draw_tokens_cpu(args));
}

void allow_tokens(Pointer logits, int64_t vocab_size, const Array<int32_t>& rows, const Array<uint64_t>& masks) {
  static_assert(sizeof(uint64_t) == sizeof(const uint32_t*));
  const AllowTokensArgs args{reinterpret_cast<float*>(logits), rows.data(),
                             reinterpret_cast<const uint32_t* const*>(masks.data()), rows.size(), vocab_size};
  py::gil_scoped_release no_lock;
  check(allow_tokens_cpu(args));
}

void allowed_argmax(Pointer logits, int64_t vocab_size, const Array<int32_t>& rows, const Array<uint64_t>& masks,
                    Array<int32_t> tokens) {
  const AllowedArgmaxArgs args{tokens.mutable_data(), to_const<float>(logits),
                               rows.data(),           reinterpret_cast<const uint32_t* const*>(masks.data()),
                               tokens.size(),         vocab_size};
  py::gil_scoped_release no_lock;
  check(allowed_argmax_cpu(args));
}

void draw_tokens(Pointer logits, int64_t vocab_size, const Array<float>& temperature, const Array<int64_t>& top_k,
                 const Array<float>& top_p, const Array<float>& min_p, const Array<uint64_t>& seed,
                 const Array<int64_t>& index, Array<int32_t> tokens, const Array<uint64_t>& masks) {
  const DrawTokensArgs args{tokens.mutable_data(),
                            to_const<float>(logits),
                            temperature.data(),
                            top_k.data(),
                            top_p.data(),
                            min_p.data(),
                            seed.data(),
                            index.data(),
                            tokens.size(),
                            vocab_size,
                            masks.size() == 0 ? nullptr : reinterpret_cast<const uint32_t* const*>(masks.data())};
  py::gil_scoped_release no_lock;
  check(draw_tokens_cpu(args));
}

// As above, for logits and parameters on a device.
void draw_tokens_on_device(Pointer tokens, Pointer logits, int64_t num_rows, int64_t vocab_size, Pointer temperature,
                           Pointer top_k, Pointer top_p, Pointer min_p, Pointer seed, Pointer index, int64_t stream) {
  const DrawTokensArgs args{static_cast<int32_t*>(to_pointer(tokens)),
                            to_const<float>(logits),
                            to_const<float>(temperature),
                            to_const<int64_t>(top_k),
                            to_const<float>(top_p),
                            to_const<float>(min_p),
                            to_const<uint64_t>(seed),
                            to_const<int64_t>(index),
                            num_rows,
                            vocab_size};
  HOCKET_LAUNCH(draw_tokens, args, stream);
}

}  // namespace

void bind_decoder(py::module_& module) {
  const auto exactly = [](const char* name) { return py::arg(name).noconvert(); };
  py::class_<LinearWeight>(module, "LinearWeight", py::module_local()).def(py::init(&make_linear_weight));
  py::class_<DecoderLayer>(module, "DecoderLayer", py::module_local()).def(py::init(&make_layer));
  py::class_<Decoder>(module, "Decoder", py::module_local())
      .def(py::init<const PagedPool&, Pointer, int, Pointer, const py::list&, Pointer, const LinearWeight&, int64_t,
                    int64_t, int64_t, float, float, Pointer, int64_t, int64_t>())
      .def("run", &Decoder::run, exactly("token_ids"), exactly("positions"), exactly("token_row"),
           exactly("query_start"), exactly("seq_lens"), exactly("rows"), exactly("sample_tokens"), py::arg("hidden"),
           py::arg("logits"))
      .def("run_greedy", &Decoder::run_greedy, exactly("token_ids"), exactly("positions"), exactly("token_row"),
           exactly("query_start"), exactly("seq_lens"), exactly("rows"), exactly("sample_seqs"), py::arg("hidden"),
           py::arg("logits"))
      .def("take_stage_ns", &take_stage_ns);
  module.def("argmax", &argmax, py::arg("logits"), py::arg("vocab_size"), exactly("tokens"));
  module.def("allow_tokens", &allow_tokens, py::arg("logits"), py::arg("vocab_size"), exactly("rows"),
             exactly("masks"));
  module.def("allowed_argmax", &allowed_argmax, py::arg("logits"), py::arg("vocab_size"), exactly("rows"),
             exactly("masks"), exactly("tokens"));
  module.def("draw_tokens", &draw_tokens, py::arg("logits"), py::arg("vocab_size"), exactly("temperature"),
             exactly("top_k"), exactly("top_p"), exactly("min_p"), exactly("seed"), exactly("index"), exactly("tokens"),
             exactly("masks"));
  module.def("draw_tokens_on_device", &draw_tokens_on_device, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hocket
