// The order of work. Tasks that add to the same stretch of a result do so in the order of the list, for any number of
// threads. So results have the same bits every time, without locks and without a copy of the result for each thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels.h"
#include "threads.h"

namespace gigagp {

struct Task {
    Block block;
    int mirrored;             // 0: no, 1: every tile is used twice, 2: a block on the diagonal
    int stretches[2];         // the stretches of the result that it adds to; -1: none
    int turns[2];             // how many tasks add to each of them before this one
};

class Schedule {
   public:
    // K(X, X): every pair of stretches of rows once, in rounds of disjoint pairs (a round-robin tournament). Of several
    // parts, each has an equal share of the pairs, and all parts together have every pair once.
    static Schedule symmetric(long n, long tile, long part = 0, long parts = 1) {
        Schedule made(std::max<long>(2, std::min<long>(n / (4 * tile) / 2 * 2, 128)));
        made.part_ = part, made.parts_ = parts;
        const int count = made.n_stretches_;
        const std::vector<long> edges = split(n, count, tile);
        auto block = [&](int a, int b) { return Block{edges[a], edges[a + 1], edges[b], edges[b + 1]}; };
        for (int a = 0; a < count; a++) made.add(block(a, a), 2, a, -1);
        for (int round = 0; round < count - 1; round++)
            for (int seat = 0; seat < count / 2; seat++) {
                const int last = count - 1;  // this one keeps its seat while the others move on
                int a = seat == 0 ? last : (round + seat) % last;
                int b = (round + last - seat) % last;
                made.add(block(std::min(a, b), std::max(a, b)), 1, a, b);
            }
        return made;
    }

    // K(X, Z) with results by rows alone.
    static Schedule by_rows(long n, long m, long tile, int threads) {
        const long tasks = std::max<long>(1, std::min<long>(n / tile, 8L * threads));
        Schedule made(0);
        const std::vector<long> edges = split(n, tasks, tile);
        for (long a = 0; a < tasks; a++) made.add({edges[a], edges[a + 1], 0, m}, 0, -1, -1);
        return made;
    }

    // K(X, Z) with results by rows and by columns.
    static Schedule rectangular(long n, long m, long tile) {
        const int rows = std::max<long>(1, std::min<long>(n / (4 * tile), 64));
        const int columns = std::max<long>(1, std::min<long>(m / (4 * tile), 64));
        Schedule made(rows + columns);
        const std::vector<long> left = split(n, rows, tile), right = split(m, columns, tile);
        for (int round = 0; round < columns; round++)
            for (int a = 0; a < rows; a++) {
                const int b = (a + round) % columns;
                made.add({left[a], left[a + 1], right[b], right[b + 1]}, 0, a, rows + b);
            }
        return made;
    }

    const std::vector<Task> &tasks() const { return tasks_; }

    // Call work(task number, thread number) for every task.
    template <class F>
    void run(int threads, F work) const {
        std::atomic<std::size_t> next{0};
        std::vector<std::atomic<int>> done(n_stretches_);
        for (auto &count : done) count = 0;
        auto serve = [&](int thread) {
            for (std::size_t t; (t = next.fetch_add(1)) < tasks_.size();) {
                const Task &task = tasks_[t];
                for (int side = 0; side < 2; side++)
                    while (task.stretches[side] >= 0 &&
                           done[task.stretches[side]].load(std::memory_order_acquire) < task.turns[side])
                        std::this_thread::yield();
                work(t, thread);
                for (int stretch : task.stretches)
                    if (stretch >= 0) done[stretch].fetch_add(1, std::memory_order_release);
            }
        };
        on_threads(std::min<long>(threads, tasks_.size()), serve);
    }

   private:
    explicit Schedule(long stretches) : n_stretches_(static_cast<int>(stretches)), seen_(stretches, 0) {}

    // Edges of `count` stretches of 0..n, all but the last on multiples of the tile.
    static std::vector<long> split(long n, long count, long tile) {
        std::vector<long> edges(count + 1, n);
        for (long k = 0; k < count; k++) edges[k] = std::min(n, (n / tile * k / count) * tile);
        return edges;
    }

    void add(Block block, int mirrored, int a, int b) {
        if (block.first_row == block.last_row || block.first_column == block.last_column) return;
        if (offered_++ % parts_ != part_) return;
        tasks_.push_back({block, mirrored, {a, b}, {turn(a), turn(b)}});
    }

    int turn(int stretch) { return stretch < 0 ? 0 : seen_[stretch]++; }

    int n_stretches_;
    long part_ = 0, parts_ = 1, offered_ = 0;
    std::vector<int> seen_;
    std::vector<Task> tasks_;
};

}  // namespace gigagp
