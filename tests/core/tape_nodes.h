#pragma once
// Nodes of the tests' own for the tape: how gradients are routed, shared and summed, without any op
// of kernels/.
#include <string_view>
#include <utility>
#include <vector>
#include <accrue/core/backend.h>
#include <accrue/core/tape.h>
#include "tests/support/catch.h"

namespace accrue::test {
using Floats = std::vector<float>;

inline Tensor vec(const Floats& v) {
  return Tensor::from(v, {static_cast<std::int64_t>(v.size())});
}

// Memory of the default device.
inline Floats read(const View& v) {
  const Stream stream = current_stream(default_device());
  Floats out(static_cast<std::size_t>(v.shape.numel()));
  backend(stream.device).copy_to_host(out.data(), v.data<float>(), v.bytes(), stream);
  return out;
}
// dst = beta * dst + alpha * factor * dy, never reading dst when beta is 0.
inline void write(const GradSink& s, const Floats& dy, float factor) {
  if (!s) return;
  Floats d = s.beta == 0 ? Floats(dy.size()) : read(s.dst);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const float value = s.alpha * factor * dy[i];
    d[i] = s.beta == 0 ? value : s.beta * d[i] + value;
  }
  const Stream stream = current_stream(default_device());
  backend(stream.device).copy_from_host(s.dst.ptr, d.data(), s.dst.bytes(), stream);
}
inline void write(const GradSink& s, const Tensor& dy, float factor) {
  write(s, dy.to_vector<float>(), factor);
}

enum class Way { kSink, kInPlace, kShare, kHandOver };

// y = sum over the inputs of factor[i] * x[i]; each gradient goes the way that is asked for.
struct SumNode {
  static constexpr std::string_view kName = "sum";
  Floats factors;
  std::vector<Way> ways;
  int* runs = nullptr;
  bool fails = false;
  void backward(BackwardContext& c) const {
    if (runs) ++*runs;
    if (fails) throw Error(ErrorCode::kInternal, "the node failed");
    std::vector<GradSink> sinks;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const int at = static_cast<int>(i);
      sinks.push_back({});
      if (ways[i] == Way::kShare && c.share(at)) continue;
      if (ways[i] == Way::kHandOver && c.wants(at)) {
        const Tensor given = Tensor::empty(c.grad().shape(), DType::kF32);
        write({given.view(), 1, 0}, c.grad(), factors[i]);
        if (c.hand_over(at, given)) continue;
      }
      sinks.back() = ways[i] == Way::kInPlace ? c.sink_in_place(at) : c.sink(at);
    }
    const Floats dy = c.grad().to_vector<float>();  // an in-place sink overwrites it
    for (std::size_t i = 0; i < factors.size(); ++i) write(sinks[i], dy, factors[i]);
  }
};

struct Term {
  const Tensor* x;
  float factor = 1;
  Way way = Way::kSink;
};
inline Tensor sum(const std::vector<Term>& terms, int* runs = nullptr, bool fails = false) {
  Floats total(static_cast<std::size_t>(terms[0].x->numel()));
  SumNode node{{}, {}, runs, fails};
  for (const Term& t : terms) {
    node.factors.push_back(t.factor);
    node.ways.push_back(t.way);
    const Floats x = t.x->to_vector<float>();
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += t.factor * x[i];
  }
  Tensor y = Tensor::from(total, terms[0].x->shape());
  if (Tape* tape = Tape::current()) {
    if (terms.size() == 1) tape->record(std::move(node), {terms[0].x}, y);
    if (terms.size() == 2) tape->record(std::move(node), {terms[0].x, terms[1].x}, y);
    if (terms.size() == 3) tape->record(std::move(node), {terms[0].x, terms[1].x, terms[2].x}, y);
  }
  return y;
}
inline Way any_way() { return GENERATE(Way::kSink, Way::kInPlace, Way::kShare, Way::kHandOver); }
// Sharing says "the gradient IS dy": only right for factor 1.
inline float factor(Way way, float f) { return way == Way::kShare ? 1.0f : f; }
}  // namespace accrue::test
