#pragma once
// How many cases a test runs.

namespace accrue::test {
/// A sanitizer watches this build. A case takes ten times as long there, and what is looked for
/// (memory, threads) shows in the first ones; results are judged by the build without one, which
/// runs all of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kWatched = true;
#else
inline constexpr bool kWatched = false;
#endif

/// `all` cases, or where a sanitizer watches `some`.
template <class T>
constexpr T cases(T all, T some) {
  return kWatched ? some : all;
}
}  // namespace accrue::test
