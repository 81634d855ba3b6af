// The words of generated kernels that are the same in CUDA and in its emulation.
BINARY(add, F, F, x + y)
BINARY(sub, F, F, x - y)
BINARY(mul, F, F, x * y)
BINARY(div, F, F, x / y)
BINARY(rem, F, F, fmodf(x, y))
BINARY(max, F, F, x != x || x > y ? x : y)
BINARY(min, F, F, x != x || x < y ? x : y)
BINARY(pow, F, F, powf(x, y))
BINARY(atan2, F, F, atan2f(x, y))
BINARY(nextafter, F, F, nextafterf(x, y))
UNARY(neg, F, F, -x)
UNARY(abs, F, F, fabsf(x))
UNARY(sign, F, F, x > 0 ? 1.0f : x < 0 ? -1.0f : x)
UNARY(floor, F, F, floorf(x))
UNARY(ceil, F, F, ceilf(x))
UNARY(exp, F, F, expf(x))
UNARY(exp2, F, F, exp2f(x))
UNARY(log, F, F, logf(x))
UNARY(log1p, F, F, log1pf(x))
UNARY(expm1, F, F, expm1f(x))
UNARY(sin, F, F, sinf(x))
UNARY(cos, F, F, cosf(x))
UNARY(tan, F, F, tanf(x))
UNARY(tanh, F, F, scalar_tanh(x))
UNARY(logistic, F, F, 1.0f / (1.0f + expf(-x)))
UNARY(sqrt, F, F, sqrtf(x))
UNARY(rsqrt, F, F, 1.0f / sqrtf(x))
UNARY(cbrt, F, F, cbrtf(x))
UNARY(erf, F, F, erff(x))
UNARY(asin, F, F, asinf(x))
UNARY(acos, F, F, acosf(x))
UNARY(atan, F, F, atanf(x))
UNARY(sinh, F, F, sinhf(x))
UNARY(cosh, F, F, coshf(x))
UNARY(asinh, F, F, asinhf(x))
UNARY(acosh, F, F, acoshf(x))
UNARY(atanh, F, F, atanhf(x))
UNARY(square, F, F, x * x)
UNARY(is_finite, F, B, fabsf(x) <= 3.402823466e38f)
// Giles' single-precision polynomials, as XLA has them.
DEVICE float inverse_erf(float x) {
  float w = -log1pf(-x * x), p;
  if (w < 5.0f) {
    w -= 2.5f;
    p = 2.81022636e-08f; p = 3.43273939e-07f + p * w; p = -3.5233877e-06f + p * w; p = -4.39150654e-06f + p * w;
    p = 0.00021858087f + p * w; p = -0.00125372503f + p * w; p = -0.00417768164f + p * w; p = 0.246640727f + p * w;
    p = 1.50140941f + p * w;
  } else {
    w = sqrtf(w) - 3.0f;
    p = -0.000200214257f; p = 0.000100950558f + p * w; p = 0.00134934322f + p * w; p = -0.00367342844f + p * w;
    p = 0.00573950773f + p * w; p = -0.0076224613f + p * w; p = 0.00943887047f + p * w; p = 1.00167406f + p * w;
    p = 2.83297682f + p * w;
  }
  return fabsf(x) == 1.0f ? x * as_float(0x7f800000u) : p * x;
}
UNARY(erf_inv, F, F, inverse_erf(x))
BINARY(add, U, U, x + y)
BINARY(sub, U, U, x - y)
BINARY(mul, U, U, x * y)
BINARY(div, U, U, y ? x / y : 0xffffffffu)
BINARY(rem, U, U, y ? x % y : x)
BINARY(max, U, U, x > y ? x : y)
BINARY(min, U, U, x < y ? x : y)
BINARY(and_, U, U, x & y)
BINARY(or_, U, U, x | y)
BINARY(xor_, U, U, x ^ y)
UNARY(not_, U, U, ~x)
UNARY(neg, U, U, 0u - x)
UNARY(abs, U, U, x)
UNARY(sign, U, U, x ? 1u : 0u)
UNARY(square, U, U, x * x)
UNARY(population_count, U, U, (unsigned)bits_set(x))
BINARY(shift_left, U, U, y < 32u ? x << y : 0u)
BINARY(shift_right_logical, U, U, y < 32u ? x >> y : 0u)
BINARY(shift_right_arithmetic, U, U, y < 32u ? (unsigned)((int)x >> y) : (int)x < 0 ? ~0u : 0u)
BINARY(add, I, I, (int)((unsigned)x + (unsigned)y))
BINARY(sub, I, I, (int)((unsigned)x - (unsigned)y))
BINARY(mul, I, I, (int)((unsigned)x * (unsigned)y))
BINARY(div, I, I, y == 0 ? -1 : y == -1 ? (int)(0u - (unsigned)x) : x / y)
BINARY(rem, I, I, y == 0 ? x : y == -1 ? 0 : x % y)
BINARY(max, I, I, x > y ? x : y)
BINARY(min, I, I, x < y ? x : y)
BINARY(and_, I, I, x & y)
BINARY(or_, I, I, x | y)
BINARY(xor_, I, I, x ^ y)
UNARY(not_, I, I, ~x)
UNARY(neg, I, I, (int)(0u - (unsigned)x))
UNARY(abs, I, I, x < 0 ? (int)(0u - (unsigned)x) : x)
UNARY(sign, I, I, x > 0 ? 1 : x < 0 ? -1 : 0)
UNARY(square, I, I, (int)((unsigned)x * (unsigned)x))
UNARY(population_count, I, I, bits_set((unsigned)x))
BINARY(shift_left, I, I, (unsigned)y < 32u ? (int)((unsigned)x << y) : 0)
BINARY(shift_right_logical, I, I, (unsigned)y < 32u ? (int)((unsigned)x >> y) : 0)
BINARY(shift_right_arithmetic, I, I, (unsigned)y < 32u ? x >> y : x < 0 ? -1 : 0)
#define COMPARED(T) BINARY(eq, T, B, x == y) BINARY(ne, T, B, x != y) BINARY(lt, T, B, x < y) \
  BINARY(le, T, B, x <= y) BINARY(gt, T, B, x > y) BINARY(ge, T, B, x >= y)
