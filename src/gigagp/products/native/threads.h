// Threads of one call.
#pragma once

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace gigagp {

// Call serve(thread) on up to `threads` threads, on one of them at least, and wait for all.
template <class F>
void on_threads(long threads, F &serve) {
    std::vector<std::thread> others;
    others.reserve(std::max(threads, 0L));
    for (int thread = 1; thread < threads; thread++) {
        try {
            others.emplace_back([&serve, thread] { serve(thread); });
        } catch (const std::system_error &) {
            break;  // no more threads are available: the existing ones do the work
        }
    }
    serve(0);
    for (auto &other : others) other.join();
}

}  // namespace gigagp
