// Vector registers and the SIMD instructions that TileLang's wrappers (simd_inst) stand for, with their documented
// meaning: 256 bytes a register, a predicate bit a byte, inactive lanes zero. Included by asc.h.
//
// The checked build follows lanes: one may be loaded from UB that nobody wrote, or that no barrier (mem_bar) or flag makes
// it wait for, as registers read beyond short rows; it may not be stored. A lane counts as read where it is first used:
// what lies beyond may be overwritten meanwhile. Stores to one place need a barrier between.
#pragma once

namespace asc {
constexpr int REGISTER = 256;
#ifdef ASC_CHECKED
constexpr bool FOLLOWED = true;
#else
constexpr bool FOLLOWED = false;
#endif
template <bool> struct Doubt { uint64_t lanes[4] = {}; };   // a bit a byte: nothing says what it holds
template <> struct Doubt<false> {};
template <bool> struct Source {   // of each 4 bytes: 1 + the unit of UB that they were loaded from, 0 for computed ones
  uint32_t unit[REGISTER / 4] = {};
};
template <> struct Source<false> {};

template <class T> struct vreg {
  using item = T;
  static constexpr int LANES = REGISTER / sizeof(T);
  alignas(32) T lane[LANES];
  [[no_unique_address]] Doubt<FOLLOWED> doubt;
  [[no_unique_address]] Source<FOLLOWED> source;
};
struct predicate {
  uint64_t bits[4] = {};
  [[no_unique_address]] Doubt<FOLLOWED> doubt;
  bool at(int byte) const { return bits[byte >> 6] >> (byte & 63) & 1; }
  void set(int byte, bool on) { if (on) bits[byte >> 6] |= uint64_t(1) << (byte & 63); }
};
template <class V> bool doubtful(const V &v, int byte) {
  if constexpr (FOLLOWED) return v.doubt.lanes[byte >> 6] >> (byte & 63) & 1;
  return false;
}
template <class V> void doubt(V &v, int byte, bool on) {
  if constexpr (FOLLOWED) if (on) v.doubt.lanes[byte >> 6] |= uint64_t(1) << (byte & 63);
}

inline thread_local uint64_t instructions;   // SIMD instructions executed
inline thread_local uint32_t stores_since[2];   // the number of the barrier before which stores are ordered: loads, stores
inline thread_local uint32_t store_number;
#ifdef ASC_CHECKED
inline thread_local uint32_t stored_by[UB_BYTES];   // the store of this or an earlier function that wrote a byte last
#endif
inline void begin_simd() {
  pipe = PIPE_V;
  step(PIPE_V);
  stores_since[0] = stores_since[1] = store_number;
}
inline void simd_reads(int64_t offset, int64_t bytes) {
  check_ub(offset, bytes, "a vector load at UB byte %lld, beyond its end");
}
inline void simd_writes(int64_t offset, int64_t bytes) {
  check_ub(offset, bytes, "a vector store at UB byte %lld, beyond its end");
#ifdef ASC_CHECKED
  used_ub(offset, bytes, true);
  for (int64_t i = offset; i < offset + bytes; ++i) {
    if (stored_by[i] > stores_since[1]) fault("UB byte %lld is stored twice by this function without a barrier", i);
    stored_by[i] = store_number + 1;
    ub_written[i] = 1;
  }
#endif
}
inline void simd_aligned(int64_t offset, int unit) {
  if (offset % unit) fault("a vector access at UB byte %lld, which is no multiple of %lld", offset, unit);
}
// Does nothing make a load of these bytes wait for whoever wrote them?
inline bool unordered(int64_t offset, int bytes) {
#ifdef ASC_CHECKED
  const Unit &unit = ub_units[offset / int64_t(UNIT)];
  if (unit.writer != pipe && clocks[pipe].at[unit.writer] < unit.write) return true;
  for (int i = 0; i < bytes; ++i)
    if (!ub_written[offset + i] || stored_by[offset + i] > stores_since[0]) return true;
#endif
  return false;
}
// One lane of a load: `bytes` of memory at `offset` into the register at `to`; the rest of the lane is zero.
template <class T> void load_lane(vreg<T> &v, int to, int64_t offset, int bytes, int width) {
  uint8_t *lane = (uint8_t *)v.lane + to;
  memset(lane, 0, width);
  memcpy(lane, ub_bytes + offset, bytes);
  if constexpr (FOLLOWED) {
    v.source.unit[to / 4] = uint32_t(offset / int64_t(UNIT)) + 1;
    if (unordered(offset, bytes)) for (int i = 0; i < width; ++i) doubt(v, to + i, true);
  }
}
inline void store_lane(int64_t offset, const uint8_t *lane, int bytes, bool in_doubt) {
  if (in_doubt) fault("a lane is stored at UB byte %lld that was loaded where nobody wrote, or without a barrier or flag", offset);
  simd_writes(offset, bytes);
  memcpy(ub_bytes + offset, lane, bytes);
}
// A lane is used: its place in UB is read, and is it in doubt?
template <class V> bool used(const V &v, int byte, int width) {
#ifdef ASC_CHECKED
  if (uint32_t unit = v.source.unit[byte / 4]) ub_units[unit - 1].read[pipe] = clocks[pipe].at[pipe];
  for (int i = 0; i < width; ++i) if (doubtful(v, byte + i)) return true;
#endif
  return false;
}
template <class T> vreg<T> zeros() { vreg<T> v; memset(v.lane, 0, REGISTER); return v; }
// A lane-wise operation under a mask; lanes of one width.
template <class R, class F, class... V> vreg<R> lanewise(predicate mask, F f, const V &...v) {
  vreg<R> r = zeros<R>();
  ++instructions;
  for (int i = 0; i < vreg<R>::LANES; ++i) {
    constexpr int W = sizeof(R);
    if (!mask.at(i * W)) continue;
    r.lane[i] = f(v.lane[i]...);
    if constexpr (FOLLOWED) {
      bool d = (int(used(v, i * W, W)) | ...) || doubtful(mask, i * W);   // every operand, so without ||
      for (int b = 0; b < W; ++b) doubt(r, i * W + b, d);
    }
  }
  return r;
}
template <class F, class... V> predicate compared(predicate mask, int width, F f, const V &...v) {
  predicate p;
  ++instructions;
  for (int i = 0; i < REGISTER / width; ++i)
    if (mask.at(i * width)) {
      p.set(i * width, f(v.lane[i]...));
      doubt(p, i * width, (int(used(v, i * width, width)) | ...));
    }
  return p;
}
}  // namespace asc

