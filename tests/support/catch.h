#pragma once
// The one place that knows which Catch2 is installed: 2.x has a single header, 3.x is split.
#if __has_include(<catch2/catch_all.hpp>)
  #include <catch2/catch_all.hpp>
#else
  #include <catch2/catch.hpp>
#endif
