#pragma once
// Datasets: numbered samples.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>
#include <accrue/data/token_file.h>

namespace accrue::data {

/// What a Loader reads. All functions are const and safe from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  // samples, at least 1
  virtual std::int64_t time() const = 0;  // T: positions of a sample
  /// Fills T tokens and T targets of one sample.
  virtual void read(std::int64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) const = 0;
};

/// Windows over one run of tokens. Sample i is tokens [i*T, i*T + T]: T inputs, and as targets the
/// same shifted by one, so every token but the first is a target exactly once. The last
/// (count - 1) % T tokens are too few for a sample and stay unused.
class TokenDataset final : public Dataset {
 public:
  TokenDataset(std::shared_ptr<const TokenFile> file, std::int64_t time);
  TokenDataset(std::vector<std::int32_t> tokens, std::int64_t time);
  /// Borrowed: the tokens must live as long as the dataset.
  TokenDataset(TokenView tokens, std::int64_t time);

  std::int64_t size() const override { return (tokens_.count - 1) / time_; }
  std::int64_t time() const override { return time_; }
  void read(std::int64_t sample, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const override;
  TokenView tokens() const { return tokens_; }
  std::int64_t unused_tokens() const { return (tokens_.count - 1) % time_; }

  struct Split;
  /// The last floor(count * held_out) tokens are the validation part, the others the training part;
  /// no sample crosses the border. Both must hold at least one sample.
  Split split(double held_out = 0.1) const;

 private:
  TokenDataset(const TokenDataset& whole, std::int64_t first, std::int64_t count);
  void check() const;
  std::shared_ptr<const TokenFile> file_;                 // if the tokens lie in a file
  std::shared_ptr<const std::vector<std::int32_t>> own_;  // if they are our own
  TokenView tokens_;
  std::int64_t time_;
};
struct TokenDataset::Split {
  TokenDataset train, validation;
};
}  // namespace accrue::data
