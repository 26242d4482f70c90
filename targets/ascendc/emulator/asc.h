// The part of AscendC that TileLang emits for the 950, with its documented meaning, for this machine's CPU.
//
// Blocks run one after another. The threads of a SIMT vector function are fibers: each runs until a barrier or an
// exchange within its warp. DMA happens at once; flags are counted, not timed. Functional, not the vendor's simulator.
//
// Vector registers are in simd.h.
//
// ASC_CHECKED adds: bounds and alignment of every access, reads of UB that nobody wrote in this turn, two blocks at one
// byte of global memory. The memory classes ub<T> and gm<T> stand for __ubuf__ T * and __gm__ T *.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#define __NPU_ARCH__ 3510
#define __aicore__
#define __simt_vf__
#define __simt_callee__
#define __simd_vf__
#define __simd_callee__
#define __global__
#define __vector__
#define __cube__
#define __launch_bounds__(...)
#define __SIMT_DEVICE_FUNCTIONS_DECL__

// ---------------------------------------------------------------------- faults
namespace asc {
inline thread_local char fault_text[512];
inline thread_local jmp_buf fault_exit;
inline thread_local int64_t block = 0, blocks = 1;

[[noreturn]] inline void fault_words(const char *words) {
  snprintf(fault_text, sizeof fault_text, "block %lld: %s", (long long)block, words);
  longjmp(fault_exit, 1);
}
[[noreturn]] inline void fault(const char *what, int64_t a = 0, int64_t b = 0) {
  char words[400];
  snprintf(words, sizeof words, what, (long long)a, (long long)b);
  fault_words(words);
}
[[noreturn]] inline void fault_pipes(const char *what, const char *one, const char *other, int64_t at) {
  char words[400];
  snprintf(words, sizeof words, what, one, (long long)at, other);
  fault_words(words);
}
}  // namespace asc

struct asc_dim3 {
  uint32_t x, y, z;
  constexpr asc_dim3(uint32_t x = 1, uint32_t y = 1, uint32_t z = 1) : x(x), y(y), z(z) {}
};
namespace cce {
using dim3 = asc_dim3;
}
inline thread_local asc_dim3 threadIdx(0, 0, 0), blockDim;
#define block_idx (asc::block)
#define block_num (asc::blocks)

// ---------------------------------------------------------------------- pipes
enum asc_pipe { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL, ASC_PIPES };
enum event_t {};
enum asc_load_l2_cache_mode {};
enum asc_store_l2_cache_mode {};
namespace asc {
// On the chip pipes run side by side and only flags order them. Here each step of a pipe has a number, and a pipe knows
// up to which step of every other it has waited: what is used without that knowledge is a race.
constexpr int EVENTS = 16;
struct Clock { int64_t at[ASC_PIPES] = {}; };
struct Flag { bool set = false; Clock by; int64_t waited = 0; };
inline thread_local Flag flags[ASC_PIPES][ASC_PIPES][EVENTS];
inline thread_local Clock clocks[ASC_PIPES];
inline const char *const pipe_names[] = {"scalar", "vector", "M", "MTE1", "MTE2", "MTE3", "FIX", "all"};
inline void step(int pipe) { ++clocks[pipe].at[pipe]; }
inline void check_flags() {
  for (auto &from : flags)
    for (auto &to : from)
      for (auto &flag : to)
        if (flag.set) fault("a flag is left set at the end of the kernel");
}
inline Flag &flag_of(int from, int to, int event) {
  if (event < 0 || event >= EVENTS) fault("event %lld does not exist", event);
  return flags[from][to][event];
}
}  // namespace asc
inline void asc_init() {
  for (auto &from : asc::flags)
    for (auto &to : from)
      for (auto &flag : to) flag = {};
  for (auto &clock : asc::clocks) clock = {};
}
inline void asc_sync_notify(asc_pipe from, asc_pipe to, event_t event) {
  asc::Flag &flag = asc::flag_of(from, to, event);
  if (flag.set) asc::fault("event %lld is set twice without a wait", event);
#ifdef ASC_CHECKED
  if (asc::clocks[from].at[to] < flag.waited)
    asc::fault("event %lld may be set again before the other pipe has waited for it", event);
#endif
  asc::step(from);
  flag.set = true, flag.by = asc::clocks[from];
}
inline void asc_sync_wait(asc_pipe from, asc_pipe to, event_t event) {
  asc::Flag &flag = asc::flag_of(from, to, event);
  if (!flag.set) asc::fault("event %lld is waited for and never set", event);
  flag.set = false;
  for (int p = 0; p < ASC_PIPES; ++p)
    if (flag.by.at[p] > asc::clocks[to].at[p]) asc::clocks[to].at[p] = flag.by.at[p];
  asc::step(to);
  flag.waited = asc::clocks[to].at[to];
}
inline void asc_sync_pipe(asc_pipe) {}
inline void asc_sync() {
  for (int p = 0; p < ASC_PIPES; ++p)
    for (int q = 0; q < ASC_PIPES; ++q) asc::clocks[p].at[q] = asc::clocks[q].at[q];
}

