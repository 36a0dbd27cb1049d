#include "speculation/guess_scopes.h"

#include <utility>

namespace hocket {

std::shared_ptr<GuessScope> GuessScopes::find(std::string_view tenant, std::string_view salt) {
  std::string key = std::to_string(tenant.size()) + ':';
  key.append(tenant).append(salt);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    order_.splice(order_.begin(), order_, found->second);
  } else {
    if (by_key_.size() == kMostScopes) forget_oldest();
    order_.emplace_front(key, std::make_shared<GuessScope>());
    by_key_.emplace(std::move(key), order_.begin());
  }
  return order_.front().second;
}

void GuessScopes::add_text(GuessScope* scope, std::span<const int32_t> text) {
  if (!scope->is_kept) return;
  num_tokens_ -= scope->texts.num_tokens();
  scope->texts.add(text);
  num_tokens_ += scope->texts.num_tokens();
  while (num_tokens_ > kMostTokens) forget_oldest();
}

void GuessScopes::clear() {
  for (const auto& [key, scope] : order_) {
    scope->texts = RecentTexts();
    scope->is_kept = false;
  }
  by_key_.clear();
  order_.clear();
  num_tokens_ = 0;
}

void GuessScopes::forget_oldest() {
  auto& [key, scope] = order_.back();
  num_tokens_ -= scope->texts.num_tokens();
  scope->is_kept = false;
  by_key_.erase(key);
  order_.pop_back();
}

}  // namespace hocket
