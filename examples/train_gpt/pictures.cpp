#include "examples/train_gpt/pictures.h"
#include <spawn.h>
#include <sys/wait.h>
#include <fstream>
#include <accrue/core/file.h>
#include <accrue/core/memory_picture.h>

extern char** environ;

namespace train_gpt {
namespace {
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
  std::ofstream(dir + "/loss.gp")
      << "set terminal svg size 800,480 background 'white'\nset output 'loss.svg'\nset "
         "datafile separator '\\t'\n"
         "set datafile missing 'nan'\nset xlabel 'optimizer step'\nset ylabel 'loss (nats per "
         "token)'\nset grid\n"
         "plot 'loss.tsv' skip 1 using 1:2 with lines title 'training', "
         "'' skip 1 using 1:3 with linespoints pointtype 7 title 'held out'\n";
  std::vector<std::string> files{dir + "/loss.tsv"};
  if (gnuplot(dir, "loss.gp")) files.push_back(dir + "/loss.svg");
  return files;
}

std::vector<std::string> draw_memory(const std::string& dir,
                                     const std::vector<accrue::MemoryEvent>& timeline,
                                     const accrue::CategoryBytes& start, std::int64_t budget) {
  std::vector<std::string> files{dir + "/memory.tsv", dir + "/memory.svg"};
  accrue::write_text_file(files[0], accrue::memory_tsv(timeline, start));
  accrue::write_text_file(files[1], accrue::memory_svg(timeline, start, budget));
  return files;
}
}  // namespace train_gpt
