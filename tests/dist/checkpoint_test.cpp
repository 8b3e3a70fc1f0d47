#include <cmath>
#include <functional>
#include <numeric>
#include <accrue/core/crc32c.h>
#include <accrue/core/safetensors.h>
#include <accrue/dist/checkpoint.h>
#include <accrue/dist/manifest.h>
#include <accrue/dist/self.h>
#include <accrue/dist/threads.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/checkpoint_state.h"
#include "tests/support/fault_at.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue::test;
using Catch::Matchers::Contains;

namespace {
dist::CheckpointOptions in(const std::string& folder) {
  return {.folder = folder, .asynchronous = false, .chunk = 64};
}
void on_ranks(int size, const std::function<void(Peers&)>& body) {
  dist::ThreadWorld(size).run(body);
}
std::string text_of(const std::string& path) { return read_text_file(path); }
}  // namespace

TEST_CASE("scenario 24, B67: what any number of ranks saved, any number of ranks loads",
          "[dist][checkpoint]") {
  std::vector<std::uint32_t> crcs;  // of the tensors: they do not tell how they were cut
  for (const int writers : {1, 2, 3, 4, 7, 120}) {
    SimulatedDisk disk;
    on_ranks(writers, [&](Peers& peers) {
      dist::Checkpointer checkpointer(in("/run"), peers, disk);
      if (checkpointer.latest()) detail::fail(ErrorCode::kInternal, "a checkpoint too early");
      checkpointer.save(state_of(5, peers.rank(), writers));
      if (checkpointer.acknowledged() != 5) detail::fail(ErrorCode::kInternal, "not acknowledged");
    });
    for (const int readers : {1, 2, 3, 5, 8})
      on_ranks(readers, [&](Peers& peers) {
        dist::Checkpointer checkpointer(in("/run"), peers, disk);
        const auto info = checkpointer.latest();
        if (!info || info->step != 5 || info->world != writers || info->path != "/run/step-5" ||
            !loads_right(checkpointer, *info, peers.rank(), readers))
          detail::fail(ErrorCode::kInternal, "wrong content");
      });
    std::vector<std::uint32_t> now;
    const auto manifest =
        dist::parse_manifest("manifest", disk.content("/run/step-5/MANIFEST.json"));
    for (const auto& t : manifest.tensors) now.push_back(t.crc);
    if (crcs.empty()) crcs = now;
    CHECK(now == crcs);
  }
  const auto expected = numbers(5, 2, 0, 5);
  CHECK(crcs.front() == crc32c(std::as_bytes(std::span(expected))));  // "b"
}

TEST_CASE("checkpoint: every shard is a safetensors file, replicated tensors are written once",
          "[dist][checkpoint]") {
  const TemporaryFolder folder;
  on_ranks(3, [&](Peers& peers) {
    dist::Checkpointer checkpointer(in(folder / "run"), peers);
    checkpointer.save(state_of(1, peers.rank(), 3));
  });
  int seen_w = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto file = SafetensorsFile::open(folder / "run/step-1/" + dist::shard_name(rank));
    if (file.contains("w")) {
      ++seen_w;
      CHECK(file.read("w", Device::cpu()).to_vector<float>() == numbers(1, 0, 0, 21));
      CHECK(file.shape("w") == Shape{3, 7});
    }
    const auto [first, count] = flat_share(rank, 3);
    CHECK(file.read("flat@" + std::to_string(first), Device::cpu()).to_vector<float>() ==
          numbers(1, 1, first, count));
  }
  CHECK(seen_w == 1);
  CHECK_THAT(text_of(folder / "run/step-1/MANIFEST.json"),
             Contains("\"step\":1") && Contains("\"world\":3") && Contains("the config"));
}

TEST_CASE("checkpoint: a rank reads the chunks that it needs, and no more", "[dist][checkpoint]") {
  SimulatedDisk disk;
  const auto self = dist::self_communicator();
  constexpr std::int64_t kMany = 10'000;
  dist::Checkpointer writer(in("/run"), *self, disk);
  writer.save({1,
               "",
               {},
               {dist::part("flat", Tensor::from(numbers(1, 1, 0, kMany), {kMany}), {kMany}, 0)}});
  FaultAt counting(disk);
  dist::Checkpointer reader(in("/run"), *self, counting);
  const auto info = reader.latest();
  REQUIRE(info);
  for (const auto& [first, count] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 16}, {15, 2}, {16, 1}, {9'999, 1}, {5'000, 100}, {10'000, 0}}) {
    const Tensor into = Tensor::zeros({count}, DType::kF32);
    counting.bytes_read = 0;
    reader.load(*info, {dist::part("flat", into, {kMany}, first)});
    CHECK(into.to_vector<float>() == numbers(1, 1, first, count));
    CHECK(counting.bytes_read <= (count == 0 ? 0 : 4 * count + 2 * 60));
  }
}

