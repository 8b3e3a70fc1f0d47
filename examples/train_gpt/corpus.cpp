#include "examples/train_gpt/corpus.h"
#include <accrue/core/file.h>
#include <accrue/core/hash.h>

namespace train_gpt {
using namespace accrue;

Corpus load_corpus(const Options& o) {
  Corpus c;
  std::unique_ptr<data::TokenDataset> all;
  if (o.data.ends_with(".bin")) {
    const auto file = std::make_shared<const data::TokenFile>(o.data);
    c.vocabulary = file->vocab_size();
    c.hash = file->checksum();
    all = std::make_unique<data::TokenDataset>(file, o.model.context);
  } else {
    const std::string text = read_text_file(o.data);
    ACCRUE_CHECK(!text.empty(), o.data, ": the file is empty");
    if (o.tokenizer == "char")
      c.tokenizer = std::make_unique<data::CharTokenizer>(data::CharTokenizer::from_text(text));
    else
      c.tokenizer = std::make_unique<data::ByteTokenizer>();
    c.vocabulary = c.tokenizer->vocab_size();
    c.hash = hash64(text);
    all = std::make_unique<data::TokenDataset>(c.tokenizer->encode(text), o.model.context);
  }
  if (o.validation > 0) {
    const auto split = all->split(o.validation);
    c.train = std::make_shared<const data::TokenDataset>(split.train);
    c.validation = std::make_shared<const data::TokenDataset>(split.validation);
  } else {
    c.train = std::make_shared<const data::TokenDataset>(*all);
  }
  return c;
}
}  // namespace train_gpt