// ---------------------------------------------------------------------- memory
namespace asc {
constexpr size_t UB_BYTES = ASC_UB_BYTES, UNIT = 32;
alignas(4096) inline thread_local uint8_t ub_bytes[UB_BYTES];
inline thread_local uint8_t ub_written[UB_BYTES];
struct Unit { int64_t write = 0, read[ASC_PIPES] = {}; int writer = PIPE_S; };
inline thread_local Unit ub_units[UB_BYTES / UNIT];   // the last steps that touched 32 bytes of UB
inline thread_local int pipe = PIPE_V;                // the one at work

inline void race(int64_t offset, int other, const char *what) {
  fault_pipes(what, pipe_names[pipe], pipe_names[other], offset);
}
inline void used_ub(int64_t offset, size_t bytes, bool writes) {
  int64_t now = clocks[pipe].at[pipe];
  for (int64_t u = offset / int64_t(UNIT); u <= (offset + int64_t(bytes) - 1) / int64_t(UNIT); ++u) {
    Unit &unit = ub_units[u];
    if (unit.writer != pipe && clocks[pipe].at[unit.writer] < unit.write)
      race(u * UNIT, unit.writer, "%s uses UB byte %lld, and nothing makes it wait for %s to write it");
    if (writes) {
      for (int p = 0; p < ASC_PIPES; ++p)
        if (p != pipe && clocks[pipe].at[p] < unit.read[p])
          race(u * UNIT, p, "%s writes UB byte %lld, and nothing makes it wait for %s to have read it");
      unit.writer = pipe, unit.write = now;
    } else {
      unit.read[pipe] = now;
    }
  }
}

inline thread_local uint64_t thread_accesses, thread_in, thread_out;   // by SIMT threads: accesses, bytes of tensors

struct Argument {   // one tensor
  uint8_t *first, *end;
  int32_t *owner;   // per byte: 1 + the block that wrote it
  int32_t *reader;  // per byte: 1 + the block that read it, -1 for several
};

inline void turn() {   // of the persistent loop: what an earlier turn left in UB is not there
#ifdef ASC_CHECKED
  memset(ub_written, 0, UB_BYTES);
#endif
}

inline void check_ub(int64_t offset, size_t bytes, const char *what) {
  if (offset < 0 || offset + int64_t(bytes) > int64_t(UB_BYTES)) fault(what, offset, bytes);
}
inline void check_global(const Argument *of, const uint8_t *p, size_t bytes, const char *what) {
  if (!of) fault("a pointer to global memory that is no argument's");
  if (p < of->first || p + bytes > of->end) fault(what, p - of->first, of->end - of->first);
}
inline void wrote_global(const Argument *of, const uint8_t *p, size_t bytes) {
  if (!of->owner) return;
  int32_t me = int32_t(block) + 1, *owner = of->owner + (p - of->first), *reader = of->reader + (p - of->first);
  for (size_t i = 0; i < bytes; ++i) {
    if (owner[i] && owner[i] != me) fault("two blocks write byte %lld of a tensor (block %lld too)", p - of->first + i, owner[i] - 1);
    if (reader[i] && reader[i] != me) fault("a block writes byte %lld of a tensor that another reads", p - of->first + i);
    owner[i] = me;
  }
}
inline void read_global(const Argument *of, const uint8_t *p, size_t bytes) {
  if (!of->owner) return;
  int32_t me = int32_t(block) + 1, *owner = of->owner + (p - of->first), *reader = of->reader + (p - of->first);
  for (size_t i = 0; i < bytes; ++i) {
    if (owner[i] && owner[i] != me) fault("a block reads byte %lld of a tensor that block %lld wrote", p - of->first + i, owner[i] - 1);
    reader[i] = reader[i] == 0 || reader[i] == me ? me : -1;
  }
}
inline void wrote_ub(int64_t offset, size_t bytes) {
  used_ub(offset, bytes, true);
  memset(ub_written + offset, 1, bytes);
}
inline void read_ub(int64_t offset, size_t bytes) {
  used_ub(offset, bytes, false);
  for (size_t i = 0; i < bytes; ++i)
    if (!ub_written[offset + i]) fault("reads UB byte %lld, which nobody wrote", offset + i);
}
}  // namespace asc

