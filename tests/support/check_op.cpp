#include <cmath>
#include <cstring>
#include <accrue/core/parallel.h>
#include <accrue/core/isa.h>
#include <accrue/core/parameter.h>
#include <accrue/core/random.h>
#include <accrue/core/tape.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

namespace accrue::test {
namespace {
using Values = std::vector<double>;

double uniform(std::uint32_t salt, std::uint32_t i) {
  return philox4x32({i, salt, 0, 0}, {1, 2})[0] * 0x1p-32;
}

double rounded_to(DType t, double v) {
  if (t == DType::kBF16)
    return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(v))));
  return t == DType::kF32 ? static_cast<double>(static_cast<float>(v)) : v;
}

Tensor make(const Values& values, const Shape& shape, DType dtype,
            Device device = default_device()) {
  return visit_any(dtype, [&]<class T>() {
    std::vector<T> out(values.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_same_v<T, bfloat16>)
        out[i] = bfloat16(static_cast<float>(values[i]));
      else
        out[i] = static_cast<T>(values[i]);
    }
    return Tensor::from(std::span<const T>(out), shape, device);
  });
}

Values values_of(const Tensor& t) {
  return visit_any(t.dtype(), [&]<class T>() {
    const auto in = t.to_vector<T>();
    Values out(in.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_same_v<T, bfloat16>)
        out[i] = static_cast<double>(static_cast<float>(in[i]));
      else
        out[i] = static_cast<double>(in[i]);
    }
    return out;
  });
}

void near(const std::string& what, const Values& got, const Values& want, double tolerance) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  double scale = 1;
  for (const double w : want)
    if (std::isfinite(w)) scale = std::max(scale, std::abs(w));
  std::size_t worst = 0;
  double error = -1;
  for (std::size_t i = 0; i < want.size(); ++i) {
    double e = std::abs(got[i] - want[i]);
    if (std::isinf(want[i]) && got[i] == want[i]) e = 0;
    if (!(e <= error)) {  // a NaN is always the worst, and stays
      error = e;
      worst = i;
      if (std::isnan(e)) break;
    }
  }
  if (want.empty()) return;
  INFO("element " << worst << ": got " << got[worst] << ", want " << want[worst] << ", error "
                  << error << ", allowed " << tolerance * scale);
  CHECK(error <= tolerance * scale);
}

struct Result {
  Values y;
  std::vector<Values> gradients;  // of the differentiable inputs that were wanted; else empty
  Shape shape;
};

