// What policies read of the device's memory, whoever owns it: the scheduler's own (device_memory.h), or that of an
// engine that is only advised (advisor/borrowed_memory.h).
//
// Units and blocks are as in device_memory.h; a row is a running request's.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/cache_form.h"
#include "base/ids.h"

namespace hocket {

class MemoryView {
 public:
  virtual ~MemoryView() = default;

  // ---- all of it ----
  virtual int32_t block_size() const = 0;       // tokens
  virtual int32_t units_per_block() const = 0;  // of K and V
  virtual int32_t num_kv_blocks() const = 0;
  virtual int32_t num_free_rows() const = 0;
  virtual int32_t num_available_units() const = 0;  // free, or cached and run by nobody
  virtual int32_t num_valuable_units() const = 0;   // of these, what somebody is expected to use
  virtual int32_t num_promised_units() const = 0;   // that seated requests will still take of their known tokens
  virtual bool has_forms() const = 0;               // whether a row has another form than K and V

  // ---- of a row ----
  virtual int32_t num_promised_units(Row row) const = 0;
  virtual int32_t num_held_units(Row row) const = 0;  // that it would give up, apart from what the cache would keep
  virtual int32_t num_blocks(Row row) const = 0;
  virtual int32_t num_shared_blocks(Row row) const = 0;  // cached when it was seated
  virtual CacheForm form(Row row) const = 0;
  virtual bool can_uncache(Row row) const = 0;  // whether it may do without its first blocks

  // ---- of tokens ----
  virtual int32_t num_cached_blocks(std::string_view salt, std::span<const int32_t> tokens) const = 0;
  // So many more, or fewer, waiting requests will use these blocks: memory that can, evicts them last.
  virtual void add_pending(std::string_view salt, std::span<const int32_t> tokens, int32_t delta) = 0;
};

}  // namespace hocket
