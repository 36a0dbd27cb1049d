#include "speculation/recent_texts.h"

#include <random>

#include "testing.h"

namespace hocket {
namespace {

using Tokens = std::vector<int32_t>;

Tokens next(RecentTexts* texts, const Tokens& text) {
  const auto found = texts->find(text).next;
  return {found.begin(), found.end()};
}

int32_t shared_end(const Tokens& a, size_t size, const Tokens& b) {
  int32_t n = 0;
  const auto most = std::min({size, b.size(), size_t{RepetitionIndex::kMostCompared}});
  while (static_cast<size_t>(n) < most && a[size - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

TEST(recent_texts, goes_on_as_the_text_that_agrees_with_most_did) {
  RecentTexts texts;
  texts.add(Tokens{1, 2, 3, 4, 5});
  texts.add(Tokens{9, 2, 3, 4, 7, 8});
  CHECK_EQ(next(&texts, {2, 3, 4}), (Tokens{7, 8}));  // the latest of equals
  CHECK_EQ(next(&texts, {1, 2, 3, 4}), Tokens{5});
  CHECK_EQ(texts.find(Tokens{1, 2, 3, 4}).length, 4);
}

TEST(recent_texts, no_match_goes_from_one_text_into_another) {
  RecentTexts texts;
  texts.add(Tokens{1, 2, 3});
  texts.add(Tokens{4, 5, 6});
  CHECK_EQ(texts.find(Tokens{1, 2, 3}).length, 0);  // that text ended there
  CHECK_EQ(texts.find(Tokens{3, 4, 5}).length, 0);
  CHECK_EQ(texts.find(Tokens{4, 5}).length, 0);  // too short
  CHECK_EQ(texts.find(Tokens{}).length, 0);
}

TEST(recent_texts, what_is_old_is_forgotten) {
  RecentTexts texts;
  texts.add(Tokens{1, 2, 3, 4});
  int64_t most = 0;
  for (int32_t i = 0; i < 5 * RecentTexts::kMostTokens / 100; ++i) {
    texts.add(Tokens(100, 10 + i));
    CHECK_EQ(texts.find(Tokens{1, 2, 3}).length > 0, texts.num_tokens() > most);  // as long as nothing was given up
    most = std::max(most, texts.num_tokens());
    if (texts.num_tokens() < most) break;
  }
  CHECK(most <= 2 * RecentTexts::kMostTokens);
  CHECK(most > RecentTexts::kMostTokens);
  CHECK_EQ(texts.find(Tokens{1, 2, 3}).length, 0);
}

TEST(recent_texts, of_a_text_that_is_too_long_the_end_is_kept) {
  RecentTexts texts;
  Tokens text(3 * RecentTexts::kMostTokens);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i);
  texts.add(text);
  CHECK_EQ(texts.num_tokens(), int64_t{RecentTexts::kMostTokens});
  const Tokens end(text.end() - 5, text.end() - 1);
  RecentTexts::Match match;
  for (int32_t read = 0; read < RecentTexts::kMostTokens; read += RecentTexts::kMostAtOnce) match = texts.find(end);
  CHECK_EQ(match.length, 4);
  CHECK_EQ(match.next.size(), 1);
  CHECK_EQ(match.next[0], text.back());
}

TEST(recent_texts, what_is_found_stands_in_a_text_and_is_the_longest_where_places_are_few) {
  std::mt19937 random(3);
  RecentTexts texts;
  std::vector<Tokens> all;
  int32_t num_found = 0;
  for (int32_t round = 0; round < 80; ++round) {
    Tokens text(static_cast<size_t>(5 + random() % 30));
    for (int32_t& token : text) token = static_cast<int32_t>(random() % 30);
    if (!all.empty()) {  // goes on as an earlier one did
      const Tokens& other = all[random() % all.size()];
      const size_t begin = random() % other.size();
      text.insert(text.end(), other.begin() + static_cast<std::ptrdiff_t>(begin), other.end());
    }
    Tokens end(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(1 + random() % text.size()));
    const RecentTexts::Match match = texts.find(end);
    int32_t longest = 0;      // where a text goes on
    int32_t longest_end = 0;  // of a text
    int32_t num_places = 0;   // of the key
    bool is_there = match.length == 0;
    for (const Tokens& other : all) {
      longest_end = std::max(longest_end, shared_end(other, other.size(), end));
      num_places += shared_end(other, other.size(), end) >= RecentTexts::kKeyLength;
      for (size_t size = 1; size < other.size(); ++size) {
        longest = std::max(longest, shared_end(other, size, end));
        num_places += shared_end(other, size, end) >= RecentTexts::kKeyLength;
        const Tokens rest(other.begin() + static_cast<std::ptrdiff_t>(size), other.end());
        is_there |= shared_end(other, size, end) == match.length && std::ranges::equal(rest, match.next);
      }
    }
    CHECK(is_there);
    const bool is_seen = num_places <= RepetitionIndex::kMostCandidates;
    if (is_seen && longest >= RecentTexts::kKeyLength && longest > longest_end) CHECK_EQ(match.length, longest);
    if (longest < RecentTexts::kKeyLength) CHECK_EQ(match.length, 0);
    num_found += match.length > 0;
    texts.add(text);
    all.push_back(text);
  }
  CHECK(num_found > 20);
}

}  // namespace
}  // namespace hocket