using vector_bool = asc::predicate;
using vector_f32 = asc::vreg<float>;
using vector_f16 = asc::vreg<half>;
using vector_bf16 = asc::vreg<bfloat16_t>;
using vector_f8e4m3 = asc::vreg<float8_e4m3_t>;
using vector_s32 = asc::vreg<int32_t>;
using vector_u32 = asc::vreg<uint32_t>;
using vector_s16 = asc::vreg<int16_t>;
using vector_u16 = asc::vreg<uint16_t>;
using vector_s8 = asc::vreg<int8_t>;
using vector_u8 = asc::vreg<uint8_t>;

enum asc_pattern { PAT_ALL };
enum asc_mode { MODE_ZEROING };
enum asc_part { PART_EVEN, PART_ODD, PART_P0, PART_P1, PART_P2, PART_P3 };
enum asc_round { ROUND_R, ROUND_A, ROUND_F, ROUND_C, ROUND_Z };
enum asc_saturate { RS_ENABLE, RS_DISABLE };
enum asc_order { INC_ORDER, DEC_ORDER };
enum asc_barrier { VST_VLD, VLD_VST, VST_VST };
inline vector_bool asc_create_mask_b32(asc_pattern) {
  vector_bool p;
  for (int i = 0; i < asc::REGISTER; i += 4) p.set(i, true);
  return p;
}

