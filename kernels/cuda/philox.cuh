#pragma once
// Philox4x32-10 on the device, and the dropout masks made from it: the bits of core/random.h.
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/random.h>
#include <accrue/kernels/dropout/dropout.h>

namespace accrue::kernels::cuda {

/// philox4x32({c0, c1, c2, c3}, {key low, key high}).
__device__ __forceinline__ uint4 philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                        std::uint32_t c3, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

/// The mask of kernels/dropout/dropout.h, as a kernel argument. Key and sample indices stay in
/// device memory: a captured kernel reads those of the current step.
class DropoutMask {
 public:
  DropoutMask(const ConstView& key, const ConstView& samples, std::int64_t first_element,
              std::uint32_t site, double p)
      : key_(key.data<std::int64_t>()),
        samples_(samples.data<std::int64_t>()),
        first_counter_(static_cast<std::uint32_t>(first_element / 8)),
        site_(site),
        threshold_(dropout_threshold(p)) {}
  /// What all elements of a row share.
  struct Row {
    std::uint64_t key, sample;
  };
  __device__ __forceinline__ Row row(std::int64_t row) const {
    return {random_key(static_cast<std::uint64_t>(key_[0]), static_cast<std::uint64_t>(key_[1])),
            static_cast<std::uint64_t>(samples_[row])};
  }
  /// Zeroes what the mask drops of the 8 elements of a row that begin at its `element`, a
  /// multiple of 8.
  template <class C>
  __device__ __forceinline__ void apply(const Row& row, std::int64_t element, C (&v)[8]) const {
    const uint4 bits = philox(first_counter_ + static_cast<std::uint32_t>(element / 8), site_,
                              static_cast<std::uint32_t>(row.sample),
                              static_cast<std::uint32_t>(row.sample >> 32), row.key);
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t half = k % 2 ? words[k / 2] >> 16 : words[k / 2] & 0xffffu;
      v[k] = half >= threshold_ ? v[k] : C(0);
    }
  }

 private:
  const std::int64_t* key_;
  const std::int64_t* samples_;
  std::uint32_t first_counter_, site_, threshold_;
};
}  // namespace accrue::kernels::cuda
