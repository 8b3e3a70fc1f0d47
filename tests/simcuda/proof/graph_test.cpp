// CUDA graphs: what a capture collects, what a launch orders.
#include <algorithm>
#include <set>

#include "kernels.h"
#include "planted_bugs.h"
#include "support.h"

namespace {

class Graph {
 public:
  /// Captures what `f` puts on the stream.
  template <class F>
  Graph(cudaStream_t s, F&& f) {
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    f();
    REQUIRE(cudaStreamEndCapture(s, &graph_) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec_, graph_, 0) == cudaSuccess);
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  std::size_t nodes() const {
    std::size_t n = 0;
    CHECK(cudaGraphGetNodes(graph_, nullptr, &n) == cudaSuccess);
    return n;
  }
  cudaError_t launch(cudaStream_t s) const { return cudaGraphLaunch(exec_, s); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

TEST_CASE("a captured graph runs when it is launched, as often as it is launched") {
  const auto order =
      GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom);
  const Settled settled(order);
  const Stream s;
  const DeviceArray<float> x(std::vector<float>(300, 2.0f)), y(300);
  REQUIRE(run_fill(y, 1.0f, 300, s) == cudaSuccess);
  const Graph graph(s, [&] {
    CHECK(run_axpy(3.0f, x, y, 300, s) == cudaSuccess);
    CHECK(run_axpy(1.0f, x, y, 300, s) == cudaSuccess);
  });
  CHECK(graph.nodes() == 2);
  REQUIRE(s.wait() == cudaSuccess);
  CHECK(y.read() == std::vector<float>(300, 1.0f));
  for (int i = 1; i <= 3; ++i) {
    simcuda::reset_statistics();
    REQUIRE(graph.launch(s) == cudaSuccess);
    REQUIRE(graph.launch(s) == cudaSuccess);
    CHECK(simcuda::statistics().graph_launches == 2);
    REQUIRE(s.wait() == cudaSuccess);
    CHECK(y.read() == std::vector<float>(300, 1.0f + 16.0f * float(i)));
  }
  CHECK(kinds() == Kinds{});
}

TEST_CASE("branches of a graph run in any order, the join after all of them") {
  const Settled settled;
  const Stream s, left, right;
  const Event fork, left_done, right_done;
  const DeviceArray<unsigned> counter(1), slots(4);
  const Graph graph(s, [&] {
    CHECK(cudaMemsetAsync(counter, 0, 4, s) == cudaSuccess);
    order_after(left, fork, s);
    order_after(right, fork, s);
    CHECK(run_ticket(counter, slots + 0, left) == cudaSuccess);
    CHECK(run_ticket(counter, slots + 1, right) == cudaSuccess);
    CHECK(run_ticket(counter, slots + 2, s) == cudaSuccess);
    order_after(s, left_done, left);
    order_after(s, right_done, right);
    CHECK(run_ticket(counter, slots + 3, s) == cudaSuccess);
  });
  CHECK(graph.nodes() == 5);
  std::set<std::vector<unsigned>> seen;
  for (int i = 0; i < 60; ++i) {
    REQUIRE(graph.launch(s) == cudaSuccess);
    REQUIRE(s.wait() == cudaSuccess);
    const std::vector<unsigned> places = slots.read();
    CHECK(places[3] == 3);
    seen.insert(places);
  }
  CHECK(seen.size() == 6);  // all orders of three branches
  CHECK(kinds() == Kinds{});
}

TEST_CASE("a missing edge between branches of a graph is reported") {
  const Settled settled;
  const bool wrong = GENERATE(false, true);
  const Stream s, side;
  const Event fork, filled, join;
  const DeviceArray<float> x(64), y(64);
  const Graph graph(s, [&] {
    order_after(side, fork, s);
    CHECK(run_fill(x, 1.0f, 64, side) == cudaSuccess);
    if (!wrong) order_after(s, filled, side);
    CHECK(run_add(y, x, x, 64, s) == cudaSuccess);
    order_after(s, join, side);
  });
  REQUIRE(graph.launch(s) == cudaSuccess);
  REQUIRE(s.wait() == cudaSuccess);
  const Kinds found = kinds();
  if (!wrong) {
    CHECK(found == Kinds{});
    CHECK(y.read() == std::vector<float>(64, 2.0f));
  } else {
    REQUIRE(!found.empty());
    CHECK(std::all_of(found.begin(), found.end(), [](const std::string& kind) {
      return kind == "stream-race" || kind == "uninitialised";  // the fill may come second
    }));
    CHECK(std::count(found.begin(), found.end(), "stream-race") > 0);
  }
}

TEST_CASE("work of another stream is ordered with a graph by events around its launch") {
  const Settled settled;
  const bool wrong = GENERATE(false, true);
  const Stream s, reader;
  const Event launched;
  const DeviceArray<float> x(64), y(64);
  REQUIRE(run_fill(x, 0.0f, 64, s) == cudaSuccess);
  REQUIRE(s.wait() == cudaSuccess);
  const Graph graph(s, [&] { CHECK(run_fill(x, 4.0f, 64, s) == cudaSuccess); });
  for (int i = 0; i < 2; ++i) {
    REQUIRE(graph.launch(s) == cudaSuccess);
    if (!wrong) order_after(reader, launched, s);
    REQUIRE(run_add(y, x, x, 64, reader) == cudaSuccess);
    if (!wrong) REQUIRE(reader.wait() == cudaSuccess);
  }
  REQUIRE(s.wait() == cudaSuccess);
  REQUIRE(reader.wait() == cudaSuccess);
  const Kinds found = kinds();
  CHECK(std::count(found.begin(), found.end(), "stream-race") == std::ptrdiff_t(found.size()));
  CHECK(found.empty() == !wrong);
  if (!wrong) CHECK(y.read() == std::vector<float>(64, 8.0f));
}

TEST_CASE("what a capture does not allow ends in CUDA's errors") {
  const Settled settled;
  const Stream s, side;
  const Event event;
  const DeviceArray<float> x(64);
  cudaGraph_t graph = nullptr;
  SECTION("a branch that is not joined") {
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    order_after(side, event, s);
    CHECK(run_fill(x, 1.0f, 64, side) == cudaSuccess);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined);
  }
  SECTION("waiting") {
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(run_fill(x, 1.0f, 64, s) == cudaSuccess);
    CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(s, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("an event from before the capture") {
    CHECK(run_fill(x, 1.0f, 64, side) == cudaSuccess);
    CHECK(cudaEventRecord(event, side) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(s, event, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  }
  SECTION("a second begin, an end by another stream, an end without a begin") {
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorIllegalState);
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaErrorIllegalState);
    order_after(side, event, s);
    CHECK(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureUnmatched);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
  }
  SECTION("pageable memory in a copy") {
    float host = 0;
    REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, s) == cudaSuccess);
    CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    CHECK(kinds() == Kinds{"policy"});
  }
  CHECK(kinds() == Kinds{});
  (void)cudaGraphDestroy(graph);
}

TEST_CASE("kernel arguments of a graph are those of the capture, memory is read at the launch") {
  const Settled settled;
  const Stream s;
  const DeviceArray<float> x(16), y(16), z(16);
  float value = 1.0f;
  const Graph graph(s, [&] {
    CHECK(run_fill(x, value, 16, s) == cudaSuccess);
    CHECK(run_add(z, x, y, 16, s) == cudaSuccess);
  });
  value = 9.0f;
  for (const float v : {10.0f, 20.0f}) {
    CHECK(run_fill(y, v, 16, s) == cudaSuccess);
    CHECK(graph.launch(s) == cudaSuccess);
    CHECK(s.wait() == cudaSuccess);
    CHECK(z.read() == std::vector<float>(16, v + 1.0f));
  }
  CHECK(kinds() == Kinds{});
}
