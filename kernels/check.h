#pragma once
// The checks that every op makes of its arguments, with one style of message.
#include <string_view>
#include <accrue/core/tensor.h>

namespace accrue::kernels {

/// "gelu: x is undefined"
void check_defined(std::string_view op, std::string_view name, const Tensor& t);
/// "gelu: x must be of floating dtype, got int32"
void check_floating(std::string_view op, std::string_view name, const Tensor& t);
/// "embedding: tokens must be int32 or int64, got float32"
void check_integer(std::string_view op, std::string_view name, const Tensor& t);
/// "layer_norm: weight must have shape (768,), got (512,)"; with the hint in brackets behind it.
void check_shape(std::string_view op, std::string_view name, const Tensor& t, const Shape& expected,
                 std::string_view hint = "");
/// "attention: q must have 4 dimensions (batch, time, heads, head_dim), got (2, 3)"
void check_rank(std::string_view op, std::string_view name, const Tensor& t, int rank,
                std::string_view dims);
/// "add: b is bfloat16, a is float32; cast one of them", "add: b is on cpu, a on cuda:0; move one
/// of them". An undefined b passes: optional arguments.
void check_same(std::string_view op, std::string_view a_name, const Tensor& a,
                std::string_view b_name, const Tensor& b);
/// "add: b must have the shape of a or of its last dimensions, a is (4, 3), b is (2,)"; floating,
/// one dtype, one device.
void check_broadcast(std::string_view op, const Tensor& a, const Tensor& b);
/// The device alone.
void check_device(std::string_view op, std::string_view a_name, const Tensor& a,
                  std::string_view b_name, const Tensor& b);
}  // namespace accrue::kernels
