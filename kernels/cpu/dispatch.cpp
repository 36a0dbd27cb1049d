// Chooses the instruction set and forwards the launchers to it.
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <string_view>

#include "cpu.h"
#include "kernel_table.h"
#include "linear/uses_amx.h"
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
KernelTable renamed(KernelTable table, const char* isa) {
  table.isa = isa;
  return table;
}

// The kernels of avx512, whose products of int8 may use one more instruction.
const KernelTable* avx512_vnni() {
  static const KernelTable table = renamed(avx512::kTable, "avx512_vnni");
  return &table;
}

// Whether there are tiles of AMX, and Linux lets this process use them, which it must ask for.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  uint32_t a = 7, b = 0, c = 0, d = 0;
  asm("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr uint32_t kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // amx_bf16, amx_tile, amx_int8
  return (d & kNeeded) == kNeeded && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// The kernels of avx512_bf16, whose products use tiles.
const KernelTable* avx512_amx() {
  static const KernelTable table = renamed(avx512_bf16::kTable, "avx512_amx");
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
  if (name == "avx512_amx" && has_avx512_bf16 && may_use_tiles()) return avx512_amx();
#endif
  return nullptr;
}

const KernelTable* best_table() {
  for (std::string_view name : {"avx512_amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2"}) {
    if (const KernelTable* table = find_table(name)) return table;
  }
  return &generic::kTable;
}

bool multiplies_bytes(std::string_view isa) {
#ifdef HOCKET_X86
  return (isa == "avx512_vnni" || isa == "avx512_bf16" || isa == "avx512_amx") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

const KernelTable* active = best_table();
bool has_vnni = multiplies_bytes(active->isa);
bool has_tiles = std::string_view(active->isa) == "avx512_amx";
bool is_sharing_keys = true;

}  // namespace

bool uses_vnni() { return has_vnni; }
bool uses_amx() { return has_tiles; }

void set_shared_keys(bool is_shared) { is_sharing_keys = is_shared; }
bool shares_keys() { return is_sharing_keys; }

const char* isa() { return active->isa; }

bool set_isa(const char* name) {
  const KernelTable* table = find_table(name);
  if (table == nullptr) return false;
  active = table;
  has_vnni = multiplies_bytes(name);
  has_tiles = std::string_view(name) == "avx512_amx";
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
