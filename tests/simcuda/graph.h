#pragma once
// Graphs: what a capture collects, launched in a random order that its edges allow.
#include <memory>
#include <vector>

#include "runtime.h"

struct CUgraph_st {
  struct Node {
    simcuda::Work work;
    std::vector<std::size_t> after;
    int device;
  };
  std::vector<Node> nodes;
};

namespace simcuda {

struct Capture {
  CUgraph_st graph;
  cudaStream_t origin;
  bool invalid = false;
};
/// A stream's place in its capture: the nodes that its next one comes after.
struct Frontier {
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> nodes;
};
Frontier& frontier_of(cudaStream_t stream);

void add_node(cudaStream_t stream, Work work);
/// cudaStreamWaitEvent() on an event that was recorded in a capture.
cudaError_t wait_in_capture(cudaStream_t stream, const Frontier& recorded);

}  // namespace simcuda
