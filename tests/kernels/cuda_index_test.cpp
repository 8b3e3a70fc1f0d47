// Where CUDA kernels work when there are more than 2^31 elements. The index arithmetic is called on
// the host, as the thread of a block would, and compared with the same in 128 bits. The kernels
// themselves: cuda_large_test.cpp.
#include <accrue/config.h>
#if ACCRUE_CUDA_SIM
  #include <algorithm>
  #include <set>
  #include <vector>
  #include <accrue/core/cuda/device.cuh>
  #include <accrue/kernels/attention/attention.h>
  #include <accrue/kernels/attention/problem.cuh>
  #include <accrue/kernels/conv2d/conv2d.h>
  #include <accrue/kernels/cuda/elementwise.cuh>
  #include <accrue/kernels/cuda/item_table.cuh>
  #include <accrue/kernels/cuda/row_grid.cuh>
  #include <accrue/kernels/cuda/rows.cuh>
  #include <accrue/kernels/cuda/segments.cuh>
  #include <accrue/kernels/rope/rope.h>
  #include "tests/support/catch.h"
  #include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::kernels;
using namespace accrue::kernels::cuda;
using accrue::test::error_of;

namespace {
__extension__ typedef __int128 Wide;
constexpr std::int64_t kMany = std::int64_t{1} << 31;

// Until its end this host thread stands where a thread of a kernel would.
class Standing {
 public:
  Standing(std::int64_t block, dim3 thread, dim3 block_dim) : before_(simcuda::indices) {
    simcuda::indices.block = {static_cast<unsigned>(block), 0, 0};
    simcuda::indices.thread = {thread.x, thread.y, thread.z};
    simcuda::indices.block_dim = block_dim;
  }
  ~Standing() { simcuda::indices = before_; }
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;

 private:
  simcuda::Indices before_;
};

// An elementwise body that remembers what it was given.
struct Recorder {
  static constexpr int kWidth = 8;
  std::vector<std::int64_t>* read_from;
  std::vector<std::int64_t>* written_to;
  template <int N>
  struct Values {};
  template <int N>
  Values<N> read(std::int64_t i) const {
    read_from->push_back(i);
    return {};
  }
  template <int N>
  void write(std::int64_t i, const Values<N>&) const {
    written_to->push_back(i);
  }
};
template <int kWidth, int kUnits>
void check_elements(std::int64_t first, std::int64_t n) {
  constexpr int kTile = kElementThreads * kUnits * kWidth;
  const std::int64_t blocks = accrue::cuda::blocks_for(n - first, kTile);
  for (const std::int64_t block : {std::int64_t{0}, blocks / 2, blocks - 1})
    for (const unsigned thread : {0u, 1u, 255u}) {
      std::vector<std::int64_t> read_from, written_to, want;
      const Standing here(block, dim3(thread), dim3(kElementThreads));
      element_loop<kWidth, kUnits>(Recorder{&read_from, &written_to}, first, n);
      for (int u = 0; u < kUnits; ++u) {
        const Wide at =
            Wide{first} + Wide{block} * kTile + (Wide{u} * kElementThreads + thread) * kWidth;
        if (at < n) want.push_back(static_cast<std::int64_t>(at));
      }
      CHECK(read_from == want);
      CHECK(written_to == want);
    }
}
}  // namespace

TEST_CASE("B50: cuda elements beyond 2^31 go to one thread each", "[kernels][cuda]") {
  check_elements<8, 2>(0, 4 * kMany + 4096 * 3 + 16);
  check_elements<4, 2>(0, kMany);
  check_elements<1, 4>(4 * kMany + 1, 8 * kMany + 1026);
  check_elements<1, 4>(kMany - 1, kMany + 1);
}

TEST_CASE("B50: cuda rows beyond 2^31 elements have their places", "[kernels][cuda]") {
  struct Size {
    std::int64_t rows, length;
  };
  for (const Size& s : {Size{65537, 32768}, Size{3, kMany + 8}, Size{kMany + 1, 1},
                        Size{1, 4 * kMany + 3}, Size{kMany / 8 + 5, 20}}) {
    INFO(s.rows << " rows of " << s.length);
    const RowGrid grid(s.rows, s.length);
    const dim3 block = grid.block();
    const std::int64_t blocks = grid.grid().x;
    // (row, element) of every vector in the first and in the last block; the ends are among them.
    std::set<std::pair<std::int64_t, std::int64_t>> begin, end;
    for (auto* to : {&begin, &end})
      for (unsigned y = 0; y < block.y; ++y)
        for (unsigned x = 0; x < block.x; ++x) {
          const Standing here(to == &begin ? 0 : blocks - 1, dim3(x, y), block);
          const RowGrid::Place place = grid.place();
          if (!grid.has(place)) continue;
          for (int u = 0; u < RowGrid::kUnroll; ++u) {
            const std::int64_t e = place.element + u * place.stride;
            if (grid.count(e) == 0) continue;
            CHECK(to->emplace(place.row, e).second);
            CHECK(Wide{grid.index(place.row, e)} == Wide{place.row} * s.length + e);
            CHECK(e + grid.count(e) <= s.length);
          }
        }
    CHECK(begin.count({0, 0}) == 1);
    const std::int64_t last = (s.length - 1) / RowGrid::kVector * RowGrid::kVector;
    CHECK(end.count({s.rows - 1, last}) == 1);
  }
}

