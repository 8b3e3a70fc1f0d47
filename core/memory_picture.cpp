#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>
#include <accrue/core/memory_picture.h>

namespace accrue {
namespace {
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kLeft = 70, kTop = 40, kWidth = 620, kHeight = 370;
// Okabe and Ito's colours, which colour-blind people can tell apart.
constexpr std::array<const char*, kCategories> kColors{"#0072b2", "#e69f00", "#009e73",
                                                       "#56b4e9", "#cc79a7", "#d55e00"};

struct Point {
  std::int64_t event;
  CategoryBytes live;
};
std::int64_t sum(const CategoryBytes& live) {
  return std::accumulate(live.begin(), live.end(), std::int64_t{0});
}
std::string name(int category) { return std::string(name_of(static_cast<Category>(category))); }

template <class Visit>
void replay(std::span<const MemoryEvent> timeline, const CategoryBytes& start, Visit visit) {
  Point p{0, start};
  visit(p);
  for (const MemoryEvent& e : timeline) {
    ++p.event;
    p.live[static_cast<std::size_t>(e.category)] += e.bytes;
    visit(p);
  }
}

// The first, highest and lowest point of every column, and the last of all.
std::vector<Point> drawn(std::span<const MemoryEvent> timeline, const CategoryBytes& start) {
  const auto last = static_cast<std::int64_t>(timeline.size());
  const auto columns = static_cast<std::int64_t>(kWidth);
  std::vector<Point> out, column;
  const auto flush = [&] {
    const auto by_height = [](const Point& a, const Point& b) { return sum(a.live) < sum(b.live); };
    const auto [low, high] = std::minmax_element(column.begin(), column.end(), by_height);
    for (auto p = column.begin(); p != column.end(); ++p)
      if (last < columns || p == column.begin() || p == low || p == high) out.push_back(*p);
    column.clear();
  };
  const auto column_of = [&](std::int64_t event) { return event * columns / (last + 1); };
  replay(timeline, start, [&](const Point& p) {
    if (!column.empty() && column_of(column.front().event) != column_of(p.event)) flush();
    column.push_back(p);
    if (p.event == last) {
      flush();
      if (out.back().event != last) out.push_back(p);
    }
  });
  return out;
}

// 1, 2 or 5 times a power of ten: at most `ticks` of them fit into `range`.
double step_of(double range, int ticks) {
  const double least = range / ticks;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

template <class... Values>
std::string text(const char* format, Values... values) {
  std::array<char, 512> out{};
  std::snprintf(out.data(), out.size(), format, values...);
  return out.data();
}

struct Scale {
  double events, bytes;  // at the right and upper edge
  double x(double event) const { return kLeft + kWidth * event / events; }
  double y(double b) const { return kTop + kHeight * (1 - b / bytes); }
};

std::string area(const std::vector<Point>& points, int category, const Scale& at) {
  const auto height = [&](const Point& p) {
    return at.y(static_cast<double>(
        std::accumulate(p.live.begin(), p.live.begin() + category + 1, std::int64_t{0})));
  };
  std::string path = text("M%.1f %.1fV%.1f", at.x(0), at.y(0), height(points.front()));
  double last = height(points.front());
  for (const Point& p : points) {
    const double h = height(p);
    if (std::abs(h - last) < 0.05) continue;
    path += text("H%.1fV%.1f", at.x(static_cast<double>(p.event)), h);
    last = h;
  }
  path += text("H%.1fV%.1fZ", at.x(at.events), at.y(0));
  return text("<path fill=\"%s\" d=\"", kColors[static_cast<std::size_t>(category)]) + path +
         "\"/>\n";
}

std::string grid(const Scale& at) {
  std::string out;
  const double mib = step_of(at.bytes / kMiB, 8);
  for (double v = 0; v * kMiB <= at.bytes * (1 + 1e-9); v += mib) {
    const double y = at.y(v * kMiB);
    out +=
        text("<path stroke=\"#000\" stroke-opacity=\".15\" d=\"M%.1f %.1fH%.1f\"/>\n", kLeft, y,
             kLeft + kWidth) +
        text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", kLeft - 6, y + 4, v);
  }
  const double events = std::max(1.0, step_of(at.events, 8));
  for (double v = 0; v <= at.events; v += events)
    out += text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", at.x(v),
                kTop + kHeight + 18, v);
  return out;
}
}  // namespace

std::string memory_svg(std::span<const MemoryEvent> timeline, const CategoryBytes& start,
                       std::int64_t budget) {
  const std::vector<Point> points = drawn(timeline, start);
  CategoryBytes highest{};
  const Point* peak = &points.front();
  for (const Point& p : points) {
    if (sum(p.live) > sum(peak->live)) peak = &p;
  }
  replay(timeline, start, [&](const Point& p) {
    for (std::size_t c = 0; c < highest.size(); ++c) highest[c] = std::max(highest[c], p.live[c]);
  });
  const auto top = static_cast<double>(std::max({sum(peak->live), budget, std::int64_t{1}}));
  const Scale at{std::max(1.0, static_cast<double>(timeline.size())), 1.05 * top};
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 480\" width=\"900\" "
      "height=\"480\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"900\" height=\"480\" fill=\"white\"/>\n";
  const std::string of = budget > 0 ? " of a budget of " + format_bytes(budget) : "";
  out += text("<text x=\"%.1f\" y=\"22\" font-size=\"14\">", kLeft) + "peak " +
         format_bytes(sum(peak->live)) + of + "</text>\n";
  for (int c = kCategories; c-- > 0;)
    if (highest[static_cast<std::size_t>(c)] > 0) out += area(points, c, at);
  out += grid(at);
  const double peak_x = at.x(static_cast<double>(peak->event));
  const double peak_y = at.y(static_cast<double>(sum(peak->live)));
  out += text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"none\" stroke=\"#000\"/>\n", peak_x,
              peak_y);
  if (budget > 0)
    out += text(
        "<path id=\"budget\" stroke=\"#000\" stroke-width=\"2\" stroke-dasharray=\"8 4\" "
        "d=\"M%.1f %.1fH%.1f\"/>\n",
        kLeft, at.y(static_cast<double>(budget)), kLeft + kWidth);
  double y = kTop + 10;
  const double x = kLeft + kWidth + 20;
  for (int c = kCategories; c-- > 0;) {
    const std::int64_t most = highest[static_cast<std::size_t>(c)];
    if (most <= 0) continue;
    out += text("<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y - 10,
                kColors[static_cast<std::size_t>(c)]) +
           text("<text x=\"%.1f\" y=\"%.1f\">", x + 18, y) + name(c) + ", up to " +
           format_bytes(most) + "</text>\n";
    y += 20;
  }
  if (budget > 0)
    out += text(
               "<path stroke=\"#000\" stroke-width=\"2\" stroke-dasharray=\"4 2\" "
               "d=\"M%.1f %.1fh12\"/>\n",
               x, y - 4) +
           text("<text x=\"%.1f\" y=\"%.1f\">", x + 18, y) + "budget, " + format_bytes(budget) +
           "</text>\n";
  out +=
      text("<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">MiB</text>\n",
           kTop + kHeight / 2) +
      text(
          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">allocations and "
          "releases</text>\n</svg>\n",
          kLeft + kWidth / 2, kTop + kHeight + 44);
  return out;
}