namespace simd_inst {
using namespace asc;

inline vector_bool update_mask_b32(uint32_t lanes) {
  vector_bool p;
  ++instructions;
  for (uint32_t i = 0; i < 64 && i < lanes; ++i) p.set(i * 4, true);
  return p;
}
inline void mem_bar(asc_barrier kind) {
  ++instructions;
  if (kind == VST_VLD) stores_since[0] = store_number;
  if (kind == VST_VST) stores_since[1] = store_number;
}

// ---------------------------------------------------------------------- loads
template <class T, class P> vreg<T> vlds_norm(P p, int64_t) {
  vreg<T> v;
  ++instructions;
  int64_t at = ub_offset(p);
  simd_aligned(at, UNIT);
  simd_reads(at, REGISTER);
  for (int i = 0; i < vreg<T>::LANES; ++i) load_lane(v, i * sizeof(T), at + i * sizeof(T), sizeof(T), sizeof(T));
  return v;
}
template <class T, class P> vreg<T> vlds_brc_elem(P p, int64_t) {
  vreg<T> v;
  ++instructions;
  int64_t at = ub_offset(p);
  simd_aligned(at, sizeof(T));
  simd_reads(at, sizeof(T));
  for (int i = 0; i < vreg<T>::LANES; ++i) load_lane(v, i * sizeof(T), at, sizeof(T), sizeof(T));
  return v;
}
template <int TIMES, class T, class P> vreg<T> unpacked(P p) {   // each element at the bottom of a wider lane
  vreg<T> v;
  ++instructions;
  constexpr int N = vreg<T>::LANES / TIMES, W = sizeof(T) * TIMES;
  int64_t at = ub_offset(p);
  simd_aligned(at, UNIT);
  simd_reads(at, N * sizeof(T));
  for (int i = 0; i < N; ++i) load_lane(v, i * W, at + i * sizeof(T), sizeof(T), W);
  return v;
}
template <class T, class P> vreg<T> vlds_unpack(P p, int64_t) { return unpacked<2, T>(p); }
template <class T, class P> vreg<T> vlds_unpack4(P p, int64_t) { return unpacked<4, T>(p); }
template <class P, class I> auto vgather2(P p, vreg<I> index, vector_bool mask) {
  using T = std::remove_cvref_t<decltype(p[0])>;
  using E = typename value_of<T>::type;
  static_assert(sizeof(E) == sizeof(I), "a gather of lanes of one width");
  vreg<E> v = zeros<E>();
  ++instructions;
  int64_t base = ub_offset(p);
  for (int i = 0; i < vreg<E>::LANES; ++i)
    if (mask.at(i * sizeof(E))) {
      if (used(index, i * sizeof(E), sizeof(E))) fault("an index from UB that nobody wrote, in lane %lld", i);
      int64_t at = base + int64_t(index.lane[i]) * sizeof(E);
      simd_reads(at, sizeof(E));
      load_lane(v, i * sizeof(E), at, sizeof(E), sizeof(E));
    }
  return v;
}

// ---------------------------------------------------------------------- stores
template <int BYTES, class V, class P> void store_lanes(const V &v, P p, vector_bool mask, int width) {
  ++instructions;
  int64_t at = ub_offset(p);
  simd_aligned(at, UNIT);
  for (int i = 0; i < REGISTER / width; ++i)
    if (mask.at(i * width))
      store_lane(at + i * BYTES, (const uint8_t *)v.lane + i * width, BYTES,
                 used(v, i * width, BYTES) || doubtful(mask, i * width));
  ++store_number;
}
template <class T, class P> void vsts_norm(vreg<T> v, P p, int64_t, vector_bool mask) {
  store_lanes<sizeof(T)>(v, p, mask, sizeof(T));
}
template <class T, class P> void vsts_pack_b32(vreg<T> v, P p, int64_t, vector_bool mask) { store_lanes<2>(v, p, mask, 4); }
template <class T, class P> void vsts_pack_quarter(vreg<T> v, P p, int64_t, vector_bool mask) { store_lanes<1>(v, p, mask, 4); }
template <class T, class P> void vsts_1st(vreg<T> v, P p, int64_t, vector_bool) {
  ++instructions;
  int64_t at = ub_offset(p);
  simd_aligned(at, sizeof(T));
  store_lane(at, (const uint8_t *)v.lane, sizeof(T), used(v, 0, sizeof(T)));
  ++store_number;
}
template <class T, class P, class I> void vscatter(vreg<T> v, P p, vreg<I> index, vector_bool mask) {
  ++instructions;
  int64_t base = ub_offset(p);
  for (int i = 0; i < vreg<T>::LANES; ++i)
    if (mask.at(i * sizeof(T))) {
      if (used(index, i * sizeof(T), sizeof(T))) fault("an index from UB that nobody wrote, in lane %lld", i);
      store_lane(base + int64_t(index.lane[i]) * sizeof(T), (const uint8_t *)&v.lane[i], sizeof(T),
                 used(v, i * sizeof(T), sizeof(T)) || doubtful(mask, i * sizeof(T)));
    }
  ++store_number;
}

// ---------------------------------------------------------------------- arithmetic
#define ASC_BINARY(NAME, RESULT)                                                                             \
  template <class T> vreg<T> NAME(vreg<T> a, vreg<T> b, vector_bool mask, asc_mode) {                        \
    return lanewise<T>(mask, [](T x, T y) { return T(RESULT); }, a, b);                                      \
  }
template <class T> T wrap_add(T x, T y) { if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(x) + std::make_unsigned_t<T>(y)); else return x + y; }
template <class T> T wrap_sub(T x, T y) { if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(x) - std::make_unsigned_t<T>(y)); else return x - y; }
template <class T> T wrap_mul(T x, T y) { if constexpr (std::is_integral_v<T>) return T(std::make_unsigned_t<T>(x) * std::make_unsigned_t<T>(y)); else return x * y; }
template <class T> T shifted_left(T x, int n) { return n >= int(8 * sizeof(T)) ? T(0) : T(std::make_unsigned_t<T>(x) << n); }
template <class T> T shifted_right(T x, int n) { return n >= int(8 * sizeof(T)) ? T(x < 0 ? -1 : 0) : T(x >> n); }
ASC_BINARY(vadd, wrap_add(x, y))
ASC_BINARY(vsub, wrap_sub(x, y))
ASC_BINARY(vmul, wrap_mul(x, y))
ASC_BINARY(vmax, x > y ? x : y)
ASC_BINARY(vmin, x < y ? x : y)
ASC_BINARY(vand, x & y)
ASC_BINARY(vor, x | y)
ASC_BINARY(vxor, x ^ y)
ASC_BINARY(vshl, shifted_left(x, int(y)))
ASC_BINARY(vshr, shifted_right(x, int(y)))
ASC_BINARY(vdiv, x / y)
ASC_BINARY(vdiv_0ulp_ftz_true, x / y)   // subnormal results are kept here
#undef ASC_BINARY
#define ASC_SCALAR(NAME, OF)                                                                                 \
  template <class T, class S> vreg<T> NAME(vreg<T> a, S s, vector_bool mask, asc_mode) {                     \
    return lanewise<T>(mask, [s](T x) { T y = T(s); return T(OF); }, a);                                     \
  }
