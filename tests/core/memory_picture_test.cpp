#include <algorithm>
#include <regex>
#include <accrue/core/memory_picture.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;

namespace {
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

MemoryEvent event(std::int64_t bytes, Category c) { return {bytes, 0, c, "", ""}; }
MemoryStats at_peak(const CategoryBytes& bytes) {
  MemoryStats s;
  s.at_peak = bytes;
  return s;
}
std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Corner {
  double x, y;
};
// The corners of the area of one category, in the order drawn.
std::vector<Corner> area(const std::string& svg, const std::string& color) {
  const std::string begin = "<path fill=\"" + color + "\" d=\"";
  const auto at = svg.find(begin);
  if (at == std::string::npos) return {};
  const std::string d =
      svg.substr(at + begin.size(), svg.find('"', at + begin.size()) - at - begin.size());
  std::vector<Corner> out;
  const std::regex command("([MHVZ])([-0-9.]*) ?([-0-9.]*)");
  for (auto i = std::sregex_iterator(d.begin(), d.end(), command); i != std::sregex_iterator();
       ++i) {
    const std::string c = (*i)[1];
    if (c == "M") out.push_back({std::stod((*i)[2]), std::stod((*i)[3])});
    if (c == "H") out.push_back({std::stod((*i)[2]), out.back().y});
    if (c == "V") out.push_back({out.back().x, std::stod((*i)[2])});
  }
  return out;
}
double highest(const std::vector<Corner>& area) {
  double y = 1e9;
  for (const Corner& c : area) y = std::min(y, c.y);
  return y;
}
// Every tag that is opened is closed, in order.
bool well_formed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)((?:\\s+[A-Za-z-]+=\"[^\"<]*\")*)\\s*(/?)>");
  std::string rest = svg, outside;
  for (std::smatch m; std::regex_search(rest, m, tag); rest = m.suffix()) {
    outside += m.prefix();
    if (m[1].length() > 0) {
      if (open.empty() || open.back() != m[2]) return false;
      open.pop_back();
    } else if (m[4].length() == 0) {
      open.push_back(m[2]);
    }
  }
  return open.empty() && outside.find_first_of("<>&") == std::string::npos;
}
// Height of the drawing, see the picture: 0 lies at 410, and the top at 1.05 times the highest.
double y_of(double bytes, double top) { return 40 + 370 * (1 - bytes / (1.05 * top)); }
}  // namespace

TEST_CASE("memory_bar: a letter per share, dots for what is left", "[core][memory]") {
  const CategoryBytes bytes{4 * kMiB, 4 * kMiB, 8 * kMiB, 8 * kMiB, 0, 0};
  CHECK(memory_bar(at_peak(bytes), 28 * kMiB, 28) ==
        "[PPPPGGGGOOOOOOOOAAAAAAAA....] 24 MiB of 28 MiB: parameter 4 MiB, gradient 4 MiB, "
        "optimizer 8 MiB, activation 8 MiB");
  CHECK(memory_bar(at_peak(bytes), 0, 6) ==
        "[PGOOAA] 24 MiB: parameter 4 MiB, gradient 4 MiB, optimizer 8 MiB, activation 8 MiB");
  CHECK(memory_bar(at_peak({0, 0, 0, 0, 3 * kMiB, kMiB}), 0, 4) ==
        "[WWWC] 4 MiB: workspace 3 MiB, communication 1 MiB");
  CHECK(memory_bar(at_peak({}), 0, 4) == "[....] 0 B");
  CHECK(memory_bar(at_peak({}), kMiB, 4) == "[....] 0 B of 1 MiB");
  CHECK(memory_bar(at_peak({kMiB, 0, 0, 0, 0, 0}), 1000 * kMiB, 5) ==
        "[.....] 1 MiB of 1000 MiB: parameter 1 MiB");
  CHECK(memory_bar(at_peak({2 * kMiB, 0, 0, 0, 0, 0}), kMiB, 3) ==
        "[PPP] 2 MiB of 1 MiB: parameter 2 MiB");
  CHECK(memory_bar(at_peak({kMiB, 0, 0, 0, 0, 0}), 0, 0) == "[] 1 MiB: parameter 1 MiB");
  CHECK(error_of([&] { memory_bar(at_peak({}), 0, -1); }) ==
        "memory_bar: the width must not be negative, got -1");
}

TEST_CASE("memory_bar: shows what each category held at the peak", "[core][memory]") {
  Allocator& memory = Allocator::of(Device::meta());
  memory.reset_peak();
  const MemoryStats before = memory.stats();
  void* const a = memory.allocate(3 * kMiB, {"a", Category::kWorkspace});
  memory.release(a);
  void* const b = memory.allocate(kMiB, {"b", Category::kGradient});
  MemoryStats now = memory.stats();
  memory.release(b);
  for (std::size_t c = 0; c < now.at_peak.size(); ++c) now.at_peak[c] -= before.live_by_category[c];
  CHECK(memory_bar(now, 0, 3) == "[WWW] 3 MiB: workspace 3 MiB");
}