std::string memory_tsv(std::span<const MemoryEvent> timeline, const CategoryBytes& start) {
  std::string out = "event";
  for (int c = 0; c < kCategories; ++c) out += '\t' + name(c);
  out += '\n';
  replay(timeline, start, [&](const Point& p) {
    out += std::to_string(p.event);
    for (const std::int64_t bytes : p.live) out += '\t' + std::to_string(bytes);
    out += '\n';
  });
  return out;
}

std::string memory_bar(const MemoryStats& stats, std::int64_t budget, int width) {
  ACCRUE_CHECK(width >= 0, "memory_bar: the width must not be negative, got ", width);
  const double whole = static_cast<double>(std::max({sum(stats.at_peak), budget, std::int64_t{1}}));
  std::string bar, list;
  double below = 0;
  for (int c = 0; c < kCategories; ++c) {
    const std::int64_t bytes = stats.at_peak[static_cast<std::size_t>(c)];
    below += static_cast<double>(bytes);
    const auto end = static_cast<std::size_t>(std::lround(width * below / whole));
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(name(c)[0])));
    bar.resize(std::max(end, bar.size()), letter);
    if (bytes > 0) list += (list.empty() ? ": " : ", ") + name(c) + ' ' + format_bytes(bytes);
  }
  bar.resize(static_cast<std::size_t>(width), '.');
  return '[' + bar + "] " + format_bytes(sum(stats.at_peak)) +
         (budget > 0 ? " of " + format_bytes(budget) : "") + list;
}
}  // namespace accrue
