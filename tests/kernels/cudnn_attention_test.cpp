// What cuDNN can do for attention, asked of the library itself for described devices; and on a real
// GPU both providers side by side.
#include <accrue/config.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/gemm.h>
#include "tests/kernels/attention_reference.h"
#include "tests/kernels/cudnn_devices.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#if ACCRUE_HAS_CUDA
  #include <cstdlib>
  #include <dlfcn.h>
  #include <accrue/kernels/cuda/cudnn_attention.h>
#endif

using namespace accrue;
using namespace accrue::test;

TEST_CASE("attention: the provider is a setting; cuDNN needs cuDNN and a real device",
          "[kernels][cudnn]") {
  CHECK(attention_provider() == AttentionProvider::kAutomatic);
  set_attention_provider(AttentionProvider::kOwn);
  CHECK(attention_provider() == AttentionProvider::kOwn);
  CHECK_FALSE(kernels::attention_library_workspace(DType::kBF16, default_device()).defined());
#if !ACCRUE_HAS_CUDA || ACCRUE_CUDA_SIM
  CHECK(error_of([] { set_attention_provider(AttentionProvider::kCudnn); }) ==
        "set_attention_provider: cuDNN 9.16 or later was not found, or this build has no real CUDA "
        "device; use kOwn or kAutomatic");
  CHECK(attention_provider() == AttentionProvider::kOwn);
#endif
  set_attention_provider(AttentionProvider::kAutomatic);
}

#if ACCRUE_HAS_CUDA
using namespace accrue::kernels;
using namespace accrue::kernels::cuda;

namespace {
// cuDNN offers engines that are compiled at run time only where it can load libcuda.so.1. Without a
// driver the toolkit's empty library of that name does; it stays loaded.
bool can_ask() {
  if (!has_cudnn_attention()) {
    skip_test("cuDNN 9.16 or later is not installed");
    return false;
  }
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return true;
  for (const char* root :
       {std::getenv("CUDA_HOME"), std::getenv("CUDA_PATH"), static_cast<char*>(nullptr)}) {
    const std::string stub =
        std::string(root ? root : "/usr/local/cuda") + "/lib64/stubs/libcuda.so";
    if (::dlopen(stub.c_str(), RTLD_NOW | RTLD_LOCAL)) return true;
  }
  skip_test("there is neither a driver nor the toolkit's lib64/stubs/libcuda.so");
  return false;
}
CudnnAttention problem(const Sizes& z, bool backward, bool causal, bool packed) {
  const std::int64_t stride = packed ? (z.heads + 2 * z.kv_heads) * z.dim : 0;
  return {.backward = backward,
          .q = z.q(),
          .kv = z.kv(),
          .q_stride = stride,
          .kv_stride = stride,
          .causal = causal,
          .scale = default_scale(z)};
}
constexpr std::int64_t kWorkspace = 32 << 20;
}  // namespace

TEST_CASE("cuDNN has exact engines for our attention on described devices", "[kernels][cudnn]") {
  if (!can_ask()) return;
  const std::string& device = GENERATE_REF(kH200, kA100);
  const bool backward = GENERATE(false, true), causal = GENERATE(true, false);
  const bool packed = GENERATE(true, false);
  const std::int64_t dim = GENERATE(64, 128);
  INFO("backward " << backward << ", causal " << causal << ", packed " << packed << ", head size "
                   << dim << ", on " << device);
  const auto has = [&](const Sizes& z) {
    return cudnn_has_engine(problem(z, backward, causal, packed), device, kWorkspace);
  };
  CHECK(has({2, 256, 256, 4, 4, dim}));
  CHECK(has({2, 256, 256, 8, 2, dim}));
  CHECK(has({1, 100, 100, 3, 1, dim}));
  CHECK(has({1, 50, 250, 2, 2, dim}));
}

TEST_CASE("cuDNN engines for attention stay inside the workspace; nonsense has none",
          "[kernels][cudnn]") {
  if (!can_ask()) return;
  const std::string& device = GENERATE_REF(kH200, kA100);
  const Sizes z{2, 256, 256, 4, 4, 64};
  CHECK(cudnn_has_engine(problem(z, false, true, true), device, 256));
  // Score gradients of 2 * 4 heads in bfloat16, and what is said in the header to lie beside them.
  constexpr std::int64_t kScores = 2 * 4 * 256 * 256 * 2;
  CHECK(cudnn_has_engine(problem(z, true, true, true), device, kScores + 512));
  CHECK_FALSE(cudnn_has_engine(problem(z, true, true, true), device, kScores));

  const auto none = [&](const CudnnAttention& p) {
    return !cudnn_has_engine(p, device, std::int64_t{1} << 40);
  };
  for (const bool backward : {false, true}) {
    CHECK(none(problem({2, 256, 256, 4, 4, 20}, backward, true, false)));
    CHECK(none(problem({2, 256, 128, 4, 4, 64}, backward, true, false)));
    CHECK(none(problem({2, 0, 0, 4, 4, 64}, backward, true, false)));
    CudnnAttention p = problem(z, backward, true, false);
    p.dtype = DType::kF32;
    CHECK(none(p));
    p.dtype = DType::kBF16;
    p.kv = {2, 256, 3, 64};  // 4 heads cannot share 3
    CHECK_THROWS_AS(none(p), Error);
  }
  CHECK_THROWS_AS(cudnn_has_engine(problem(z, false, true, true), "{}", kWorkspace), Error);
}