#ifdef ASC_CHECKED
namespace asc {
template <class T> struct ub;
template <class T> struct gm;

// A place in memory: reading and assigning it go through the checks.
template <class P> struct place {
  using T = typename P::item;
  P at;
  T get() const { return at.load(); }
  operator T() const { return at.load(); }
  template <class U>
    requires(!std::is_same_v<U, T> && std::is_constructible_v<U, T>)
  explicit operator U() const { return U(at.load()); }
  T operator=(T value) const { at.store(value); return value; }
  T operator=(const place &other) const { return *this = other.get(); }
  template <class U>
    requires(!std::is_same_v<U, T> && std::is_constructible_v<T, U>)
  T operator=(U value) const { return *this = T(value); }
  template <class U> T operator+=(U value) const { return *this = T(get() + value); }
  P operator&() const { return at; }
};

template <class T> struct ub {
  using item = T;
  int64_t offset = 0;
  ub() = default;
  ub(std::nullptr_t) : offset(-1) {}
  explicit ub(int value) : offset(value) {}
  template <class U> explicit ub(ub<U> other) : offset(other.offset) {}
  ub operator+(int64_t n) const { ub r; r.offset = offset + n * int64_t(sizeof(T)); return r; }
  place<ub> operator[](int64_t n) const { return {*this + n}; }
  place<ub> operator*() const { return {*this}; }
  T get(int64_t n) const { return (*this + n).load(); }
  T load() const {
    check_ub(offset, sizeof(T), "reads UB at byte %lld, beyond its end");
    if (offset % alignof(T)) fault("reads UB at byte %lld, which its type does not allow", offset);
    read_ub(offset, sizeof(T));
    ++thread_accesses;
    T value; memcpy(&value, ub_bytes + offset, sizeof(T)); return value;
  }
  void store(T value) const {
    check_ub(offset, sizeof(T), "writes UB at byte %lld, beyond its end");
    if (offset % alignof(T)) fault("writes UB at byte %lld, which its type does not allow", offset);
    wrote_ub(offset, sizeof(T));
    ++thread_accesses;
    memcpy(ub_bytes + offset, &value, sizeof(T));
  }
};

template <class T> struct gm {
  using item = T;
  uint8_t *p = nullptr;
  const Argument *of = nullptr;
  gm() = default;
  gm(const Argument *of) : p(of->first), of(of) {}
  template <class U> explicit gm(gm<U> other) : p(other.p), of(other.of) {}
  gm operator+(int64_t n) const { gm r; r.p = p + n * int64_t(sizeof(T)); r.of = of; return r; }
  place<gm> operator[](int64_t n) const { return {*this + n}; }
  place<gm> operator*() const { return {*this}; }
  T load() const {
    check_global(of, p, sizeof(T), "reads byte %lld of a tensor of %lld bytes");
    if (uintptr_t(p) % alignof(T)) fault("reads byte %lld of a tensor, which its type does not allow", p - of->first);
    read_global(of, p, sizeof(T));
    ++thread_accesses, thread_in += sizeof(T);
    T value; memcpy(&value, p, sizeof(T)); return value;
  }
  void store(T value) const {
    check_global(of, p, sizeof(T), "writes byte %lld of a tensor of %lld bytes");
    if (uintptr_t(p) % alignof(T)) fault("writes byte %lld of a tensor, which its type does not allow", p - of->first);
    wrote_global(of, p, sizeof(T));
    ++thread_accesses, thread_out += sizeof(T);
    memcpy(p, &value, sizeof(T));
  }
};
template <class T> uint8_t *raw(ub<T> p) { return ub_bytes + p.offset; }
template <class T> uint8_t *raw(gm<T> p) { return p.p; }
template <class T> int64_t ub_offset(ub<T> p) { return p.offset; }
template <class T> ub<T> ub_at(int64_t offset) { return ub<T>(int(offset)); }
template <class A> struct value_of { using type = A; };
template <class P> struct value_of<place<P>> { using type = typename P::item; };
}  // namespace asc
#else
namespace asc {
template <class T> using ub = T *;
template <class T> using gm = T *;
template <class T> uint8_t *raw(T *p) { return (uint8_t *)p; }
template <class T> int64_t ub_offset(T *p) { return (uint8_t *)p - ub_bytes; }
template <class T> T *ub_at(int64_t offset) { return (T *)(ub_bytes + offset); }
template <class A> struct value_of { using type = A; };
}  // namespace asc
#endif

