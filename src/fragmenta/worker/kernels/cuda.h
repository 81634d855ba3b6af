// The words of generated kernels, in CUDA. A value of type F, I, U or B is one lane's part of it; `emulate.h` has the
// same words for a CPU, where such a value holds all lanes of a warp.
typedef float F;
typedef int I;
typedef unsigned U;
typedef bool B;
typedef unsigned short half_word;
#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) name
#define BODY
#define END
#define SHARED(bytes) extern __shared__ __align__(16) unsigned char shared[]
#define BLOCK ((int)blockIdx.x)
#define BLOCKS ((int)gridDim.x)
#define WARP ((int)(threadIdx.x >> 5))
#define LANE ((I)(threadIdx.x & 31))
#define SYNC __syncthreads()
#define THREADS(i, count) for (int i = threadIdx.x; i < (count); i += 32 * WARPS)
DEVICE F f_(float x) { return x; }
DEVICE I i_(int x) { return x; }
DEVICE U u_(unsigned x) { return x; }
DEVICE B b_(bool x) { return x; }
template <class T> DEVICE T select(B c, T x, T y) { return c ? x : y; }
template <class T> DEVICE T shuffle(T x, I lane) { return __shfl_sync(~0u, x, lane); }
template <class T> DEVICE T exchange(T x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE bool any_lane(B x) { return __any_sync(~0u, x); }
DEVICE F load(const float* p, I at) { return p[at]; }
DEVICE I load(const int* p, I at) { return p[at]; }
DEVICE U load(const unsigned* p, I at) { return p[at]; }
DEVICE B load(const bool* p, I at) { return p[at]; }
DEVICE F load(const half_word* p, I at) { return __uint_as_float((unsigned)p[at] << 16); }
DEVICE half_word half_bits(float x) { half_word r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
template <class T> DEVICE void store(T* p, I at, T x, B where) { if (where) p[at] = x; }
DEVICE void store(half_word* p, I at, F x, B where) { if (where) p[at] = half_bits(x); }
#define UNARY(name, T, R, expression) DEVICE R name(T x) { return expression; }
#define BINARY(name, T, R, expression) DEVICE R name(T x, T y) { return expression; }
DEVICE float fast_exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float fast_inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float scalar_tanh(float x) { return fmaf(-2.0f, fast_inverse(1.0f + fast_exp2(x * 2.8853900817779268f)), 1.0f); }
DEVICE float as_float(unsigned x) { return __uint_as_float(x); }
DEVICE unsigned as_word(float x) { return __float_as_uint(x); }
DEVICE int to_int(float x) { return __float2int_rz(x); }
DEVICE unsigned to_unsigned(float x) { return __float2uint_rz(x); }
DEVICE int bits_set(unsigned x) { return __popc(x); }
DEVICE unsigned packed_halves(float low, float high) {
  unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
DEVICE U pack_halves(F low, F high) { return packed_halves(low, high); }
// The nearest number of TF32, but for bits that products ignore; what is no number stays so.
DEVICE U nearest(F x) {
  unsigned r = __float_as_uint(x);
  asm("{.reg .pred p; setp.num.f32 p, %1, %1; @p add.u32 %0, %0, 4096;}" : "+r"(r) : "f"(x));
  return r;
}
DEVICE float nearest_number(float x) { return __uint_as_float(nearest(x)); }
// One product of 16 x 8 x 8 numbers in TF32, or of 16 x 8 x 16 in bfloat16, on the tensor cores.
DEVICE void mma_tf32(F* c, U a0, U a1, U a2, U a3, U b0, U b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_half(F* c, U a0, U a1, U a2, U a3, U b0, U b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE float number_at(const float* p, int at) { return p[at]; }
DEVICE float number_at(const half_word* p, int at) { return __uint_as_float((unsigned)p[at] << 16); }
DEVICE U pair_at(const half_word* p, I at) { return *(const unsigned*)(p + at); }
DEVICE void words_at(const uint2* p, int at, U& x, U& y) { uint2 both = p[at + (threadIdx.x & 31)]; x = both.x; y = both.y; }
