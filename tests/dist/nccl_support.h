#pragma once
// Ranks for the tests of NCCL: threads of this process, each with a GPU of its own, simulated or
// real.
#include <functional>
#include <string>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/tensor.h>
#include <accrue/dist/nccl/nccl.h>
#include <accrue/dist/threads.h>
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

namespace accrue::test {

/// For threads, where Catch's assertions may not be: throws with the text.
template <class... Parts>
void expect(bool right, const Parts&... text) {
  if (!right) throw std::runtime_error(detail::concat(text...));
}

/// No more of the threads' communicator than what NCCL may count on.
class Host final : public Peers {
 public:
  explicit Host(Peers& peers) : peers_(peers) {}
  int rank() const override { return peers_.rank(); }
  int size() const override { return peers_.size(); }
  void max(std::span<std::int64_t> values) override { peers_.max(values); }

 private:
  Peers& peers_;
};

/// What each rank threw, as text; empty: nothing.
inline std::vector<std::string> texts_of(const std::vector<std::exception_ptr>& thrown) {
  std::vector<std::string> texts;
  for (const std::exception_ptr& e : thrown) try {
      texts.emplace_back();
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& error) {
      texts.back() = error.what();
    }
  return texts;
}

/// Runs `body(control, device)` on one thread for each rank, with that device as the default one.
inline std::vector<std::string> on_gpus(int ranks,
                                        const std::function<void(Peers&, Device)>& body) {
  const dist::ThreadWorld world(ranks);
  return texts_of(world.try_run([&](Communicator& control) {
    const Device device = Device::cuda(control.rank());
    const DeviceScope on(device);
    Host host(control);
    body(host, device);
  }));
}
/// The same with an NCCL communicator of all ranks, which outlives the body of every rank.
inline std::vector<std::string> on_nccl(int ranks, const std::function<void(Communicator&)>& body,
                                        const dist::NcclOptions& options = {}) {
  return on_gpus(ranks, [&](Peers& control, Device device) {
    const auto communicator = dist::nccl_communicator(control, device, options);
    body(*communicator);
  });
}
inline std::vector<std::string> nothing(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

/// Other ranks take their time on a busy machine: that is no deadlock.
struct [[maybe_unused]] PatientDevices {
#if ACCRUE_CUDA_SIM
  PatientDevices() { simcuda::set_deadlock_seconds(20); }
  ~PatientDevices() { simcuda::set_deadlock_seconds(2); }
#endif
};
}  // namespace accrue::test