TEST_CASE("B50: cuda counts row groups in 64 bits", "[kernels][cuda]") {
  const std::int64_t block = kMany - 1;
  const Standing here(block, dim3(255), dim3(kRowBlock));
  CHECK(Wide{row_of_thread<8>()} == Wide{block} * 32 + 31);
  CHECK(Wide{row_of_thread<32>()} == Wide{block} * 8 + 7);
  CHECK(Wide{row_of_thread<256>()} == Wide{block});
  CHECK(row_columns(kMany / 2 - 1) == kMany / 2 - 1);
  CHECK_THROWS_AS(row_columns(kMany / 2), Error);
  CHECK_THROWS_AS(accrue::cuda::blocks_for(kMany * 256, 256), Error);
}

TEST_CASE("cuda divides without a division, up to 2^63", "[kernels][cuda]") {
  std::vector<std::int64_t> divisors{2, 3, 5, 7, 8, 768, 50257, kMany - 1, kMany, kMany + 1};
  divisors.push_back((std::int64_t{1} << 62) - 1);
  divisors.push_back(std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t d : divisors) {
    const Modulo modulo(d);
    std::vector<std::int64_t> numbers{0, 1, kMany - 1, kMany, 4 * kMany + 12345};
    for (const std::int64_t top : {kMany * 4096, std::numeric_limits<std::int64_t>::max()})
      for (const std::int64_t near : {top, top / d * d, top / d * d - 1})
        if (near >= 0) numbers.push_back(near);
    for (const std::int64_t i : numbers) {
      INFO(i << " mod " << d);
      CHECK(modulo.of(i) == i % d);
    }
  }
}

TEST_CASE("B51: cuda blocks of tables and segments beyond 2^31 elements", "[kernels][cuda]") {
  struct Item {
    std::int64_t n;
    void* tensors[3];
  };
  ItemTable<Item, 8192> table{};
  table.item[0].n = 5;
  table.item[1].n = 4 * kMany + 3;
  table.first_chunk[1] = 1;
  table.items = 2;
  table.chunks = 1 + static_cast<int>(accrue::cuda::blocks_for(table.item[1].n, 8192));
  {
    const Standing here(table.chunks - 1, dim3(0), dim3(256));
    const auto part = table.part();
    CHECK(part.index == 1);
    CHECK(part.begin == 4 * kMany);
    CHECK(part.count == 3);
  }
  const std::vector<Segment> segments{{64, 5, false}, {2 * kMany + 64, 4 * kMany + 3, false}};
  int launches = 0;
  for_each_batch(
      segments, 8192, [](const Segment&) { return 1; },
      [&](const SegmentBatch& batch, dim3 grid) {
        ++launches;
        const Standing here(grid.x - 1, dim3(0), dim3(256));
        const auto part = batch.part(8192);
        CHECK(Wide{part.begin} == Wide{2 * kMany + 64} + Wide{part.number} * 8192);
        CHECK(part.begin == 6 * kMany + 64);
        CHECK(part.size == 3);
      });
  CHECK(launches == 1);
}

TEST_CASE("B50: cuda attention offsets beyond 2^31 elements", "[kernels][attention][cuda]") {
  const std::int64_t batch = 5, time = 40000, heads = 96, kv_heads = 12, dim = 128;
  const std::int64_t stride = (heads + 2 * kv_heads) * dim;
  AttentionForward a{};
  a.q = {nullptr, DType::kBF16, {batch, time, heads, dim}};
  a.k = a.v = {nullptr, DType::kBF16, {batch, time, kv_heads, dim}};
  a.q_stride = a.kv_stride = stride;
  const AttentionProblem<bfloat16> p(a);
  const int b = batch - 1, t = time - 1, h = heads - 1, g = kv_heads - 1;
  const Wide row = Wide{b} * time + t;
  CHECK(Wide{p.q_at(b, t, h)} == row * stride + h * dim);
  CHECK(Wide{p.kv_at(b, t, g)} == row * stride + g * dim);
  CHECK(Wide{p.y_at(b, t, h)} == (row * heads + h) * dim);
  CHECK(p.y_at(b, t, h) > kMany);
  CHECK(Wide{p.row_at(b, h, t)} == (Wide{b} * heads + h) * time + t);
  {
    const Standing here(kMany - 2, dim3(0), dim3(128));
    const BlockPlace at(313, 96, false);
    CHECK((Wide{at.batch} * 96 + at.head) * 313 + at.block == Wide{kMany - 2});
    CHECK(BlockPlace(313, 96, true).block == 312 - at.block);
  }
  a.q_stride = kLargestSize;
  CHECK(Wide{AttentionProblem<bfloat16>(a).q_at(b, t, h)} == row * kLargestSize + h * dim);
  a.q_stride = kLargestSize + 1;
  CHECK_THROWS_AS(AttentionProblem<bfloat16>(a), Error);
}

TEST_CASE("B50: cuda kernels that count in 32 bits refuse what does not fit",
          "[kernels][conv2d][rope][cuda]") {
  const Stream stream = current_stream(Device::cuda(0));
  const auto view = [](const Shape& s) { return View{nullptr, DType::kF32, s}; };
  const WindowAxis wide = window_axis("conv2d", "width", kMany, 1, 1, 0, 1);
  const WindowAxis one = window_axis("conv2d", "height", 1, 1, 1, 0, 1);
  CHECK(error_of([&] {
          conv2d_forward(stream, {.x = view({1, 1, 1, kMany}),
                                  .weight = view({1, 1, 1, 1}),
                                  .y = view({1, 1, 1, kMany}),
                                  .height = one,
                                  .width = wide,
                                  .columns = {},
                                  .product = {}});
        }) == "conv2d: the pixels of a tile must be at most 2^30 on cuda, got 2147483648");
  CHECK(error_of([&] {
          rope_forward(stream, {.x = view({1, 1, kMany, 2}), .y = view({1, 1, kMany, 2})});
        }) == "rope: on cuda at most 2^25 heads of 2^30 numbers, got (1, 1, 2147483648, 2)");
}
#endif
