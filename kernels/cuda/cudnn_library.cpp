#include <accrue/kernels/cuda/cudnn_library.h>
#if ACCRUE_HAS_CUDNN
  #include <dlfcn.h>
  #include <map>
  #include <accrue/core/cuda/check.h>
  #include <accrue/core/error.h>

namespace accrue::kernels::cuda {
namespace {
constexpr std::size_t kOldest = 90800;  // descriptions of devices

struct Search {
  CudnnLibrary library{};
  std::string failure;  // empty: found

  Search() {
    constexpr const char* kName = "libcudnn.so.9";
    void* const file = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
      const char* why = ::dlerror();
      failure = detail::concat("cuDNN 9 was not found: ", why ? why : kName,
                               "; install it, or use our own kernels");
      return;
    }
    const auto load = [&]<class F>(F& function, const char* name) {
      function = reinterpret_cast<F>(::dlsym(file, name));
      if (!function && failure.empty()) failure = detail::concat(kName, " lacks ", name);
    };
    load(library.version, "cudnnGetVersion");
    load(library.error_string, "cudnnGetErrorString");
    load(library.last_error, "cudnnGetLastErrorString");
    load(library.create, "cudnnCreate");
    load(library.set_stream, "cudnnSetStream");
    load(library.create_descriptor, "cudnnBackendCreateDescriptor");
    load(library.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    load(library.set_attribute, "cudnnBackendSetAttribute");
    load(library.get_attribute, "cudnnBackendGetAttribute");
    load(library.finalize, "cudnnBackendFinalize");
    load(library.execute, "cudnnBackendExecute");
    if (failure.empty() && library.version() < kOldest)
      failure = detail::concat("cuDNN ", library.version(), " is older than ", kOldest);
  }
  static const Search& once() {
    static const Search& search = *new Search;
    return search;
  }
};

std::vector<cudnnBackendDescriptor_t> configurations(const CudnnDescriptor& heuristics,
                                                     std::vector<CudnnDescriptor>& owners) {
  const CudnnLibrary& library = CudnnLibrary::get();
  std::int64_t count = 0;
  ACCRUE_CUDNN_CHECK(library.get_attribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<cudnnBackendDescriptor_t> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(owners.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  std::int64_t got = 0;
  ACCRUE_CUDNN_CHECK(library.get_attribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got, out.data()));
  out.resize(static_cast<std::size_t>(got));
  return out;
}

bool is_exact(cudnnBackendDescriptor_t configuration, bool tensor_cores) {
  const CudnnLibrary& library = CudnnLibrary::get();
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  ACCRUE_CUDNN_CHECK(library.get_attribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  ACCRUE_CUDNN_CHECK(library.get_attribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                           CUDNN_TYPE_NUMERICAL_NOTE,
                                           CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes));
  for (std::int64_t i = 0; i < count; ++i)
    if (notes[i] != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP &&
        !(tensor_cores && notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
      return false;
  return true;
}

// More than the demands allow, as far as the library knows before the plan is made.
bool is_too_large(cudnnBackendDescriptor_t configuration, std::int64_t workspace) {
  std::int64_t count = 0, bytes = 0;
  return CudnnLibrary::get().get_attribute(configuration, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, &count,
                                           &bytes) == CUDNN_STATUS_SUCCESS &&
         bytes > workspace;
}
// Calls f(configuration) in the order of the heuristics until it returns true; whether it did.
template <class F>
bool any_configuration(const std::vector<CudnnDescriptor>& operations, const CudnnTarget& target,
                       const CudnnDemands& demands, F&& f) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations) raw.push_back(operation.get());
  const CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw);
  graph.finalize();
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    const CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristics.set<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                                           {mode});
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties);
    // An operation that no engine takes fails here already.
    if (CudnnLibrary::get().finalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) continue;
    std::vector<CudnnDescriptor> owners;
    for (const cudnnBackendDescriptor_t configuration : configurations(heuristics, owners))
      if (is_exact(configuration, demands.tensor_cores) &&
          !is_too_large(configuration, demands.workspace) && f(configuration))
        return true;
  }
  return false;
}