namespace asc {   // a reduction's scratch, read as a value
#ifdef ASC_CHECKED
template <class T> T scratch(ub<T> p, int64_t n) { return p.get(n); }
#else
template <class T> T scratch(T *p, int64_t n) { return p[n]; }
#endif
}  // namespace asc

// ---------------------------------------------------------------------- threads
namespace asc {
constexpr int WARP = 32, MAX_THREADS = 2048;
constexpr size_t STACK = 128 * 1024;

struct Warp {
  int live = 0, arrived = 0;
  uint32_t turn = 0, mask[2] = {0, 0};
  uint64_t slot[2][WARP];
};
struct Fiber {
  ucontext_t start;
  jmp_buf here;
  std::vector<uint8_t> stack;
  bool begun = false, done = false;
};

// Runs a function on many threads. Fibers are made once and wait for the next call; setjmp switches between them.
struct Threads {
  std::vector<Fiber *> fibers;
  std::vector<Warp> warps;
  int count = 0, current = -1, live = 0, waiting = 0, order = 0;
  uint32_t barriers = 0;
  bool moved = false, running = false;
  jmp_buf home;
  void (*body)(void *) = nullptr;
  void *captured = nullptr;

  static void entry();
  void leave() {
    if (!_setjmp(fibers[current]->here)) _longjmp(home, 1);
  }
  void resume(int i, asc_dim3 shape) {
    current = i;
    threadIdx = asc_dim3(i % shape.x, i / shape.x % shape.y, i / (shape.x * shape.y));
    Fiber &fiber = *fibers[i];
    if (_setjmp(home)) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
  }
  int position(int i) const {
    if (order == 0) return i;
    if (order == 1) return count - 1 - i;
    int step = 7919;
    while (count % step == 0 || step % 2 == 0) ++step;
    return int((int64_t(i) * step + 13) % count);
  }
  void run(asc_dim3 shape, void (*function)(void *), void *data) {
    count = live = int(shape.x * shape.y * shape.z);
    if (count > MAX_THREADS) fault("%lld threads are asked for, of at most 2048", count);
    body = function, captured = data, waiting = 0, blockDim = shape;
    if (running) {   // a fault left threads in the midst of a function: they are of no more use
      for (Fiber *fiber : fibers) delete fiber;
      fibers.clear();
    }
    running = true;
    while (int(fibers.size()) < count) {
      auto *fiber = new Fiber;
      fiber->stack.resize(STACK);
      getcontext(&fiber->start);
      fiber->start.uc_stack.ss_sp = fiber->stack.data();
      fiber->start.uc_stack.ss_size = STACK;
      fiber->start.uc_link = nullptr;
      makecontext(&fiber->start, (void (*)())entry, 0);
      fibers.push_back(fiber);
    }
    warps.assign((count + WARP - 1) / WARP, Warp{});
    for (int i = 0; i < count; ++i) fibers[i]->done = false, warps[i / WARP].live++;
    while (live) {
      moved = false;
      for (int i = 0; i < count; ++i) {
        int next = position(i);
        if (!fibers[next]->done) resume(next, shape);
      }
      if (live && !moved) fault("threads wait for each other: a barrier or an exchange that not all of them reach");
    }
    current = -1, running = false;
  }
  void finish() {
    fibers[current]->done = true;
    moved = true;
    --live;
    Warp &warp = warps[current / WARP];
    if (--warp.live && warp.arrived == warp.live) release(warp);
    if (live && waiting == live) waiting = 0, ++barriers;
    leave();
  }
  void release(Warp &warp) {
    warp.arrived = 0;
    warp.mask[++warp.turn & 1] = 0;
    moved = true;
  }
  void barrier() {
    uint32_t now = barriers;
    if (++waiting == live) waiting = 0, ++barriers, moved = true;
    while (now == barriers) leave();
  }
  // Publish a value, wait for the warp's live lanes; gives the bank that holds all of them.
  int exchange(uint64_t value) {
    Warp &warp = warps[current / WARP];
    int lane = current % WARP, bank = warp.turn & 1;
    uint32_t now = warp.turn;
    warp.slot[bank][lane] = value;
    warp.mask[bank] |= 1u << lane;
    if (++warp.arrived == warp.live) release(warp);
    while (warp.turn == now) leave();
    return bank;
  }
  Warp &warp() { return warps[current / WARP]; }
  int lane() const { return current % WARP; }
};
inline thread_local Threads threads;
inline void Threads::entry() {
  for (;;) {
    threads.body(threads.captured);
    threads.finish();
  }
}
template <class T> uint64_t bits(T value) { uint64_t u = 0; memcpy(&u, &value, sizeof(T)); return u; }
template <class T> T from_bits(uint64_t u) { T value; memcpy(&value, &u, sizeof(T)); return value; }
template <class T, class Op> T over_warp(T value, Op op) {
  int bank = threads.exchange(bits(value));
  Warp &warp = threads.warp();
  T total{};
  bool first = true;
  for (int i = 0; i < WARP; ++i)
    if (warp.mask[bank] >> i & 1) {
      T each = from_bits<T>(warp.slot[bank][i]);
      total = first ? each : op(total, each);
      first = false;
    }
  return total;
}
template <class T> T from_lane(T value, int lane) {
  int bank = threads.exchange(bits(value));
  return lane < 0 || lane >= WARP ? value : from_bits<T>(threads.warp().slot[bank][lane]);
}
}  // namespace asc

