#pragma once
// Graphs of several operations for cuDNN: what lies in memory, what only passes from one operation
// to the next, and numbers. Only for kernels/cuda/cudnn_*.cpp.
#include <accrue/kernels/cuda/cudnn_library.h>
#if ACCRUE_HAS_CUDNN
  #include <memory>

namespace accrue::kernels::cuda {

/// A number that a graph reads from the host when it runs: 4 bytes, named by its uid.
struct CudnnNumber {
  std::int64_t uid = 0;
  std::uint32_t bits = 0;
};

class CudnnGraph {
 public:
  using Sizes = std::vector<std::int64_t>;
  struct Node {
    std::shared_ptr<const CudnnDescriptor> tensor;
    Sizes sizes;
  };

  /// In memory; `uid`, below 100, names it when the plan runs.
  Node memory(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides);
  /// Between two operations: it may never exist as a whole. No strides: dense.
  Node between(const Sizes& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT, Sizes strides = {});
  Node number(float value);
  Node number(std::int32_t value);

  /// Each adds an operation and returns its result `to`.
  Node matmul(const Node& a, const Node& b, const Node& to);
  Node reduce(cudnnReduceTensorOp_t op, const Node& x, const Node& to);
  /// The same elements with another shape and strides.
  Node reshape(const Node& x, const Node& to);
  Node unary(cudnnPointwiseMode_t mode, const Node& x, const Node& to);
  Node binary(cudnnPointwiseMode_t mode, const Node& a, const Node& b, const Node& to,
              cudnnDataType_t precision = CUDNN_DATA_FLOAT);
  /// Every element's index along the axis, int32; x gives the shape.
  Node index(const Node& x, std::int64_t axis);
  /// mask ? a : b
  Node select(const Node& mask, const Node& a, const Node& b, const Node& to);

  const std::vector<CudnnDescriptor>& operations() const { return operations_; }
  const std::vector<CudnnNumber>& numbers() const { return numbers_; }

 private:
  Node tensor(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
              cudnnBackendAttributeName_t flag);
  Node number(cudnnDataType_t type, std::uint32_t bits);
  Node pointwise(const CudnnDescriptor& what, const Node& x, const Node* b, const Node* t,
                 const Node& to);

  std::vector<CudnnDescriptor> operations_;
  std::vector<CudnnNumber> numbers_;
  std::int64_t next_ = 100;
};
}  // namespace accrue::kernels::cuda
#endif
