// SIMD vectors in the portable vector extension of GCC and Clang, and the few operations that need an intrinsic. To be
// included inside the anonymous namespace of one instruction set.
#pragma once

#if defined(__AVX512F__)
#define GIGAGP_BYTES 64
#elif defined(__AVX2__)
#define GIGAGP_BYTES 32
#else
#define GIGAGP_BYTES 16
#endif

#define INLINE static inline __attribute__((always_inline))

template <class T>
struct Simd;

#define GIGAGP_SIMD(T, I)                                                                 \
    template <>                                                                           \
    struct Simd<T> {                                                                      \
        typedef T Vector __attribute__((vector_size(GIGAGP_BYTES)));                      \
        typedef I Bits __attribute__((vector_size(GIGAGP_BYTES)));                        \
        typedef T Unaligned __attribute__((vector_size(GIGAGP_BYTES), aligned(sizeof(T)), may_alias)); \
        static const int lanes = GIGAGP_BYTES / sizeof(T);                                \
        INLINE Vector all(T x) { return x - Vector{}; }                                   \
        INLINE Vector load(const T *p) { return *(const Unaligned *)p; }                  \
        INLINE void store(T *p, Vector x) { *(Unaligned *)p = x; }                        \
    };
GIGAGP_SIMD(float, int)
GIGAGP_SIMD(double, long long)
#undef GIGAGP_SIMD



typedef Simd<float>::Vector Floats;
typedef Simd<double>::Vector Doubles;

// The sum of the lanes.
#if defined(__AVX512F__)
INLINE double total(Floats a) { return _mm512_reduce_add_ps((__m512)a); }
INLINE double total(Doubles a) { return _mm512_reduce_add_pd((__m512d)a); }
#else
template <class V>
INLINE double total(V a) {
    for (unsigned width = sizeof(V) / sizeof(a[0]) / 2; width; width /= 2)
        for (unsigned i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
}
#endif

// Compilers turn the portable a > b ? a : b into a comparison and a blend.
#if defined(__AVX512F__)
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Doubles larger(Doubles a, Doubles b) { return (Doubles)_mm512_max_pd((__m512d)a, (__m512d)b); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Doubles smaller(Doubles a, Doubles b) { return (Doubles)_mm512_min_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX__)
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE Doubles larger(Doubles a, Doubles b) { return (Doubles)_mm256_max_pd((__m256d)a, (__m256d)b); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE Doubles smaller(Doubles a, Doubles b) { return (Doubles)_mm256_min_pd((__m256d)a, (__m256d)b); }
#else
template <class V>
INLINE V larger(V a, V b) { return a > b ? a : b; }
template <class V>
INLINE V smaller(V a, V b) { return a < b ? a : b; }
#endif

// Square roots. The divider works in parallel to the other units: an iteration by multiplications was slower.
#if defined(__AVX512F__)
INLINE Floats root(Floats x) { return (Floats)_mm512_sqrt_ps((__m512)x); }
INLINE Doubles root(Doubles x) { return (Doubles)_mm512_sqrt_pd((__m512d)x); }
#elif defined(__AVX__)
INLINE Floats root(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
INLINE Doubles root(Doubles x) { return (Doubles)_mm256_sqrt_pd((__m256d)x); }
#else
template <class V>
INLINE V root(V x) {
    V y;
    for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) y[i] = __builtin_sqrt(x[i]);
    return y;
}
#endif

// exp(-t) for t >= 0 as 2^n 2^f, where n is the nearest integer to -t / log 2. The polynomial for 2^f, |f| <= 1/2,
// interpolates (2^f - 1) / f at Chebyshev points. It is exact at 0, and its relative error is 5e-9 and 1e-17 besides
// rounding.
INLINE Floats power_of_two(Floats f) {
    Floats p = f * 1.54531629451206902e-4f + 1.33908663646712344e-3f;
    p = p * f + 9.61808255727785149e-3f;
    p = p * f + 5.55035711421907782e-2f;
    p = p * f + 2.40226507605681269e-1f;
    p = p * f + 6.93147188026228781e-1f;
    return p * f + 1.0f;
}
INLINE Doubles power_of_two(Doubles f) {
    Doubles p = f * 4.45496059818651839e-10 + 7.0725859492692237e-9;
    p = p * f + 1.01780624458457735e-7;
    p = p * f + 1.32154425879216897e-6;
    p = p * f + 1.52527338298361184e-5;
    p = p * f + 1.54035304417360502e-4;
    p = p * f + 1.33335581464169353e-3;
    p = p * f + 9.61812910760688853e-3;
    p = p * f + 5.55041086648215943e-2;
    p = p * f + 2.40226506959100982e-1;
    p = p * f + 6.93147180559945309e-1;
    return p * f + 1.0;
}
#if defined(__AVX512F__)
INLINE Floats decay(Floats t) {
    Floats x = t * -1.44269504088896341f;
    Floats n = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (Floats)_mm512_scalef_ps((__m512)power_of_two(x - n), (__m512)n);
}
INLINE Doubles decay(Doubles t) {
    Doubles x = t * -1.44269504088896341;
    Doubles n = (Doubles)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (Doubles)_mm512_scalef_pd((__m512d)power_of_two(x - n), (__m512d)n);
}
#else
// Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves it in the low bits. A shift takes it to the exponent.
INLINE Floats decay(Floats t) {
    Floats x = larger(t * -1.44269504088896341f, Simd<float>::all(-126.0f));
    Floats shifted = x + 12582912.0f;
    Floats power = (Floats)(((Simd<float>::Bits)shifted << 23) + (127 << 23));
    return power_of_two(x - (shifted - 12582912.0f)) * power;
}
INLINE Doubles decay(Doubles t) {
    Doubles x = larger(t * -1.44269504088896341, Simd<double>::all(-1022.0));
    Doubles shifted = x + 6755399441055744.0;
    Doubles power = (Doubles)(((Simd<double>::Bits)shifted << 52) + (1023LL << 52));
    return power_of_two(x - (shifted - 6755399441055744.0)) * power;
}
#endif

// log(x) for normal x >= 1: x = 2^n m with m within a factor sqrt(2) of 1, and with s = (m - 1) / (m + 1) a polynomial
// for (log m - 2 s) / s^3. Its relative error is 3e-9 and 3e-20 besides rounding.
INLINE Floats logarithm(Floats x) {
    typedef Simd<float>::Bits Bits;
    Bits bits = (Bits)x;
    Bits n = (bits - 0x3f3504f3) >> 23;  // sqrt(1/2)
    Floats m = (Floats)(bits - (n << 23));
    Floats s = (m - 1.0f) / (m + 1.0f), z = s * s;
    Floats p = z * 0.29579949392007568f + 0.399887805660207036f;
    p = p * z + 0.666666850395758644f;
    return __builtin_convertvector(n, Floats) * 0.693147180559945309f + (s * 2.0f + s * z * p);
}
INLINE Doubles logarithm(Doubles x) {
    typedef Simd<double>::Bits Bits;
    Bits bits = (Bits)x;
    Bits n = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
    Doubles m = (Doubles)(bits - (n << 52));
    Doubles s = (m - 1.0) / (m + 1.0), z = s * s;
    Doubles p = z * 0.130866261478873112 + 0.132687731386516761;
    p = p * z + 0.153862397028148881;
    p = p * z + 0.181817956401329011;
    p = p * z + 0.222222223917139175;
    p = p * z + 0.285714285708036118;
    p = p * z + 0.40000000000000877;
    p = p * z + 0.666666666666666665;
    return __builtin_convertvector(n, Doubles) * 0.693147180559945309 + (s * 2.0 + s * z * p);
}
