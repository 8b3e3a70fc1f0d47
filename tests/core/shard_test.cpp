#include <set>
#include <vector>
#include <accrue/core/shard.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using test::error_of;

TEST_CASE("ShardLayout: every element is in one shard, once, and shards are of equal size",
          "[core][shard]") {
  for (const int ranks : {1, 2, 3, 4, 6, 8, 64})
    for (const std::int64_t elements : std::vector<std::int64_t>{0, 1, 4096, 4097, 100001})
      for (const std::int64_t window : std::vector<std::int64_t>{1, 30000, 1 << 23}) {
        INFO(ranks << " ranks, " << elements << " elements, windows of " << window);
        const ShardLayout layout(elements, ranks, window);
        CHECK(layout.padded() >= elements);
        CHECK(layout.padded() % (ranks * ShardLayout::kChunk) == 0);
        CHECK(layout.padded() - elements <
              ranks * ShardLayout::kChunk + (elements == 0));  // no more than it takes
        CHECK(layout.shard() * ranks == layout.padded());
        std::int64_t next = 0, shard = 0;
        for (int w = 0; w < layout.windows(); ++w) {
          const auto at = layout.in_shard(w);
          CHECK(at.first == shard);
          shard = at.end();
          for (int r = 0; r < ranks; ++r) {
            const auto part = layout.part(w, r);
            CHECK(part.first == next);
            CHECK(part.first % ShardLayout::kChunk == 0);
            CHECK(part.count == at.count);
            next = part.end();
          }
          CHECK(layout.window(w).end() == next);
        }
        CHECK(next == layout.padded());
        CHECK(shard == layout.shard());
        std::int64_t held = 0;
        for (int r = 0; r < ranks; ++r) {
          std::int64_t before = -1;
          for (const auto& piece : layout.pieces(r)) {
            held += piece.count;
            CHECK(piece.first > before);
            CHECK(piece.first + piece.count <= elements);
            CHECK(piece.at + piece.count <= layout.shard());
            before = piece.first;
          }
        }
        CHECK(held == elements);
      }
}

TEST_CASE("ShardLayout: its hash tells layouts apart", "[core][shard]") {
  std::set<std::uint64_t> hashes;
  for (const int ranks : {1, 2, 4})
    for (const std::int64_t elements : std::vector<std::int64_t>{64, 128})
      for (const std::int64_t window : std::vector<std::int64_t>{1, 1 << 20}) {
        // With so few elements there is one window, whatever was wanted.
        const std::uint64_t hash = ShardLayout(elements, ranks, window).hash();
        CHECK(hashes.insert(hash).second == (window == 1));
      }
  CHECK(ShardLayout(100).hash() != ShardLayout(101).hash());
  CHECK(error_of([] { ShardLayout(1, 0, 1); }) == "ShardLayout: 0 ranks");
}