TEST_CASE("cuDNN says why it declines a pass of attention", "[kernels][cudnn]") {
  // Only the arguments are looked at, so the host's memory does.
  struct Pass {
    Sizes z;
    bool causal = true;
    DType dtype = DType::kBF16;
    std::int64_t shift = 0;  // elements before q
    GradSink dq{};
    std::string forward() const { return refusal(false); }
    std::string backward() const { return refusal(true); }
    std::string refusal(bool back) const {
      const auto like = [&](const Shape& s) { return Tensor::zeros(s, dtype, Device::cpu()); };
      const Tensor room = like({z.q().numel() + shift}), k = like(z.kv()), y = like(z.q());
      const Tensor lse = Tensor::zeros({z.batch, z.heads, z.queries}, DType::kF32, Device::cpu());
      const Tensor q = room.window(shift, z.q());
      const Stream stream = current_stream(default_device());
      if (!back)
        return cudnn_attention_refusal(stream, AttentionForward{.q = q,
                                                                .k = k,
                                                                .v = k,
                                                                .y = y.view(),
                                                                .lse = lse.view(),
                                                                .workspace = {},
                                                                .causal = causal});
      GradSink first = dq;
      first.dst = y.view();
      return cudnn_attention_refusal(stream, AttentionBackward{.dy = y,
                                                               .q = q,
                                                               .k = k,
                                                               .v = k,
                                                               .y = y,
                                                               .lse = lse,
                                                               .dq = first,
                                                               .dk = {k.view()},
                                                               .dv = {k.view()},
                                                               .workspace = lse.view(),
                                                               .causal = causal});
    }
  };
  if (!has_cudnn_attention()) {
    skip_test("cuDNN 9.16 or later is not installed");
    return;
  }
  const Sizes z{2, 16, 16, 4, 4, 64};
  CHECK(Pass{.z = z, .dtype = DType::kF32}.forward() == "float32 is not bfloat16");
  CHECK(Pass{.z = {2, 0, 16, 4, 4, 64}}.forward() == "there are no queries or no keys");
  CHECK(Pass{.z = {2, 16, 16, 4, 4, 20}}.forward() == "head_dim or a stride is no multiple of 8");
  CHECK(Pass{.z = {2, 16, 8, 4, 4, 64}}.forward() == "it is causal with more queries than keys");
  CHECK(Pass{.z = z, .shift = 1}.backward() == "an address is no multiple of 16");
  CHECK(Pass{.z = z, .dq = {.beta = 1}}.backward() ==
        "a gradient is missing, of another dtype, scaled or added to something");
  #if ACCRUE_CUDA_SIM
  CHECK(Pass{.z = z}.forward() == "the device is simulated");
  CHECK(Pass{.z = z}.backward() == "the device is simulated");
  #endif
}

  #if !ACCRUE_CUDA_SIM
namespace {
struct ProviderScope {
  explicit ProviderScope(AttentionProvider p) { set_attention_provider(p); }
  ~ProviderScope() { set_attention_provider(AttentionProvider::kAutomatic); }
};
// y, then the gradient: of q, k, v or of the packed input.
std::vector<Values> run(const Sizes& z, bool causal, bool packed, AttentionProvider forward,
                        AttentionProvider backward) {
  std::vector<Tensor> in{half_noise(z.packed(), 1, 2)};
  if (!packed) in = {half_noise(z.q(), 1, 2), half_noise(z.kv(), 2, 2), half_noise(z.kv(), 3)};
  Tape tape;
  for (Tensor& t : in) tape.watch(t);
  Tensor y;
  {
    const ProviderScope provider(forward);
    const Tape::Scope on(tape);
    y = packed ? attention_qkv(in[0], z.heads, z.kv_heads, {.causal = causal})
               : attention(in[0], in[1], in[2], {.causal = causal});
  }
  {
    const ProviderScope provider(backward);
    tape.backward_from(y, half_noise(y.shape(), 4));
  }
  std::vector<Values> out{values_of(y)};
  for (Tensor& t : in) out.push_back(values_of(tape.gradient(t)));
  return out;
}
}  // namespace

TEST_CASE("attention: cuDNN and our own kernels agree on a GPU, and read each other's lse",
          "[kernels][cudnn]") {
  if (!default_device().is_cuda()) {
    skip_test("this compares providers on a GPU: set ACCRUE_TEST_DEVICE=cuda");
    return;
  }
  if (!has_cudnn_attention()) {
    skip_test("cuDNN 9.16 or later is not installed");
    return;
  }
  constexpr auto kOwn = AttentionProvider::kOwn, kCudnn = AttentionProvider::kCudnn;
  const Sizes z = GENERATE(Sizes{2, 256, 256, 4, 4, 64}, Sizes{2, 256, 256, 8, 2, 128},
                           Sizes{3, 100, 100, 3, 3, 64}, Sizes{1, 50, 250, 4, 2, 64});
  const bool causal = GENERATE(true, false), packed = GENERATE(true, false);
  if (packed && z.queries != z.keys) return;
  INFO("queries " << z.queries << ", keys " << z.keys << ", heads " << z.heads << " and "
                  << z.kv_heads << ", head size " << z.dim << ", causal " << causal << ", packed "
                  << packed);
  const auto own = run(z, causal, packed, kOwn, kOwn);
  const auto theirs = run(z, causal, packed, kCudnn, kCudnn);
  CHECK(theirs != own);  // they round in other places: equal bits mean that cuDNN did not run
  CHECK(run(z, causal, packed, kCudnn, kCudnn) == theirs);
  for (const auto& got :
       {theirs, run(z, causal, packed, kCudnn, kOwn), run(z, causal, packed, kOwn, kCudnn)})
    for (std::size_t i = 0; i < own.size(); ++i) CHECK(distance(got[i], own[i]) < 1.5e-2);
}
  #endif
#endif
