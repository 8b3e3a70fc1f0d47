#!/usr/bin/env bash
# C++ in the documents is C++ that is compiled. Usage: snippets.sh <root of the tree> <compile_commands.json>
# A block in README.md or docs/**/*.md opens with the file it is taken from:
#
#   ```cpp file=examples/embed.cpp
#
# Its lines must stand in that file, one after the other (a common indentation does not count), and the file
# must be one that the build compiles (or belong to tests/install). A ```cpp block without file= is a fault.
set -uo pipefail
commands=$(realpath "$2")
cd "$1" || exit 2
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}
# Lines without trailing blanks and without their common indentation.
plain() {
  awk '{sub(/[ \t]+$/, ""); line[NR] = $0
        if ($0 != "") {match($0, /^ */); if (least == "" || RLENGTH < least) least = RLENGTH}}
       END {for (i = 1; i <= NR; ++i) print substr(line[i], least + 1)}'
}
# found <snippet> <file>: is the snippet a run of lines of the file, at any one indentation?
found() {
  awk 'NR == FNR {want[++n] = $0; next}
       {sub(/[ \t]+$/, ""); have[++m] = $0}
       END {
         for (i = 1; i + n - 1 <= m; ++i) {
           match(have[i], /^ */); match_at = RLENGTH
           match(want[1], /^ */); pad = match_at - RLENGTH
           if (pad < 0) continue
           margin = sprintf("%" pad "s", "")
           for (j = 1; j <= n; ++j)
             if (have[i + j - 1] != (want[j] == "" ? "" : margin want[j])) break
           if (j > n) exit 0
         }
         exit 1
       }' "$1" "$2"
}

snippet=$(mktemp)
trap 'rm -f "$snippet"' EXIT
documents=()
[ -f README.md ] && documents+=(README.md)
[ -d docs ] && mapfile -t -O ${#documents[@]} documents < <(find docs -name '*.md' | sort)
for document in "${documents[@]}"; do
  while IFS=: read -r number opening; do
    at="$document:$number"
    path=$(sed -nE 's/^ *```cpp .*\bfile=([^ ]+).*/\1/p' <<<"$opening")
    if [ -z "$path" ]; then
      fault "$at: a C++ block needs file=<the compiled file it is taken from>"
      continue
    fi
    if [ ! -f "$path" ]; then
      fault "$at: $path does not exist"
      continue
    fi
    case $path in
      tests/install/* | *.h | *.cuh) ;;
      *.cu) # a build without CUDA compiles none
        ! grep -q '\.cu"' "$commands" || grep -qF "/$path\"" "$commands" ||
          fault "$at: the build does not compile $path"
        ;;
      *nccl*) # nor does one without NCCL
        ! grep -q '/dist/nccl/' "$commands" || grep -qF "/$path\"" "$commands" ||
          fault "$at: the build does not compile $path"
        ;;
      *) grep -qF "/$path\"" "$commands" || fault "$at: the build does not compile $path" ;;
    esac
    tail -n "+$((number + 1))" "$document" | sed -n '/^ *```/q;p' | plain >"$snippet"
    [ -s "$snippet" ] || fault "$at: an empty block"
    found "$snippet" "$path" || fault "$at: these lines do not stand in $path"
  done < <(grep -nE '^ *```(cpp|c\+\+|cxx|C\+\+)([[:space:]]|$)' "$document")
done
[ "$faults" -eq 0 ]
