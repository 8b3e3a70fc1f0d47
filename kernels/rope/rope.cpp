#include <new>
#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/rope/rope.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(rope_forward, RopeForward);
ACCRUE_KERNEL(rope_backward, RopeBackward);

namespace {
constexpr std::int64_t kBlock = 256;  // tables begin and end at multiples of it
constexpr std::size_t kKept = 8;

template <class C>
std::shared_ptr<const RopeTable<C>> make_table(std::int64_t head_dim, std::int64_t first,
                                               std::int64_t length, double base, bool interleaved) {
  const std::int64_t half = head_dim / 2;
  auto table = std::make_shared<RopeTable<C>>();
  table->first = first / kBlock * kBlock;
  table->length = (first + length + kBlock - 1) / kBlock * kBlock - table->first;
  table->width = interleaved ? head_dim : half;
  const std::int64_t elements = 2 * table->length * table->width;
  table->values.reset(new (std::nothrow) C[static_cast<std::size_t>(elements)]);
  if (!table->values)
    throw OutOfMemory("rope: the system has no memory for a table of sines and cosines",
                      elements * static_cast<std::int64_t>(sizeof(C)), 0, 0, {});
  parallel_for(table->length, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      for (std::int64_t t = begin; t < end; ++t) {
        const double angle = static_cast<double>(table->first + t) * frequency;
        const C cosine = static_cast<C>(std::cos(angle)), sine = static_cast<C>(std::sin(angle));
        C* cos = table->values.get() + t * 2 * table->width;
        C* sin = cos + table->width;
        if (interleaved) {
          cos[2 * i] = cos[2 * i + 1] = cosine;
          sin[2 * i] = -sine;
          sin[2 * i + 1] = sine;
        } else {
          cos[i] = cosine;
          sin[i] = sine;
        }
      }
    }
  });
  return table;
}
}  // namespace

template <class C>
std::shared_ptr<const RopeTable<C>> rope_table(std::int64_t head_dim, std::int64_t first,
                                               std::int64_t length, double base, bool interleaved) {
  struct Entry {
    std::int64_t head_dim;
    double base;
    bool interleaved;
    std::shared_ptr<const RopeTable<C>> table;
  };
  static std::mutex mutex;
  static std::deque<Entry> kept;  // the last used in front
  const std::lock_guard lock(mutex);
  const auto fits = [&](const Entry& e) {
    return e.head_dim == head_dim && e.base == base && e.interleaved == interleaved &&
           e.table->first <= first && first + length <= e.table->first + e.table->length;
  };
  const auto at = std::find_if(kept.begin(), kept.end(), fits);
  if (at != kept.end()) {
    std::rotate(kept.begin(), at, at + 1);
  } else {
    kept.push_front(
        {head_dim, base, interleaved, make_table<C>(head_dim, first, length, base, interleaved)});
    if (kept.size() > kKept) kept.pop_back();
  }
  return kept.front().table;
}
template std::shared_ptr<const RopeTable<float>> rope_table(std::int64_t, std::int64_t,
                                                            std::int64_t, double, bool);
template std::shared_ptr<const RopeTable<double>> rope_table(std::int64_t, std::int64_t,
                                                             std::int64_t, double, bool);
}  // namespace kernels

namespace {
struct RopeNode {
  static constexpr std::string_view kName = "rope";
  RopeOptions options;
  void backward(BackwardContext& c) const {
    kernels::rope_backward(c.stream(),
                           {.dy = c.grad(), .dx = c.sink_in_place(0), .options = options});
  }
};
}  // namespace

Tensor rope(const Tensor& x, const RopeOptions& options) {
  kernels::check_floating("rope", "x", x);
  kernels::check_rank("rope", "x", x, 4, "(batch, time, heads, head_dim)");
  ACCRUE_CHECK_SHAPE(x.shape()[3] % 2 == 0, "rope: head_dim must be even, got ", x.shape()[3]);
  ACCRUE_CHECK(options.base > 0 && std::isfinite(options.base),
               "rope: base must be positive and finite, got ", options.base);
  ACCRUE_CHECK(options.first_position >= 0, "rope: first_position must not be negative, got ",
               options.first_position);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"rope.y"});
  kernels::rope_forward(x.stream(), {.x = x, .y = y.view(), .options = options});
  if (Tape* tape = Tape::current()) tape->record(RopeNode{options}, {&x}, y);
  return y;
}
}  // namespace accrue