COMPARED(F)
COMPARED(I)
COMPARED(U)
BINARY(eq, B, B, x == y)
BINARY(ne, B, B, x != y)
BINARY(logical_and, B, B, x && y)
BINARY(logical_or, B, B, x || y)
BINARY(logical_xor, B, B, x != y)
UNARY(logical_not, B, B, !x)
UNARY(to_f, F, F, x)
UNARY(to_f, I, F, (float)x)
UNARY(to_f, U, F, (float)x)
UNARY(to_f, B, F, x ? 1.0f : 0.0f)
UNARY(to_i, F, I, to_int(x))
UNARY(to_i, I, I, x)
UNARY(to_i, U, I, (int)x)
UNARY(to_i, B, I, x ? 1 : 0)
UNARY(to_u, F, U, to_unsigned(x))
UNARY(to_u, I, U, (unsigned)x)
UNARY(to_u, U, U, x)
UNARY(to_u, B, U, x ? 1u : 0u)
UNARY(to_b, F, B, x != 0.0f)
UNARY(to_b, I, B, x != 0)
UNARY(to_b, U, B, x != 0u)
UNARY(to_b, B, B, x)
UNARY(bits_f, U, F, as_float(x))
UNARY(bits_f, I, F, as_float((unsigned)x))
UNARY(bits_f, F, F, x)
UNARY(bits_i, F, I, (int)as_word(x))
UNARY(bits_i, U, I, (int)x)
UNARY(bits_i, I, I, x)
UNARY(bits_u, F, U, as_word(x))
UNARY(bits_u, I, U, (unsigned)x)
UNARY(bits_u, U, U, x)
DEVICE I at_(I base, I index, int stride) { return add(base, mul(index, i_(stride))); }
template <int R> DEVICE void mix(U& x0, U& x1) {
  x0 = add(x0, x1);
  x1 = or_(shift_left(x1, u_(R)), shift_right_logical(x1, u_(32 - R)));
  x1 = xor_(x1, x0);
}
// The hash of JAX's default generator.
DEVICE void threefry(U k0, U k1, U x0, U x1, U& a, U& b) {
  U k2 = xor_(xor_(k0, k1), u_(0x1BD11BDAu));
  x0 = add(x0, k0); x1 = add(x1, k1);
  mix<13>(x0, x1); mix<15>(x0, x1); mix<26>(x0, x1); mix<6>(x0, x1); x0 = add(x0, k1); x1 = add(x1, add(k2, u_(1)));
  mix<17>(x0, x1); mix<29>(x0, x1); mix<16>(x0, x1); mix<24>(x0, x1); x0 = add(x0, k2); x1 = add(x1, add(k0, u_(2)));
  mix<13>(x0, x1); mix<15>(x0, x1); mix<26>(x0, x1); mix<6>(x0, x1); x0 = add(x0, k0); x1 = add(x1, add(k1, u_(3)));
  mix<17>(x0, x1); mix<29>(x0, x1); mix<16>(x0, x1); mix<24>(x0, x1); x0 = add(x0, k1); x1 = add(x1, add(k2, u_(4)));
  mix<13>(x0, x1); mix<15>(x0, x1); mix<26>(x0, x1); mix<6>(x0, x1);
  a = add(x0, k2); b = add(x1, add(k0, u_(5)));
}
// Lane 4 g + t of a warp holds columns 8 i + 2 t and 8 i + 2 t + 1 of rows g and g + 8 of a tile, and row `lane % 16`
// of everything else.
struct Place { I lane, g, t; B up; };
DEVICE Place place() {
  I lane = LANE;
  return Place{lane, shift_right_logical(lane, i_(2)), and_(lane, i_(3)), ne(and_(lane, i_(8)), i_(0))};
}
template <class T> DEVICE void spread(T* s, T x, const Place& at) { s[0] = shuffle(x, at.g); s[1] = shuffle(x, add(at.g, i_(8))); }
template <class T> DEVICE T gathered(T low, T high, const Place& at, int column) {
  I from = add(mul(and_(at.lane, i_(7)), i_(4)), i_(column));
  return select(at.up, shuffle(high, from), shuffle(low, from));
}
template <int N, class T> DEVICE T unpack(const T (*x)[4], int column, const Place& at) {
  return gathered(x[column / 8][column & 1], x[column / 8][2 + (column & 1)], at, (column % 8) / 2);
}
DEVICE I column_of(int block, int r, const Place& at) { return add(mul(at.t, i_(2)), i_(8 * block + (r & 1))); }
template <class T> DEVICE void pack_column(T (*x)[4], T value, int column, const Place& at) {
  B mine = eq(at.t, i_((column % 8) / 2));
  T low = shuffle(value, at.g), high = shuffle(value, add(at.g, i_(8)));
  int i = column / 8, r = column & 1;
  x[i][r] = select(mine, low, x[i][r]);
  x[i][2 + r] = select(mine, high, x[i][2 + r]);
}
#define REDUCED(name, operation, empty) \
  template <int N, int W> DEVICE F name(const F (*x)[4], const Place& at) { \
    F low = f_(empty), high = f_(empty); \
    UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 2; ++r) { \
      B real = W % 8 ? lt(column_of(i, r, at), i_(W)) : b_(true); \
      low = operation(low, select(real, x[i][r], f_(empty))); high = operation(high, select(real, x[i][2 + r], f_(empty))); } \
    low = operation(low, exchange(low, 1)); low = operation(low, exchange(low, 2)); \
    high = operation(high, exchange(high, 1)); high = operation(high, exchange(high, 2)); \
    return gathered(low, high, at, 0); }