TEST_CASE("checkpoint: parameters' names and shapes, however the block is sharded",
          "[dist][checkpoint]") {
  SimulatedDisk disk;
  ParameterSet parameters;
  const auto none = [](const Tensor&, std::uint64_t, int) {};
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, Shape>>{{"a", {3, 50}}, {"b", {}}, {"c", {70}}})
    parameters.add(name, shape, true, none);
  parameters.allocate(default_device(), DType::kF32);
  const std::int64_t total = parameters.padded();
  std::vector<float> values(static_cast<std::size_t>(total));
  std::iota(values.begin(), values.end(), 1.0f);
  const Tensor block = Tensor::from(values, {total});
  const auto shard_of = [&](const Tensor& whole, Peers& peers) {
    const std::int64_t each = (total + peers.size() - 1) / peers.size();
    const std::int64_t first = std::min(total, each * peers.rank());
    const Tensor shard = whole.window(first, {std::min(each, total - first)});
    return dist::parts_of(parameters, "m/", shard, first);
  };
  on_ranks(3, [&](Peers& peers) {
    dist::Checkpointer checkpointer(in("/run"), peers, disk);
    checkpointer.save({1, "", {}, shard_of(block, peers)});
  });
  const Tensor back = Tensor::zeros({total}, DType::kF32);
  on_ranks(4, [&](Peers& peers) {
    dist::Checkpointer checkpointer(in("/run"), peers, disk);
    const auto info = checkpointer.latest();
    checkpointer.load(*info, shard_of(back, peers));
    // The same tensors without any sharding.
    std::vector<dist::CheckpointTensor> whole;
    for (const Parameter& p : parameters.all())
      whole.push_back(dist::replicated("m/" + p.name, Tensor::empty(p.shape, DType::kF32)));
    checkpointer.load(*info, whole);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const Parameter& p = parameters.all()[i];
      if (whole[i].tensor.to_vector<float>() != block.window(p.offset, p.shape).to_vector<float>())
        detail::fail(ErrorCode::kInternal, "wrong " + p.name);
    }
  });
  for (const Parameter& p : parameters.all())
    CHECK(back.window(p.offset, p.shape).to_vector<float>() ==
          block.window(p.offset, p.shape).to_vector<float>());
}

TEST_CASE("checkpoint: any dtype; several parts of one tensor from one rank",
          "[dist][checkpoint]") {
  SimulatedDisk disk;
  const Tensor i64 = Tensor::from(std::vector<std::int64_t>{INT64_MIN, -1, INT64_MAX}, {3});
  const Tensor f64 = Tensor::from(std::vector<double>{1.5, -0.0}, {2});
  const Tensor bf16 = Tensor::from(std::vector<bfloat16>{bfloat16(1.5f), bfloat16(-2.0f)}, {2});
  // Rank r of 2 holds every other pair of the eight numbers.
  const auto tensors = [&](const Tensor& flat, int rank) {
    std::vector<dist::CheckpointTensor> out{dist::replicated("z", i64.clone()),
                                            dist::replicated("y", f64.clone()),
                                            dist::replicated("a", bf16.clone())};
    for (const std::int64_t first : {4 + 2 * rank, 2 * rank})
      out.push_back(dist::part("m", flat.window(first, {2}), {8}, first));
    return out;
  };
  const Tensor flat = Tensor::from(numbers(1, 1, 0, 8), {8});
  const Tensor back = Tensor::zeros({8}, DType::kF32);
  on_ranks(2, [&](Peers& peers) {
    dist::Checkpointer checkpointer(in("/run"), peers, disk);
    checkpointer.save({1, "", {}, tensors(flat, peers.rank())});
    auto into = tensors(back, 1 - peers.rank());
    for (std::size_t i = 0; i < 3; ++i) into[i].tensor.fill_zero();
    checkpointer.load(*checkpointer.latest(), into);
    if (into[0].tensor.to_vector<std::int64_t>() != i64.to_vector<std::int64_t>() ||
        into[1].tensor.to_vector<double>() != f64.to_vector<double>() ||
        !std::signbit(into[1].tensor.to_vector<double>()[1]) ||
        static_cast<float>(into[2].tensor.to_vector<bfloat16>()[1]) != -2.0f)
      detail::fail(ErrorCode::kInternal, "wrong content");
  });
  CHECK(back.to_vector<float>() == flat.to_vector<float>());
}

