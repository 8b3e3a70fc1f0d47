#pragma once
// The numbers that tests/fixtures/make_fixtures.py wrote to tests/data.
#include <string>
#include <vector>
#include <accrue/core/tensor.h>
#include <accrue/core/safetensors.h>

namespace accrue::test {

class Fixture {
 public:
  /// A file of tests/data, without its ending: Fixture("torch_ops").
  explicit Fixture(const std::string& name);
  const std::string& path() const { return file_.path(); }
  bool has(const std::string& name) const { return file_.contains(name); }
  std::vector<std::string> names() const { return file_.names(); }
  /// On the CPU, as stored.
  Tensor tensor(const std::string& name) const { return file_.read(name); }
  /// Floating tensors in `dtype`; integers stay what they are.
  Tensor tensor(const std::string& name, DType dtype) const;
  std::vector<double> values(const std::string& name) const;
  double value(const std::string& name) const { return values(name).at(0); }
  /// A number of the file's metadata.
  double setting(const std::string& name) const { return std::stod(file_.metadata().at(name)); }

 private:
  SafetensorsFile file_;
};

std::vector<double> to_doubles(const Tensor& t);

/// Fails with the worst element unless |got - want| <= tolerance * max(1, max |want|) everywhere.
void check_near(const std::string& what, const std::vector<double>& got,
                const std::vector<double>& want, double tolerance);
void check_near(const std::string& what, const Tensor& got, const std::vector<double>& want,
                double tolerance);
/// The same with tolerance * max |want|, however small that is: as gradients want it.
void check_relative(const std::string& what, const std::vector<double>& got,
                    const std::vector<double>& want, double tolerance);
void check_relative(const std::string& what, const Tensor& got, const std::vector<double>& want,
                    double tolerance);
}  // namespace accrue::test
