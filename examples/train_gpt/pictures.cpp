#include "examples/train_gpt/pictures.h"
#include <spawn.h>
#include <sys/wait.h>
#include <fstream>

extern char** environ;

namespace train_gpt {
namespace {
constexpr double kMiB = 1024.0 * 1024.0;

// gnuplot on a script file; false when it is not installed or fails.
bool gnuplot(const std::string& dir, const std::string& script) {
  std::string name = "gnuplot", file = script;
  char* arguments[] = {name.data(), file.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, dir.c_str());
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
  pid_t child = 0;
  const int error = posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return false;
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::vector<std::string> draw(const std::string& dir, const std::string& name,
                              const std::string& script) {
  std::ofstream(dir + "/" + name + ".gp") << script;
  std::vector<std::string> files{dir + "/" + name + ".tsv"};
  if (gnuplot(dir, name + ".gp")) files.push_back(dir + "/" + name + ".svg");
  return files;
}
}  // namespace

std::vector<std::string> draw_loss(const std::string& dir, const std::vector<LossPoint>& points) {
  std::ofstream out(dir + "/loss.tsv");
  out << "step\tloss\tvalidation\n";
  for (const LossPoint& p : points) {
    out << p.step << '\t' << p.loss << '\t';
    if (p.validation >= 0)
      out << p.validation;
    else
      out << "nan";
    out << '\n';
  }
  out.close();
  return draw(dir, "loss",
              "set terminal svg size 800,480 background 'white'\nset output 'loss.svg'\nset "
              "datafile separator '\\t'\n"
              "set datafile missing 'nan'\nset xlabel 'optimizer step'\nset ylabel 'loss (nats per "
              "token)'\nset grid\n"
              "plot 'loss.tsv' skip 1 using 1:2 with lines title 'training', "
              "'' skip 1 using 1:3 with linespoints pointtype 7 title 'held out'\n");
}

std::vector<std::string> draw_memory(const std::string& dir,
                                     const std::vector<accrue::MemoryEvent>& timeline,
                                     const accrue::CategoryBytes& start, std::int64_t budget) {
  std::ofstream out(dir + "/memory.tsv");
  out << "event";
  for (int c = 0; c < accrue::kCategories; ++c)
    out << '\t' << accrue::name_of(static_cast<accrue::Category>(c));
  out << '\n';
  accrue::CategoryBytes live = start;
  std::int64_t number = 0;
  const auto row = [&] {
    out << number++;
    double sum = 0;  // stacked: each column is the height up to and including its category
    for (const std::int64_t bytes : live) out << '\t' << (sum += static_cast<double>(bytes) / kMiB);
    out << '\n';
  };
  row();
  for (const accrue::MemoryEvent& e : timeline) {
    live[static_cast<std::size_t>(e.category)] += e.bytes;
    row();
  }
  out.close();
  std::string plot = "plot ";
  for (int c = accrue::kCategories; c-- > 0;)
    plot += "'memory.tsv' skip 1 using 1:" + std::to_string(c + 2) +
            " with filledcurves x1 linecolor " + std::to_string(c + 1) + " title '" +
            std::string(accrue::name_of(static_cast<accrue::Category>(c))) + "', ";
  if (budget > 0)
    plot += std::to_string(static_cast<double>(budget) / kMiB) +
            " with lines linewidth 2 linecolor 'black' title 'budget'";
  else
    plot += "0 notitle";
  return draw(dir, "memory",
              "set terminal svg size 900,480 background 'white'\nset output 'memory.svg'\nset "
              "datafile separator '\\t'\n"
              "set xlabel 'allocations and releases of one optimizer step'\nset ylabel 'MiB'\nset "
              "yrange [0:*]\n"
              "set key outside right\nset grid\n" +
                  plot + "\n");
}
}  // namespace train_gpt