REDUCED(reduce_sum, add, 0.0f)
REDUCED(reduce_max, max, -as_float(0x7f800000u))
REDUCED(reduce_min, min, as_float(0x7f800000u))
// The leading bits of a number, and what is cut off: for products that keep all bits.
DEVICE U leading(F x) { return and_(bits_u(x), u_(0xffffe000u)); }
DEVICE U rest_of(F x) { return bits_u(select(is_finite(x), sub(x, bits_f(leading(x))), f_(0.0f))); }
template <int EXACT> DEVICE void product(F* c, F a0, F a1, F a2, F a3, F b0, F b1) {
  if (EXACT) {
    mma_tf32(c, rest_of(a0), rest_of(a1), rest_of(a2), rest_of(a3), leading(b0), leading(b1));
    mma_tf32(c, leading(a0), leading(a1), leading(a2), leading(a3), rest_of(b0), rest_of(b1));
    mma_tf32(c, leading(a0), leading(a1), leading(a2), leading(a3), leading(b0), leading(b1));
  } else {
    mma_tf32(c, nearest(a0), nearest(a1), nearest(a2), nearest(a3), bits_u(b0), bits_u(b1));
  }
}
// Weights in shared memory, as the parts that lanes need: two words for every 8 columns and 8 (bfloat16: 16) rows.
template <int K, int N, int HALF, int EXACT, class T>
DEVICE void stage_weights(uint2* to, const T* from, int inner, int outer) {
  constexpr int KB = (K + (HALF ? 15 : 7)) / (HALF ? 16 : 8), NB = (N + 7) / 8;
  THREADS(e, KB * NB * 32) {
    int l = e & 31, i = (e >> 5) % NB, j = (e >> 5) / NB, n = 8 * i + (l >> 2), k = (HALF ? 16 : 8) * j + 2 * (l & 3);
    float w[4];
    for (int q = 0; q < (HALF ? 4 : 2); ++q) {
      int row = k + (q & 1) + 8 * (q >> 1);
      w[q] = row < K && n < N ? number_at(from, row * inner + n * outer) : 0.0f;
    }
    to[e] = HALF ? make_uint2(packed_halves(w[0], w[1]), packed_halves(w[2], w[3]))
                 : make_uint2(as_word(EXACT ? w[0] : nearest_number(w[0])), as_word(EXACT ? w[1] : nearest_number(w[1])));
  }
}
template <int K, int N, int HALF, int EXACT> DEVICE void dot(F (*c)[4], const F (*x)[4], const uint2* weights, const Place& at) {
  constexpr int KB = (K + 7) / 8, NB = (N + 7) / 8;
  F a[KB + 1][4];
  UNROLL for (int j = 0; j < KB; ++j) UNROLL for (int r = 0; r < 4; ++r)
    a[j][r] = K % 8 && j == KB - 1 ? select(lt(column_of(j, r, at), i_(K)), x[j][r], f_(0.0f)) : x[j][r];
  UNROLL for (int r = 0; r < 4; ++r) a[KB][r] = f_(0.0f);
  UNROLL for (int i = 0; i < NB; ++i) UNROLL for (int r = 0; r < 4; ++r) c[i][r] = f_(0.0f);
  if (HALF) {
    UNROLL for (int j = 0; j < (KB + 1) / 2; ++j) {
      U a0 = pack_halves(a[2 * j][0], a[2 * j][1]), a1 = pack_halves(a[2 * j][2], a[2 * j][3]);
      U a2 = pack_halves(a[2 * j + 1][0], a[2 * j + 1][1]), a3 = pack_halves(a[2 * j + 1][2], a[2 * j + 1][3]);
      UNROLL for (int i = 0; i < NB; ++i) { U b0, b1; words_at(weights, (j * NB + i) * 32, b0, b1); mma_half(c[i], a0, a1, a2, a3, b0, b1); }
    }
  } else {
    UNROLL for (int j = 0; j < KB; ++j)
      UNROLL for (int i = 0; i < NB; ++i) { U b0, b1; words_at(weights, (j * NB + i) * 32, b0, b1);
        product<EXACT>(c[i], a[j][0], a[j][2], a[j][1], a[j][3], bits_f(b0), bits_f(b1)); }
  }
}
template <int N, int W, class P, class T> DEVICE void load_tile(T (*x)[4], const P* p, I address, int stride, const Place& at) {
  I rows[2];
  spread(rows, address, at);
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 4; ++r) {
    I column = column_of(i, r, at);
    x[i][r] = load(p, at_(rows[r >> 1], W % 8 ? min(column, i_(W - 1)) : column, stride));
  }
}
template <int N, int W, class P, class T>
DEVICE void store_tile(P* p, I address, int stride, const T (*x)[4], const B* live, const Place& at) {
  I rows[2];
  spread(rows, address, at);
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 4; ++r) {
    I column = column_of(i, r, at);
    store(p, at_(rows[r >> 1], column, stride), x[i][r], W % 8 ? logical_and(live[r >> 1], lt(column, i_(W))) : live[r >> 1]);
  }
}
template <int N, int W, class P, class T> DEVICE void load_columns(T (*x)[2], const P* p, I address, int stride, const Place& at) {
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 2; ++r)
    x[i][r] = load(p, at_(address, min(column_of(i, r, at), i_(W - 1)), stride));
}
template <class P> DEVICE void stage_columns(float* to, const P* from, int stride, int width) {
  THREADS(e, (width + 7) / 8 * 8) to[e] = e < width ? number_at(from, e * stride) : 0.0f;
}
// Sums over rows. A tile goes to shared memory, column by column, and every warp adds up a part of the products of all rows.
template <int N, int HALF, int EXACT> DEVICE void stage_tile(float* to, const F (*x)[4], int stride, const B* live, const Place& at) {
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 4; ++r) {
    I row = add(at.g, i_(16 * WARP + 8 * (r >> 1))), where = at_(row, column_of(i, r, at), stride);
    F value = select(live[r >> 1], x[i][r], f_(0.0f));
    if (HALF) store((half_word*)to, where, value, b_(true));
    else store(to, where, EXACT ? value : bits_f(nearest(value)), b_(true));
  }
}
template <int MS, int NS, int HALF, int EXACT>
DEVICE void outer(F (*c)[4], const float* left, const float* right, int stride, int m0, int m_step, int n0, const Place& at) {
  constexpr int STEP = HALF ? 16 : 8, NEXT = HALF ? 8 : 4;
  I t = HALF ? mul(at.t, i_(2)) : at.t;
  UNROLL for (int k = 0; k < 16 * WARPS / STEP; ++k)
    UNROLL for (int m = 0; m < MS; ++m) {
      U a[4];
      UNROLL for (int q = 0; q < 4; ++q) {
        I column = add(at.g, i_(16 * (m0 + m * m_step) + 8 * (q & 1))), row = add(t, i_(STEP * k + NEXT * (q >> 1)));
        a[q] = HALF ? pair_at((const half_word*)left, at_(row, column, stride)) : bits_u(load(left, at_(row, column, stride)));
      }
      UNROLL for (int n = 0; n < NS; ++n) {
        U b[2];
        UNROLL for (int q = 0; q < 2; ++q) {
          I column = add(at.g, i_(8 * (n0 + n))), row = add(t, i_(STEP * k + NEXT * q));
          b[q] = HALF ? pair_at((const half_word*)right, at_(row, column, stride)) : bits_u(load(right, at_(row, column, stride)));
        }
        if (HALF) mma_half(c[m * NS + n], a[0], a[1], a[2], a[3], b[0], b[1]);
        else if (EXACT) product<1>(c[m * NS + n], bits_f(a[0]), bits_f(a[1]), bits_f(a[2]), bits_f(a[3]), bits_f(b[0]), bits_f(b[1]));
        else mma_tf32(c[m * NS + n], a[0], a[1], a[2], a[3], b[0], b[1]);
      }
    }
}
template <int MS, int NS> DEVICE void store_outer(
    float* to, const F (*c)[4], int m0, int m_step, int n0, int rows, int columns, int row_stride, int column_stride, const Place& at) {
  UNROLL for (int m = 0; m < MS; ++m) UNROLL for (int n = 0; n < NS; ++n) UNROLL for (int r = 0; r < 4; ++r) {
    I row = add(at.g, i_(16 * (m0 + m * m_step) + 8 * (r >> 1))), column = column_of(n0 + n, r, at);
    B real = logical_and(lt(row, i_(rows)), lt(column, i_(columns)));
    store(to, add(mul(row, i_(row_stride)), mul(column, i_(column_stride))), c[m * NS + n][r], real);
  }
}
template <int N> DEVICE void add_columns(F (*sum)[2], const F (*x)[4], const B* live) {
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 2; ++r)
    sum[i][r] = add(sum[i][r], add(select(live[0], x[i][r], f_(0.0f)), select(live[1], x[i][2 + r], f_(0.0f))));
}
template <int N> DEVICE void finish_columns(float* to, F (*sum)[2], const Place& at) {
  UNROLL for (int i = 0; i < N; ++i) UNROLL for (int r = 0; r < 2; ++r) {
    F x = sum[i][r];
    x = add(x, exchange(x, 4)); x = add(x, exchange(x, 8)); x = add(x, exchange(x, 16));
    store(to, column_of(i, r, at), x, eq(at.g, i_(0)));
  }
}
DEVICE void finish_number(float* to, F x, const Place& at) {
  UNROLL for (int d = 1; d < 32; d *= 2) x = add(x, exchange(x, d));
  store(to, i_(0), x, eq(at.lane, i_(0)));
}