template <auto Function, class... Arguments> void asc_vf_call(asc_dim3 shape, Arguments... arguments) {
  auto call = [&] { Function(arguments...); };
  asc::pipe = PIPE_V;
  asc::step(PIPE_V);
  asc::threads.run(shape, [](void *data) { (*(decltype(call) *)data)(); }, &call);
}
inline void asc_syncthreads() { asc::threads.barrier(); }
inline void asc_threadfence() {}
template <class T> T asc_shfl_xor(T v, int mask, int = 32) { return asc::from_lane(v, asc::threads.lane() ^ mask); }
template <class T> T asc_shfl(T v, int lane, int = 32) { return asc::from_lane(v, lane & 31); }
template <class T> T asc_shfl_up(T v, int n, int = 32) { return asc::from_lane(v, asc::threads.lane() - n); }
template <class T> T asc_shfl_down(T v, int n, int = 32) { return asc::from_lane(v, asc::threads.lane() + n); }
template <class T> T asc_reduce_add(T v) { return asc::over_warp(v, [](T a, T b) { return T(a + b); }); }
template <class T> T asc_reduce_max(T v) { return asc::over_warp(v, [](T a, T b) { return a > b ? a : b; }); }
template <class T> T asc_reduce_min(T v) { return asc::over_warp(v, [](T a, T b) { return a < b ? a : b; }); }