class Checker {
 public:
  explicit Checker(const OpCase& op) : c(op) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const OpInput& in = c.inputs[i];
      Values v = in.values;
      if (v.empty())
        for (std::int64_t j = 0; j < in.shape.numel(); ++j)
          v.push_back(in.low + (in.high - in.low) * uniform(static_cast<std::uint32_t>(i + 1),
                                                            static_cast<std::uint32_t>(j)));
      // Every dtype starts from numbers that bfloat16 holds exactly, so all runs compute the same
      // function.
      for (double& x : v)
        if (is_floating(in.dtype)) x = rounded_to(c.bf16 ? DType::kBF16 : DType::kF32, x);
      inputs.push_back(std::move(v));
    }
  }

  void run_all() {
    INFO("op " << c.name);
    const Values want = c.reference(inputs);
    const Result exact = run(DType::kF64);
    near("forward, float64", exact.y, want, c.tolerance_f64);
    if (default_device().is_cpu())
      differences(exact);
    else
      same_as_cpu(exact);
    for (const DType t : {DType::kF32, DType::kBF16}) {
      if (t == DType::kBF16 && !c.bf16) continue;
      const bool half = t == DType::kBF16;
      const std::string name{name_of(t)};
      const Isa best = current_isa();
      for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
        if (isa > best || (!default_device().is_cpu() && isa != best)) continue;
        set_isa(isa);
        const std::string where =
            name + " on " + to_string(default_device()) + " " + std::string(name_of(isa));
        const Result r = run(t);
        near("forward, " + where, r.y, want, half ? c.tolerance_bf16 : c.tolerance_f32);
        for (std::size_t i = 0; i < inputs.size(); ++i)
          near("gradient of " + c.inputs[i].name + ", " + where, r.gradients[i], exact.gradients[i],
               half ? c.gradient_tolerance_bf16 : c.gradient_tolerance_f32);
      }
      set_isa(best);
      repeats(t);
      unwanted(t);
      if (c.parameters) as_parameters(t, exact);
    }
    for (const DType t : {DType::kF64, DType::kF32, DType::kBF16})
      if (t != DType::kBF16 || c.bf16) twice(t);
    for (const DType t : {DType::kF32, DType::kBF16})
      if (t != DType::kBF16 || c.bf16) meta(t);
  }
  void threads() {
    INFO("op " << c.name);
    for (const DType t : {DType::kF32, DType::kBF16})
      if (t != DType::kBF16 || c.bf16) repeats(t);
  }

 private:
  DType type_of(std::size_t i, DType run_dtype) const {
    const OpInput& in = c.inputs[i];
    return is_floating(in.dtype) && in.follows_dtype ? run_dtype : in.dtype;
  }
  std::vector<Tensor> tensors(const std::vector<Values>& values, DType dtype,
                              Device device = default_device()) const {
    std::vector<Tensor> out;
    for (std::size_t i = 0; i < values.size(); ++i)
      out.push_back(make(values[i], c.inputs[i].shape, type_of(i, dtype), device));
    return out;
  }
  Values weights(std::size_t n) const {  // the upstream gradient: exact in bfloat16
    Values g(n);
    for (std::size_t i = 0; i < n; ++i)
      g[i] = rounded_to(DType::kBF16, uniform(99, static_cast<std::uint32_t>(i)) * 2 - 1);
    return g;
  }
  Result run(DType dtype, std::size_t only = ~std::size_t{0}) const {
    std::vector<Tensor> in = tensors(inputs, dtype);
    Tape tape;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (c.inputs[i].differentiable && (only == ~std::size_t{0} || only == i)) tape.watch(in[i]);
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = c.run(in);
    }
    Result r{values_of(y), std::vector<Values>(in.size()), y.shape()};
    if (tape.size() > 0) tape.backward_from(y, make(weights(r.y.size()), y.shape(), y.dtype()));
    for (std::size_t i = 0; i < in.size(); ++i)
      if (const Tensor g = tape.gradient(in[i]); g.defined()) r.gradients[i] = values_of(g);
    return r;
  }

  double objective(const std::vector<Values>& values) const {
    const Values y = values_of(c.run(tensors(values, DType::kF64))), g = weights(y.size());
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * g[i];
    return sum;
  }
  void differences(const Result& exact) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!c.inputs[i].differentiable) continue;
      Values want(inputs[i].size());
      std::vector<Values> moved = inputs;
      for (std::size_t j = 0; j < want.size(); ++j) {
        const double h = c.difference_step;
        moved[i][j] = inputs[i][j] + h;
        const double up = objective(moved);
        moved[i][j] = inputs[i][j] - h;
        const double down = objective(moved);
        moved[i][j] = inputs[i][j];
        want[j] = (up - down) / (2 * h);
      }
      near("gradient of " + c.inputs[i].name + " against central differences", exact.gradients[i],
           want, c.gradient_tolerance_f64);
    }
  }

  // The cpu's gradients are compared with differences where the tests run on the cpu.
  void same_as_cpu(const Result& exact) const {
    const DeviceScope there(Device::cpu());
    const Result cpu = run(DType::kF64);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      near("gradient of " + c.inputs[i].name + ", float64, against the cpu", exact.gradients[i],
           cpu.gradients[i], c.tolerance_f64);
  }

  void repeats(DType dtype) const {
    const int before = num_threads();
    set_num_threads(1);
    const Result first = run(dtype);
    for (const int threads : {1, 2, 7}) {
      if (threads > 1 && !default_device().is_cpu()) break;  // they are the cpu's
      INFO(name_of(dtype) << ": the same bits with " << threads << " threads");
      set_num_threads(threads);
      const Result again = run(dtype);
      CHECK(bits(again.y) == bits(first.y));
      for (std::size_t i = 0; i < inputs.size(); ++i)
        CHECK(bits(again.gradients[i]) == bits(first.gradients[i]));
    }
    set_num_threads(before);
  }
  static std::vector<std::uint64_t> bits(const Values& v) {
    std::vector<std::uint64_t> out(v.size());
    if (!v.empty()) std::memcpy(out.data(), v.data(), v.size() * sizeof(double));
    return out;
  }

  void unwanted(DType dtype) const {
    const Result all = run(dtype);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!c.inputs[i].differentiable) continue;
      INFO(name_of(dtype) << ": only the gradient of " << c.inputs[i].name << " is wanted");
      const Result one = run(dtype, i);
      CHECK(bits(one.gradients[i]) == bits(all.gradients[i]));
    }
  }

  // Parameters accumulate into a persistent float32 block: NaN before the first touch, beta 1
  // afterwards.
  void as_parameters(DType dtype, const Result& exact) const {
    ParameterSet set;
    std::vector<Parameter*> p(inputs.size(), nullptr);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (c.inputs[i].differentiable && type_of(i, dtype) == dtype)
        p[i] = set.add(c.inputs[i].name, c.inputs[i].shape, false, {});
    if (set.all().empty()) return;
    set.allocate(default_device(), dtype);
    const View grads = set.grads().view();
    backend(default_device()).fill_bytes(grads.ptr, 0xFF, grads.bytes(), set.grads().stream());
    std::vector<Tensor> in = tensors(inputs, dtype);
    for (std::size_t i = 0; i < in.size(); ++i)
      if (p[i]) p[i]->value.copy_from(in[i]), in[i] = p[i]->value;
    const auto step = [&] {
      Tape tape;
      Tensor y;
      {
        const Tape::Scope on(tape);
        y = c.run(in);
      }
      tape.backward_from(y,
                         make(weights(static_cast<std::size_t>(y.numel())), y.shape(), y.dtype()));
    };
    const double tolerance =
        dtype == DType::kBF16 ? c.gradient_tolerance_bf16 : c.gradient_tolerance_f32;
    const auto expect = [&](double factor, const std::string& what) {
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (!p[i]) continue;
        Values want = exact.gradients[i];
        for (double& w : want) w *= factor;
        REQUIRE(p[i]->slot.touched);
        const Tensor g = set.grads().window(p[i]->offset, p[i]->shape);
        near(c.inputs[i].name + " as a parameter, " + std::string(name_of(dtype)) + ": " + what,
             values_of(g), want, tolerance);
      }
    };
    step();
    expect(1, "first touch into NaN memory (beta 0)");
    step();
    expect(2, "second touch adds (beta 1)");
    for (Parameter* q : p)
      if (q) q->slot.scale = 0.5f;
    step();
    expect(2.5, "alpha 0.5");
    set.clear_touched();
    step();
    expect(0.5, "a new window overwrites");
  }

  // The same tensor in two places: its gradient is the sum of both.
  void twice(DType dtype) const {
    const double tolerance = dtype == DType::kF64   ? 1e-12
                             : dtype == DType::kF32 ? c.gradient_tolerance_f32
                                                    : c.gradient_tolerance_bf16;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      for (std::size_t j = i + 1; j < inputs.size(); ++j) {
        if (!c.inputs[i].differentiable || !c.inputs[j].differentiable ||
            c.inputs[i].shape != c.inputs[j].shape)
          continue;
        INFO(c.inputs[i].name << " is also " << c.inputs[j].name << ", " << dtype);
        Checker same(*this);
        same.inputs[j] = inputs[i];
        const Result apart = same.run(dtype);
        std::vector<Tensor> in = same.tensors(same.inputs, dtype);
        Tape tape;
        tape.watch(in[i]);
        in[j] = in[i];
        Tensor y;
        {
          const Tape::Scope on(tape);
          y = c.run(in);
        }
        tape.backward_from(
            y, make(weights(static_cast<std::size_t>(y.numel())), y.shape(), y.dtype()));
        Values want = apart.gradients[i];
        for (std::size_t k = 0; k < want.size(); ++k) want[k] += apart.gradients[j][k];
        near("sum of both gradients", values_of(tape.gradient(in[i])), want, tolerance);
      }
  }

  void meta(DType dtype) const {
    std::int64_t peaks[2];
    Shape shapes[2];
    const Device here = default_device();
    for (const Device device : {here, Device::meta(here.target())}) {
      Allocator& allocator = Allocator::of(device);
      std::vector<Tensor> in = tensors(inputs, dtype, device);
      const std::int64_t before = allocator.stats().live;
      allocator.reset_peak();
      Tape tape;
      for (std::size_t i = 0; i < in.size(); ++i)
        if (c.inputs[i].differentiable) tape.watch(in[i]);
      Tensor y;
      {
        const Tape::Scope on(tape);
        y = c.run(in);
      }
      if (tape.size() > 0)
        tape.backward_from(y, make(Values(static_cast<std::size_t>(y.numel()), 1.0), y.shape(),
                                   y.dtype(), device));
      const int at = device.is_meta();
      shapes[at] = y.shape();
      peaks[at] = allocator.stats().peak - before;
    }
    INFO(name_of(dtype) << ": meta against " << here);
    CHECK(shapes[0] == shapes[1]);
    CHECK(peaks[0] == peaks[1]);
  }

  const OpCase& c;
  std::vector<Values> inputs;
};
}  // namespace

void check_op(const OpCase& c) { Checker(c).run_all(); }
void check_threads(const OpCase& c) { Checker(c).threads(); }

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  FAIL_CHECK("expected an exception, got none");
  return {};
}
}  // namespace accrue::test
