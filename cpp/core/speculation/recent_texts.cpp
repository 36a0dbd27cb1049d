#include "speculation/recent_texts.h"

#include <algorithm>
#include <utility>

namespace hocket {

void RecentTexts::add(std::span<const int32_t> text) {
  if (text.empty()) return;
  text = text.last(std::min(text.size(), size_t{kMostTokens} - 1));
  if (std::ssize(halves_[0].tokens) + std::ssize(text) + 1 > kMostTokens) {
    halves_[1] = std::exchange(halves_[0], Half());
  }
  std::vector<int32_t>& tokens = halves_[0].tokens;
  tokens.insert(tokens.end(), text.begin(), text.end());
  tokens.push_back(kEnd);
}

RecentTexts::Match RecentTexts::find(std::span<const int32_t> text) {
  Match best;
  for (Half& half : halves_) {
    if (half.tokens.empty()) break;
    half.index.read(half.tokens, kMostAtOnce);
    const Match match = find(half, text);
    if (match.length > best.length) best = match;
  }
  return best;
}

RecentTexts::Match RecentTexts::find(const Half& half, std::span<const int32_t> text) const {
  const RepetitionIndex::Match match = half.index.find_end(text, half.tokens);
  if (!match.is_found() || half.tokens[match.next] == kEnd) return {};
  const auto next = std::span(half.tokens).subspan(static_cast<size_t>(match.next));
  return {next.first(static_cast<size_t>(std::ranges::find(next, kEnd) - next.begin())), match.length};
}

}  // namespace hocket
