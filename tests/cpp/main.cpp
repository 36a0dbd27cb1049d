#include <iostream>
#include <string_view>

#include "testing.h"

int main(int argc, char** argv) {
  const std::string_view suite = argc > 1 ? argv[1] : "";
  int num_run = 0;
  int num_failed = 0;
  for (const auto& test : hocket::testing::all_tests()) {
    if (!suite.empty() && suite != test.suite) continue;
    ++num_run;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++num_failed;
      std::cerr << "FAILED " << test.suite << '.' << test.name << "\n  " << error.what() << '\n';
    }
  }
  std::cerr << num_run - num_failed << " of " << num_run << " tests passed\n";
  return num_failed > 0 || num_run == 0;
}
