// Passes over data on a grid, as Python calls them: checks every argument, sorts rows by cell, and shares the work
// between threads. Results do not depend on the number of threads: the rows of a cell keep their order, and no two
// threads work at the same time on cells that add to the same nodes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "grid.h"
#include "module.h"

namespace py = pybind11;

namespace gigagp {
namespace {

using Doubles = py::array_t<double, py::array::c_style>;
using Integers = py::array_t<std::int64_t, py::array::c_style>;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native grid passes: " + what); }

const std::vector<const GridKernels *> &available() {
    static const auto sets = for_this_processor<GridKernels>(GIGAGP_VARIANTS_OF(grid_kernels));
    return sets;
}

const GridKernels &choose(const std::string &name) {
    const auto &sets = available();
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

// The grid of Python's RegularGrid, and its cells in groups: buckets are ranges of cells along the first axis of their
// numbering, and slabs are ranges of buckets. Slabs k and k + 2 have no node in common.
struct Grid {
    GridShape shape;
    long bucket_cells, n_buckets, slab_buckets, n_slabs;

    // (lower, spacing, shape, width)
    explicit Grid(const py::tuple &given) {
        if (given.size() != 4) refuse("a grid has four parts");
        const auto lower = given[0].cast<py::tuple>(), spacing = given[1].cast<py::tuple>(),
                   counts = given[2].cast<py::tuple>();
        const int d = static_cast<int>(counts.size());
        shape.inputs = d;
        shape.width = given[3].cast<int>();
        if (d < 1 || d > MAX_INPUTS || lower.size() != counts.size() || spacing.size() != counts.size() ||
            (shape.width != 2 && shape.width != 4))
            refuse("a grid has one to four inputs and a stencil of two or four nodes");
        shape.before = shape.width / 2 - 1;
        shape.n_nodes = shape.n_cells = 1;
        shape.axis = 0;
        for (int k = d - 1; k >= 0; k--) {
            shape.shape[k] = counts[k].cast<long>();
            shape.cells[k] = shape.shape[k] - shape.width + 1;
            shape.lower[k] = lower[k].cast<double>();
            shape.spacing[k] = spacing[k].cast<double>();
            if (shape.cells[k] < 1 || shape.n_nodes > std::numeric_limits<std::int32_t>::max() / shape.shape[k])
                refuse("too few or too many nodes");
            shape.strides[k] = shape.n_nodes;
            shape.n_nodes *= shape.shape[k];
            if (shape.shape[k] >= shape.shape[shape.axis] || k == d - 1) shape.axis = k;
        }
        // The longest axis comes first, which makes the most slabs. The others keep their order.
        for (int k = d - 1; k >= 0; k--)
            if (k != shape.axis) shape.cell_strides[k] = shape.n_cells, shape.n_cells *= shape.cells[k];
        shape.cell_strides[shape.axis] = shape.n_cells;
        const long plane = shape.n_cells, length = shape.cells[shape.axis];
        shape.n_cells *= length;
        const long together = (length + 511) / 512;  // more buckets than the processor caches page addresses are slow
        bucket_cells = together * plane;
        n_buckets = (length + together - 1) / together;
        slab_buckets = (shape.width - 1 + together - 1) / together;  // a stencil is `width` nodes long
        n_slabs = (n_buckets + slab_buckets - 1) / slab_buckets;
    }

    long bucket_of(double x) const {
        const int k = shape.axis;
        const double position = (x - shape.lower[k]) / shape.spacing[k] - shape.before;
        const double start = std::fmax(0.0, std::fmin(std::floor(position), static_cast<double>(shape.cells[k] - 1)));
        return static_cast<long>(start) * shape.cell_strides[k] / bucket_cells;
    }
};

const double *checked(const Doubles &array, long rows, long columns, const char *what) {
    if (array.ndim() != 2 || array.shape(0) != rows || (columns >= 0 && array.shape(1) != columns))
        refuse(std::string(what) + " do not fit");
    return array.data();
}

int checked_threads(int threads) {
    if (threads < 1 || threads > 4096) refuse("threads must be between 1 and 4096");
    return threads;
}

// The smallest and the largest number of each column and its sum of squares; NaN where a number is not finite.
py::tuple survey(const Doubles &given, int threads) {
    constexpr long BLOCK = 1 << 15;  // a constant, so that sums are the same for any number of threads
    if (given.ndim() != 2 || given.shape(1) > 4096) refuse("a table has two dimensions");
    const long n = given.shape(0), c = given.shape(1), blocks = (n + BLOCK - 1) / BLOCK;
    const double *table = given.data();
    py::array_t<double> low(c), high(c), squares(c);
    double *to_low = low.mutable_data(), *to_high = high.mutable_data(), *to_squares = squares.mutable_data();
    {
        py::gil_scoped_release release;
        std::vector<double> parts(static_cast<std::size_t>(3 * c * std::max(blocks, 1L)));
        share(checked_threads(threads), blocks, [&](long block, int) {
            double *part = parts.data() + 3 * c * block;
            const long last = std::min(n, (block + 1) * BLOCK);
            for (long k = 0; k < c; k++) {
                double least = std::numeric_limits<double>::infinity(), most = -least, sum = 0, zeros = 0;
                for (long i = block * BLOCK; i < last; i++) {
                    const double x = table[i * c + k];
                    least = x < least ? x : least;
                    most = x > most ? x : most;
                    sum += x * x;
                    zeros += x * 0;  // becomes NaN at a number that is not finite
                }
                part[3 * k] = least + zeros, part[3 * k + 1] = most + zeros, part[3 * k + 2] = sum + zeros;
            }
        });
        for (long k = 0; k < c; k++) {
            to_low[k] = std::numeric_limits<double>::infinity(), to_high[k] = -to_low[k], to_squares[k] = 0;
            for (long block = 0; block < blocks; block++) {
                const double *part = parts.data() + 3 * (c * block + k);
                to_low[k] = std::isnan(part[0]) || part[0] < to_low[k] ? part[0] : to_low[k];
                to_high[k] = std::isnan(part[1]) || part[1] > to_high[k] ? part[1] : to_high[k];
                to_squares[k] += part[2];
            }
            if (std::isnan(to_squares[k])) to_low[k] = to_high[k] = to_squares[k];
        }
    }
    return py::make_tuple(low, high, squares);
}

// 64 random bits for each row, as integers.
Integers hashes(const std::string &set, const Doubles &X, const Doubles &Y, std::uint64_t seed, int threads) {
    const GridKernels &kernels = choose(set);
    if (X.ndim() != 2 || X.shape(1) > 4096) refuse("points do not fit");
    const long n = X.shape(0), part = (n + checked_threads(threads) - 1) / threads;
    const double *points = X.data(), *targets = checked(Y, n, -1, "targets");
    const int d = static_cast<int>(X.shape(1)), t = static_cast<int>(std::min<long>(Y.shape(1), 4096));
    if (t != Y.shape(1)) refuse("too many columns");
    Integers out(n);
    auto *to = reinterpret_cast<std::uint64_t *>(out.mutable_data());
    py::gil_scoped_release release;
    share(threads, threads, [&](long p, int) {
        const long first = std::min(n, p * part), last = std::min(n, first + part);
        kernels.hash(points + first * d, d, targets + first * t, t, seed, last - first, to + first);
    });
    return out;
}

// Memory of a pass, kept from one call to the next, because fresh pages cost more than filling them.
class Workspace {
   public:
    std::vector<double> records;
    std::vector<std::uint32_t> cells;
    std::vector<std::vector<double>> sorted;          // of each thread
    std::vector<std::vector<std::uint32_t>> counts;
};

// Sorts a batch of rows into buckets, then adds them cell by cell.
class Batches {
   public:
    Batches(const GridKernels &kernels, const Grid &grid, int targets, int probes, std::uint64_t seed, double *moments,
            double *columns, long largest, int threads, Workspace &space)
        : kernels_(kernels), grid_(grid), targets_(targets), probes_(probes), seed_(seed), moments_(moments),
          columns_(columns), threads_(threads), stride_(grid.shape.inputs + targets + (probes > 0)),
          width_(kernels.moments(grid.shape)), edges_(grid.n_buckets + 1), space_(space) {
        auto reserve = [](auto &held, std::size_t size) { if (held.size() < size) held.resize(size); };
        reserve(space.records, largest * stride_);
        reserve(space.cells, largest);
        reserve(space.sorted, threads);
        reserve(space.counts, threads);
        for (auto &counts : space.counts) reserve(counts, grid.bucket_cells + 1);
    }

    void add(const double *X, const double *Y, long n) {
        place(X, Y, n);
        // No two threads work at the same time on slabs that share nodes, and the order of such slabs is fixed.
        for (long first : {0L, 1L})
            share(threads_, (grid_.n_slabs - first + 1) / 2, [&](long task, int thread) {
                const long slab = 2 * task + first;
                const long last = std::min(grid_.n_buckets, (slab + 1) * grid_.slab_buckets);
                for (long bucket = slab * grid_.slab_buckets; bucket < last; bucket++) add_bucket(bucket, space_.counts[thread], space_.sorted[thread]);
            });
    }

   private:
    // Move rows to their buckets, keeping their order.
    void place(const double *X, const double *Y, long n) {
        const long part = (n + threads_ - 1) / threads_, buckets = grid_.n_buckets;
        const int d = grid_.shape.inputs;
        std::vector<long> at(static_cast<std::size_t>(threads_ * buckets), 0);
        auto rows = [&](long thread) { return std::make_pair(std::min(n, thread * part), std::min(n, (thread + 1) * part)); };
        share(threads_, threads_, [&](long p, int) {
            std::vector<long> count(buckets, 0);
            const auto [first, last] = rows(p);
            for (long i = first; i < last; i++) count[grid_.bucket_of(X[i * d + grid_.shape.axis])]++;
            std::copy(count.begin(), count.end(), at.begin() + p * buckets);
        });
        long sum = 0;
        for (long bucket = 0; bucket < buckets; bucket++) {
            edges_[bucket] = sum;
            for (long p = 0; p < threads_; p++) {
                const long count = at[p * buckets + bucket];
                at[p * buckets + bucket] = sum;
                sum += count;
            }
        }
        edges_[buckets] = sum;
        long largest = 0;
        for (long bucket = 0; bucket < buckets; bucket++) largest = std::max(largest, edges_[bucket + 1] - edges_[bucket]);
        for (auto &sorted : space_.sorted)  // here, outside of the threads, an exception can still be thrown
            if (sorted.size() < static_cast<std::size_t>(largest * stride_)) sorted.resize(largest * stride_);
        share(threads_, threads_, [&](long p, int) {
            constexpr long BLOCK = 128;
            std::uint32_t cells[BLOCK];
            std::vector<double> records(BLOCK * stride_);
            std::vector<long> next(at.begin() + p * buckets, at.begin() + (p + 1) * buckets);
            const auto [first, last] = rows(p);
            for (long start = first; start < last; start += BLOCK) {
                const long count = std::min(BLOCK, last - start);
                kernels_.locate(grid_.shape, X + start * d, Y + start * targets_, targets_, probes_, seed_, count, cells,
                                records.data());
                for (long i = 0; i < count; i++) {
                    const long to = next[cells[i] / grid_.bucket_cells]++;
                    space_.cells[to] = cells[i];
                    copy(records.data() + i * stride_, space_.records.data() + to * stride_);
                }
            }
        });
    }

    void copy(const double *from, double *to) const {
        for (int k = 0; k < stride_; k++) to[k] = from[k];  // for a few numbers a call of memcpy costs more
    }

    void add_bucket(long bucket, std::vector<std::uint32_t> &counts, std::vector<double> &sorted) {
        const long first = edges_[bucket], last = edges_[bucket + 1];
        if (first == last) return;
        const std::uint32_t base = static_cast<std::uint32_t>(bucket * grid_.bucket_cells);
        const long n_cells = std::min(grid_.bucket_cells, grid_.shape.n_cells - bucket * grid_.bucket_cells);
        std::fill(counts.begin(), counts.begin() + n_cells + 1, 0);
        const std::uint32_t *cells = space_.cells.data();
        for (long i = first; i < last; i++) counts[cells[i] - base + 1]++;
        for (long cell = 0; cell < n_cells; cell++) counts[cell + 1] += counts[cell];
        const double *records = space_.records.data();
        // After this loop counts[cell] is where the next cell begins.
        for (long i = first; i < last; i++)
            copy(records + i * stride_, sorted.data() + static_cast<long>(counts[cells[i] - base]++) * stride_);
        for (long cell = 0, start = 0; cell < n_cells; start = counts[cell++]) {
            const long count = counts[cell] - start;
            if (count == 0) continue;
            kernels_.add_cell(grid_.shape, {sorted.data() + start * stride_, targets_, probes_, stride_}, count,
                              base + cell, moments_ ? moments_ + (base + cell) * width_ : nullptr, columns_);
        }
    }

    const GridKernels &kernels_;
    const Grid &grid_;
    const int targets_, probes_;
    const std::uint64_t seed_;
    double *const moments_, *const columns_;
    const int threads_, stride_;
    const long width_;
    std::vector<long> edges_;
    Workspace &space_;
};

void add(const std::string &set, const py::tuple &given, const Doubles &X, const Doubles &Y, int probes,
         std::uint64_t seed, const py::object &moments, Doubles columns, long batch, Workspace &space,
         int threads) {
    const GridKernels &kernels = choose(set);
    const Grid grid(given);
    const long n = X.shape(0);
    const double *points = checked(X, n, grid.shape.inputs, "points"), *targets = checked(Y, n, -1, "targets");
    const int n_targets = static_cast<int>(Y.shape(1));
    if (probes < 0 || probes > 4096 || n_targets > 4096) refuse("too many columns");
    checked(columns, n_targets + probes, grid.shape.n_nodes, "columns");
    if (batch < 1 || batch > (1L << 30)) refuse("a batch has 1 to 2^30 rows");
    double *sums = nullptr;
    Doubles held;
    if (!moments.is_none()) {
        if (!py::isinstance<Doubles>(moments)) refuse("moments must be a contiguous float64 array");
        held = py::reinterpret_borrow<Doubles>(moments);
        checked(held, grid.shape.n_cells, kernels.moments(grid.shape), "moments");
        sums = held.mutable_data();
    }
    double *to = columns.mutable_data();
    checked_threads(threads);
    py::gil_scoped_release release;
    // A point outside would write beyond the ends of the arrays. Python has checked this before; check again.
    const GridShape &shape = grid.shape;
    std::atomic<bool> outside{false};
    const long part = (n + threads - 1) / threads;
    share(threads, threads, [&](long p, int) {
        bool inside = true;
        for (long i = std::min(n, p * part); i < std::min(n, (p + 1) * part); i++)
            for (int k = 0; k < shape.inputs; k++) {
                const double position = (points[i * shape.inputs + k] - shape.lower[k]) / shape.spacing[k];
                inside &= position >= shape.before - EDGE &&
                          position <= static_cast<double>(shape.shape[k] - 1 - shape.before) + EDGE;
            }
        if (!inside) outside = true;
    });
    if (outside) refuse("a point lies outside of the grid");
    Batches batches(kernels, grid, n_targets, probes, seed, sums, to, std::min(batch, std::max(n, 1L)), threads,
                    space);
    for (long first = 0; first < n; first += batch)
        batches.add(points + first * shape.inputs, targets + first * n_targets, std::min(batch, n - first));
}

// Entries of W'W from moments. `target` and `source` say which product of weights is added to which entry.
void expand(const std::string &set, const py::tuple &given, const Doubles &moments, const Doubles &products,
            const Integers &target, const py::array_t<std::int32_t, py::array::c_style> &source, Doubles values,
            int threads) {
    const GridKernels &kernels = choose(set);
    const Grid grid(given);
    const double *from = checked(moments, grid.shape.n_cells, kernels.moments(grid.shape), "moments");
    const int width = grid.shape.width, pairs = width * (width + 1) / 2;
    const double *polynomials = checked(products, pairs, 2 * width - 1, "products");
    if (values.ndim() != 2 || values.shape(1) != grid.shape.n_nodes) refuse("values do not fit");
    const long n_entries = target.shape(0);
    if (target.ndim() != 1 || source.ndim() != 1 || source.shape(0) != n_entries) refuse("entries do not fit");
    long n_products = 1, reach = 0;
    for (int k = 0; k < grid.shape.inputs; k++) n_products *= pairs, reach += (width - 1) * grid.shape.strides[k];
    const long size = values.shape(0) * grid.shape.n_nodes;
    for (long e = 0; e < n_entries; e++)
        if (target.data()[e] < 0 || target.data()[e] % grid.shape.n_nodes > reach || target.data()[e] >= size ||
            source.data()[e] < 0 || source.data()[e] >= n_products)
            refuse("an entry lies outside");
    double *to = values.mutable_data();
    checked_threads(threads);
    py::gil_scoped_release release;
    const long slab = grid.slab_buckets * grid.bucket_cells;
    for (long first : {0L, 1L})
        share(threads, (grid.n_slabs - first + 1) / 2, [&](long task, int) {
            const long begin = (2 * task + first) * slab;
            kernels.expand(grid.shape, from, begin, std::min(grid.shape.n_cells, begin + slab), polynomials, n_entries,
                           target.data(), source.data(), to);
        });
}

// out = W'W V for V (s, m), one vector in each row; see Packed.
void product(const std::string &set, const Doubles &entries, const Integers &starts,
             const py::array_t<std::int32_t, py::array::c_style> &which, const Integers &steps, const Doubles &vectors,
             Doubles out, int threads) {
    const GridKernels &kernels = choose(set);
    const long s = vectors.ndim() == 2 ? vectors.shape(0) : -1, m = vectors.ndim() == 2 ? vectors.shape(1) : -1;
    const double *v = checked(vectors, s, m, "vectors");
    checked(out, s, m, "results");
    const long n_groups = (m + GROUP - 1) / GROUP, n_packed = which.ndim() == 1 ? which.shape(0) : -1;
    if (steps.ndim() != 1 || starts.ndim() != 1 || starts.shape(0) != n_groups + 1) refuse("steps or starts do not fit");
    const Packed gram{checked(entries, n_packed, GROUP, "entries"), starts.data(), which.data(), steps.data(), m};
    if (gram.starts[0] != 0 || gram.starts[n_groups] != n_packed) refuse("starts do not fit");
    for (long g = 0; g < n_groups; g++)
        if (gram.starts[g] > gram.starts[g + 1]) refuse("starts fall");
    long reach = 0;
    for (long k = 0; k < steps.shape(0); k++) {
        if (steps.data()[k] < (k > 0) || steps.data()[k] >= m) refuse("a step leaves the grid");
        reach = std::max<long>(reach, steps.data()[k]);
    }
    for (long p = 0; p < n_packed; p++)
        if (gram.which[p] < 0 || gram.which[p] >= steps.shape(0)) refuse("there is no such step");
    double *to = out.mutable_data();
    checked_threads(threads);
    py::gil_scoped_release release;
    // Slabs of groups do not depend on the number of threads. Each adds to its own piece, and the pieces are added in
    // order. Within a slab the entries of a few hundred nodes stay in the cache for all vectors.
    const long n_slabs = std::max(1L, std::min(16L, n_packed * GROUP / 65536)), length = (n_groups + n_slabs - 1) / n_slabs;
    const long piece = (length + 1) * GROUP + reach, together = std::min(s, 16L);
    const long block = std::max(8L, (1L << 13) / static_cast<long>(steps.shape(0)));
    std::vector<double> pieces(static_cast<std::size_t>(n_slabs * piece * together));
    for (long start = 0; start < s; start += together) {
        const long count = std::min(together, s - start);
        share(threads, n_slabs, [&](long slab, int) {
            const long first = std::min(n_groups, slab * length), last = std::min(n_groups, first + length);
            double *mine = pieces.data() + slab * piece * together;
            std::fill(mine, mine + piece * count, 0.0);
            for (long g = first; g < last; g += block)
                for (long c = 0; c < count; c++)
                    kernels.product(gram, v + (start + c) * m, g, std::min(last, g + block),
                                    mine + c * piece + (g - first) * GROUP);
        });
        for (long c = 0; c < count; c++) {
            double *result = to + (start + c) * m;
            std::fill(result, result + m, 0.0);
            for (long slab = 0; slab < n_slabs; slab++) {
                const long first = std::min(m, slab * length * GROUP), size = std::min(m, first + piece) - first;
                const double *mine = pieces.data() + (slab * together + c) * piece;
                for (long i = 0; i < size; i++) result[first + i] += mine[i];
            }
        }
    }
}

}  // namespace

void define_grid(py::module_ &module) {
    py::dict constants;
    constants["MAX_INPUTS"] = MAX_INPUTS;
    constants["EDGE"] = EDGE;
    constants["GROUP"] = GROUP;
    module.attr("grid_constants") = constants;
    module.def("grid_instruction_sets", [] {
        py::list names;
        for (const auto *set : available()) names.append(set->name);
        return names;
    });
    module.def("grid_hashes", hashes, py::arg("instruction_set"), py::arg("X").noconvert(), py::arg("Y").noconvert(),
               py::arg("seed"), py::arg("threads"));
    py::class_<Workspace>(module, "GridWorkspace", "Memory of grid_add that is used again; for one call at a time.")
        .def(py::init<>());
    module.def("grid_survey", survey, py::arg("table").noconvert(), py::arg("threads"));
    module.def("grid_add", add, py::arg("instruction_set"), py::arg("grid"), py::arg("X").noconvert(),
               py::arg("Y").noconvert(), py::arg("probes"), py::arg("seed"), py::arg("moments"),
               py::arg("columns").noconvert(), py::arg("batch"), py::arg("workspace"), py::arg("threads"));
    module.def("grid_expand", expand, py::arg("instruction_set"), py::arg("grid"), py::arg("moments").noconvert(),
               py::arg("products").noconvert(), py::arg("target").noconvert(), py::arg("source").noconvert(),
               py::arg("values").noconvert(), py::arg("threads"));
    module.def("grid_product", product, py::arg("instruction_set"), py::arg("entries").noconvert(),
               py::arg("starts").noconvert(), py::arg("which").noconvert(), py::arg("steps").noconvert(),
               py::arg("vectors").noconvert(), py::arg("out").noconvert(), py::arg("threads"));
}

}  // namespace gigagp
