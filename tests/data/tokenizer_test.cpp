#include <accrue/core/file.h>
#include <accrue/data/tokenizer.h>
#include <accrue/data/utf8.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;
using accrue::test::TemporaryFolder;
using Catch::Matchers::Contains;

namespace {
const std::string kText = reinterpret_cast<const char*>(u8"größer: 数 😀\n end");
}

TEST_CASE("byte tokenizer: every byte is its own token", "[data][tokenizer][cpu]") {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const ByteTokenizer bytes;
  const auto tokens = bytes.encode(all);
  REQUIRE(tokens.size() == 256);
  for (int i = 0; i < 256; ++i) CHECK(tokens[static_cast<std::size_t>(i)] == i);
  CHECK(bytes.decode(tokens) == all);
  CHECK(bytes.vocab_size() == 256);
  CHECK(bytes.encode("").empty());
  CHECK(bytes.decode({}).empty());
  const std::vector<std::int32_t> wrong{1, 256};
  CHECK(error_of([&] { (void)bytes.decode(wrong); }) ==
        "decode: token 256 at position 1 is outside the vocabulary of 256");
}

TEST_CASE("char tokenizer: the vocabulary is sorted by code point", "[data][tokenizer][cpu]") {
  const auto chars = CharTokenizer::from_text(reinterpret_cast<const char*>(u8"b😀aéa\nbé"));
  CHECK(chars.vocabulary() == std::vector<char32_t>{U'\n', U'a', U'b', U'é', U'😀'});
  CHECK(chars.vocab_size() == 5);
  CHECK(chars.encode(reinterpret_cast<const char*>(u8"a😀\né")) ==
        std::vector<std::int32_t>{1, 4, 0, 3});
  CHECK(CharTokenizer::from_text("").vocab_size() == 0);
}

TEST_CASE("char tokenizer: decode undoes encode", "[data][tokenizer][cpu]") {
  const auto chars = CharTokenizer::from_text(kText);
  CHECK(chars.decode(chars.encode(kText)) == kText);
  CHECK(error_of([&] { (void)chars.encode("gr?"); }) ==
        "encode: the character U+003F at byte 2 is not among the 12 of the vocabulary; build it "
        "from a text that holds all characters");
  const std::vector<std::int32_t> wrong{0, -1};
  CHECK_THAT(error_of([&] { (void)chars.decode(wrong); }), Contains("token -1 at position 1"));
  CHECK_THAT(error_of([] { CharTokenizer({U'b', U'a'}); }), Contains("must ascend"));
  CHECK_THAT(error_of([] { CharTokenizer({char32_t{0xD800}}); }),
             Contains("not a Unicode scalar value"));
}

TEST_CASE("utf8: every scalar value round-trips", "[data][tokenizer][cpu]") {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    std::size_t at = 0;
    if (decode_utf8(text, at) != c || at != text.size()) FAIL("code point " << to_string(c));
  }
}

TEST_CASE("utf8: what is not UTF-8 is an error with the offset", "[data][tokenizer][cpu]") {
  using namespace std::string_literals;
  const auto [bad, what] = GENERATE(table<std::string, std::string>({
      {"\x80", "without a lead byte"},
      {"\xC0\x80", "never occurs"},            // overlong NUL
      {"\xC1\xBF", "never occurs"},            // overlong
      {"\xE0\x9F\xBF", "wrong continuation"},  // overlong
      {"\xF0\x8F\xBF\xBF", "wrong continuation"},
      {"\xED\xA0\x80", "wrong continuation"},  // surrogate
      {"\xF4\x90\x80\x80", "wrong continuation"},
      {"\xF5\x80\x80\x80", "never occurs"},
      {"\xFF", "never occurs"},
      {"\xC3", "ends inside"},
      {"\xE2\x82", "ends inside"},
      {"\xF0\x9F\x98", "ends inside"},
      {"\xC3(", "wrong continuation"},
      {"\xE2\x82"s + "A", "wrong continuation"},
  }));
  const std::string text = "ok" + bad;
  const std::string error = error_of([&] { (void)CharTokenizer::from_text(text); });
  CHECK_THAT(error, Contains("invalid UTF-8 at byte 2 (0x") && Contains(what) &&
                        Contains("use the byte tokenizer"));
}