ASC_SCALAR(vadds, wrap_add(x, y))
ASC_SCALAR(vmuls, wrap_mul(x, y))
ASC_SCALAR(vmaxs, x > y ? x : y)
ASC_SCALAR(vmins, x < y ? x : y)
ASC_SCALAR(vshls, shifted_left(x, int(s)))
ASC_SCALAR(vshrs, shifted_right(x, int(s)))
#undef ASC_SCALAR
#define ASC_UNARY(NAME, RESULT)                                                                              \
  template <class T> vreg<T> NAME(vreg<T> a, vector_bool mask, asc_mode) {                                   \
    return lanewise<T>(mask, [](T x) { return T(RESULT); }, a);                                              \
  }
ASC_UNARY(vexp, expf(x))
ASC_UNARY(vexp_1ulp_ftz_false, expf(x))
ASC_UNARY(vln, logf(x))
ASC_UNARY(vln_1ulp_ftz_false, logf(x))
ASC_UNARY(vsqrt, sqrtf(x))
ASC_UNARY(vsqrt_0ulp_ftz_false, sqrtf(x))
template <class T> T magnitude(T x) { if constexpr (std::is_floating_point_v<T>) return fabsf(x); else return x < 0 ? wrap_sub(T(0), x) : x; }
ASC_UNARY(vabs, magnitude(x))
ASC_UNARY(vneg, wrap_sub(T(0), x))
#undef ASC_UNARY
template <class T> vreg<T> vsel(vreg<T> a, vreg<T> b, vector_bool chosen) {
  vreg<T> r;
  ++instructions;
  for (int i = 0; i < vreg<T>::LANES; ++i) {
    constexpr int W = sizeof(T);
    bool first = chosen.at(i * W);
    r.lane[i] = first ? a.lane[i] : b.lane[i];
    if constexpr (FOLLOWED) {   // a lane that is passed on is not used yet
      r.source.unit[i * W / 4] = (first ? a : b).source.unit[i * W / 4];
      for (int n = 0; n < W; ++n) doubt(r, i * W + n, doubtful(first ? a : b, i * W + n) || doubtful(chosen, i * W));
    }
  }
  return r;
}
#define ASC_COMPARE(NAME, OP)                                                                                \
  template <class T> vector_bool vcmp_##NAME(vreg<T> a, vreg<T> b, vector_bool mask) {                       \
    return compared(mask, sizeof(T), [](T x, T y) { return x OP y; }, a, b);                                 \
  }                                                                                                          \
  template <class T, class S> vector_bool vcmps_##NAME(vreg<T> a, S s, vector_bool mask) {                   \
    return compared(mask, sizeof(T), [s](T x) { return x OP T(s); }, a);                                     \
  }