// ---------------------------------------------------------------------- numbers
struct bfloat16_t {
  uint16_t code;
  bfloat16_t() = default;
  constexpr bfloat16_t(float f) : code(0) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    code = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t(u >> 16 | 0x40) : uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16);
  }
  constexpr bfloat16_t(double f) : bfloat16_t(float(f)) {}
  constexpr bfloat16_t(int n) : bfloat16_t(float(n)) {}
  constexpr operator float() const { return std::bit_cast<float>(uint32_t(code) << 16); }
};
using half = _Float16;
struct alignas(4) bfloat16x2_t { bfloat16_t x, y; };
struct alignas(4) half2 { half x, y; };

#define ASC_VECTORS(T, N)                                                                     \
  struct N##1 { T x; };                                                                       \
  struct alignas(2 * sizeof(T)) N##2 { T x, y; };                                             \
  struct N##3 { T x, y, z; };                                                                 \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; };             \
  inline N##1 make_##N##1(T a) { return {a}; }                                                \
  inline N##2 make_##N##2(T a, T b) { return {a, b}; }                                        \
  inline N##3 make_##N##3(T a, T b, T c) { return {a, b, c}; }                                \
  inline N##4 make_##N##4(T a, T b, T c, T d) { return {a, b, c, d}; }                        \
  inline N##2 operator+(N##2 a, N##2 b) { return {T(a.x + b.x), T(a.y + b.y)}; }              \
  inline N##2 operator-(N##2 a, N##2 b) { return {T(a.x - b.x), T(a.y - b.y)}; }              \
  inline N##2 operator*(N##2 a, N##2 b) { return {T(a.x * b.x), T(a.y * b.y)}; }
using asc_short = int16_t;
using asc_ushort = uint16_t;
using asc_char = int8_t;
using asc_uchar = uint8_t;
ASC_VECTORS(float, float)
ASC_VECTORS(int32_t, int)
ASC_VECTORS(uint32_t, uint)
ASC_VECTORS(int16_t, short)
ASC_VECTORS(uint16_t, ushort)
ASC_VECTORS(int8_t, char)
ASC_VECTORS(uint8_t, uchar)
ASC_VECTORS(int64_t, longlong)
ASC_VECTORS(uint64_t, ulonglong)
#undef ASC_VECTORS

inline float __bfloat162float(bfloat16_t x) { return x; }
inline bfloat16_t __float2bfloat16_rn(float x) { return x; }
inline float2 __bfloat1622float2(bfloat16x2_t v) { return {float(v.x), float(v.y)}; }
inline bfloat16x2_t __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
inline half2 __float22half2_rn(float2 v) { return {half(v.x), half(v.y)}; }
inline float __half2float(half x) { return x; }
inline half __float2half_rn(float x) { return half(x); }