TEST_CASE("checkpoint: an asynchronous save holds what was there when it began",
          "[dist][checkpoint]") {
  SimulatedDisk disk;
  for (const std::int64_t limit : {std::int64_t{1} << 30, std::int64_t{10}})
    on_ranks(3, [&](Peers& peers) {
      auto options = in("/run" + std::to_string(limit));
      options.asynchronous = true;
      options.snapshot_limit = limit;
      dist::Checkpointer checkpointer(options, peers, disk);
      for (std::int64_t step = 1; step <= 5; ++step) {
        const auto state = state_of(step, peers.rank(), 3);
        checkpointer.save(state);
        for (const auto& t : state.tensors) t.tensor.fill_zero();
        if (step == 2)
          while (!checkpointer.poll()) std::this_thread::yield();
        if (step > 1 && checkpointer.acknowledged() < step - 1)
          detail::fail(ErrorCode::kInternal, "more than one on its way");
      }
      checkpointer.wait();
      const auto info = checkpointer.latest();
      if (checkpointer.acknowledged() != 5 || !info || info->step != 5 ||
          !loads_right(checkpointer, *info, peers.rank(), 3))
        detail::fail(ErrorCode::kInternal, "wrong content");
    });
}

TEST_CASE("checkpoint: an asynchronous save that failed is told by the next call",
          "[dist][checkpoint]") {
  SimulatedDisk disk;
  FaultAt faulty(disk);
  const auto self = dist::self_communicator();
  auto options = in("/run");
  options.asynchronous = true;
  dist::Checkpointer checkpointer(options, *self, faulty);
  checkpointer.save(state_of(1, 0, 1));
  checkpointer.wait();
  faulty.at = 1, faulty.count = 1 << 20;
  faulty.fault = [](const char* call) { return call == std::string("fsync") ? ENOSPC : 0; };
  checkpointer.save(state_of(2, 0, 1));
  CHECK_THAT(error_of([&] { checkpointer.save(state_of(3, 0, 1)); }),
             Contains("checkpoint of step 2 failed") && Contains("No space left"));
  CHECK(checkpointer.acknowledged() == 1);
  CHECK(checkpointer.poll());  // told once
  faulty.fault = nullptr;
  checkpointer.save(state_of(3, 0, 1));
  checkpointer.wait();
  CHECK(checkpointer.acknowledged() == 3);
}

TEST_CASE("checkpoint: the newest are kept; whole ones are not replaced, damaged ones are",
          "[dist][checkpoint]") {
  SimulatedDisk disk;
  const auto self = dist::self_communicator();
  dist::Checkpointer checkpointer(in("/a/b/run"), *self, disk);
  const auto names = [&] {
    std::vector<std::string> out;
    disk.list("/a/b/run", out);
    return out;
  };
  using Names = std::vector<std::string>;
  for (const std::int64_t step : {1, 2, 9, 10}) checkpointer.save(state_of(step, 0, 1));
  CHECK(names() == Names{"step-10", "step-9"});
  CHECK_THAT(error_of([&] { checkpointer.save(state_of(9, 0, 1)); }),
             Contains("/a/b/run/step-9: this checkpoint is there already and whole"));
  // Going on from an earlier step, later ones are left alone; a damaged one makes room.
  disk.content("/a/b/run/step-10/shard-0.safetensors")[200] ^= 4;
  CHECK(checkpointer.latest()->step == 9);
  CHECK(checkpointer.latest()->passed_over.size() == 1);
  checkpointer.save(state_of(10, 0, 1));
  CHECK(names() == Names{"step-10", "step-9"});
  CHECK(checkpointer.latest()->passed_over.empty());
  checkpointer.save(state_of(3, 0, 1));
  CHECK(names() == Names{"step-10", "step-3", "step-9"});
  CHECK(checkpointer.at(3).step == 3);
  CHECK_THAT(error_of([&] { (void)checkpointer.at(4); }), Contains("step-4"));
  // What a process left that was killed, and what is not ours.
  disk.mkdir("/a/b/run/.tmp-7", 0777);
  disk.close(disk.open("/a/b/run/.tmp-7/x", O_CREAT, 0));
  disk.mkdir("/a/b/run/step-07", 0777);
  checkpointer.save(state_of(11, 0, 1));
  CHECK(names() == Names{"step-07", "step-10", "step-11"});
}

