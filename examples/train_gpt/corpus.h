#pragma once
// The tokens of a run: read from a text file or a token file, cut into training and held-out
// sequences.
#include <cstdint>
#include <memory>
#include <accrue/data/data.h>
#include "examples/train_gpt/options.h"

namespace train_gpt {

struct Corpus {
  std::unique_ptr<accrue::data::Tokenizer>
      tokenizer;  // null for a .bin file: nothing to decode with
  std::int64_t vocabulary = 0;
  std::uint64_t hash = 0;  // of all tokens
  std::shared_ptr<const accrue::data::TokenDataset> train, validation;
};

/// Reads and checks everything; errors name the file and what to do.
Corpus load_corpus(const Options& options);
}  // namespace train_gpt
