#include <accrue/kernels/cuda/cudnn_graph.h>
#if ACCRUE_HAS_CUDNN
  #include <bit>

namespace accrue::kernels::cuda {
namespace {
CudnnGraph::Sizes dense(const CudnnGraph::Sizes& sizes) {
  CudnnGraph::Sizes strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}
CudnnDescriptor arithmetic(cudnnPointwiseMode_t mode, cudnnDataType_t precision) {
  CudnnDescriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, {mode});
  d.set<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, {precision});
  return d;
}
}  // namespace

CudnnGraph::Node CudnnGraph::tensor(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes,
                                    const Sizes& strides, cudnnBackendAttributeName_t flag) {
  CudnnDescriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {uid});
  d.set<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {type});
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes);
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
  static_assert(sizeof(bool) == sizeof(char));
  if (flag != CUDNN_ATTR_TENSOR_UNIQUE_ID) d.set<char>(flag, CUDNN_TYPE_BOOLEAN, {1});
  d.finalize();
  return {std::make_shared<const CudnnDescriptor>(std::move(d)), sizes};
}
CudnnGraph::Node CudnnGraph::memory(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes,
                                    const Sizes& strides) {
  return tensor(uid, type, sizes, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}
CudnnGraph::Node CudnnGraph::between(const Sizes& sizes, cudnnDataType_t type, Sizes strides) {
  if (strides.empty()) strides = dense(sizes);
  return tensor(next_++, type, sizes, strides, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}
CudnnGraph::Node CudnnGraph::number(cudnnDataType_t type, std::uint32_t bits) {
  numbers_.push_back({next_, bits});
  return tensor(next_++, type, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}
CudnnGraph::Node CudnnGraph::number(float value) {
  return number(CUDNN_DATA_FLOAT, std::bit_cast<std::uint32_t>(value));
}
CudnnGraph::Node CudnnGraph::number(std::int32_t value) {
  return number(CUDNN_DATA_INT32, std::bit_cast<std::uint32_t>(value));
}

CudnnGraph::Node CudnnGraph::matmul(const Node& a, const Node& b, const Node& to) {
  const CudnnDescriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, DType::kF32);
  how.finalize();
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.tensor);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.tensor);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *to.tensor);
  op.finalize();
  operations_.push_back(std::move(op));
  return to;
}
CudnnGraph::Node CudnnGraph::reduce(cudnnReduceTensorOp_t what, const Node& x, const Node& to) {
  const CudnnDescriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                                 {what});
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, DType::kF32);
  how.finalize();
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.tensor);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *to.tensor);
  op.finalize();
  operations_.push_back(std::move(op));
  return to;
}
CudnnGraph::Node CudnnGraph::reshape(const Node& x, const Node& to) {
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.tensor);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *to.tensor);
  op.finalize();
  operations_.push_back(std::move(op));
  return to;
}

CudnnGraph::Node CudnnGraph::pointwise(const CudnnDescriptor& what, const Node& x, const Node* b,
                                       const Node* t, const Node& to) {
  what.finalize();
  CudnnDescriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.tensor);
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->tensor);
  if (t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t->tensor);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *to.tensor);
  op.finalize();
  operations_.push_back(std::move(op));
  return to;
}
CudnnGraph::Node CudnnGraph::unary(cudnnPointwiseMode_t mode, const Node& x, const Node& to) {
  return pointwise(arithmetic(mode, CUDNN_DATA_FLOAT), x, nullptr, nullptr, to);
}
CudnnGraph::Node CudnnGraph::binary(cudnnPointwiseMode_t mode, const Node& a, const Node& b,
                                    const Node& to, cudnnDataType_t precision) {
  return pointwise(arithmetic(mode, precision), a, &b, nullptr, to);
}
CudnnGraph::Node CudnnGraph::index(const Node& x, std::int64_t axis) {
  const CudnnDescriptor what = arithmetic(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32);
  what.set(CUDNN_ATTR_POINTWISE_AXIS, {axis});
  return pointwise(what, x, nullptr, nullptr, between(x.sizes, CUDNN_DATA_INT32));
}
CudnnGraph::Node CudnnGraph::select(const Node& mask, const Node& a, const Node& b,
                                    const Node& to) {
  return pointwise(arithmetic(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT), a, &b, &mask, to);
}
}  // namespace accrue::kernels::cuda
#endif
