// What the files that define the Python module share: checks of the processor, aligned memory, and threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "threads.h"

namespace gigagp {

// The functions of all compiled instruction sets that return a table, and nullptr for the others (setup.py): NAME is what
// GIGAGP_VARIANT_NAMED was given.
#ifdef GIGAGP_HAS_AVX512
#define GIGAGP_AVX512_OF(NAME) avx512_##NAME
#else
#define GIGAGP_AVX512_OF(NAME) nullptr
#endif
#ifdef GIGAGP_HAS_AVX2
#define GIGAGP_AVX2_OF(NAME) avx2_##NAME
#else
#define GIGAGP_AVX2_OF(NAME) nullptr
#endif
#define GIGAGP_VARIANTS_OF(NAME) GIGAGP_AVX512_OF(NAME), GIGAGP_AVX2_OF(NAME), baseline_##NAME

// The tables of functions compiled for the instruction sets of this processor, the best one first.
template <class Set>
std::vector<const Set *> for_this_processor(const Set &(*avx512)(), const Set &(*avx2)(), const Set &(*baseline)()) {
    std::vector<const Set *> found;
#if defined(GIGAGP_HAS_AVX512) || defined(GIGAGP_HAS_AVX2)
    __builtin_cpu_init();
    if (avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        found.push_back(&avx512());
    if (avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        found.push_back(&avx2());
#else
    (void)avx512, (void)avx2;
#endif
    found.push_back(&baseline());
    return found;
}

// The table with a name, the first one for no name, or nullptr.
template <class Set>
const Set *named(const std::vector<const Set *> &sets, const std::string &name) {
    for (const Set *set : sets)
        if (name.empty() || name == set->name) return set;
    return nullptr;
}

// Zeroed memory, aligned to cache lines.
template <class T>
class Aligned {
   public:
    Aligned() = default;
    explicit Aligned(std::size_t n) {
        const std::size_t bytes = (n * sizeof(T) + 2 * kLine - 1) / kLine * kLine;
        data_ = static_cast<T *>(std::aligned_alloc(kLine, bytes));
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, bytes);
    }
    Aligned(Aligned &&other) noexcept : data_(other.data_) { other.data_ = nullptr; }
    Aligned &operator=(Aligned &&other) noexcept {
        std::swap(data_, other.data_);
        return *this;
    }
    ~Aligned() { std::free(data_); }
    T *get() const { return data_; }
    T &operator[](std::size_t i) const { return data_[i]; }

   private:
    static constexpr std::size_t kLine = 64;
    T *data_ = nullptr;
};

// Call work(task, thread) for every task, on up to `threads` threads.
template <class F>
void share(int threads, long tasks, F work) {
    std::atomic<long> next{0};
    auto serve = [&](int thread) {
        for (long task; (task = next.fetch_add(1)) < tasks;) work(task, thread);
    };
    on_threads(std::min<long>(threads, tasks), serve);
}

}  // namespace gigagp
