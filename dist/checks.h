#pragma once
// What every communicator demands of its arguments. Throws as ACCRUE_CHECK does; the text names the
// collective.
#include <string_view>
#include <accrue/core/communicator.h>

namespace accrue::dist {

/// inout is defined and op exists for its dtype (bit_or: integers only).
void check_all_reduce(const Tensor& inout, ReduceOp op, std::string_view name);
/// in and out share dtype and device, in has `size` times out's elements; out is apart from in or
/// is its part `rank`.
void check_reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, int rank, int size,
                          std::string_view name);
/// The same the other way round: out has `size` times in's elements.
void check_all_gather(const Tensor& in, const Tensor& out, int rank, int size,
                      std::string_view name);
/// in and out: equal sizes that `size` divides, in different blocks of memory.
void check_all_to_all(const Tensor& in, const Tensor& out, int size, std::string_view name);
/// 0 <= root < size.
void check_broadcast(const Tensor& inout, int root, int size, std::string_view name);
}  // namespace accrue::dist
