// The words of generated kernels for a CPU: a value of type F, I, U or B holds all 32 lanes of a warp, which always do
// the same; the warps of a block are threads that meet at SYNC; blocks run one after the other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <vector>
#define DEVICE static inline
#define UNROLL
typedef unsigned short half_word;
struct int2 { int x, y; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
template <class T> struct Lanes { T v[32]; };
typedef Lanes<float> F;
typedef Lanes<int> I;
typedef Lanes<unsigned> U;
typedef Lanes<bool> B;
#define EACH for (int l = 0; l < 32; ++l)
template <class T> static inline Lanes<T> all_lanes(T x) { Lanes<T> r; EACH r.v[l] = x; return r; }
DEVICE F f_(float x) { return all_lanes(x); }
DEVICE I i_(int x) { return all_lanes(x); }
DEVICE U u_(unsigned x) { return all_lanes(x); }
DEVICE B b_(bool x) { return all_lanes(x); }
static inline I lane_numbers() { I r; EACH r.v[l] = l; return r; }
template <class T> DEVICE Lanes<T> select(B c, Lanes<T> x, Lanes<T> y) { Lanes<T> r; EACH r.v[l] = c.v[l] ? x.v[l] : y.v[l]; return r; }
template <class T> DEVICE Lanes<T> shuffle(Lanes<T> x, I lane) { Lanes<T> r; EACH r.v[l] = x.v[lane.v[l] & 31]; return r; }
template <class T> DEVICE Lanes<T> exchange(Lanes<T> x, int mask) { Lanes<T> r; EACH r.v[l] = x.v[l ^ mask]; return r; }
static inline bool any_lane(B x) { EACH if (x.v[l]) return true; return false; }
static inline float as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
static inline unsigned as_word(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
template <class T> DEVICE Lanes<T> load(const T* p, I at) { Lanes<T> r; EACH r.v[l] = p[at.v[l]]; return r; }
DEVICE F load(const half_word* p, I at) { F r; EACH r.v[l] = as_float((unsigned)p[at.v[l]] << 16); return r; }
static inline unsigned half_bits(float x) {
  unsigned u = as_word(x);
  return x != x ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
template <class T> DEVICE void store(T* p, I at, Lanes<T> x, B where) { EACH if (where.v[l]) p[at.v[l]] = x.v[l]; }
DEVICE void store(half_word* p, I at, F x, B where) { EACH if (where.v[l]) p[at.v[l]] = (half_word)half_bits(x.v[l]); }
#define UNARY(name, T, R, expression) \
  static inline decltype(R().v[0] + 0) name##_##T##_scalar(decltype(T().v[0] + 0) x) { return expression; } \
  DEVICE R name(T a) { R r; EACH r.v[l] = name##_##T##_scalar(a.v[l]); return r; }
#define BINARY(name, T, R, expression) \
  static inline decltype(R().v[0] + 0) name##_##T##_scalar(decltype(T().v[0] + 0) x, decltype(T().v[0] + 0) y) { return expression; } \
  DEVICE R name(T a, T b) { R r; EACH r.v[l] = name##_##T##_scalar(a.v[l], b.v[l]); return r; }
static inline float scalar_tanh(float x) { return tanhf(x); }
static inline int to_int(float x) { return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)x; }
static inline unsigned to_unsigned(float x) { return x != x || x <= 0 ? 0u : x >= 4294967296.0f ? 4294967295u : (unsigned)x; }
static inline int bits_set(unsigned x) { return __builtin_popcount(x); }
static inline unsigned packed_halves(float low, float high) { return half_bits(low) | (half_bits(high) << 16); }
DEVICE U pack_halves(F low, F high) { U r; EACH r.v[l] = packed_halves(low.v[l], high.v[l]); return r; }
static inline float nearest_number(float x) { return std::isfinite(x) ? as_float((as_word(x) + 0x1000u) & 0xffffe000u) : x; }
DEVICE U nearest(F x) { U r; EACH r.v[l] = as_word(nearest_number(x.v[l])); return r; }
static inline float truncated(unsigned x) { return as_float(x & 0xffffe000u); }
DEVICE void mma_tf32(F* c, U a0, U a1, U a2, U a3, U b0, U b1) {
  float a[16][8], b[8][8];
  EACH { int g = l >> 2, t = l & 3;
    a[g][t] = truncated(a0.v[l]); a[g + 8][t] = truncated(a1.v[l]); a[g][t + 4] = truncated(a2.v[l]); a[g + 8][t + 4] = truncated(a3.v[l]);
    b[t][g] = truncated(b0.v[l]); b[t + 4][g] = truncated(b1.v[l]); }
  EACH { int g = l >> 2, t = l & 3;
    for (int r = 0; r < 4; ++r) { float s = c[r].v[l]; for (int k = 0; k < 8; ++k) s += a[g + 8 * (r >> 1)][k] * b[k][2 * t + (r & 1)]; c[r].v[l] = s; } }
}
DEVICE void mma_half(F* c, U a0, U a1, U a2, U a3, U b0, U b1) {
  float a[16][16], b[16][8];
  auto low = [](unsigned x) { return as_float(x << 16); };
  auto high = [](unsigned x) { return as_float(x & 0xffff0000u); };
  EACH { int g = l >> 2, t = 2 * (l & 3);
    a[g][t] = low(a0.v[l]); a[g][t + 1] = high(a0.v[l]); a[g + 8][t] = low(a1.v[l]); a[g + 8][t + 1] = high(a1.v[l]);
    a[g][t + 8] = low(a2.v[l]); a[g][t + 9] = high(a2.v[l]); a[g + 8][t + 8] = low(a3.v[l]); a[g + 8][t + 9] = high(a3.v[l]);
    b[t][g] = low(b0.v[l]); b[t + 1][g] = high(b0.v[l]); b[t + 8][g] = low(b1.v[l]); b[t + 9][g] = high(b1.v[l]); }
  EACH { int g = l >> 2, t = l & 3;
    for (int r = 0; r < 4; ++r) { float s = c[r].v[l]; for (int k = 0; k < 16; ++k) s += a[g + 8 * (r >> 1)][k] * b[k][2 * t + (r & 1)]; c[r].v[l] = s; } }
}
struct Warp { int block, blocks, warp; void** buffers; unsigned char* shared; pthread_barrier_t* barrier; };
static thread_local Warp here;
#define BLOCK (here.block)
#define BLOCKS (here.blocks)
#define WARP (here.warp)
#define LANE (lane_numbers())
#define SYNC pthread_barrier_wait(here.barrier)
#define THREADS(i, count) for (int i = 32 * here.warp, last_ = 0; i < (count); ++last_, i += (last_ % 32 ? 1 : 32 * (WARPS - 1) + 1))
#define SHARED(bytes) unsigned char* shared = here.shared
#define KERNEL(name) static void name
static inline float number_at(const float* p, int at) { return p[at]; }
static inline float number_at(const half_word* p, int at) { return as_float((unsigned)p[at] << 16); }
DEVICE U pair_at(const half_word* p, I at) { U r; EACH std::memcpy(&r.v[l], p + at.v[l], 4); return r; }
DEVICE void words_at(const uint2* p, int at, U& x, U& y) { EACH { x.v[l] = p[at + l].x; y.v[l] = p[at + l].y; } }
static void call_kernel(void** buffers);
static void* warp_thread(void* given) {
  here = *(Warp*)given;
  for (here.block = 0; here.block < here.blocks; ++here.block) { call_kernel(here.buffers); SYNC; }
  return nullptr;
}
extern "C" void run_kernel(void** buffers, int blocks, int shared_bytes) {
  std::vector<unsigned char> shared(shared_bytes);
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, WARPS);
  Warp warps[WARPS];
  pthread_t threads[WARPS];
  for (int w = 0; w < WARPS; ++w) {
    warps[w] = Warp{0, blocks, w, buffers, shared.data(), &barrier};
    pthread_create(&threads[w], nullptr, warp_thread, &warps[w]);
  }
  for (int w = 0; w < WARPS; ++w) pthread_join(threads[w], nullptr);
  pthread_barrier_destroy(&barrier);
}
