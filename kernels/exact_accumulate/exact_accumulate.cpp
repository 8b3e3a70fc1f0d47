#include <vector>
#include <accrue/core/parallel.h>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(exact_accumulate, ExactAccumulate);
ACCRUE_KERNEL(exact_unfold, ExactUnfold);
}  // namespace kernels

namespace {
void check_tensors(const char* op, const Tensor& exponents, const Tensor& observed) {
  ACCRUE_CHECK(exponents.defined() && observed.defined(), op,
               ": exponents or observed is undefined");
  ACCRUE_CHECK(exponents.dtype() == DType::kI64 && observed.dtype() == DType::kI64, op,
               ": exponents and observed must be int64, got ", exponents.dtype(), " and ",
               observed.dtype());
  ACCRUE_CHECK(exponents.device() == observed.device(), op, ": exponents are on ",
               exponents.device(), ", observed on ", observed.device());
  ACCRUE_CHECK_SHAPE(exponents.numel() == observed.numel() + 1, op, ": exponents are ",
                     exponents.shape(), ", observed ", observed.shape(),
                     "; there must be one exponent more, for the number of leaves");
}

template <class Item>
std::span<const std::int64_t> check_items(const char* op, std::span<const Item> items,
                                          View Item::*to, ConstView Item::*from,
                                          std::int64_t tensors) {
  thread_local std::vector<std::int64_t> first;  // keeps its memory: no allocation per step
  first.assign(1, 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const View& dst = items[i].*to;
    const ConstView& src = items[i].*from;
    ACCRUE_CHECK(dst && src, op, ": item ", i, ": a tensor is undefined");
    ACCRUE_CHECK_SHAPE(dst.shape.numel() == src.shape.numel(), op, ": item ", i, ": ", dst.shape,
                       " and ", src.shape, " must have as many elements");
    ACCRUE_CHECK(items[i].number >= 0 && items[i].number < tensors, op, ": item ", i, ": number ",
                 items[i].number, " is not below ", tensors);
    first.push_back(first.back() +
                    chunk_count(dst.shape.numel(), kernels::ExactAccumulate::kChunk));
  }
  return first;
}
}  // namespace

void exact_accumulate(std::span<const ExactItem> items, const Tensor& exponents,
                      const Tensor& observed) {
  check_tensors("exact_accumulate", exponents, observed);
  const auto first =
      check_items("exact_accumulate", items, &ExactItem::sum, &ExactItem::leaf, observed.numel());
  for (std::size_t i = 0; i < items.size(); ++i) {
    ACCRUE_CHECK(items[i].sum.dtype == DType::kI64, "exact_accumulate: item ", i,
                 ": sum must be int64, got ", items[i].sum.dtype);
    ACCRUE_CHECK(is_floating(items[i].leaf.dtype), "exact_accumulate: item ", i,
                 ": leaf must be of floating dtype, got ", items[i].leaf.dtype);
  }
  kernels::exact_accumulate(
      observed.stream(),
      {.items = items, .first_chunk = first, .exponents = exponents, .observed = observed.view()});
}

void exact_unfold(std::span<const ExactResult> items, const Tensor& exponents,
                  const Tensor& observed) {
  check_tensors("exact_unfold", exponents, observed);
  const auto first =
      check_items("exact_unfold", items, &ExactResult::dst, &ExactResult::sum, observed.numel());
  for (std::size_t i = 0; i < items.size(); ++i) {
    ACCRUE_CHECK(items[i].sum.dtype == DType::kI64, "exact_unfold: item ", i,
                 ": sum must be int64, got ", items[i].sum.dtype);
    ACCRUE_CHECK(items[i].dst.dtype == DType::kF32 || items[i].dst.dtype == DType::kF64,
                 "exact_unfold: item ", i, ": dst must be float32 or float64, got ",
                 items[i].dst.dtype);
  }
  kernels::exact_unfold(
      observed.stream(),
      {.items = items, .first_chunk = first, .exponents = exponents, .observed = observed});
}
}  // namespace accrue