using __asc_fp8x2_storage_t = uint16_t;
enum asc_saturation { __ASC_NOSAT, __ASC_SATFINITE };
enum asc_fp8 { __ASC_E4M3, __ASC_E5M2 };
namespace asc {
struct Fp8 { int mantissa, bias; float largest; uint8_t top; };
inline Fp8 fp8(asc_fp8 kind) { return kind == __ASC_E4M3 ? Fp8{3, 7, 448.f, 0x7e} : Fp8{2, 15, 57344.f, 0x7b}; }
// To nearest even, saturating. NaN becomes 0, as a saturating conversion of this chip does unless a mode bit is set.
inline uint8_t to_fp8(float x, asc_fp8 kind) {
  Fp8 f = fp8(kind);
  if (std::isnan(x)) return 0;
  uint8_t sign = std::signbit(x) ? 0x80 : 0;
  float size = std::fabs(x);
  if (size >= f.largest) return sign | f.top;
  if (size == 0) return sign;
  int exponent;
  std::frexp(size, &exponent);
  exponent = exponent - 1 < 1 - f.bias ? 1 - f.bias : exponent - 1;
  auto scaled = uint32_t(std::nearbyint(std::ldexp(size, f.mantissa - exponent)));
  if (scaled >> (f.mantissa + 1)) scaled >>= 1, ++exponent;
  uint8_t code = scaled >> f.mantissa ? uint8_t((exponent + f.bias) << f.mantissa | (scaled & ((1u << f.mantissa) - 1)))
                                      : uint8_t(scaled);
  return sign | (code > f.top ? f.top : code);
}
inline float from_fp8(uint8_t code, asc_fp8 kind) {
  Fp8 f = fp8(kind);
  int exponent = (code & 0x7f) >> f.mantissa, fraction = code & ((1 << f.mantissa) - 1);
  float size;
  if (kind == __ASC_E4M3 && (code & 0x7f) == 0x7f) size = NAN;
  else if (kind == __ASC_E5M2 && exponent == 31) size = fraction ? NAN : INFINITY;
  else if (exponent) size = std::ldexp(float(fraction + (1 << f.mantissa)), exponent - f.bias - f.mantissa);
  else size = std::ldexp(float(fraction), 1 - f.bias - f.mantissa);
  return code & 0x80 ? -size : size;
}
}  // namespace asc
inline uint16_t __asc_cvt_float2_to_fp8x2(float2 v, asc_saturation, asc_fp8 kind) {
  return uint16_t(asc::to_fp8(v.x, kind) | asc::to_fp8(v.y, kind) << 8);
}
struct float8_e4m3_t {
  uint8_t data;
  float8_e4m3_t() = default;
  float8_e4m3_t(float f) : data(asc::to_fp8(f, __ASC_E4M3)) {}
  operator float() const { return asc::from_fp8(data, __ASC_E4M3); }
};
struct float8_e5m2_t {
  uint8_t data;
  float8_e5m2_t() = default;
  float8_e5m2_t(float f) : data(asc::to_fp8(f, __ASC_E5M2)) {}
  operator float() const { return asc::from_fp8(data, __ASC_E5M2); }
};
struct float8_e8m0_t { uint8_t data; };
struct float8_e4m3x2_t { uint16_t code; };
struct float8_e5m2x2_t { uint16_t code; };
struct float4_e2m1x2_t { uint8_t code; };
struct float4_e1m2x2_t { uint8_t code; };
inline float2 __e4m3x22float2(float8_e4m3x2_t v) {
  return {asc::from_fp8(v.code & 255, __ASC_E4M3), asc::from_fp8(v.code >> 8, __ASC_E4M3)};
}
inline float2 __e5m2x22float2(float8_e5m2x2_t v) {
  return {asc::from_fp8(v.code & 255, __ASC_E5M2), asc::from_fp8(v.code >> 8, __ASC_E5M2)};
}

