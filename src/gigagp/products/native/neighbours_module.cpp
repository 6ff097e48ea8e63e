// Nearest neighbours, as Python calls them: checks every argument, builds the tree, and shares queries between threads.
// Each query has its own answer, so the results do not depend on the number of threads.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "module.h"
#include "neighbours.h"

namespace py = pybind11;

namespace gigagp {
namespace {

using Doubles = py::array_t<double, py::array::c_style>;
using Integers = py::array_t<std::int32_t, py::array::c_style>;

constexpr std::int32_t NONE = std::numeric_limits<std::int32_t>::max();
constexpr long QUERIES = 256;  // of one task
constexpr long TASKS = 32;     // in which a tree is built

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native neighbour search: " + what); }

const std::vector<const NeighbourKernels *> &available() {
    static const auto sets = for_this_processor<NeighbourKernels>(GIGAGP_VARIANTS_OF(neighbour_kernels));
    return sets;
}

const NeighbourKernels &choose(const std::string &name) {
    const auto &sets = available();
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

int checked(int threads) {
    if (threads < 1 || threads > 4096) refuse("threads must be between 1 and 4096");
    return threads;
}

class Tree {
   public:
    Tree(const Doubles &points, int threads) {
        if (points.ndim() != 2 || points.shape(0) < 1 || points.shape(1) < 1) refuse("points must have rows and inputs");
        if (points.shape(0) >= NONE - LEAF || points.shape(1) > (1 << 20)) refuse("there are too many points or inputs");
        checked(threads);
        n_ = points.shape(0), d_ = points.shape(1), leaves_ = (n_ + LEAF - 1) / LEAF;
        corner_ = d_ <= 2 ? 2 : d_ <= 4 ? 4 : (d_ + 7) / 8 * 8;
        from_ = points.data();
        py::gil_scoped_release release;
        const long nodes = 2 * leaves_ - 1;
        panels_ = Aligned<double>(leaves_ * LEAF * d_), boxes_ = Aligned<double>(nodes * 2 * corner_);
        ids_.assign(leaves_ * LEAF, NONE), least_.resize(nodes), splits_.resize(nodes);
        std::vector<Keyed> keys(n_);
        for (long i = 0; i < n_; i++) ids_[i] = static_cast<std::int32_t>(i);
        std::vector<Part> parts;
        build({0, 0, leaves_}, keys.data(), threads > 1 ? std::max(1L, leaves_ / TASKS) : 0, &parts);
        share(threads, parts.size(), [&](long task, int) { build(parts[task], keys.data(), 0, nullptr); });
        from_ = nullptr;
    }

    void query(const std::string &set, const Doubles &queries, const Integers &limits, Integers out, int threads) const {
        const NeighbourKernels &kernels = choose(set);
        const long q = queries.ndim() == 2 ? queries.shape(0) : -1;
        if (q < 0 || queries.shape(1) != d_) refuse("queries do not fit");
        if (limits.ndim() != 1 || limits.shape(0) != q) refuse("limits do not fit");
        if (out.ndim() != 2 || out.shape(0) != q || out.shape(1) < 1 || out.shape(1) >= NONE) refuse("results do not fit");
        if (q >= NONE) refuse("there are too many queries");
        checked(threads);
        const double *from = queries.data();
        const std::int32_t *below = limits.data();
        const int m = static_cast<int>(out.shape(1));
        std::int32_t *to = out.mutable_data();
        py::gil_scoped_release release;
        const NeighbourTree tree = {static_cast<int>(d_), static_cast<int>(corner_), n_, leaves_, panels_.get(),
                                    ids_.data(), boxes_.get(), least_.data()};
        const std::vector<std::int32_t> order = leaf_by_leaf(from, q, threads);
        share(threads, (q + QUERIES - 1) / QUERIES, [&](long task, int) {
            kernels.search(tree, from, below, order.data(), task * QUERIES, std::min(q, (task + 1) * QUERIES), m, to);
        });
    }

   private:
    typedef std::pair<double, std::int32_t> Keyed;
    struct Part {
        long node, leaf, leaves;
    };
    struct Split {
        double value;
        std::int32_t input;
    };

    // Build what is below a node. Nodes with at most `later` leaves are left for other threads.
    void build(const Part &part, Keyed *keys, long later, std::vector<Part> *parts) {
        if (part.leaves <= later) return parts->push_back(part);
        const long first = part.leaf * LEAF, last = std::min(n_, (part.leaf + part.leaves) * LEAF);
        double *low = boxes_.get() + part.node * 2 * corner_, *high = low + corner_;
        std::copy(from_ + ids_[first] * d_, from_ + (ids_[first] + 1) * d_, low);
        std::copy(low, low + d_, high);
        least_[part.node] = ids_[first];
        for (long i = first + 1; i < last; i++) {
            const double *x = from_ + ids_[i] * d_;
            for (long k = 0; k < d_; k++) low[k] = std::min(low[k], x[k]), high[k] = std::max(high[k], x[k]);
            least_[part.node] = std::min(least_[part.node], ids_[i]);
        }
        if (part.leaves == 1) return fill(part.leaf, first, last);
        long widest = 0;
        for (long k = 1; k < d_; k++)
            if (high[k] - low[k] > high[widest] - low[widest]) widest = k;
        // Equal coordinates are split by index, so that equal points are found by index without a visit to all of them.
        const long left = part.leaves / 2, middle = first + left * LEAF;
        for (long i = first; i < last; i++) keys[i] = {from_[ids_[i] * d_ + widest], ids_[i]};
        std::nth_element(keys + first, keys + middle, keys + last);
        for (long i = first; i < last; i++) ids_[i] = keys[i].second;
        splits_[part.node] = {keys[middle].first, static_cast<std::int32_t>(widest)};
        build({part.node + 1, part.leaf, left}, keys, later, parts);
        build({part.node + 2 * left, part.leaf + left, part.leaves - left}, keys, later, parts);
    }

    void fill(long leaf, long first, long last) {
        std::sort(ids_.begin() + first, ids_.begin() + last);
        for (long i = first; i < last; i++) {
            const long j = i - first;
            double *panel = panels_.get() + (leaf * LEAF + j / PANEL * PANEL) * d_ + j % PANEL;
            for (long k = 0; k < d_; k++) panel[k * PANEL] = from_[ids_[i] * d_ + k];
        }
    }

    // Queries in the order of the leaves where they would lie: what one search has read is then in the cache for the next.
    std::vector<std::int32_t> leaf_by_leaf(const double *queries, long q, int threads) const {
        std::vector<std::int32_t> leaf(q), order(q);
        share(threads, (q + QUERIES - 1) / QUERIES, [&](long task, int) {
            for (long i = task * QUERIES; i < std::min(q, (task + 1) * QUERIES); i++) {
                Part at = {0, 0, leaves_};
                while (at.leaves > 1) {
                    const Split &split = splits_[at.node];
                    const long left = at.leaves / 2;
                    if (queries[i * d_ + split.input] < split.value) at = {at.node + 1, at.leaf, left};
                    else at = {at.node + 2 * left, at.leaf + left, at.leaves - left};
                }
                leaf[i] = static_cast<std::int32_t>(at.leaf);
            }
        });
        std::vector<std::int32_t> start(leaves_ + 1, 0);
        for (long i = 0; i < q; i++) start[leaf[i] + 1]++;
        for (long k = 0; k < leaves_; k++) start[k + 1] += start[k];
        for (long i = 0; i < q; i++) order[start[leaf[i]]++] = static_cast<std::int32_t>(i);
        return order;
    }

    long n_, d_, leaves_, corner_;
    const double *from_;
    Aligned<double> panels_, boxes_;
    std::vector<std::int32_t> ids_, least_;
    std::vector<Split> splits_;
};

}  // namespace

void define_neighbours(py::module_ &module) {
    module.def("neighbour_instruction_sets", [] {
        py::list names;
        for (const auto *set : available()) names.append(set->name);
        return names;
    });
    py::class_<Tree>(module, "NeighbourTree", "Points among which nearest neighbours are searched.")
        .def(py::init<const Doubles &, int>(), py::arg("points").noconvert(), py::arg("threads"))
        .def("query", &Tree::query, py::arg("instruction_set"), py::arg("queries").noconvert(),
             py::arg("limits").noconvert(), py::arg("out").noconvert(), py::arg("threads"));
}

}  // namespace gigagp
