// The rate of the very exp that the native engine uses, on a buffer in the first-level cache: one of the two rates that
// bound a kernel product. machine_limit.py compiles and calls it.
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace {

#include "simd.h"

template <class T>
double exponentials(long repeats) {
    typedef Simd<T> S;
    typedef typename S::Vector Vector;
    enum { kCount = 16384 / sizeof(T) };  // in and out together take 32 KiB
    alignas(64) static thread_local T in[kCount], out[kCount];
    for (int i = 0; i < kCount; i++) in[i] = T(8) * i / kCount;
    for (long repeat = 0; repeat < repeats; repeat++) {
#pragma GCC unroll 4
        for (int i = 0; i < kCount; i += S::lanes) S::store(out + i, decay(S::load(in + i)));
        asm volatile("" : : "r"(in), "r"(out) : "memory");  // every repetition has to be done
    }
    double total = 0;
    for (int i = 0; i < kCount; i++) total += out[i];
    return total / kCount;
}

}  // namespace

// Both return the mean of exp(-t) over kCount numbers t in [0, 8), computed `repeats` times.
extern "C" double exponentials_float32(long repeats) { return exponentials<float>(repeats); }
extern "C" double exponentials_float64(long repeats) { return exponentials<double>(repeats); }
extern "C" long exponentials_count(long bytes_each) { return 16384 / bytes_each; }
