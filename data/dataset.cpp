#include <cstddef>
#include <utility>
#include <accrue/core/error.h>
#include <accrue/data/dataset.h>

namespace accrue::data {

TokenDataset::TokenDataset(std::shared_ptr<const TokenFile> file, std::int64_t time)
    : file_(std::move(file)), time_(time) {
  ACCRUE_CHECK(file_, "TokenDataset: no token file");
  tokens_ = file_->view();
  check();
}
TokenDataset::TokenDataset(std::vector<std::int32_t> tokens, std::int64_t time)
    : own_(std::make_shared<const std::vector<std::int32_t>>(std::move(tokens))),
      tokens_{own_->data(), 4, static_cast<std::int64_t>(own_->size())},
      time_(time) {
  check();
}
TokenDataset::TokenDataset(TokenView tokens, std::int64_t time) : tokens_(tokens), time_(time) {
  check();
}
TokenDataset::TokenDataset(const TokenDataset& whole, std::int64_t first, std::int64_t count)
    : TokenDataset(whole) {
  tokens_.data =
      static_cast<const std::byte*>(whole.tokens_.data) + first * whole.tokens_.bytes_per_token;
  tokens_.count = count;
  check();
}
void TokenDataset::check() const {
  ACCRUE_CHECK(time_ >= 1, "TokenDataset: T must be at least 1, got ", time_);
  ACCRUE_CHECK(tokens_.count > time_, "TokenDataset: ", tokens_.count,
               " tokens hold no sample; one takes T + 1 = ", time_, " + 1 tokens");
}

void TokenDataset::read(std::int64_t sample, std::span<std::int32_t> tokens,
                        std::span<std::int32_t> targets) const {
  ACCRUE_CHECK(sample >= 0 && sample < size(), "TokenDataset: sample ", sample, " of ", size());
  ACCRUE_CHECK_SHAPE(static_cast<std::int64_t>(tokens.size()) == time_ &&
                         static_cast<std::int64_t>(targets.size()) == time_,
                     "TokenDataset: a sample has ", time_,
                     " tokens and targets, the memory is for ", tokens.size(), " and ",
                     targets.size());
  if (file_) file_->check_size();
  tokens_.copy(sample * time_, tokens);
  tokens_.copy(sample * time_ + 1, targets);
}

TokenDataset::Split TokenDataset::split(double held_out) const {
  ACCRUE_CHECK(held_out > 0 && held_out < 1, "TokenDataset::split: the held-out part must be ",
               "between 0 and 1, got ", held_out);
  const auto validation = static_cast<std::int64_t>(static_cast<double>(tokens_.count) * held_out);
  const std::int64_t train = tokens_.count - validation;
  return {TokenDataset(*this, 0, train), TokenDataset(*this, train, validation)};
}
}  // namespace accrue::data
