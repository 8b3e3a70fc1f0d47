#include <unistd.h>
#include <accrue/dist/failure.h>

namespace accrue::dist {

void exit_on_failure(const Failure& failure) {
  const std::string text = failure.text + "\n";
  const char* at = text.data();
  std::size_t left = text.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, at, left);
    if (written <= 0) break;
    at += written;
    left -= static_cast<std::size_t>(written);
  }
  _exit(static_cast<int>(failure.code));
}
}  // namespace accrue::dist
