// Conditionals of rows given their neighbours, and the sparse factor made of them, as Python calls them: checks every
// argument and shares the rows between threads. Results do not depend on the number of threads: sums over rows are sums
// over pieces whose number depends on the rows alone, added in order.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "conditionals.h"
#include "module.h"
#include "steps.h"

namespace py = pybind11;

namespace gigagp {
namespace {

using Numbers = py::array_t<double, py::array::c_style>;
using Rows = py::array_t<std::int64_t, py::array::c_style>;
using Neighbours = py::array_t<std::int32_t, py::array::c_style>;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native conditionals: " + what); }

const ConditionalsKernels &choose(const std::string &name) {
    static const auto sets = for_this_processor<ConditionalsKernels>(GIGAGP_VARIANTS_OF(conditionals));
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

// A matrix with `rows` rows, or none: (values, columns).
struct Matrix {
    const double *values = nullptr;
    int columns = 0;

    Matrix(const py::object &given, long rows, const char *what) {
        if (given.is_none()) return;
        if (!py::isinstance<Numbers>(given)) refuse(std::string(what) + " must be a contiguous float64 array");
        const auto array = py::reinterpret_borrow<Numbers>(given);
        if (array.ndim() != 2 || array.shape(0) != rows) refuse(std::string(what) + " does not fit");
        values = array.data();
        columns = static_cast<int>(array.shape(1));
    }
};

void check_neighbours(const Neighbours &neighbours, long rows, long pool) {
    if (neighbours.ndim() != 2 || neighbours.shape(0) != rows || neighbours.shape(1) > 100'000) refuse("neighbours do not fit");
    const std::int32_t *index = neighbours.data();
    for (long k = 0; k < neighbours.size(); k++)
        if (index[k] < -1 || index[k] >= pool) refuse("a neighbour beyond the pool");
}

// Pieces of rows for sums: at most 256, of a multiple of 64 rows.
long piece_of(long n) { return std::max(64L, ((n + 255) / 256 + 63) / 64 * 64); }

// terms: (profile, inputs, alpha, left (pool, c), right (pool, c)); steps: (operation, a, b, a_factor, b_factor).
// Returns (variance, weights, residual, log_variance, gradient, information, raised); None for what was not asked for.
py::tuple conditionals(const std::string &set, const py::list &given_terms, const py::list &given_steps, double factor,
                       const Numbers &noise, const Rows &targets, const Neighbours &neighbours, const py::object &values,
                       const py::object &low, const py::object &diagonals, bool with_weights, bool with_residual,
                       bool with_derivatives, int threads) {
    const ConditionalsKernels &kernels = choose(set);
    if (noise.ndim() != 1 || targets.ndim() != 1 || threads < 1 || threads > 4096) refuse("arguments do not fit");
    const long pool = noise.shape(0), n = targets.shape(0);
    check_neighbours(neighbours, n, pool);
    for (long i = 0; i < n; i++)
        if (targets.data()[i] < 0 || targets.data()[i] >= pool) refuse("a row beyond the pool");
    std::vector<PoolTerm> terms;
    long all_inputs = 0;
    for (const auto &item : given_terms) {
        const auto tuple = item.cast<py::tuple>();
        if (tuple.size() != 5) refuse("a term has five parts");
        const Matrix left(tuple[3], pool, "points"), right(tuple[4], pool, "points");
        const int profile = tuple[0].cast<int>(), inputs = tuple[1].cast<int>();
        if (!left.values || left.columns != right.columns || inputs < 0 || inputs > left.columns || profile < RBF ||
            profile > DOT)
            refuse("a term does not fit");
        terms.push_back({profile, inputs, left.columns, tuple[2].cast<double>(), left.values, right.values});
        all_inputs += left.columns;
    }
    const auto steps = read_steps<double>(given_steps, static_cast<int>(terms.size()));
    const Matrix columns(values, pool, "values"), extra(low, pool, "low"), moved(diagonals, pool, "diagonals");
    long directions = 0;
    if (with_derivatives) {
        for (const auto &step : steps) directions += step.operation == TERM || step.operation == ONE;
        directions += static_cast<long>(terms.size()) + all_inputs + moved.columns;
    }
    const int m = static_cast<int>(neighbours.shape(1));
    Numbers variance(n);
    py::object weights = py::none(), residual = py::none(), gradient = py::none(), information = py::none();
    if (with_weights) weights = Numbers({n, static_cast<long>(m)});
    if (with_residual) residual = Numbers({n, static_cast<long>(columns.columns)});
    const long n_products = directions * (directions + 1) / 2, width = directions + n_products;
    const ConditionalsWork work = {static_cast<int>(terms.size()), static_cast<int>(steps.size()), terms.data(), steps.data(),
                                   factor, noise.data(), extra.columns, extra.values, targets.data(), m, neighbours.data(),
                                   columns.columns, columns.values,
                                   with_weights ? weights.cast<Numbers>().mutable_data() : nullptr, variance.mutable_data(),
                                   with_residual ? residual.cast<Numbers>().mutable_data() : nullptr,
                                   static_cast<int>(directions), with_derivatives ? moved.columns : 0, moved.values};
    double log_variance = 0;
    std::int64_t raised = 0;
    std::vector<double> sums(width, 0.0);
    {
        py::gil_scoped_release release;
        const long piece = piece_of(n), pieces = (n + piece - 1) / piece;
        threads = static_cast<int>(std::max(1L, std::min<long>(threads, pieces)));
        std::vector<Aligned<double>> scratch;
        for (int thread = 0; thread < threads; thread++) scratch.emplace_back(kernels.scratch(work));
        std::vector<double> parts(static_cast<std::size_t>(pieces) * width, 0.0);
        std::vector<ConditionalsSums> found(pieces);
        share(threads, pieces, [&](long p, int thread) {
            double *mine = parts.data() + p * width;
            found[p] = {0.0, mine, mine + directions, 0};
            kernels.rows(work, p * piece, std::min(n, (p + 1) * piece), found[p], scratch[thread].get());
        });
        for (long p = 0; p < pieces; p++) {
            log_variance += found[p].log_variance;
            raised += found[p].raised;
            for (long k = 0; k < width; k++) sums[k] += parts[p * width + k];
        }
    }
    if (with_derivatives) {
        Numbers slope(directions), whole({directions, directions});
        std::copy(sums.begin(), sums.begin() + directions, slope.mutable_data());
        const double *from = sums.data() + directions;
        for (long k = 0; k < directions; k++)
            for (long l = k; l < directions; l++) whole.mutable_at(k, l) = whole.mutable_at(l, k) = *from++;
        gradient = slope;
        information = whole;
    }
    return py::make_tuple(variance, weights, residual, log_variance, gradient, information, raised);
}

// The columns of the sparse matrix B, each by rows: (starts (n + 1,), rows, weights).
py::tuple columns_of(const Neighbours &neighbours, const Numbers &weights) {
    const long n = neighbours.shape(0);
    check_neighbours(neighbours, n, n);
    if (weights.ndim() != 2 || weights.shape(0) != n || weights.shape(1) != neighbours.shape(1)) refuse("weights do not fit");
    const long m = neighbours.shape(1);
    Rows starts(n + 1);
    std::int64_t *start = starts.mutable_data();
    std::fill(start, start + n + 1, 0);
    const std::int32_t *index = neighbours.data();
    for (long k = 0; k < n * m; k++)
        if (index[k] >= 0) start[index[k] + 1]++;
    for (long i = 0; i < n; i++) start[i + 1] += start[i];
    py::array_t<std::int32_t> rows(start[n]);
    py::array_t<double> sorted(start[n]);
    std::int32_t *to_rows = rows.mutable_data();
    double *to = sorted.mutable_data();
    const double *from = weights.data();
    std::vector<std::int64_t> next(start, start + n);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < m; j++) {
            const std::int32_t column = index[i * m + j];
            if (column < 0) continue;
            to_rows[next[column]] = static_cast<std::int32_t>(i);
            to[next[column]++] = from[i * m + j];
        }
    return py::make_tuple(starts, rows, sorted);
}

SparseRows view_rows(const Neighbours &neighbours, const Numbers &weights) {
    if (neighbours.ndim() != 2 || weights.ndim() != 2 || weights.size() != neighbours.size()) refuse("weights do not fit");
    return {neighbours.shape(0), static_cast<int>(neighbours.shape(1)), neighbours.data(), weights.data()};
}

void check_vectors(const Numbers &v, long n) {
    if (v.ndim() != 2 || v.shape(0) != n) refuse("vectors do not fit");
}

void check_order(const Rows &order, long n) {
    if (order.ndim() != 1 || order.shape(0) != n) refuse("the order does not fit");
    for (long k = 0; k < n; k++)
        if (order.data()[k] < 0 || order.data()[k] >= n) refuse("the order does not fit");
}

SparseColumns view_columns(const Rows &starts, const Neighbours &rows, const Numbers &weights, long n) {
    if (starts.ndim() != 1 || starts.shape(0) != n + 1 || rows.size() != weights.size() || starts.data()[0] != 0 ||
        starts.data()[n] != rows.size())
        refuse("columns do not fit");
    return {starts.data(), rows.data(), weights.data()};
}

// The factor as a triple of arrays by rows, and one by columns, are checked once, when Python makes them.
Numbers residuals(const std::string &set, const Neighbours &neighbours, const Numbers &weights, const Numbers &v, int threads) {
    const ConditionalsKernels &kernels = choose(set);
    const SparseRows matrix = view_rows(neighbours, weights);
    check_vectors(v, matrix.n);
    const long n = matrix.n, s = v.shape(1), piece = piece_of(n);
    Numbers out({n, s});
    double *to = out.mutable_data();
    const double *from = v.data();
    py::gil_scoped_release release;
    share(threads, (n + piece - 1) / piece,
          [&](long p, int) { kernels.residuals(matrix, from, s, p * piece, std::min(n, (p + 1) * piece), to); });
    return out;
}

Numbers transposed(const std::string &set, const Rows &starts, const Neighbours &rows, const Numbers &weights, const Numbers &v,
                   int threads) {
    const ConditionalsKernels &kernels = choose(set);
    const long n = v.ndim() == 2 ? v.shape(0) : -1;
    const SparseColumns matrix = view_columns(starts, rows, weights, n);
    const long s = v.shape(1), piece = piece_of(n);
    Numbers out({n, s});
    double *to = out.mutable_data();
    const double *from = v.data();
    py::gil_scoped_release release;
    share(threads, (n + piece - 1) / piece,
          [&](long p, int) { kernels.transposed(matrix, from, s, p * piece, std::min(n, (p + 1) * piece), to); });
    return out;
}

// Columns go to threads in blocks of a cache line: their solves do not depend on each other.
constexpr long COLUMNS = 8;

void solve(const std::string &set, const Neighbours &neighbours, const Numbers &weights, const Rows &order, Numbers v, int threads) {
    const ConditionalsKernels &kernels = choose(set);
    const SparseRows matrix = view_rows(neighbours, weights);
    check_vectors(v, matrix.n);
    check_order(order, matrix.n);
    double *values = v.mutable_data();
    const std::int64_t *sequence = order.data();
    const long s = v.shape(1);
    py::gil_scoped_release release;
    const long block = std::max(COLUMNS, (s / threads + COLUMNS - 1) / COLUMNS * COLUMNS);
    share(threads, (s + block - 1) / block,
          [&](long p, int) { kernels.solve(matrix, sequence, values, s, p * block, std::min(s, (p + 1) * block)); });
}

void solve_transposed(const std::string &set, const Rows &starts, const Neighbours &rows, const Numbers &weights,
                      const Rows &order, Numbers v, int threads) {
    const ConditionalsKernels &kernels = choose(set);
    const long n = v.ndim() == 2 ? v.shape(0) : -1;
    const SparseColumns matrix = view_columns(starts, rows, weights, n);
    check_order(order, n);
    double *values = v.mutable_data();
    const std::int64_t *sequence = order.data();
    const long s = v.shape(1);
    py::gil_scoped_release release;
    const long block = std::max(COLUMNS, (s / threads + COLUMNS - 1) / COLUMNS * COLUMNS);
    share(threads, (s + block - 1) / block, [&](long p, int) {
        kernels.solve_transposed(matrix, n, sequence, values, s, p * block, std::min(s, (p + 1) * block));
    });
}

}  // namespace

void define_conditionals(py::module_ &module) {
    module.def("conditionals", conditionals, py::arg("instruction_set"), py::arg("terms"), py::arg("steps"), py::arg("factor"),
               py::arg("noise").noconvert(), py::arg("targets").noconvert(), py::arg("neighbours").noconvert(),
               py::arg("values"), py::arg("low"), py::arg("diagonals"), py::arg("with_weights"), py::arg("with_residual"),
               py::arg("with_derivatives"), py::arg("threads"));
    module.def("sparse_columns", columns_of, py::arg("neighbours").noconvert(), py::arg("weights").noconvert());
    module.def("sparse_residuals", residuals, py::arg("instruction_set"), py::arg("neighbours").noconvert(),
               py::arg("weights").noconvert(), py::arg("vectors").noconvert(), py::arg("threads"));
    module.def("sparse_transposed", transposed, py::arg("instruction_set"), py::arg("starts").noconvert(),
               py::arg("rows").noconvert(), py::arg("weights").noconvert(), py::arg("vectors").noconvert(), py::arg("threads"));
    module.def("sparse_solve", solve, py::arg("instruction_set"), py::arg("neighbours").noconvert(),
               py::arg("weights").noconvert(), py::arg("order").noconvert(), py::arg("vectors").noconvert(), py::arg("threads"));
    module.def("sparse_solve_transposed", solve_transposed, py::arg("instruction_set"), py::arg("starts").noconvert(),
               py::arg("rows").noconvert(), py::arg("weights").noconvert(), py::arg("order").noconvert(),
               py::arg("vectors").noconvert(), py::arg("threads"));
}

}  // namespace gigagp
