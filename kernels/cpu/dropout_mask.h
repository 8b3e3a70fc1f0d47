#pragma once
// Dropout's masks. Included after simd_begin.h; the file that includes it includes
// kernels/dropout/dropout.h before that.
#include <accrue/kernels/cpu/philox.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// Which of the next elements stay: their 16 random bits reach the threshold.
template <class C>
ACCRUE_INLINE VecInt<C> kept(const std::uint16_t* bits, std::uint32_t threshold) {
  if constexpr (std::is_same_v<C, float>) {
    VectorTypes<float>::Half h;
    std::memcpy(&h, bits, sizeof h);
    return __builtin_convertvector(h, VecInt<float>) >= static_cast<std::int32_t>(threshold);
  } else {
    VecInt<C> v;
    for (int j = 0; j < kLanes<C>; ++j) v[j] = bits[j];
    return v >= static_cast<std::int64_t>(threshold);
  }
}

/// body(i, mask, part) over the elements of (rows, length), flat; mask: those that dropout keeps.
/// The definition of the mask stands in kernels/dropout/dropout.h.
template <class C, class Body>
ACCRUE_INLINE void dropout_loop(std::int64_t rows, std::int64_t length, const ConstView& key,
                                const ConstView& samples, std::int64_t first_element,
                                std::uint32_t site, double p, Body body) {
  constexpr std::int64_t kStep = 8 * kLanes<float>, kGrain = 16384;
  const std::int64_t* seed_and_step = key.data<std::int64_t>();
  const std::int64_t* sample = samples.data<std::int64_t>();
  const std::uint64_t k = random_key(static_cast<std::uint64_t>(seed_and_step[0]),
                                     static_cast<std::uint64_t>(seed_and_step[1]));
  const std::uint32_t threshold = dropout_threshold(p);
  const std::int64_t blocks = chunk_count(length, kGrain);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, length));
  parallel_for(rows * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t row = unit / blocks, first = unit % blocks * kGrain;
      const std::int64_t last = std::min(length, first + kGrain);
      for (std::int64_t e = first; e < last; e += kStep) {
        alignas(64) std::uint32_t words[kStep / 2];
        philox_block(k, static_cast<std::uint32_t>((first_element + e) / 8), site,
                     static_cast<std::uint64_t>(sample[row]), words);
        alignas(64) std::uint16_t bits[kStep];
        std::memcpy(bits, words, sizeof bits);
        vector_loop<C>(std::min(kStep, last - e), [&](std::int64_t i, auto part) {
          body(row * length + e + i, kept<C>(bits + i, threshold), part);
        });
      }
    }
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