TEST_CASE("checkpoint: ranks that disagree do not save", "[dist][checkpoint]") {
  SimulatedDisk disk;
  const auto said = [&](const std::function<void(dist::CheckpointState&, int rank)>& change) {
    std::string text;
    on_ranks(2, [&](Peers& peers) {
      dist::Checkpointer checkpointer(in("/run"), peers, disk);
      auto state = state_of(1, peers.rank(), 2);
      change(state, peers.rank());
      const std::string mine = error_of([&] { checkpointer.save(state); });
      const auto all = gather_texts(peers, mine);
      if (peers.rank() != 0) return;
      text = mine;
      if (all[0] != all[1]) text = "?";
      std::vector<std::string> names;
      if (disk.list("/run", names) == 0 && !names.empty()) text = "left " + names[0];
    });
    return text;
  };
  CHECK_THAT(said([](auto& s, int rank) { s.step += rank; }), Contains("different steps"));
  CHECK_THAT(said([](auto& s, int rank) { s.config += std::to_string(rank); }),
             Contains("different"));
  CHECK_THAT(said([](auto& s, int rank) { s.metadata["x"] = std::to_string(rank); }),
             Contains("different"));
  CHECK_THAT(said([](auto& s, int rank) { s.tensors[0].name += std::to_string(rank); }),
             Contains("different"));
  CHECK_THAT(said([](auto& s, int rank) {
               if (rank == 1) s.tensors[1].first -= 1;
             }),
             Contains("the parts of \"flat\" overlap or leave a hole at element 49 of 101: rank 0 "
                      "[0, 50), rank 1 [49, 100)"));
  CHECK_THAT(said([](auto& s, int rank) {
               if (rank == 1) s.tensors.erase(s.tensors.begin() + 1);
             }),
             Contains("leave a hole at element 50 of 101"));
  CHECK_THAT(said([](auto& s, int rank) {
               if (rank == 1) s.tensors[1].shape = {102};
             }),
             Contains("\"flat\" is float32 (102,) on rank 1 and float32 (101,) on rank 0"));
  CHECK_THAT(said([](auto& s, int rank) {
               if (rank == 1) s.tensors[1].first = 90;
             }),
             Contains("rank 1: ") && Contains("has no elements"));
  CHECK_THAT(said([](auto& s, int) { s.tensors.push_back(s.tensors[0]); }),
             Contains("\"w\" occurs twice"));
  CHECK_THAT(said([](auto& s, int) { s.metadata["x"] = "\xff"; }), Contains("UTF-8"));
  CHECK_THAT(said([](auto& s, int) { s.step = -1; }), Contains("negative"));
}

TEST_CASE("checkpoint: what is loaded must be what was saved", "[dist][checkpoint]") {
  SimulatedDisk disk;
  const auto self = dist::self_communicator();
  dist::Checkpointer checkpointer(in("/run"), *self, disk);
  checkpointer.save(state_of(1, 0, 1));
  const auto info = checkpointer.latest();
  const auto said = [&](const std::function<void(std::vector<dist::CheckpointTensor>&)>& change) {
    auto into = tensors_of(-1, 0, 1);
    change(into);
    const std::string text = error_of([&] { checkpointer.load(*info, into); });
    for (const auto& t : into)
      if (t.tensor.dtype() == DType::kF32)
        for (const float v : t.tensor.to_vector<float>())
          if (!std::isnan(v)) return "touched " + t.name;
    return text;
  };
  CHECK_THAT(said([](auto& t) { t[0].name = "v"; }), Contains("\"v\" is not in this checkpoint"));
  CHECK_THAT(said([](auto& t) { t.pop_back(); }),
             Contains("\"one\" is in this checkpoint, and nobody asks"));
  CHECK_THAT(said([](auto& t) { t[2] = dist::replicated("b", Tensor::zeros({5}, DType::kF64)); }),
             Contains("\"b\" is float32 (5,)"));
  CHECK_THAT(said([](auto& t) { t[0].shape = {21}; }), Contains("\"w\" is float32 (3, 7)"));
  CHECK_THAT(said([](auto& t) { t[1].first = 1; }), Contains("\"flat\""));
  CHECK_THAT(error_of([&] { checkpointer.load({}, {}); }), Contains("latest() or at()"));
  CHECK_THAT(error_of([&] {
               dist::CheckpointOptions o = in("/run");
               o.keep = 1;
               dist::Checkpointer(o, *self);
             }),
             Contains("at least 2"));
}

