// Who may be guessed by whose texts: those of one tenant and salt, as cached prefixes are shared.
//
// A request that is guessed by another's text says that text to whoever sees its tokens come, a few at a time: by how
// many of them come at once, and by when. So nothing that a scope has learnt, neither texts nor how often guesses were
// right, is known in another one.
//
// The number of scopes and of the tokens that they keep are bounded; who was used longest ago is forgotten. Requests
// that have a forgotten scope keep it to their end, and nobody else gets it.
//
// Thread safety: none. Allocation: with a scope's first request, and with texts.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "speculation/acceptance.h"
#include "speculation/recent_texts.h"

namespace hocket {

// Where a guess is from.
enum class GuessSource : uint8_t { kOwnText, kRecentTexts, kModel };
inline constexpr size_t kNumGuessSources = 3;

using AcceptanceBySource = std::array<Acceptance, kNumGuessSources>;

struct GuessScope {
  AcceptanceBySource acceptance;  // of all its requests
  RecentTexts texts;
  bool is_kept = true;  // by GuessScopes
};

class GuessScopes {
 public:
  static constexpr size_t kMostScopes = 1024;
  static constexpr int64_t kMostTokens = 1 << 20;  // of all scopes; 12 to 20 bytes each

  // Found or made, and now the most recently used.
  std::shared_ptr<GuessScope> find(std::string_view tenant, std::string_view salt);

  // `scope` is one that find() returned.
  void add_text(GuessScope* scope, std::span<const int32_t> text);

  // All are forgotten, and the texts of those that requests still have.
  void clear();

 private:
  using Order = std::list<std::pair<std::string, std::shared_ptr<GuessScope>>>;

  void forget_oldest();

  Order order_;  // by key; the one used last stands first
  std::unordered_map<std::string, Order::iterator> by_key_;
  int64_t num_tokens_ = 0;
};

}  // namespace hocket
