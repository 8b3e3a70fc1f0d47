#!/bin/sh
# Writes king_james.txt beside this script: Genesis to 1 Samuel of the King James text in Debian's bible-kjv.
# One verse starts one line, lines are at most 72 characters, an empty line divides chapters.
set -eu
bible -f -l100000 gen1:1-1sam31:13 </dev/null |
  LC_ALL=C awk '
    {
      chapter = $1
      sub(/:.*/, "", chapter)
      if (NR > 1 && chapter != previous) print ""
      previous = chapter
      line = $2
      for (i = 3; i <= NF; ++i)
        if (length(line) + 1 + length($i) > 72) { print line; line = $i } else line = line " " $i
      print line
    }' >"$(dirname "$0")/king_james.txt"
