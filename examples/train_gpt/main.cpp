// train_gpt: trains a small GPT on a text, any logical batch on whatever memory there is.
#include <csignal>
#include <unistd.h>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <nlohmann/json.hpp>
#include <accrue/core/core.h>
#include <accrue/dist/dist.h>
#include <accrue/nn/generate.h>
#include "examples/train_gpt/checkpoint.h"
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/log.h"
#include "examples/train_gpt/meta_step.h"
#include "examples/train_gpt/pictures.h"
#include "examples/train_gpt/progress.h"
#include "examples/train_gpt/trainer.h"
#include "examples/train_gpt/verify.h"

using namespace accrue;
using namespace train_gpt;

namespace {
volatile std::sig_atomic_t stop_signal = 0;
void on_signal(int number) {
  if (stop_signal != 0 && number == SIGINT)
    _exit(130);  // asked twice; checkpoints are whole files or none
  stop_signal = number;
}

// The number of -n or --ranks, which is taken out; 0: not given.
int take_ranks(std::vector<std::string>& given) {
  int ranks = 0;
  for (std::size_t i = 0; i < given.size();) {
    const bool apart = given[i] == "-n" || given[i] == "--ranks";
    const bool joined = given[i].starts_with("--ranks=");
    if (!joined && !(apart && i + 1 < given.size())) {
      ++i;
      continue;
    }
    const std::string text = joined ? given[i].substr(8) : given[i + 1];
    const auto r = std::from_chars(text.data(), text.data() + text.size(), ranks);
    ACCRUE_CHECK(r.ec == std::errc{} && r.ptr == text.data() + text.size() && ranks >= 1,
                 "-n: expected a number of ranks, got '", text, "'");
    const auto at = given.begin() + static_cast<std::ptrdiff_t>(i);
    given.erase(at, at + (joined ? 1 : 2));
  }
  return ranks;
}
std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += w + '\n';
  return text;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// The value of --resume, before anything is parsed; empty: not given.
std::string resume_of(const std::vector<std::string>& given) {
  std::string path;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--resume" && i + 1 < given.size()) path = given[i + 1];
    if (given[i].starts_with("--resume=")) path = given[i].substr(9);
  }
  return path;
}
// The stored arguments of a resumed run come first, so that those given now win.
std::vector<std::string> with_stored_arguments(const std::vector<std::string>& given,
                                               const std::optional<Found>& found) {
  if (!found) return given;
  std::vector<std::string> all = found->run.arguments;
  all.insert(all.end(), {"--out", found->folder});
  all.insert(all.end(), given.begin(), given.end());
  return all;
}

void check_recipe(const std::string& path, const std::string& stored, const std::string& now) {
  const auto a = nlohmann::json::parse(stored, nullptr, false), b = nlohmann::json::parse(now);
  if (!a.is_object())
    detail::fail(ErrorCode::kCorrupt, path + ": the stored recipe is not readable");
  for (const auto& [key, value] : b.items())
    if (!a.contains(key) || a[key] != value)
      detail::fail(
          ErrorCode::kInvalidArgument,
          detail::concat("--resume: '", key, "' was ", a.contains(key) ? a[key].dump() : "not set",
                         " and is now ", value.dump(),
                         "; it would change the result. Leave it out to go on as before"));
}

struct Session {
  const Options& o;
  Communicator& ranks;
  std::vector<std::string> arguments;
  Corpus corpus;
  optim::Plan plan;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<dist::Checkpointer> checkpointer;
  std::int64_t window = 0;  // logical batches done
  bool stopped = false;     // by a signal
  std::int64_t saved = -1;  // the window of the last checkpoint in o.out

  bool speaks() const { return ranks.rank() == 0; }
  Share share() const { return share_of(o.batch, o.grain, ranks.rank(), ranks.size()); }
  /// Whether any rank was told to stop: all have to ask.
  bool stopping() const {
    std::int64_t stop = stop_signal;
    ranks.max({&stop, 1});
    return stop != 0;
  }
  RunState run() const {
    const auto report = trainer->optimizer().report();
    return {window, report.step, report.skipped, recipe(o), corpus.hash, arguments};
  }
  void save() {
    if (saved == window) return;
    checkpointer->save(checkpoint_of(*trainer, run()));
    saved = window;
  }
};

// A checkpoint on the way costs nothing but, if it fails, a warning: the next one may work. Not so
// the last one, which finish() waits for.
void go_on_without(Progress& progress, const std::function<void()>& saving) {
  try {
    saving();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    progress.note(detail::concat("train_gpt: ", e.what(), "; training goes on"));
  }
}