TEST_CASE("memory_tsv: one line per event, on top of the start", "[core][memory]") {
  const std::vector<MemoryEvent> timeline{event(10, Category::kActivation),
                                          event(7, Category::kWorkspace),
                                          event(-10, Category::kActivation)};
  CHECK(memory_tsv(timeline, {1, 2, 3, 4, 0, 0}) ==
        "event\tparameter\tgradient\toptimizer\tactivation\tworkspace\tcommunication\n"
        "0\t1\t2\t3\t4\t0\t0\n"
        "1\t1\t2\t3\t14\t0\t0\n"
        "2\t1\t2\t3\t14\t7\t0\n"
        "3\t1\t2\t3\t4\t7\t0\n");
}

TEST_CASE("memory_svg: stacked areas, a legend with each category's own peak, the budget",
          "[core][memory]") {
  const std::vector<MemoryEvent> timeline{
      event(2 * kMiB, Category::kActivation), event(kMiB, Category::kWorkspace),
      event(-kMiB, Category::kWorkspace), event(-2 * kMiB, Category::kActivation)};
  const std::string svg = memory_svg(timeline, {4 * kMiB, 0, 0, 0, 0, 0}, 10 * kMiB);
  CHECK(well_formed(svg));
  CHECK(has(svg, ">peak 7 MiB of a budget of 10 MiB<"));
  CHECK(has(svg, ">parameter, up to 4 MiB<"));
  CHECK(has(svg, ">activation, up to 2 MiB<"));
  CHECK(has(svg, ">workspace, up to 1 MiB<"));
  CHECK(has(svg, ">budget, 10 MiB<"));
  CHECK(has(svg, ">MiB<"));
  CHECK(has(svg, ">10</text>"));
  CHECK_FALSE(has(svg, "gradient"));

  const double top = 10.0 * kMiB;
  CHECK(highest(area(svg, "#0072b2")) == Approx(y_of(4.0 * kMiB, top)).margin(0.06));
  const auto activation = area(svg, "#56b4e9"), workspace = area(svg, "#cc79a7");
  CHECK(highest(activation) == Approx(y_of(6.0 * kMiB, top)).margin(0.06));
  CHECK(highest(workspace) == Approx(y_of(7.0 * kMiB, top)).margin(0.06));
  // It rises at event 1 of 4 and falls at event 4: a step, never a slope.
  REQUIRE(activation.size() >= 5);
  CHECK(activation[2].x == Approx(70 + 620 / 4.0).margin(0.06));
  CHECK(activation[2].y == activation[1].y);
  CHECK(activation[3].x == activation[2].x);
  CHECK(activation.front().y == Approx(410));
  CHECK(activation.back().y == Approx(410));
  CHECK(has(svg, "<path id=\"budget\""));
  std::smatch m;
  REQUIRE(
      std::regex_search(svg, m, std::regex("<path id=\"budget\"[^>]* d=\"M70.0 ([0-9.]+)H690")));
  CHECK(std::stod(m[1]) == Approx(y_of(top, top)).margin(0.06));
}

TEST_CASE("memory_svg: nothing, no budget, more than the budget", "[core][memory]") {
  const std::string nothing = memory_svg({}, {}, 0);
  CHECK(well_formed(nothing));
  CHECK(has(nothing, ">peak 0 B<"));
  CHECK_FALSE(has(nothing, "budget"));
  CHECK_FALSE(has(nothing, "nan"));
  const std::string start = memory_svg({}, {0, 0, kMiB, 0, 0, 0}, 0);
  CHECK(highest(area(start, "#009e73")) == Approx(y_of(1, 1)).margin(0.06));
  const std::string over = memory_svg({}, {2 * kMiB, 0, 0, 0, 0, 0}, kMiB);
  CHECK(highest(area(over, "#0072b2")) == Approx(y_of(1, 1)).margin(0.06));
  const std::string large = memory_svg({}, {std::int64_t{1} << 55, 0, 0, 0, 0, 0}, 0);
  CHECK(well_formed(large));
  CHECK(has(large, ">peak 32768 TiB<"));
}

TEST_CASE("memory_svg: a long timeline is thinned, and every column keeps its peak",
          "[core][memory]") {
  std::vector<MemoryEvent> timeline;
  constexpr int kEvents = 200000;
  for (int i = 0; i < kEvents / 2; ++i) {
    // One spike of 64 KiB in the middle, one of 32 KiB late, 1 KiB everywhere else.
    const std::int64_t bytes = i == 50001 ? 64 << 10 : i == 80003 ? 32 << 10 : 1 << 10;
    timeline.push_back(event(bytes, Category::kActivation));
    timeline.push_back(event(-bytes, Category::kActivation));
  }
  const std::string svg = memory_svg(timeline, {}, 0);
  CHECK(svg.size() < 200000);
  CHECK(has(svg, ">peak 64 KiB<"));
  const auto corners = area(svg, "#56b4e9");
  const double top = 64 << 10;
  const auto peak_near = [&](double event) {
    double y = 1e9;
    const double x = 70 + 620 * event / kEvents;
    for (const Corner& c : corners)
      if (std::abs(c.x - x) <= 1.1) y = std::min(y, c.y);
    return y;
  };
  CHECK(peak_near(100003) == Approx(y_of(top, top)).margin(0.06));
  CHECK(peak_near(160007) == Approx(y_of(top / 2, top)).margin(0.06));
  for (const int event : {10000, 60000, 150000, 199000})
    CHECK(peak_near(event) == Approx(y_of(1024, top)).margin(0.06));
  // Few enough events are drawn one by one.
  timeline.resize(600);
  CHECK(count(memory_svg(timeline, {}, 0), "H") > 600);
}
