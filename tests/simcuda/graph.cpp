#include "graph.h"

#include <algorithm>
#include <map>

#include "check.h"
#include "report.h"

using namespace simcuda;

struct CUgraphExec_st {
  CUgraph_st graph;
  std::vector<std::uint32_t> timelines;  // of each node
  simcuda::Clock steps;                  // of each timeline, after the launches so far
};

namespace simcuda {

Frontier& frontier_of(cudaStream_t stream) {
  static auto& all = *new std::map<cudaStream_t, Frontier>;
  return all[stream];
}

void add_node(cudaStream_t stream, Work work) {
  Frontier& f = frontier_of(stream);
  auto& nodes = f.capture->graph.nodes;
  nodes.push_back({std::move(work), f.nodes, stream->device});
  f.nodes = {nodes.size() - 1};
}

cudaError_t wait_in_capture(cudaStream_t stream, const Frontier& recorded) {
  Frontier& f = frontier_of(stream);
  if (stream->capture && stream->capture != recorded.capture) {
    return cudaErrorStreamCaptureMerge;
  }
  if (!stream->capture) {
    if (!recorded.capture->origin->capture) return cudaErrorStreamCaptureIsolation;
    stream->capture = recorded.capture;
    f = {recorded.capture, {}};
  }
  for (const std::size_t n : recorded.nodes) {
    if (std::find(f.nodes.begin(), f.nodes.end(), n) == f.nodes.end()) f.nodes.push_back(n);
  }
  return cudaSuccess;
}

namespace {

// A node that continues one other node alone stays on its timeline: clocks stay short.
std::vector<std::uint32_t> assign_timelines(const CUgraph_st& graph) {
  std::vector<std::uint32_t> result;
  std::vector<bool> continued(graph.nodes.size());
  for (const auto& node : graph.nodes) {
    if (node.after.size() == 1 && !continued[node.after[0]]) {
      continued[node.after[0]] = true;
      result.push_back(result[node.after[0]]);
    } else {
      result.push_back(new_timeline());
    }
  }
  return result;
}

void run_graph(const CUgraphExec_st& exec, Clock steps) {
  const auto& nodes = exec.graph.nodes;
  const Clock start = *now.clock;
  const Execution launch = now;
  std::vector<Clock> clocks(nodes.size());
  std::vector<std::size_t> missing, able;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    missing.push_back(nodes[i].after.size());
    if (missing[i] == 0) able.push_back(i);
  }
  while (!able.empty()) {
    const std::size_t pick = random_number() % able.size();
    const std::size_t i = able[pick];
    able[pick] = able.back();
    able.pop_back();
    Clock& clock = clocks[i];
    clock = start;
    for (const std::size_t n : nodes[i].after) join(clock, clocks[n]);
    const Work& work = nodes[i].work;
    const std::uint32_t timeline = exec.timelines[i];
    if (clock.size() <= timeline) clock.resize(timeline + 1);
    clock[timeline] = steps[timeline]++;
    const std::uint32_t operation =
        new_operation(timeline, clock, work.name, nodes[i].device, work.caller, work.function);
    now = {operation, 0, &clock};
    running_state = 0;
    work.run(operation);
    for (std::size_t n = i + 1; n < nodes.size(); ++n) {
      const auto& a = nodes[n].after;
      if (std::find(a.begin(), a.end(), i) != a.end() && --missing[n] == 0) able.push_back(n);
    }
  }
  now = launch;
}

}  // namespace
}  // namespace simcuda

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (stream->capture) return result(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  frontier_of(stream) = {stream->capture, {}};
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock;
  *graph = nullptr;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  const auto capture = stream->capture;
  if (!capture) return result(cudaErrorIllegalState);
  if (capture->origin != stream) return result(cudaErrorStreamCaptureUnmatched);
  bool unjoined = false;
  const auto& mine = frontier_of(stream).nodes;
  std::vector<bool> reached(capture->graph.nodes.size());
  for (const std::size_t n : mine) reached[n] = true;
  for (std::size_t n = reached.size(); n-- > 0;) {
    if (!reached[n]) unjoined = true;
    for (const std::size_t m : capture->graph.nodes[n].after) reached[m] = true;
  }
  for (cudaStream_t s : streams()) {
    if (s->capture == capture) s->capture.reset();
  }
  if (capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  if (unjoined) return result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st(std::move(capture->graph));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Lock lock;
  if (!graph) return result(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{*graph, assign_timelines(*graph), {}};
  for (const std::uint32_t t : (*exec)->timelines) {
    if ((*exec)->steps.size() <= t) (*exec)->steps.resize(t + 1);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (!exec || stream->capture) return result(cudaErrorInvalidValue);
  if (const cudaError_t e = injected(Call::kLaunch)) return result(e);
  ++control().statistics.graph_launches;
  Work work;
  work.name = "graph launch";
  work.run = [exec, steps = exec->steps](std::uint32_t) { run_graph(*exec, steps); };
  submit(stream, std::move(work));
  // What follows on the stream comes after every node: each ticks its timeline once.
  for (const std::uint32_t t : exec->timelines) ++exec->steps[t];
  join(stream->clock, exec->steps);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Lock lock;
  if (!graph || !count) return result(cudaErrorInvalidValue);
  if (nodes) return result(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Lock lock;
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  const cudaError_t error = synchronize_device(-1);  // it may still be queued
  delete exec;
  return result(error);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock;
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
