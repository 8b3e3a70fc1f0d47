#pragma once
// Where the gradients of parameters go that have no memory of their own between two backwards.
#include <accrue/core/tensor.h>

namespace accrue {

class GradientHome {
 public:
  /// While it lives, backwards of this thread ask `home` for the memory of such gradients.
  class Scope {
   public:
    explicit Scope(GradientHome& home);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    GradientHome* previous_;
  };
  /// Makes slot.grad valid, whose first write comes next. Throws when nobody is there who could.
  static void provide_for(GradSlot& slot);

 protected:
  ~GradientHome() = default;
  virtual void provide(GradSlot& slot) = 0;
};
}  // namespace accrue
