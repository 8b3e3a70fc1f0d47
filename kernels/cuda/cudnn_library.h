#pragma once
// The graph interface of cuDNN 9, loaded at run time: a program of ours starts without cuDNN, and
// a build without its headers has none. Only for kernels/cuda/cudnn_*.cpp and their tests.
#if __has_include(<cudnn_graph.h>)
  #define ACCRUE_HAS_CUDNN 1
  #include <cudnn_graph.h>
  #include <cstdint>
  #include <initializer_list>
  #include <string>
  #include <utility>
  #include <vector>
  #include <accrue/core/types.h>

namespace accrue::kernels::cuda {

/// The functions of the library.
struct CudnnLibrary {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;

  /// nullptr if there is none, or one before 9.8. Loaded once, never unloaded.
  static const CudnnLibrary* find();
  /// Throws kUnsupported with the reason if there is none.
  static const CudnnLibrary& get();
};

/// Throws with the status, the library's explanation and the call: kUnsupported where the library
/// does not know the problem, OutOfMemory where it got no memory, kCuda else.
void check_cudnn(cudnnStatus_t status, const char* call);
  #define ACCRUE_CUDNN_CHECK(call) ::accrue::kernels::cuda::check_cudnn((call), #call)

cudnnDataType_t cudnn_type(DType t);

/// One object of the graph interface.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type) {
    ACCRUE_CUDNN_CHECK(CudnnLibrary::get().create_descriptor(type, &value_));
  }
  ~CudnnDescriptor() {
    if (value_) CudnnLibrary::get().destroy_descriptor(value_);
  }
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : value_(std::exchange(other.value_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  cudnnBackendDescriptor_t get() const { return value_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const std::vector<T>& values) const {
    ACCRUE_CUDNN_CHECK(CudnnLibrary::get().set_attribute(
        value_, name, type, static_cast<std::int64_t>(values.size()), values.data()));
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) const {
    set<cudnnBackendDescriptor_t>(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {other.get()});
  }
  void set(cudnnBackendAttributeName_t name, std::initializer_list<std::int64_t> values) const {
    set<std::int64_t>(name, CUDNN_TYPE_INT64, values);
  }
  void set(cudnnBackendAttributeName_t name, DType type) const {
    set<cudnnDataType_t>(name, CUDNN_TYPE_DATA_TYPE, {cudnn_type(type)});
  }
  void finalize() const { ACCRUE_CUDNN_CHECK(CudnnLibrary::get().finalize(value_)); }

 private:
  cudnnBackendDescriptor_t value_ = nullptr;
};

/// What plans are made for: a real device, or one that is only described.
struct CudnnTarget {
  CudnnDescriptor properties;
  /// The device with this number; needs a driver.
  static CudnnTarget of(Device device);
  /// A description in the library's own JSON (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION): what it
  /// can do there is found out without a GPU.
  static CudnnTarget described(const std::string& json);
};

/// A dense tensor of a graph; `uid` names its memory when the plan runs, at a multiple of
/// `alignment` bytes.
CudnnDescriptor cudnn_tensor(std::int64_t uid, DType type, const Shape& shape,
                             std::int64_t alignment = 16);

/// What a plan may do beside its operation.
struct CudnnDemands {
  std::int64_t workspace = 0;  // bytes it may use at most
  bool tensor_cores = true;    // false: not those that round float32 operands
};
/// How to run one operation.
struct CudnnPlan {
  CudnnDescriptor plan;  // empty: the library cannot do it within the demands
  std::int64_t workspace = 0;
  explicit operator bool() const { return plan.get() != nullptr; }
};
/// The first plan of the library's heuristics that meets the demands, is deterministic and neither
/// rounds its operands nor adds partial sums in less than the operation's own precision. Engines
/// that are compiled at run time are compiled and loaded here: seconds, and a driver.
CudnnPlan cudnn_plan(const std::vector<CudnnDescriptor>& operations, const CudnnTarget& target,
                     const CudnnDemands& demands);
/// Whether the library offers an engine that meets the demands, without making its plan: nothing is
/// compiled or loaded. The library offers what is compiled at run time only where it finds
/// libcuda.so.1.
bool cudnn_has_engine(const std::vector<CudnnDescriptor>& operations, const CudnnTarget& target,
                      const CudnnDemands& demands);
/// Runs it on the stream: uids[i] is at pointers[i].
void cudnn_execute(Stream stream, const CudnnPlan& plan, const std::vector<std::int64_t>& uids,
                   const std::vector<void*>& pointers, void* workspace);
}  // namespace accrue::kernels::cuda
#else
  #define ACCRUE_HAS_CUDNN 0
#endif
