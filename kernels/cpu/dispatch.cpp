// Chooses the instruction set and forwards the launchers to it.
#include <string_view>

#include "cpu.h"
#include "kernel_table.h"
#include "linear/vnni.h"
#include "machine_limits.h"

namespace hocket {
namespace cpu {

namespace generic {
extern const KernelTable kTable;
}
#ifdef HOCKET_X86
namespace avx2 {
extern const KernelTable kTable;
}
#ifdef HOCKET_AVX2_W16
namespace avx2_w16 {
extern const KernelTable kTable;
}
#endif
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif

namespace {

#ifdef HOCKET_X86
// The kernels of avx512, whose products of int8 may use one more instruction.
const KernelTable* avx512_vnni() {
  static const KernelTable table = [] {
    KernelTable made = avx512::kTable;
    made.isa = "avx512_vnni";
    return made;
  }();
  return &table;
}
#endif

// The table of that name, or null where this CPU cannot run it.
const KernelTable* find_table(std::string_view name) {
  if (name == "generic") return &generic::kTable;
#ifdef HOCKET_X86
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (name == "avx2" && has_avx2) return &avx2::kTable;
#ifdef HOCKET_AVX2_W16
  if (name == "avx2_w16" && has_avx2) return &avx2_w16::kTable;
#endif
  const bool has_avx512_bf16 =
      has_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  if (name == "avx512" && has_avx512) return &avx512::kTable;
  if (name == "avx512_vnni" && has_avx512 && __builtin_cpu_supports("avx512vnni")) return avx512_vnni();
  if (name == "avx512_bf16" && has_avx512_bf16) return &avx512_bf16::kTable;
#endif
  return nullptr;
}

const KernelTable* best_table() {
  for (std::string_view name : {"avx512_bf16", "avx512_vnni", "avx512", "avx2"}) {
    if (const KernelTable* table = find_table(name)) return table;
  }
  return &generic::kTable;
}

bool multiplies_bytes(std::string_view isa) {
#ifdef HOCKET_X86
  return (isa == "avx512_vnni" || isa == "avx512_bf16") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

const KernelTable* active = best_table();
bool has_vnni = multiplies_bytes(active->isa);
bool is_sharing_keys = true;

}  // namespace

bool uses_vnni() { return has_vnni; }

void set_shared_keys(bool is_shared) { is_sharing_keys = is_shared; }
bool shares_keys() { return is_sharing_keys; }

const char* isa() { return active->isa; }

bool set_isa(const char* name) {
  const KernelTable* table = find_table(name);
  if (table == nullptr) return false;
  active = table;
  has_vnni = multiplies_bytes(name);
  return true;
}

}  // namespace cpu

#define HOCKET_KERNEL(name, Args) \
  Status name##_cpu(const Args& args) { return cpu::active->name(args); }
HOCKET_CPU_KERNELS(HOCKET_KERNEL)
#undef HOCKET_KERNEL
int64_t linear_panel_width() { return cpu::active->linear_panel_width; }
float read_limit_cpu(const void* data, int64_t bytes) { return cpu::active->read_limit(data, bytes); }
int64_t arithmetic_limit_cpu(int64_t rounds, DType dtype) { return cpu::active->arithmetic_limit(rounds, dtype); }

}  // namespace hocket
