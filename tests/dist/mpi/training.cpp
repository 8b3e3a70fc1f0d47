// One rank of a training job in which something goes wrong with its numbers or its time:
// faults.sh with training_cases.sh starts several. Usage: accrue_test_training <scenario>
#include <unistd.h>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <accrue/core/log.h>
#include <accrue/dist/context.h>
#include "tests/support/small_model.h"
#include "tests/support/terms.h"

namespace {
using namespace accrue;
using namespace accrue::dist;
using namespace accrue::test;

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("expected: " + what);
}
Terms some_terms(std::size_t samples) {
  Terms t{{40, 3, 130, 64}, {0, 0, 1, 0}, {}};
  for (std::size_t s = 0; s < samples; ++s)
    t.samples.push_back({{2, static_cast<float>(2 * (s % 3)), 4, 2}, 1});
  return t;
}

/// Two samples on each rank. Rank 1's last one has no finite gradient in steps [first, end).
void not_finite(Communicator& ranks, int steps, int first, int end) {
  const Terms good = some_terms(2 * static_cast<std::size_t>(ranks.size()));
  Terms now = good;
  TermsModel m(now, {.ranks = &ranks, .window = 64, .first_window = 64});
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1, .find_not_finite = true});
  int in_a_row = 0;
  for (int i = 0; i < steps; ++i) {
    const bool bad = i >= first && i < end;
    now = good;
    m.set_values(i);
    if (bad) now.samples[3].coefficients[2] = std::numeric_limits<float>::infinity();
    const auto before = m.values();
    const auto report = step.run(2, [&](std::int64_t from, std::int64_t n) {
      return m.loss(2 * ranks.rank() + from, n, in_order(4));
    });
    const auto did = report.read();
    expect(did.skip == bad, "the step is skipped");
    expect((m.values() == before) == bad, "a skipped step changes nothing");
    expect(report.not_finite.size() == (bad ? 1u : 0u), "one rank is named");
    if (bad) expect(report.not_finite[0].rank == 1, "it is rank 1");
    in_a_row = bad ? in_a_row + 1 : 0;
    if (in_a_row == 3)
      throw DistributedError(
          ExitCode::kNonFinite,
          detail::concat("3 steps in a row were skipped, ", did.skipped, " in all, rank ",
                         report.not_finite[0].rank, " in ", report.not_finite[0].where));
  }
}

void bit_flip(Communicator& ranks) {
  const Terms t = some_terms(2 * static_cast<std::size_t>(ranks.size()));
  TermsModel m(t, {.ranks = &ranks, .window = 64, .first_window = 64});
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1, .compare_every = 5});
  for (int i = 0; i < 20; ++i) {
    m.set_values(i);
    if (i == 12 && ranks.rank() == 1) {  // the lowest bit of one number
      auto* bits = static_cast<unsigned char*>(m.set.values().view().ptr);
      bits[4 * 50] ^= 1;
    }
    step.run(2, [&](std::int64_t from, std::int64_t n) {
      return m.loss(2 * ranks.rank() + from, n, in_order(4));
    });
  }
}

/// Rank 1's targets are all ignored; then everybody's.
void masked(Communicator& ranks) {
  const std::int64_t each = 3;
  RaggedBatch batch(each * ranks.size());
  const auto ignore = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t s = first; s < end; ++s)
      for (auto& target : batch.targets[static_cast<std::size_t>(s)]) target = -100;
  };
  for (const auto numerics : {optim::Numerics::kDefault, optim::Numerics::kExact}) {
    batch = RaggedBatch(each * ranks.size());
    ignore(each, 2 * each);
    SmallModel together(DType::kF32, {.ranks = &ranks, .window = 100, .first_window = 10}), alone;
    optim::LogicalStep step(*together.adam, together.set, {.micro = 2, .numerics = numerics});
    optim::LogicalStep reference(*alone.adam, alone.set, {.micro = 2, .numerics = numerics});
    const auto whole = alone.of(batch), mine = together.of(batch);
    const auto both = [&] {
      const auto got = step.run(each, [&](std::int64_t first, std::int64_t count) {
        return mine(each * ranks.rank() + first, count);
      });
      const auto want = reference.run(batch.size(), whole);
      const auto a = got.read(), b = want.read();
      expect(a.weight == b.weight && a.skip == b.skip && a.skipped == b.skipped, "weight and skip");
      if (!a.skip) expect(std::abs(a.loss - b.loss) <= 1e-6 * std::abs(b.loss), "the loss");
      if (numerics == optim::Numerics::kExact)
        expect(together.bits() == alone.bits(), "the bits of one rank");
      else
        expect(apart(together.weights(), alone.weights()) < 2e-6, "the weights of one rank");
      return a;
    };
    expect(!both().skip, "one rank without targets skips nothing");
    ignore(0, batch.size());
    const auto before = together.weights();
    const auto did = both();
    expect(did.skip && did.weight == 0, "a step without any target is skipped");
    expect(together.weights() == before, "and changes nothing");
    batch = RaggedBatch(each * ranks.size());
    expect(!both().skip, "the next step is a step");
  }
}