// Operands of two types meet in their common type; of two places in memory, their values do.
template <class A, class B> auto max(A a, B b) {
  using C = std::common_type_t<typename asc::value_of<A>::type, typename asc::value_of<B>::type>;
  C x = C(a), y = C(b);
  return x > y ? x : y;
}
template <class A, class B> auto min(A a, B b) {
  using C = std::common_type_t<typename asc::value_of<A>::type, typename asc::value_of<B>::type>;
  C x = C(a), y = C(b);
  return x < y ? x : y;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline void device_assert(bool holds) { if (!holds) asc::fault("device_assert does not hold"); }

// ---------------------------------------------------------------------- DMA
namespace asc {
inline thread_local uint64_t moved_in, moved_out;   // bytes of global memory
inline void check_dma(int64_t offset, int64_t bytes, int64_t rows, int64_t stride) {
  if (offset % UNIT) fault("DMA at UB byte %lld, which is no multiple of 32", offset);
  if (rows > 1 && stride % UNIT) fault("DMA rows in UB %lld bytes apart, which is no multiple of 32", stride);
  check_ub(offset + (rows - 1) * stride, bytes, "DMA at UB byte %lld, beyond its end");
}
}  // namespace asc
// Rows from global memory; each is filled up to whole blocks of UB, with zeros.
template <class D, class S>
void asc_copy_gm2ub_align(D to, S from, int64_t rows, int64_t bytes, int64_t, int64_t, int, asc_load_l2_cache_mode,
                          int64_t from_stride, int64_t to_stride) {
  asc::pipe = PIPE_MTE2;
  asc::step(PIPE_MTE2);
  if (rows <= 0 || bytes <= 0) return;
  int64_t padded = (bytes + asc::UNIT - 1) / asc::UNIT * asc::UNIT;
  asc::check_dma(asc::ub_offset(to), padded, rows, to_stride);
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t *source = asc::raw(from) + row * from_stride, *target = asc::raw(to) + row * to_stride;
#ifdef ASC_CHECKED
    asc::check_global(from.of, source, bytes, "DMA from byte %lld of a tensor of %lld bytes");
    asc::read_global(from.of, source, bytes);
    asc::wrote_ub(target - asc::ub_bytes, padded);
#endif
    memcpy(target, source, bytes);
    memset(target + bytes, 0, padded - bytes);
    asc::moved_in += bytes;
  }
}
template <class D, class S>
void asc_copy_ub2gm_align(D to, S from, int64_t rows, int64_t bytes, asc_store_l2_cache_mode, int64_t to_stride,
                          int64_t from_stride) {
  asc::pipe = PIPE_MTE3;
  asc::step(PIPE_MTE3);
  if (rows <= 0 || bytes <= 0) return;
  asc::check_dma(asc::ub_offset(from), bytes, rows, from_stride);
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t *source = asc::raw(from) + row * from_stride, *target = asc::raw(to) + row * to_stride;
#ifdef ASC_CHECKED
    asc::read_ub(source - asc::ub_bytes, bytes);
    asc::check_global(to.of, target, bytes, "DMA to byte %lld of a tensor of %lld bytes");
    asc::wrote_global(to.of, target, bytes);
#endif
    memcpy(target, source, bytes);
    asc::moved_out += bytes;
  }
}

// ---------------------------------------------------------------------- the scalar core's global memory
namespace tl {
#ifdef ASC_CHECKED
template <class T> T read_gm_bypass_dcache(asc::gm<T> p) { return p.load(); }
template <class T, class U> void write_gm_bypass_dcache(asc::gm<T> p, U value) { p.store(T(value)); }
#else
template <class T> T read_gm_bypass_dcache(T *p) { return *p; }
template <class T, class U> void write_gm_bypass_dcache(T *p, U value) { *p = T(value); }
#endif
}  // namespace tl

#include "simd.h"