TEST_CASE("manifest: what is not exactly one is refused", "[dist][checkpoint][cpu]") {
  SimulatedDisk disk;
  on_ranks(2, [&](Peers& peers) {
    dist::Checkpointer(in("/run"), peers, disk).save(state_of(1, peers.rank(), 2));
  });
  const std::string good = disk.content("/run/step-1/MANIFEST.json");
  const std::string body = good.substr(good.find('\n') + 1);
  // With its checksum made right: what the checks behind it say.
  const auto said = [&](const std::string& changed) {
    try {
      (void)dist::parse_manifest(
          "M",
          "{\"crc32c\":\"" + to_hex(crc32c(std::as_bytes(std::span(changed)))) + "\",\n" + changed);
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kCorrupt);
      return std::string(e.what());
    }
    return std::string();
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = body;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return said(text.replace(at, from.size(), to));
  };
  CHECK(said(body).empty());
  CHECK(dist::to_json(dist::parse_manifest("M", good)) == good);
  CHECK_THAT(with("\"step\":1", "\"step\":1,\"step\":1"), Contains("\"step\" occurs twice"));
  CHECK_THAT(with("\"step\":1", "\"step\":1,\"more\":1"), Contains("unknown field \"more\""));
  CHECK_THAT(with("\"step\":1,", ""), Contains("no field \"step\""));
  for (const char* number :
       {"-1", "1.0", "1e3", "18446744073709551615", "1e999", "\"1\"", "null", "[]"})
    CHECK_THAT(with("\"step\":1", std::string("\"step\":") + number), Contains("M: "));
  CHECK_THAT(with("\"step\":1", "\"step\":[[[[[[[[1]]]]]]]]"), Contains("nested more than"));
  CHECK_THAT(said("\"manifest\":" + std::string(100'000, '[') + "\n"),
             Contains("nested more than"));
  CHECK_THAT(with("\"world\":2", "\"world\":3"), Contains("number of files"));
  CHECK_THAT(with("\"chunk\":64", "\"chunk\":0"), Contains("chunk"));
  CHECK_THAT(with("\"chunk\":64", "\"chunk\":128"), Contains("checksums for"));
  CHECK_THAT(with("\"shard-1.safetensors\"", "\"../../etc/passwd\""), Contains("is called"));
  CHECK_THAT(with("\"shape\":[3,7]", "\"shape\":[7,3,1,1,1,1,1]"), Contains("dimensions"));
  CHECK_THAT(with("\"shape\":[3,7]", "\"shape\":[4294967296,4294967296]"), Contains("overflows"));
  CHECK_THAT(with("\"shape\":[3,7]", "\"shape\":[3,8]"), Contains("do not tile it at element 21"));
  CHECK_THAT(with("\"dtype\":\"F32\"", "\"dtype\":\"F31\""), Contains("unknown dtype"));
  CHECK_THAT(with("\"first\":50", "\"first\":49"), Contains("tile it at element 49"));
  CHECK_THAT(with("\"count\":50", "\"count\":9223372036854775807"), Contains("does not fit"));
  CHECK_THAT(with("\"file\":1", "\"file\":2"), Contains("file 2 of 2"));
  CHECK_THAT(with("\"format\":\"accrue checkpoint 1\"", "\"format\":\"accrue checkpoint 2\""),
             Contains("this version reads"));
  CHECK_THAT(said(body + "{}\n"), Contains("not valid JSON"));
  CHECK_THAT(said(body.substr(0, 40) + std::string(1, '\0') + body.substr(40)), Contains("a NUL"));
  std::string edited = good;
  edited.replace(edited.find("\"step\":1"), 8, "\"step\":2");
  CHECK_THAT(error_of([&] { (void)dist::parse_manifest("M", edited); }), Contains("was edited"));
}