ASC_COMPARE(eq, ==)
ASC_COMPARE(ne, !=)
ASC_COMPARE(gt, >)
ASC_COMPARE(ge, >=)
ASC_COMPARE(lt, <)
ASC_COMPARE(le, <=)
#undef ASC_COMPARE
template <class F> vector_bool joined(const vector_bool &a, const vector_bool &b, const vector_bool &mask, F f) {
  vector_bool p;
  ++instructions;
  for (int i = 0; i < REGISTER; ++i)
    if (mask.at(i)) p.set(i, f(a.at(i), b.at(i))), doubt(p, i, doubtful(a, i) || doubtful(b, i) || doubtful(mask, i));
  return p;
}
inline vector_bool pand(vector_bool a, vector_bool b, vector_bool mask) { return joined(a, b, mask, [](bool x, bool y) { return x && y; }); }
inline vector_bool por(vector_bool a, vector_bool b, vector_bool mask) { return joined(a, b, mask, [](bool x, bool y) { return x || y; }); }
inline vector_bool pnot(vector_bool a, vector_bool mask) { return joined(a, a, mask, [](bool x, bool) { return !x; }); }
template <class T> vreg<T> vdup(T value, vector_bool mask, asc_mode) {
  vreg<T> r = zeros<T>();
  ++instructions;
  for (int i = 0; i < vreg<T>::LANES; ++i) if (mask.at(i * sizeof(T))) r.lane[i] = value;
  return r;
}
template <class T> vreg<T> vci(T first, asc_order order) {
  vreg<T> r;
  ++instructions;
  for (int i = 0; i < vreg<T>::LANES; ++i) r.lane[i] = order == INC_ORDER ? T(first + i) : T(first - i);
  return r;
}
// The largest or smallest of the active lanes, in the first.
template <class T, class F> vreg<T> folded(vreg<T> v, vector_bool mask, F better) {
  vreg<T> r = zeros<T>();
  ++instructions;
  bool any = false, in_doubt = false;
  for (int i = 0; i < vreg<T>::LANES; ++i)
    if (mask.at(i * sizeof(T))) {
      if (!any || better(v.lane[i], r.lane[0])) r.lane[0] = v.lane[i];
      any = true;
      in_doubt |= used(v, i * sizeof(T), sizeof(T));
    }
  for (unsigned n = 0; n < sizeof(T); ++n) doubt(r, n, in_doubt);
  return r;
}
template <class T> vreg<T> vcmax(vreg<T> v, vector_bool mask, asc_mode) { return folded(v, mask, [](T a, T b) { return a > b; }); }
template <class T> vreg<T> vcmin(vreg<T> v, vector_bool mask, asc_mode) { return folded(v, mask, [](T a, T b) { return a < b; }); }

