#include "speculation/guess_scopes.h"

#include "testing.h"

namespace hocket {
namespace {

using Tokens = std::vector<int32_t>;

TEST(guess_scopes, a_scope_is_of_one_tenant_and_one_salt) {
  GuessScopes scopes;
  const auto scope = scopes.find("a", "b");
  CHECK(scope == scopes.find("a", "b"));
  for (const auto& other : {scopes.find("a", ""), scopes.find("", "b"), scopes.find("ab", ""), scopes.find("", "ab"),
                            scopes.find("b", "a"), scopes.find("1:a", "b")}) {
    CHECK(other != scope);
  }
  scopes.add_text(scope.get(), Tokens{1, 2, 3, 4});
  CHECK_EQ(scopes.find("a", "b")->texts.find(Tokens{1, 2, 3}).length, 3);
  CHECK_EQ(scopes.find("a", "")->texts.find(Tokens{1, 2, 3}).length, 0);
}

TEST(guess_scopes, who_was_used_longest_ago_is_forgotten) {
  GuessScopes scopes;
  const auto first = scopes.find("first", "");
  const auto second = scopes.find("second", "");
  for (size_t i = 2; i < GuessScopes::kMostScopes; ++i) scopes.find("tenant", std::to_string(i));
  CHECK(scopes.find("first", "") == first);
  scopes.find("one", "more");
  CHECK(!second->is_kept);
  CHECK(first->is_kept);
  CHECK(scopes.find("first", "") == first);
  CHECK(scopes.find("second", "") != second);
  scopes.add_text(second.get(), Tokens{1, 2, 3, 4});  // of a request that outlived it
  CHECK_EQ(second->texts.num_tokens(), 0);
}

TEST(guess_scopes, when_all_is_forgotten_no_request_keeps_a_text) {
  GuessScopes scopes;
  const auto scope = scopes.find("tenant", "");
  scopes.add_text(scope.get(), Tokens{1, 2, 3, 4});
  scopes.clear();
  CHECK_EQ(scope->texts.num_tokens(), 0);
  CHECK(!scope->is_kept);
  CHECK(scopes.find("tenant", "") != scope);
}

TEST(guess_scopes, all_texts_together_are_bounded) {
  GuessScopes scopes;
  const Tokens text(RecentTexts::kMostTokens - 1, 7);
  std::vector<std::shared_ptr<GuessScope>> all;
  for (size_t i = 0; i < 200; ++i) {
    all.push_back(scopes.find("tenant", std::to_string(i)));
    scopes.add_text(all.back().get(), text);
    int64_t num_tokens = 0;
    for (const auto& scope : all) num_tokens += scope->is_kept ? scope->texts.num_tokens() : 0;
    CHECK(num_tokens <= GuessScopes::kMostTokens);
    CHECK_EQ(num_tokens, std::min<int64_t>(GuessScopes::kMostTokens, std::ssize(all) * RecentTexts::kMostTokens));
  }
}

}  // namespace
}  // namespace hocket