// Contexts of the library belong to a thread and a device. Never destroyed: at the end of a process
// its driver may be gone before them.
cudnnHandle_t handle_of(Stream stream) {
  thread_local std::map<int, cudnnHandle_t> handles;
  cudnnHandle_t& handle = handles[stream.device.index];
  accrue::cuda::use_device(stream.device);
  if (!handle) ACCRUE_CUDNN_CHECK(CudnnLibrary::get().create(&handle));
  ACCRUE_CUDNN_CHECK(
      CudnnLibrary::get().set_stream(handle, reinterpret_cast<cudaStream_t>(stream.native)));
  return handle;
}
// The library has nothing for this problem. The codes are grouped by thousands.
bool refuses(cudnnStatus_t status) {
  const int group = static_cast<int>(status) / 1000;
  return group == CUDNN_STATUS_BAD_PARAM / 1000 || group == CUDNN_STATUS_NOT_SUPPORTED / 1000;
}
}  // namespace

const CudnnLibrary* CudnnLibrary::find() {
  const Search& search = Search::once();
  return search.failure.empty() ? &search.library : nullptr;
}
const CudnnLibrary& CudnnLibrary::get() {
  const Search& search = Search::once();
  if (!search.failure.empty()) detail::fail(ErrorCode::kUnsupported, search.failure);
  return search.library;
}

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const CudnnLibrary& library = CudnnLibrary::get();
  char text[512] = "";
  library.last_error(text, sizeof text);
  const std::string what =
      detail::concat("cuDNN: ", library.error_string(status), " in ", call, ": ", text);
  if (status == CUDNN_STATUS_ALLOC_FAILED) throw OutOfMemory(what, 0, 0, 0, {});
  if (refuses(status)) detail::fail(ErrorCode::kUnsupported, what);
  detail::fail(ErrorCode::kCuda, what);
}

cudnnDataType_t cudnn_type(DType t) {
  switch (t) {
    case DType::kF32: return CUDNN_DATA_FLOAT;
    case DType::kBF16: return CUDNN_DATA_BFLOAT16;
    case DType::kF64: return CUDNN_DATA_DOUBLE;
    default: accrue::detail::fail_dtype(t, "a floating dtype");
  }
}

CudnnTarget CudnnTarget::of(Device device) {
  CudnnTarget t{CudnnDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)};
  t.properties.set<std::int32_t>(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, {device.index});
  t.properties.finalize();
  return t;
}
CudnnTarget CudnnTarget::described(const std::string& json) {
  CudnnTarget t{CudnnDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)};
  std::vector<char> text(json.begin(), json.end());
  text.push_back('\0');
  t.properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, text);
  t.properties.finalize();
  return t;
}

CudnnDescriptor cudnn_tensor(std::int64_t uid, DType type, const Shape& shape,
                             std::int64_t alignment) {
  std::vector<std::int64_t> sizes, strides;
  for (int i = 0; i < shape.rank(); ++i) sizes.push_back(shape[i]);
  strides.assign(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  CudnnDescriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {uid});
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {alignment});
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
  t.finalize();
  return t;
}

CudnnPlan cudnn_plan(const std::vector<CudnnDescriptor>& operations, const CudnnTarget& target,
                     const CudnnDemands& demands) {
  const CudnnLibrary& library = CudnnLibrary::get();
  CudnnPlan out;
  const auto make = [&](cudnnBackendDescriptor_t configuration) {
    CudnnPlan plan{CudnnDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
    plan.plan.set<cudnnBackendDescriptor_t>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, {configuration});
    plan.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.properties);
    if (library.finalize(plan.plan.get()) != CUDNN_STATUS_SUCCESS) return false;
    std::int64_t count = 0;
    ACCRUE_CUDNN_CHECK(library.get_attribute(plan.plan.get(),
                                             CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                             CUDNN_TYPE_INT64, 1, &count, &plan.workspace));
    if (plan.workspace > demands.workspace) return false;
    out = std::move(plan);
    return true;
  };
  any_configuration(operations, target, demands, make);
  return out;
}
bool cudnn_has_engine(const std::vector<CudnnDescriptor>& operations, const CudnnTarget& target,
                      const CudnnDemands& demands) {
  return any_configuration(operations, target, demands,
                           [](cudnnBackendDescriptor_t) { return true; });
}

void cudnn_execute(Stream stream, const CudnnPlan& plan, const std::vector<std::int64_t>& uids,
                   const std::vector<void*>& pointers, void* workspace) {
  const CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
  pack.set<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, {workspace});
  pack.finalize();
  ACCRUE_CUDNN_CHECK(CudnnLibrary::get().execute(handle_of(stream), plan.plan.get(), pack.get()));
}
}  // namespace accrue::kernels::cuda
#endif
