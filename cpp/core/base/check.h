// HOCKET_CHECK(condition, message): we are wrong if it does not hold. Throws CoreError, which stops the engine loudly.
//
// For broken invariants and misuse by our own code only. It is never triggered by user input, and an expected shortage
// (no block free, queue full) is a return value. Active in every build; keep the condition cheap on the step path.
#pragma once

#include <stdexcept>
#include <string>

namespace hocket {

class CoreError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void fail_check(const char* file, int line, const char* condition, const char* message) {
  throw CoreError(std::string(file) + ":" + std::to_string(line) + ": " + message + " [" + condition + "]");
}

}  // namespace hocket

#define HOCKET_CHECK(condition, message)                             \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::hocket::fail_check(__FILE__, __LINE__, #condition, message); \
  } while (false)
