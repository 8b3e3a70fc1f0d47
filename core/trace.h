#pragma once
// What ran when: the kernels and named spans of every thread, as a file that Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <accrue/core/dispatch.h>

namespace accrue {

struct TraceOptions {
  /// Waits for the stream after every kernel: on CUDA the times are then those that the kernels
  /// take, and nothing overlaps. Without it they are the host's: what launching takes. Not while a
  /// graph is captured. What a wait finds wrong is thrown by the next kernel, or by stop().
  bool synchronize = false;
  /// The live bytes of every device by category, looked at before each kernel.
  bool memory = true;
  /// Later events are counted and dropped (an event takes about 100 bytes).
  std::size_t max_events = std::size_t{1} << 20;
};

/// Records from its construction until stop(), one at a time: a second one throws. It passes
/// kernels on to the KernelObserver that was there before. Safe from any thread; like every
/// observer it must outlive the kernels and spans that began while it recorded.
///
///   TraceRecorder trace;
///   train_step();
///   trace.stop();
///   trace.write("step.json");
class TraceRecorder final : public KernelObserver {
 public:
  explicit TraceRecorder(const TraceOptions& options = {});
  ~TraceRecorder() override;
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  void stop();
  /// Everything that has ended so far, in the trace event format: complete events ("X", times in
  /// microseconds, the module path and the device as arguments) and counters ("C").
  std::string json() const;
  /// json() as a file, whole or not at all.
  void write(const std::string& path) const;
  std::size_t events() const;   // kernels and spans that are kept
  std::size_t dropped() const;  // those that found no place

  void before(std::string_view kernel, Stream stream) override;
  void after(std::string_view kernel, Stream stream) override;
  void work(std::string_view kernel, Stream stream, const Work& work) override;

 private:
  friend class TraceSpan;
  struct State;
  std::unique_ptr<State> state_;
};

/// A stretch of time of this thread with a name, such as "micro-batch" (and its number), "forward",
/// "backward", "recompute", "optimizer step". One load where nothing is recorded.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, std::int64_t number = -1) noexcept;
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceRecorder* recorder_;  // nullptr: nobody looks
};
}  // namespace accrue
