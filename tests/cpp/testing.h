// A test framework in a page: nothing to install, nothing to download.
//
//   TEST(unit_pool, hands_out_each_unit_once) { ... CHECK(x); CHECK_EQ(a, b); CHECK_THROWS(call(), CoreError); }
//
// A failed check ends its test; the others go on. `core_tests [suite]` runs all suites, or one.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <ranges>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hocket::testing {

struct Test {
  std::string suite;
  std::string name;
  std::function<void()> body;
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* suite, const char* name, void (*body)()) { all_tests().push_back({suite, name, body}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<int64_t>(value);
  } else if constexpr (std::same_as<T, uint8_t>) {
    out << int{value};
  } else if constexpr (std::convertible_to<T, std::string>) {
    out << '"' << value << '"';
  } else if constexpr (std::ranges::range<T>) {
    out << '[';
    for (const auto& item : value) out << ' ' << show(item);
    out << " ]";
  } else {
    out << value;
  }
  return out.str();
}

template <typename A, typename B>
bool equal(const A& a, const B& b) {
  if constexpr (std::integral<A> && std::integral<B> && !std::same_as<A, bool> && !std::same_as<B, bool>) {
    return std::cmp_equal(a, b);
  } else if constexpr (std::ranges::range<A> && std::ranges::range<B>) {
    return std::ranges::equal(a, b);
  } else {
    return a == b;
  }
}

template <typename A, typename B>
void check_equal(const A& actual, const B& expected, const char* what, const char* file, int line) {
  if (!equal(actual, expected)) fail(file, line, std::string(what) + " is " + show(actual) + ", not " + show(expected));
}

}  // namespace hocket::testing

#define TEST(suite, name)                                                                                    \
  static void suite##_##name();                                                                              \
  static const ::hocket::testing::Registration suite##_##name##_registration(#suite, #name, suite##_##name); \
  static void suite##_##name()

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) ::hocket::testing::fail(__FILE__, __LINE__, "not " #condition); \
  } while (false)

#define CHECK_EQ(actual, expected) ::hocket::testing::check_equal(actual, expected, #actual, __FILE__, __LINE__)

#define CHECK_THROWS(expression, Exception)                                                      \
  do {                                                                                           \
    bool has_thrown = false;                                                                     \
    try {                                                                                        \
      (void)(expression);                                                                        \
    } catch (const Exception&) {                                                                 \
      has_thrown = true;                                                                         \
    }                                                                                            \
    if (!has_thrown) ::hocket::testing::fail(__FILE__, __LINE__, #expression " throws nothing"); \
  } while (false)
