#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <cstring>
#include <sstream>
#include <accrue/dist/environment.h>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/launch.h>
#include <launch_settings.h>

namespace accrue::dist {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}
std::string this_program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path)
    detail::fail(ErrorCode::kIo, "relaunch_under_mpirun: /proc/self/exe cannot be read");
  return {path, static_cast<std::size_t>(length)};
}
}  // namespace

std::vector<std::pair<std::string, std::string>> launch_settings() {
  std::vector<std::pair<std::string, std::string>> settings;
  std::istringstream lines(kLaunchSettings);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    settings.emplace_back(trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1)));
  }
  return settings;
}

void relaunch_under_mpirun(int ranks, const std::vector<std::string>& arguments,
                           const std::string& hosts) {
  ACCRUE_CHECK(ranks >= 1, "relaunch_under_mpirun: ", ranks, " ranks");
  const Environment e = read_environment(environ);
  if (e.launcher != Launcher::kNone)
    throw DistributedError(
        ExitCode::kBadLaunch,
        detail::concat("bad launch: started by ", name_of(e.launcher), " and asked to start ",
                       ranks, " ranks itself; do one or the other"));
  for (const auto& [name, value] : launch_settings())
    setenv(("OMPI_MCA_" + name).c_str(), value.c_str(), 0);
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
  if (!hosts.empty()) words.insert(words.end(), {"-H", hosts});
  words.push_back(this_program());
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Debian's name for it where another MPI's mpirun may be installed too.
  execvp("mpirun.openmpi", argv.data());
  execvp("mpirun", argv.data());
  detail::fail(ErrorCode::kUnsupported,
               detail::concat("relaunch_under_mpirun: mpirun cannot be started: ",
                              std::strerror(errno), " (Debian: openmpi-bin)"));
}
}  // namespace accrue::dist