void slow(Communicator& ranks) {
  const Terms t = some_terms(2 * static_cast<std::size_t>(ranks.size()));
  TermsModel m(t, {.ranks = &ranks, .window = 64, .first_window = 64});
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1});
  for (int i = 0; i < 8; ++i) {
    m.set_values(i);
    step.run(2, [&](std::int64_t from, std::int64_t n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(ranks.rank() == 1 ? 100 : 10));
      return m.loss(2 * ranks.rank() + from, n, in_order(4));
    });
  }
}

struct Resources {
  std::int64_t descriptors = 0, threads = 0, resident = 0;  // the last in KiB
  Resources() {
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator("/proc/self/fd"))
      ++descriptors;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      if (word == "Threads:") status >> threads;
      if (word == "VmRSS:") status >> resident;
    }
  }
};
void many_steps(Communicator& ranks) {
  const Terms t = some_terms(2 * static_cast<std::size_t>(ranks.size()));
  TermsModel m(t, {.ranks = &ranks, .window = 64, .first_window = 64});
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1, .compare_every = 100});
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      m.set_values(i);
      step.run(2, [&](std::int64_t from, std::int64_t n) {
        return m.loss(2 * ranks.rank() + from, n, in_order(4));
      });
    }
    return Resources();
  };
  const Resources before = run(500);
  const std::int64_t live = Allocator::of(Device::cpu()).stats().live;
  const Resources after = run(1500);
  std::printf("rank %d: %lld descriptors, %lld threads, %lld KiB; then %lld, %lld, %lld\n",
              ranks.rank(), static_cast<long long>(before.descriptors),
              static_cast<long long>(before.threads), static_cast<long long>(before.resident),
              static_cast<long long>(after.descriptors), static_cast<long long>(after.threads),
              static_cast<long long>(after.resident));
  expect(after.descriptors == before.descriptors, "no more descriptors");
  expect(after.threads == before.threads, "no more threads");
  expect(Allocator::of(Device::cpu()).stats().live == live, "no more memory of tensors");
  expect(after.resident <= before.resident + 2048, "no more memory");
}
}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string scenario = argc > 1 ? argv[1] : "";
    ContextOptions options;
    options.init_deadline = Seconds(60);
    options.collective_deadline = Seconds(20);
    options.dump_folder = std::getenv("ACCRUE_TEST_DUMP") ? std::getenv("ACCRUE_TEST_DUMP") : "";
    set_num_threads(1);
    Context context(options);
    Communicator& ranks = context.world();
    set_log_callback([rank = ranks.rank()](LogLevel level, std::string_view text) {
      if (rank == 0 && level >= LogLevel::kWarning)
        std::fprintf(stderr, "warning: %.*s\n", static_cast<int>(text.size()), text.data());
    });
    if (scenario == "nan once") not_finite(ranks, 8, 3, 5);
    if (scenario == "nan for good") not_finite(ranks, 8, 3, 8);
    if (scenario == "bit flip") bit_flip(ranks);
    if (scenario == "masked") masked(ranks);
    if (scenario == "slow") slow(ranks);
    if (scenario == "many steps") many_steps(ranks);
    context.finish();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accrue_test_training: %s\n", e.what());
    return exit_code_of(e);
  }
}
