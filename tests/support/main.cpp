#if __has_include(<catch2/catch_all.hpp>)
  #include <catch2/catch_all.hpp>
#else
  #define CATCH_CONFIG_RUNNER
  #include <catch2/catch.hpp>
#endif
#include <accrue/core/allocator.h>

// Fresh memory is NaN in every test: nobody may rely on its content, and beta 0 must not read it.
int main(int argc, char** argv) {
  accrue::Allocator::of(accrue::Device::cpu()).set_poison(true);
  return Catch::Session().run(argc, argv);
}
