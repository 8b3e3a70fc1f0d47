#include <algorithm>
#include <nlohmann/json.hpp>
#include <accrue/core/trace.h>
#include <accrue/kernels/embedding/embedding.h>
#include <accrue/nn/gpt.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/check_op.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;
using nlohmann::json;

namespace {
struct Traced {
  std::string name, module, device;
  std::int64_t begin, end;  // nanoseconds
  bool inside(const Traced& o) const { return begin >= o.begin && end <= o.end && this != &o; }
};
std::vector<Traced> events_of(const TraceRecorder& trace) {
  std::vector<Traced> out;
  const json all = json::parse(trace.json());
  for (const json& e : all.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    const auto ns = [&](const char* key) { return std::llround(1e3 * e.at(key).get<double>()); };
    const json& args = e.at("args");
    out.push_back({e.at("name"), args.value("module", ""), args.value("device", ""), ns("ts"),
                   ns("ts") + ns("dur")});
  }
  return out;
}
std::vector<const Traced*> named(const std::vector<Traced>& events, const std::string& name) {
  std::vector<const Traced*> out;
  for (const Traced& e : events)
    if (e.name == name) out.push_back(&e);
  return out;
}
std::ptrdiff_t inside(const std::vector<Traced>& events, const Traced& outer,
                      const std::string& name = "") {
  return std::count_if(events.begin(), events.end(), [&](const Traced& e) {
    return e.inside(outer) && (name.empty() || e.name == name);
  });
}

std::vector<Traced> trace_step(const ActivationPolicy& policy, const TraceOptions& options,
                               const nn::GptConfig& config = tiny_config()) {
  ParameterSet set;
  nn::Gpt model(set, config);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 5);
  model.activations = policy;
  optim::AdamW optimizer(set, optim::constant(1e-3));
  optim::Window window(set);
  const RaggedBatch batch(2);
  TraceRecorder trace(options);
  for (std::int64_t i = 0; i < 2; ++i) {
    const TraceSpan span("micro-batch", i);
    const auto micro = batch.micro(i, 1);
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, model.loss(micro.tokens, micro.targets, micro.random));
  }
  optimizer.step(window);
  trace.stop();
  return events_of(trace);
}
}  // namespace

TEST_CASE("trace of a step: backward, what it recomputes, the optimizer", "[nn][trace]") {
  const auto plain = trace_step({}, {});
  CHECK(named(plain, "micro-batch").size() == 2);
  CHECK(named(plain, "recompute").empty());
  REQUIRE(named(plain, "backward").size() == 2);
  REQUIRE(named(plain, "optimizer step").size() == 1);
  CHECK(inside(plain, *named(plain, "optimizer step")[0], "adamw") == 1);
  for (const Traced* backward : named(plain, "backward")) {
    CHECK(inside(plain, *backward, "layer_norm_backward") == 5);
    CHECK(inside(plain, *backward, "layer_norm_forward") == 0);
  }

  const auto again = trace_step({.blocks = {Recompute::kBlock, Recompute::kNone}}, {});
  const auto spans = named(again, "recompute");
  REQUIRE(spans.size() == 2);
  for (const Traced* span : spans) {
    CHECK(inside(again, *span, "layer_norm_forward") == 2);
    CHECK(inside(again, *span, "layer_norm_backward") == 2);
    const auto micro = named(again, "micro-batch");
    CHECK(std::count_if(micro.begin(), micro.end(),
                        [&](const Traced* m) { return span->inside(*m); }) == 1);
  }
  const std::string device = to_string(default_device());
  for (const Traced& e : again) {
    if (e.device.empty()) continue;
    CHECK(e.device == device);
    if (e.name == "layer_norm_forward" || e.name == "layer_norm_backward")
      CHECK_FALSE(e.module.empty());
  }
}

TEST_CASE("trace of a step: without dropout the second norm of a block adds the attention up",
          "[nn][trace]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const bool gpt2 = shape == nn::GptShape::kGpt2;
  const std::string norm = gpt2 ? "layer_norm_forward" : "rms_norm_forward";
  const std::size_t micro_batches = 2, positions = gpt2 ? 1 : 0;
  const auto none = trace_step({}, {}, tiny_config(shape, 0.0));
  CHECK(named(none, norm).size() == 5 * micro_batches);
  CHECK(named(none, "add_forward").size() == (positions + 2) * micro_batches);  // the MLPs
  CHECK(named(none, "residual_add_forward").empty());
  const auto masked = trace_step({}, {}, tiny_config(shape, 0.2));
  CHECK(named(masked, norm).size() == 5 * micro_batches);
  CHECK(named(masked, "residual_add_forward").size() == 4 * micro_batches);
  const auto again =
      trace_step({.blocks = {Recompute::kNone, Recompute::kBlock}}, {}, tiny_config(shape, 0.0));
  CHECK(named(again, norm).size() == 7 * micro_batches);
  CHECK(named(again, "add_forward").size() == (positions + 3) * micro_batches);
  const auto mlp =
      trace_step({.blocks = {Recompute::kNone, Recompute::kMlp}}, {}, tiny_config(shape, 0.0));
  CHECK(named(mlp, norm).size() == 6 * micro_batches);
  CHECK(named(mlp, "add_forward").size() == (positions + 3) * micro_batches);
}

TEST_CASE("trace of a step: waiting for every kernel changes nothing else", "[nn][trace]") {
  const auto names = [](const std::vector<Traced>& events) {
    std::vector<std::string> out;
    for (const Traced& e : events) out.push_back(e.name + " " + e.module);
    return out;
  };
  const ActivationPolicy policy{.blocks = {Recompute::kMlp, Recompute::kBlock}};
  CHECK(names(trace_step(policy, {.synchronize = true})) == names(trace_step(policy, {})));
}

TEST_CASE("trace: what a wait finds wrong is thrown by the next kernel, or by stop()",
          "[nn][trace]") {
  if (!default_device().is_cuda()) return test::skip_test("only cuda has something to wait for");
  const Tensor weight = Tensor::zeros({4, 8}, DType::kF32, default_device());
  const std::vector<std::int32_t> bad{1, 4}, good{1, 3};
  const Tensor outside = Tensor::from(bad, {2}, default_device());
  const Tensor within = Tensor::from(good, {2}, default_device());
  TraceRecorder trace({.synchronize = true});
  embedding(outside, weight);
  CHECK_THAT(error_of([&] { embedding(within, weight); }), Catch::Contains("token 4"));
  embedding(within, weight);
  embedding(outside, weight);
  CHECK_THAT(error_of([&] { trace.stop(); }), Catch::Contains("token 4"));
  trace.stop();
  CHECK(named(events_of(trace), "embedding_forward").size() == 3);
}
