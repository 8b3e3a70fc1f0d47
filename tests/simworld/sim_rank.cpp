#include <accrue/dist/exit_codes.h>
#include "tests/simworld/sim_world.h"

namespace accrue::test {

int SimRank::code() const {
  if (!error) return 0;
  try {
    std::rethrow_exception(error);
  } catch (const dist::DistributedError& e) {
    return static_cast<int>(e.exit_code());
  } catch (...) {
    return -1;
  }
}
std::string SimRank::text() const {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "ended by the simulation";
  }
}

void SimCommunicator::call(std::string_view what, std::string_view name) {
  const auto number = static_cast<std::int64_t>(log_.calls.size());
  std::string text = detail::concat("#", number, " ", what, " '", name, "'");
  world_.set_position(text);
  log_.calls.push_back(detail::concat(what, " ", name));
  world_.point();
  if (before) before(number, name);
}
void SimCommunicator::max(std::span<std::int64_t> values) {
  call("max", std::to_string(values.size()));
  under_.max(values);
}
CollectiveWorkPtr SimCommunicator::all_reduce(const Tensor& inout, ReduceOp op,
                                              std::string_view name) {
  call("all_reduce", name);
  return under_.all_reduce(inout, op, name);
}
CollectiveWorkPtr SimCommunicator::reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                                  std::string_view name) {
  call("reduce_scatter", name);
  return under_.reduce_scatter(in, out, op, name);
}
CollectiveWorkPtr SimCommunicator::all_gather(const Tensor& in, const Tensor& out,
                                              std::string_view name) {
  call("all_gather", name);
  return under_.all_gather(in, out, name);
}
CollectiveWorkPtr SimCommunicator::all_to_all(const Tensor& in, const Tensor& out,
                                              std::string_view name) {
  call("all_to_all", name);
  return under_.all_to_all(in, out, name);
}
CollectiveWorkPtr SimCommunicator::broadcast(const Tensor& inout, int root, std::string_view name) {
  call("broadcast", name);
  return under_.broadcast(inout, root, name);
}
std::unique_ptr<Communicator> SimCommunicator::split(int color, int key) {
  call("split", "");
  return under_.split(color, key);
}
}  // namespace accrue::test