TEST_CASE("tokenizers: saved and loaded they are the same", "[data][tokenizer][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json";
  const auto chars = CharTokenizer::from_text(kText + "\"\\/\b\t\x7F");
  chars.save(path);
  const auto loaded = Tokenizer::load(path);
  CHECK(loaded->kind() == "char");
  CHECK(dynamic_cast<const CharTokenizer&>(*loaded).vocabulary() == chars.vocabulary());
  CHECK(loaded->encode(kText) == chars.encode(kText));
  ByteTokenizer().save(path);
  CHECK(Tokenizer::load(path)->kind() == "byte");
  CHECK(folder.files() == 1);
}

TEST_CASE("tokenizers: a wrong file is refused", "[data][tokenizer][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json";
  const auto [text, what] = GENERATE(table<std::string, std::string>({
      {"", "not a tokenizer file"},
      {"{", "not a tokenizer file"},
      {"[]", "expected one JSON object"},
      {R"({"kind":"byte"})", "\"version\" is missing"},
      {R"({"kind":"byte","version":2})", "\"version\" must be 1, got 2"},
      {R"({"version":1})", "\"kind\" is missing"},
      {R"({"kind":"word","version":1})", "must be \"byte\" or \"char\""},
      {R"({"kind":"byte","kind":"byte","version":1})", "\"kind\" occurs twice"},
      {R"({"kind":"byte","version":1,"extra":0})", "unknown fields"},
      {R"({"kind":"byte","version":1} x)", "not a tokenizer file"},
      {R"({"kind":"char","version":1})", "\"vocabulary\" is missing"},
      {R"({"kind":"char","version":1,"vocabulary":{}})", "must be an array"},
      {R"({"kind":"char","version":1,"vocabulary":[1]})", "\"vocabulary\"[0] must be a string"},
      {R"({"kind":"char","version":1,"vocabulary":[""]})", "must be one character"},
      {R"({"kind":"char","version":1,"vocabulary":["a","bc"]})", "[1] must be one character"},
      {R"({"kind":"char","version":1,"vocabulary":["b","a"]})", "must come after U+0062"},
      {R"({"kind":"char","version":1,"vocabulary":["a","a"]})", "must come after U+0061"},
      {R"({"kind":"char","version":1,"vocabulary":[["a"]]})", "not a tokenizer file"},
      {"{\"kind\":\"char\",\"version\":1,\"vocabulary\":[\"\xFF\"]}", "not a tokenizer file"},
      {std::string(100000, '['), "not a tokenizer file"},
      {R"({"kind":"byte","version":1e999})", "not a tokenizer file"},
  }));
  write_text_file(path, text);
  try {
    (void)Tokenizer::load(path);
    FAIL("accepted: " << text);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kCorrupt);
    CHECK_THAT(e.what(), Contains(path) && Contains(what) && Contains("Tokenizer::save"));
  }
  CHECK_THAT(error_of([&] { (void)Tokenizer::load(folder / "none.json"); }),
             Contains("none.json: cannot open: No such file"));
}

TEST_CASE("the example text: ASCII, 62 characters, and it comes back", "[data][tokenizer][cpu]") {
  const std::string text =
      read_text_file(std::string(ACCRUE_TEST_DATA) + "/../../examples/data/king_james.txt");
  CHECK(text.size() == 1156449);
  const auto chars = CharTokenizer::from_text(text);
  CHECK(chars.vocab_size() == 62);
  const auto tokens = chars.encode(text);
  CHECK(tokens.size() == text.size());
  CHECK(chars.decode(tokens) == text);
}
