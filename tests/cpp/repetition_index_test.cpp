#include "speculation/repetition_index.h"

#include <random>

#include "testing.h"

namespace hocket {
namespace {

using Tokens = std::vector<int32_t>;
using Match = RepetitionIndex::Match;

Match find(const Tokens& tokens) { return RepetitionIndex().find(tokens); }

// The longest match of the end that counts, the latest of equals, of all earlier places.
Match by_brute_force(const Tokens& tokens) {
  const int32_t end = static_cast<int32_t>(tokens.size()) - 1;
  Match best;
  for (int32_t place = end - 1; place >= 1; --place) {
    int32_t length = 0;
    while (length <= place && length < RepetitionIndex::kMostCompared && tokens[place - length] == tokens[end - length])
      ++length;
    if (length >= 2 && length > best.length) best = {place + 1, length};
  }
  return best;
}

TEST(repetition_index, finds_what_came_after_the_same_words) {
  const Match match = find({1, 2, 3, 4, 9, 2, 3});
  CHECK_EQ(match.next, 3);
  CHECK_EQ(match.length, 2);
}

TEST(repetition_index, one_equal_token_is_no_match) {
  CHECK(!find({1, 2, 3, 4, 2}).is_found());
  CHECK(!find({7}).is_found());
  CHECK(!find({7, 7}).is_found());
}

TEST(repetition_index, the_longest_match_counts_then_the_latest) {
  CHECK_EQ(find({5, 1, 2, 3, 8, 1, 2, 4, 9, 5, 1, 2}).next, 3);
  CHECK_EQ(find({1, 2, 3, 8, 1, 2, 4, 9, 1, 2}).next, 6);
}

TEST(repetition_index, longer_keys_pass_over_shorter_matches) {
  RepetitionIndex index(3);
  const Tokens tokens{1, 2, 3, 8, 2, 3, 4};
  index.read(tokens, 100);
  CHECK_EQ(index.find_end(Tokens{7, 2, 3}, tokens).is_found(), false);
  CHECK_EQ(index.find_end(Tokens{9, 1, 2, 3}, tokens).next, 3);
  CHECK_EQ(index.find_end(Tokens{2, 3}, tokens).is_found(), false);
}

TEST(repetition_index, as_much_is_found_as_has_been_read) {
  RepetitionIndex index;
  const Tokens tokens{1, 2, 3, 4, 5, 6};
  CHECK(!index.find_end(Tokens{1, 2}, tokens).is_found());
  index.read(tokens, 3);
  CHECK(index.find_end(Tokens{2, 3}, tokens).is_found());
  CHECK(!index.find_end(Tokens{3, 4}, tokens).is_found());
  index.read(tokens, 3);
  CHECK(index.find_end(Tokens{3, 4}, tokens).is_found());
}

TEST(repetition_index, a_match_may_reach_into_the_end) {
  const Match match = find({7, 7, 7, 7});
  CHECK_EQ(match.next, 3);
  CHECK_EQ(match.length, 3);
}

TEST(repetition_index, a_growing_text_is_searched_as_if_it_were_new) {
  std::mt19937 random(1);
  for (int32_t vocab_size : {4, 40}) {
    RepetitionIndex index;
    Tokens tokens;
    int32_t num_found = 0;
    for (int32_t i = 0; i < 1500; ++i) {
      const bool copies = i > 30 && random() % 10 < 7;
      tokens.push_back(copies ? tokens[i - 17] : static_cast<int32_t>(random() % vocab_size));
      const Match match = index.find(tokens);
      const Match best = by_brute_force(tokens);
      num_found += match.is_found();
      if (vocab_size == 40) CHECK_EQ(match.length, best.length);  // few places: all of them are looked at
      if (!match.is_found()) continue;
      CHECK(match.length <= best.length && match.next < std::ssize(tokens));
      for (int32_t j = 0; j < match.length; ++j) CHECK_EQ(tokens[match.next - 1 - j], tokens[i - j]);
    }
    CHECK(num_found > 500);
  }
}

TEST(repetition_index, a_long_prompt_is_read_in_parts) {
  Tokens tokens(RepetitionIndex::kMostAtOnce * 2 + 10);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 1000);
  RepetitionIndex index;
  CHECK(!index.find(tokens).is_found());
  CHECK(!index.find(tokens).is_found());
  CHECK_EQ(index.find(tokens).length, RepetitionIndex::kMostCompared);
}

}  // namespace
}  // namespace hocket