// What the batch would need in one piece, where that is more than the budget.
std::string whole_batch(const Session& s) {
  const Options& o = s.o;
  if (o.memory == 0) return {};
  const std::int64_t peak = peak_in_one_piece(o, s.corpus.vocabulary);
  return peak <= o.memory ? std::string{}
                          : "; the batch in one piece would need " + format_bytes(peak);
}

void announce(const Session& s, Progress& progress) {
  const Options& o = s.o;
  const std::int64_t tokens = o.batch * o.model.context;
  progress.note(detail::concat(
      "model    ", o.shape, ", ", nn::short_count(s.trainer->parameters().count()), " parameters, ",
      o.dtype, ", vocabulary ", s.corpus.vocabulary, "\ndata     ", o.data, ": ",
      s.corpus.train->tokens().count, " tokens to train on, ",
      s.corpus.validation ? s.corpus.validation->tokens().count : 0, " held out\nbatch    ",
      o.batch, " sequences of ", o.model.context, " tokens (", tokens, " tokens)",
      s.ranks.size() > 1 ? detail::concat(" on ", s.ranks.size(), " ranks") : std::string(),
      "\nplan     ", to_string(s.plan.chosen.knobs, s.plan.request.blocks.size()), "\nmemory   ",
      o.memory > 0 ? "budget " + format_bytes(o.memory) : std::string("no budget"),
      ", predicted peak ", format_bytes(s.plan.chosen.peak), whole_batch(s), "\nthreads  ",
      num_threads(), ", instruction set ", name_of(current_isa())));
}

nlohmann::json number_or_null(double v) {
  return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr);
}

// Returns the exit code.
int train(Session& s, Log& log, Progress& progress, std::vector<std::string>& files) {
  const Options& o = s.o;
  Allocator& memory = Allocator::of(Device::parse(o.device));
  Status status;
  status.steps = o.steps;
  double busy = 0;
  std::int64_t tokens_done = 0, skipped_in_a_row = 0;
  bool memory_drawn = false;
  const std::int64_t first_window = s.window;
  bool stop = false;
  while (s.window < o.steps && !stop) {
    const auto begin = Clock::now();
    const std::optional<data::Batch> batch = s.loader->next();
    if (!batch) break;
    const bool record =
        s.speaks() && !memory_drawn && s.window == std::min(first_window + 1, o.steps - 1);
    const CategoryBytes before = memory.stats().live_by_category;
    std::optional<TraceRecorder> trace;
    if (record && !o.trace.empty()) trace.emplace(TraceOptions{.synchronize = true});
    if (record) memory.start_timeline();
    const Share mine = s.share();
    const optim::BatchReport how = s.trainer->step(batch->slice(mine.first, mine.count), s.window);
    const optim::StepReport report = how.read();
    if (trace) {
      trace->stop();
      trace->write(o.trace);
    }
    if (record) {
      if (!o.quiet) progress.note("peak     " + memory_bar(memory.stats(), o.memory));
      const auto timeline = memory.stop_timeline();
      if (o.pictures)
        for (const auto& f : draw_memory(o.out, timeline, before, o.memory)) files.push_back(f);
      memory_drawn = true;
    }
    busy += seconds_since(begin);
    ++s.window;
    tokens_done += batch->size() * batch->time();
    status.step = s.window;
    status.loss = report.loss;
    status.skipped = report.skipped;
    status.tokens_per_second = static_cast<double>(tokens_done) / busy;
    status.seconds_left = busy / static_cast<double>(s.window - first_window) *
                          static_cast<double>(o.steps - s.window);
    status.peak_bytes = memory.stats().peak;
    nlohmann::json line{{"window", s.window},
                        {"step", report.step},
                        {"loss", number_or_null(report.loss)},
                        {"lr", report.lr},
                        {"norm", number_or_null(report.norm)},
                        {"weight", report.weight},
                        {"skipped", report.skipped},
                        {"tokens_per_second", status.tokens_per_second},
                        {"micro_batches", how.micro_batches.size()},
                        {"retries", how.retries},
                        {"peak_bytes", status.peak_bytes}};
    skipped_in_a_row = report.skip ? skipped_in_a_row + 1 : 0;
    stop = s.stopped = s.stopping();
    const bool last = s.window == o.steps || stop;
    if ((s.speaks() || s.trainer->every_rank_computes()) && s.corpus.validation &&
        (last || (o.eval_every > 0 && s.window % o.eval_every == 0))) {
      status.validation =
          s.trainer->evaluate(*s.corpus.validation, o.eval_samples, s.plan.chosen.knobs.micro);
      line["validation"] = number_or_null(status.validation);
    }
    log.write(line);
    progress.show(status, last);
    if (skipped_in_a_row >= o.max_skipped) {
      progress.note(
          detail::concat("train_gpt: ", skipped_in_a_row,
                         " steps in a row were skipped because the loss or a gradient was "
                         "not finite (window ",
                         s.window, "). Try a smaller --lr; the last checkpoint is untouched."));
      go_on_without(progress, [&] { s.checkpointer->wait(); });
      return kExitNonFinite;
    }
    go_on_without(progress, [&] { (void)s.checkpointer->poll(); });
    if (!last && o.save_every > 0 && s.window % o.save_every == 0) {
      go_on_without(progress, [&] { s.checkpointer->wait(); });  // the one before
      go_on_without(progress, [&] { s.save(); });
    }
  }
  go_on_without(progress, [&] { s.checkpointer->wait(); });
  s.save();
  s.checkpointer->wait();
  return 0;
}

