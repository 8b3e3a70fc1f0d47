#!/usr/bin/env bash
# Does snippets.sh see what it must? Usage: snippets_check.sh <empty folder>
set -euo pipefail
lint=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/snippets.sh
tree=$1
rm -rf "$tree"
mkdir -p "$tree/docs/deep" "$tree/examples"
printf 'int main() {\n  if (true) {\n    f();\n\n    g();\n  }\n}\n' >"$tree/examples/a.cpp"
echo 'int other;' >"$tree/examples/b.cpp"
printf '[{"file": "/tree/examples/a.cpp"}]\n' >"$tree/commands.json"
# document <opening> <lines>
document() { printf 'Text.\n\n%s\n%b\n```\n' "$1" "$2" >"$tree/docs/deep/a.md"; }
accepts() { document "$@"; bash "$lint" "$tree" "$tree/commands.json" || { echo "refused: $*" && exit 1; }; }
refuses() {
  document "$@"
  if bash "$lint" "$tree" "$tree/commands.json" >/dev/null; then echo "accepted: $*" && exit 1; fi
}
fence='```cpp'
accepts "$fence file=examples/a.cpp" 'int main() {\n  if (true) {'
accepts "$fence file=examples/a.cpp" 'f();\n\ng();'
accepts "$fence file=examples/a.cpp" '  g();\n}'
accepts '```text' 'anything'
refuses "$fence" 'f();'
refuses "$fence file=examples/a.cpp" 'f();\ng();'
refuses "$fence file=examples/a.cpp" 'f();\n\n  g();'
refuses "$fence file=examples/a.cpp" 'h();'
refuses "$fence file=examples/none.cpp" 'f();'
refuses "$fence file=examples/b.cpp" 'int other;'
refuses '```c++' 'f();'
# CUDA files: only a build that compiles some must compile the one in the document.
echo 'int kernel;' | tee "$tree/examples/a.cu" "$tree/examples/b.cu" >"$tree/examples/a.cuh"
accepts "$fence file=examples/a.cu" 'int kernel;'
accepts "$fence file=examples/a.cuh" 'int kernel;'
refuses "$fence file=examples/a.cu" 'int other;'
printf '[{"file": "/tree/examples/a.cu"}]\n' >"$tree/commands.json"
accepts "$fence file=examples/a.cu" 'int kernel;'
refuses "$fence file=examples/b.cu" 'int kernel;'