// ---------------------------------------------------------------------- conversions: between lanes of 32 bits
inline bfloat16_t converted(float x, asc_round, bfloat16_t) { return bfloat16_t(x); }
inline float8_e4m3_t converted(float x, asc_round, float8_e4m3_t) { return float8_e4m3_t(x); }
inline float converted(bfloat16_t x, asc_round, float) { return x; }
inline float converted(float8_e4m3_t x, asc_round, float) { return x; }
inline float converted(int32_t x, asc_round, float) { return float(x); }
inline int32_t converted(float x, asc_round round, int32_t) {   // saturating; NaN to 0
  if (x != x) return 0;
  double whole = round == ROUND_Z ? std::trunc(x) : round == ROUND_F ? std::floor(x) : round == ROUND_C ? std::ceil(x)
                 : round == ROUND_A ? std::round(x) : std::nearbyint(x);
  return whole >= 2147483647.0 ? 2147483647 : whole <= -2147483648.0 ? int32_t(-2147483647 - 1) : int32_t(whole);
}
template <class U, class T> vreg<U> vcvt_part(vreg<T> v, vector_bool mask, asc_round round, asc_part part) {
  vreg<U> r = zeros<U>();
  ++instructions;
  constexpr int FROM = 4 / sizeof(T), TO = 4 / sizeof(U);
  int place = part == PART_EVEN || part == PART_P0 ? 0 : part == PART_ODD || part == PART_P1 ? 1 : part == PART_P2 ? 2 : 3;
  for (int i = 0; i < REGISTER / 4; ++i)
    if (mask.at(i * 4)) {
      int from = FROM == 1 ? i : i * FROM + place, to = TO == 1 ? i : i * TO + place;
      r.lane[to] = converted(v.lane[from], round, U());
      bool d = used(v, from * sizeof(T), sizeof(T)) || doubtful(mask, i * 4);
      for (unsigned n = 0; n < sizeof(U); ++n) doubt(r, to * sizeof(U) + n, d);
    }
  return r;
}
template <class U, class T> vreg<U> vcvt(vreg<T> v, vector_bool mask, asc_part part, asc_mode) { return vcvt_part<U>(v, mask, ROUND_R, part); }
template <class U, class T> vreg<U> vcvt(vreg<T> v, vector_bool mask, asc_round round, asc_mode) { return vcvt_part<U>(v, mask, round, PART_P0); }
template <class U, class T> vreg<U> vcvt(vreg<T> v, vector_bool mask, asc_round round, asc_saturate, asc_mode) { return vcvt_part<U>(v, mask, round, PART_P0); }
template <class U, class T> vreg<U> vcvt(vreg<T> v, vector_bool mask, asc_round round, asc_saturate, asc_part part, asc_mode) { return vcvt_part<U>(v, mask, round, part); }
}  // namespace simd_inst