// What is left when the steps are done; rank 0 shows it.
void finish(Session& s, Log& log, const std::vector<std::string>& drawn) {
  const Options& o = s.o;
  if (!s.speaks() && !s.trainer->every_rank_computes()) return;
  if (o.sample > 0 && s.corpus.tokenizer) {
    std::vector<std::int32_t> prompt;
    try {
      prompt = s.corpus.tokenizer->encode(o.prompt);
    } catch (const Error&) {
      prompt = {0};  // the text has not all characters of the prompt
    }
    const auto text = nn::generate(
        s.trainer->model(), prompt,
        {.count = o.sample, .temperature = o.temperature, .top_k = o.top_k, .seed = o.seed});
    if (s.speaks())
      std::printf("\n--- a sample ---\n%s\n----------------\n\n",
                  s.corpus.tokenizer->decode(text).c_str());
  }
  if (!s.speaks()) return;
  std::printf("files in %s:\n  log.jsonl\n", o.out.c_str());
  std::vector<std::string> files = drawn;
  if (o.pictures)
    for (const auto& f : draw_loss(o.out, log.points())) files.push_back(f);
  for (const auto& f : files) std::printf("  %s\n", std::filesystem::path(f).filename().c_str());
  std::printf("  step-%lld\n", static_cast<long long>(s.saved));
}

// Rank 0 has said why; main() has only to end.
struct Refused {
  int exit_code;
};

