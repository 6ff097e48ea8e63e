// The instruction set that a file is compiled for. setup.py compiles tiles.cpp, grid.cpp, neighbours.cpp,
// conditionals.cpp, stored.cpp and filter.cpp once for each set, and defines GIGAGP_VARIANT as its name.
#pragma once

#if defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#endif

#define GIGAGP_PASTE_(A, B) A##_##B
#define GIGAGP_PASTE(A, B) GIGAGP_PASTE_(A, B)
// The name of the function that returns this set's table, such as avx2_grid_kernels.
#define GIGAGP_VARIANT_NAMED(NAME) GIGAGP_PASTE(GIGAGP_VARIANT, NAME)

#if defined(__AVX512F__)
#define GIGAGP_VARIANT_WORDS "AVX-512"
#elif defined(__AVX2__)
#define GIGAGP_VARIANT_WORDS "AVX2"
#elif defined(__aarch64__)
#define GIGAGP_VARIANT_WORDS "NEON"
#else
#define GIGAGP_VARIANT_WORDS "baseline"
#endif