int run(int argc, char** argv) {
  std::vector<std::string> given(argv + 1, argv + argc);
  if (const int ranks = take_ranks(given); ranks > 1) dist::relaunch_under_mpirun(ranks, given);
  // The handlers below are this program's.
  dist::Context context({.configuration = joined(given), .signals = false});
  Communicator* const peers = &context.world();
  const bool many = peers->size() > 1, speaks = peers->rank() == 0;
  // For what no rank can do if one cannot: they end together, and one of them speaks.
  const auto alike = [&](auto&& f) {
    try {
      return f();
    } catch (const std::exception& e) {
      if (speaks) std::fprintf(stderr, "train_gpt: %s\n", e.what());
      context.finish();
      throw Refused{dist::exit_code_of(e)};
    }
  };
  std::optional<Found> found;
  if (const std::string path = resume_of(given); !path.empty()) {
    found = find_checkpoint(path, *peers);
    for (const std::string& why : found->info.passed_over)
      if (speaks) std::fprintf(stderr, "train_gpt: passed over %s\n", why.c_str());
  }
  std::vector<std::string> all = with_stored_arguments(given, found);
  std::vector<char*> pointers{argv[0]};
  for (std::string& a : all) pointers.push_back(a.data());
  Options o;
  const Parsed parsed = parse(static_cast<int>(pointers.size()), pointers.data(), o);
  if (!parsed.run) return parsed.exit_code;
  o.ranks = peers->size();

  set_num_threads(o.threads);
  if (o.threads == 0 && many)
    set_num_threads(std::max(num_threads() / std::max(context.local_size(), 1), 1));
  set_log_callback([](LogLevel level, std::string_view text) {
    if (level >= LogLevel::kWarning)
      std::fprintf(stderr, "train_gpt: %.*s\n", static_cast<int>(text.size()), text.data());
  });
  // Ranks do not all open the first GPU to see whether it can be used.
  const bool shared = many && o.device == "auto" && device_count(DeviceType::kCuda) > 0;
  Device device = shared ? Device::cuda() : Device::parse(o.device);
  if (many && device.is_cuda()) {
    ACCRUE_CHECK(!o.device.starts_with("cuda:"), "--device ", o.device,
                 ": of several ranks each takes a GPU of its own (--device cuda)");
    device = alike([&] { return context.gpu(); });
  }
  (void)backend(device);
  o.device = to_string(device);
  ACCRUE_CHECK(!device.is_meta(), "--device ", o.device, ": training needs a device with memory");
  std::vector<std::string> keep;  // what a later --resume needs
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool dropped = all[i] == "--resume" || all[i] == "--data" || all[i] == "--out";
    if (dropped)
      ++i;
    else if (!all[i].starts_with("--resume=") && !all[i].starts_with("--data=") &&
             !all[i].starts_with("--out="))
      keep.push_back(all[i]);
  }
  keep.insert(keep.end(), {"--data", std::filesystem::absolute(o.data).string()});
  ACCRUE_CHECK(!many || !o.verify, "--verify is for one rank");
  Session s{o, *peers, keep, load_corpus(o), {}, nullptr, nullptr, nullptr};
  s.plan = alike([&] {
    return optim::plan(plan_request(o, s.corpus.vocabulary),
                       meta_step(o, s.corpus.vocabulary, s.corpus.validation.get()));
  });
  if (o.plan) {
    if (speaks) std::printf("%s", to_string(s.plan).c_str());
    context.finish();
    return 0;
  }
  optim::Knobs knobs = s.plan.chosen.knobs;
  if (o.numerics == "exact" && o.micro > 0) knobs.micro = o.micro;
  if (o.verify) return verify(o, s.corpus, knobs, device);
  std::filesystem::create_directories(o.out);
  Allocator::of(device).set_budget(o.memory);
  s.trainer = std::make_unique<Trainer>(o, s.corpus.vocabulary, device, knobs,
                                        &context.communicator(device));
  // Going on in the run's own folder; elsewhere, and for a new run, what is there is another run's.
  bool own = false;
  if (found) {
    check_recipe(found->info.path, found->run.recipe, recipe(o));
    ACCRUE_CHECK(found->run.data_hash == s.corpus.hash, "--resume: the content of ", o.data,
                 " has changed since the checkpoint");
    restore(*found, *s.trainer, *peers);
    s.window = found->run.window;
    own = std::filesystem::equivalent(found->folder, o.out);
    if (own) s.saved = s.window;
  }
  std::string aside;
  if (speaks) aside = set_checkpoints_aside(o.out, own ? s.window : -1);
  barrier(*peers);
  if (speaks && found && !own) {
    std::error_code none;
    std::filesystem::remove(o.out + "/log.jsonl", none);
    std::filesystem::copy_file(found->folder + "/log.jsonl", o.out + "/log.jsonl", none);
  }
  s.checkpointer = std::make_unique<dist::Checkpointer>(
      dist::CheckpointOptions{.folder = o.out,
                              .keep = static_cast<int>(o.keep),
                              // On the cpu the copy would be memory that --memory does not count.
                              .asynchronous = device.is_cuda()},
      *peers);
  data::LoaderOptions order;
  order.batch_size = o.batch;
  order.seed = o.seed;
  order.position = s.window * o.batch;
  s.loader = std::make_unique<data::Loader>(s.corpus.train, order);

  std::vector<std::string> files;
  Log log(speaks ? o.out + "/log.jsonl" : std::string(), s.window);
  int code = 0;
  {
    Progress progress(o.quiet, !speaks);
    if (speaks && !o.quiet) announce(s, progress);
    if (!aside.empty())
      progress.note("checkpoints that are not of this run were moved to " + aside);
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    std::signal(SIGUSR1, on_signal);
    code = train(s, log, progress, files);
    if (code == 0 && s.stopped && s.window < o.steps) {
      progress.note(detail::concat("train_gpt: stopped by a signal after step ", s.window, " of ",
                                   o.steps, "; everything is saved. Go on with\n  ", argv[0],
                                   " --resume ", o.out));
      code = kExitStopped;
    }
  }
  if (code == 0) finish(s, log, files);
  if (o.hash) {
    const std::uint64_t hash = state_hash(*s.trainer);
    if (speaks) std::printf("weights %s\n", to_hex(hash).c_str());
  }
  s.trainer.reset();  // its communicator goes
  context.finish();
  return code;
}
}  // namespace

// GNU OpenMP's threads spin while they wait, which on a busy machine makes a step up to a hundred
// times slower; the policy is read when the library is loaded, so only a new start can change it.
void wait_without_spinning(char** argv) {
  if (!std::getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
    execv("/proc/self/exe", argv);
}

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  try {
    return run(argc, argv);
  } catch (const Refused& r) {
    return r.exit_code;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return dist::exit_code_of(e);
  }
}
