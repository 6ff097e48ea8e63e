// The Python module: checks every argument, packs points and vectors into panels, and runs the tile kernels for the
// instruction sets of this processor.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "module.h"
#include "schedule.h"
#include "steps.h"

namespace py = pybind11;

namespace gigagp {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native kernel products: " + what); }

long padded(long n, long multiple) { return (n + multiple - 1) / multiple * multiple; }

const std::vector<const InstructionSet *> &available() {
    static const auto sets = for_this_processor<InstructionSet>(GIGAGP_VARIANTS_OF(kernels));
    return sets;
}

const InstructionSet &choose(const std::string &name) {
    const auto &sets = available();
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

const Kernels<float> &kernels_of(const InstructionSet &set, float) { return set.single_precision; }
const Kernels<double> &kernels_of(const InstructionSet &set, double) { return set.double_precision; }

// Points (n, c) in panels of `width`, [panel][input][point], with their squared norms (zeros for inner products).
template <class T>
struct Panels {
    Aligned<T> values, squares;
    Panels() = default;
    // The first `inputs` of `all_inputs` coordinates make the norm.
    Panels(const T *points, long n, int inputs, int all_inputs, long rows, int width, T scale)
        : values(rows * std::max(all_inputs, 1)), squares(rows) {
        for (long i = 0; i < n; i++) {
            const T *point = points + i * all_inputs;
            T *to = values.get() + i / width * width * all_inputs + i % width;
            double square = 0;
            for (int k = 0; k < all_inputs; k++) to[static_cast<long>(k) * width] = scale * point[k];
            for (int k = 0; k < inputs; k++) square += static_cast<double>(point[k]) * point[k];
            squares[i] = static_cast<T>(square);
        }
    }
};

template <class T>
struct PackedTerm {
    Panels<T> left, right;
    Term<T> term;

    PackedTerm(const Kernels<T> &kernels, int profile, bool direct, double alpha, const T *left_points,
               const T *right_points, int inputs, int all_inputs, long n, long m, long rows, long columns) {
        const T scale = profile == DOT ? T(-1) : direct ? T(1) : T(2);
        const int normed = profile == DOT ? 0 : inputs;  // inner products start from zero instead of norms
        left = Panels<T>(left_points, n, normed, all_inputs, rows, kernels.rows, scale);
        right = Panels<T>(right_points, m, normed, all_inputs, columns, kernels.columns, T(1));
        term = {profile,
                inputs,
                all_inputs,
                direct,
                static_cast<T>(alpha),
                scale,
                left.values.get(),
                left.squares.get(),
                right.values.get(),
                right.squares.get()};
    }
};

// A kernel on two sets of points, read from Python and packed.
template <class T>
struct Packed {
    const Kernels<T> &kernels;
    bool symmetric;
    long n, m, rows, columns;  // points, and points with padding
    std::vector<PackedTerm<T>> packed;
    std::vector<Term<T>> terms;
    std::vector<Step<T>> steps;
    Program<T> program;
    long tile_columns;

    // terms: (profile, inputs, direct, alpha, left (n, c), right (m, c)); steps: (operation, a, b, a_factor, b_factor)
    Packed(const InstructionSet &set, const py::list &given_terms, const py::list &given_steps, long n, long m,
           bool symmetric)
        : kernels(kernels_of(set, T())), symmetric(symmetric), n(n), m(m) {
        if (n < 0 || m < 0 || (symmetric && n != m)) refuse("a symmetric product needs the same points twice");
        // every tile starts on a panel, from the left and from the right
        columns = padded(m, symmetric ? kernels.tile_rows : kernels.columns);
        rows = symmetric ? columns : padded(n, kernels.rows);
        long widest = 1;
        for (const auto &item : given_terms) {
            const auto tuple = item.cast<py::tuple>();
            if (tuple.size() != 6) refuse("a term has six parts");
            const int profile = tuple[0].cast<int>();
            if (profile < RBF || profile > DOT) refuse("unknown profile");
            const auto left = points(tuple[4]), right = points(tuple[5]);
            if (left.shape(0) != n || right.shape(0) != m || left.shape(1) != right.shape(1) ||
                left.shape(1) > 1'000'000)
                refuse("the points of a term do not fit");
            const int inputs = tuple[1].cast<int>(), all_inputs = static_cast<int>(left.shape(1));
            if (inputs < 0 || inputs > all_inputs) refuse("the inputs of a term do not fit");
            widest = std::max<long>(widest, all_inputs);
            packed.emplace_back(kernels, profile, tuple[2].cast<bool>(), tuple[3].cast<double>(),
                                left.data(), right.data(), inputs, all_inputs, n, m, rows, columns);
        }
        for (auto &term : packed) terms.push_back(term.term);
        steps = read_steps<T>(given_steps, static_cast<int>(terms.size()));
        program = {static_cast<int>(terms.size()), static_cast<int>(steps.size()), terms.data(), steps.data()};
        tile_columns = columns_for(widest);
    }

    static Array<T> points(const py::handle &given) {
        if (!py::isinstance<Array<T>>(given)) refuse("points must be contiguous arrays of the products' dtype");
        auto array = py::reinterpret_borrow<Array<T>>(given);
        if (array.ndim() != 2) refuse("points must have two dimensions");
        return array;
    }

    // Columns of a tile: every strip reads the right panels again, so they should stay in the second-level cache.
    long columns_for(long inputs) const {
        const long fitting = (long{1} << 19) / (inputs * static_cast<long>(sizeof(T)));
        return std::max<long>(kernels.columns, std::min(kernels.tile_columns, fitting / kernels.columns * kernels.columns));
    }
};

template <class T>
std::vector<Aligned<T>> scratch_for(int threads, std::size_t size) {
    std::vector<Aligned<T>> found;
    for (int thread = 0; thread < threads; thread++) found.emplace_back(size);
    return found;
}

// Columns to multiply with: most of them side by side in SIMD vectors, the few left over as single columns.
template <class T>
struct PackedVectors {
    int wide, single;
    Aligned<T> wide_values, single_values;
    long stride;

    PackedVectors(const T *values, long m, long s, long rows, int lanes) : stride(rows) {
        const bool pad = s % lanes > lanes / 2;
        wide = static_cast<int>(s / lanes + pad);
        single = static_cast<int>(pad ? 0 : s % lanes);
        const long width = static_cast<long>(wide) * lanes, together = s - single;
        wide_values = Aligned<T>(rows * width);
        single_values = Aligned<T>(rows * single);
        for (long i = 0; i < m; i++) {
            std::copy(values + i * s, values + i * s + together, wide_values.get() + i * width);
            for (int k = 0; k < single; k++) single_values[k * rows + i] = values[i * s + together + k];
        }
    }

    Vectors<T> view() const { return {wide, single, wide_values.get(), single_values.get(), stride}; }
};

template <class T>
void product(const InstructionSet &set, const py::list &terms, const py::list &steps, double factor, Array<T> vectors,
             Array<T> out, bool symmetric, int threads, long part, long parts) {
    if (parts < 1 || part < 0 || part >= parts || (parts > 1 && !symmetric)) refuse("only symmetric products have parts");
    if (vectors.ndim() != 2 || out.ndim() != 2 || vectors.shape(1) != out.shape(1)) refuse("vectors do not fit");
    const long s = vectors.shape(1);
    Packed<T> kernel(set, terms, steps, out.shape(0), vectors.shape(0), symmetric);
    const T *in = vectors.data();
    T *to = out.mutable_data();
    py::gil_scoped_release release;
    if (s == 0 || kernel.n == 0) return;
    const int lanes = kernel.kernels.lanes;
    const PackedVectors<T> packed(in, kernel.m, s, kernel.columns, lanes);
    const long width = static_cast<long>(packed.wide) * lanes, together = s - packed.single;
    const Aligned<double> wide(kernel.rows * width), single(kernel.rows * packed.single);
    const Sums sums = {packed.wide, packed.single, wide.get(), single.get(), kernel.rows};
    const ProductWork<T> work = {kernel.program, kernel.tile_columns, packed.view(), sums, packed.view(), sums};
    const long tile = kernel.kernels.tile_rows;
    const Schedule schedule = symmetric ? Schedule::symmetric(kernel.rows, tile, part, parts)
                                        : Schedule::by_rows(kernel.rows, kernel.columns, kernel.kernels.rows, threads);
    const auto scratch = scratch_for<T>(threads, kernel.kernels.product_scratch(work));
    schedule.run(threads, [&](std::size_t t, int thread) {
        const Task &task = schedule.tasks()[t];
        kernel.kernels.product(work, task.block, task.mirrored, scratch[thread].get());
    });
    for (long i = 0; i < kernel.n; i++) {
        for (long k = 0; k < together; k++) to[i * s + k] = static_cast<T>(factor * wide[i * width + k]);
        for (int k = 0; k < packed.single; k++)
            to[i * s + together + k] = static_cast<T>(factor * single[k * kernel.rows + i]);
    }
}

// Entries are computed in T, and kept in T or rounded to float32.
template <class T, class Entry>
void dense(const InstructionSet &set, const py::list &terms, const py::list &steps, double factor, Array<Entry> out,
           bool symmetric, int threads) {
    if (out.ndim() != 2) refuse("the result must have two dimensions");
    Packed<T> kernel(set, terms, steps, out.shape(0), out.shape(1), symmetric);
    DenseWork<T> work = {kernel.program, kernel.tile_columns,    kernel.n, kernel.m,
                         static_cast<T>(factor), nullptr,        nullptr};
    if constexpr (std::is_same_v<T, Entry>)
        work.out = out.mutable_data();
    else
        work.rounded = out.mutable_data();
    py::gil_scoped_release release;
    const Schedule schedule = symmetric
                                  ? Schedule::symmetric(kernel.rows, kernel.kernels.tile_rows)
                                  : Schedule::by_rows(kernel.rows, kernel.columns, kernel.kernels.rows, threads);
    const auto scratch = scratch_for<T>(threads, kernel.kernels.dense_scratch(work));
    schedule.run(threads, [&](std::size_t t, int thread) {
        const Task &task = schedule.tasks()[t];
        kernel.kernels.dense(work, task.block, task.mirrored, scratch[thread].get());
    });
}

// Weights A = left @ right' (low rank), or A = left (n, m) if right is None.
template <class T>
py::tuple gradient(const InstructionSet &set, const py::list &terms, const py::list &steps, Array<T> left,
                   const py::object &right, long n, long m, bool symmetric, int threads) {
    Packed<T> kernel(set, terms, steps, n, m, symmetric);
    if (left.ndim() != 2 || left.shape(0) != n) refuse("weights do not fit");
    std::vector<PackedTerm<T>> weights;
    if (!right.is_none()) {
        const auto other = Packed<T>::points(right);
        if (other.shape(0) != m || other.shape(1) != left.shape(1)) refuse("weights do not fit");
        weights.emplace_back(kernel.kernels, DOT, false, 1.0, left.data(), other.data(),
                             static_cast<int>(left.shape(1)), static_cast<int>(left.shape(1)), n, m, kernel.rows,
                             kernel.columns);
    } else if (left.shape(1) != m) {
        refuse("weights do not fit");
    }
    long all_inputs = 0;
    for (const auto &term : kernel.terms) all_inputs += term.all_inputs;
    const long n_terms = kernel.terms.size(), n_steps = kernel.steps.size(), width = n_steps + n_terms + all_inputs;
    const T *dense = weights.empty() ? left.data() : nullptr;
    py::array_t<double> sums(width);
    py::array_t<double> row_sums({n_terms, n}), column_sums({n_terms, m});
    double *to = sums.mutable_data(), *to_rows = row_sums.mutable_data(), *to_columns = column_sums.mutable_data();
    {
        py::gil_scoped_release release;
        const Aligned<double> by_row(n_terms * kernel.rows), by_column(n_terms * kernel.columns);
        const GradientWork<T> work = {kernel.program,
                                      std::max<long>(kernel.kernels.columns, kernel.tile_columns / 2),
                                      n,
                                      m,
                                      weights.empty() ? nullptr : &weights[0].term,
                                      dense,
                                      m,
                                      by_row.get(),
                                      by_column.get(),
                                      kernel.rows,
                                      kernel.columns};
        const long tile = kernel.kernels.tile_rows;
        const Schedule schedule = symmetric ? Schedule::symmetric(kernel.rows, tile)
                                            : Schedule::rectangular(kernel.rows, kernel.columns, tile);
        const std::size_t n_tasks = schedule.tasks().size();
        const Aligned<double> parts(n_tasks * width);
        const auto scratch = scratch_for<T>(threads, kernel.kernels.gradient_scratch(work));
        schedule.run(threads, [&](std::size_t t, int thread) {
            const Task &task = schedule.tasks()[t];
            double *mine = parts.get() + t * width;
            kernel.kernels.gradient(work, task.block, task.mirrored, {mine, mine + n_steps, mine + n_steps + n_terms},
                                    scratch[thread].get());
        });
        std::fill(to, to + width, 0.0);
        for (std::size_t t = 0; t < n_tasks; t++)
            for (long k = 0; k < width; k++) to[k] += parts[t * width + k];
        for (long t = 0; t < n_terms; t++) {
            std::copy(by_row.get() + t * kernel.rows, by_row.get() + t * kernel.rows + n, to_rows + t * n);
            std::copy(by_column.get() + t * kernel.columns, by_column.get() + t * kernel.columns + m, to_columns + t * m);
        }
    }
    return py::make_tuple(sums, row_sums, column_sums);
}

int checked(int threads) {
    if (threads < 1 || threads > 4096) refuse("threads must be between 1 and 4096");
    return threads;
}

template <class T, class Entry>
void define_dense(py::module_ &module, const char *name) {
    module.def(
        name,
        [](const std::string &set, const py::list &terms, const py::list &steps, double factor, Array<Entry> out,
           bool symmetric, int threads) {
            dense<T, Entry>(choose(set), terms, steps, factor, out, symmetric, checked(threads));
        },
        py::arg("instruction_set"), py::arg("terms"), py::arg("steps"), py::arg("factor"), py::arg("out").noconvert(),
        py::arg("symmetric"), py::arg("threads"));
}

template <class T>
void define(py::module_ &module) {
    module.def(
        "product",
        [](const std::string &set, const py::list &terms, const py::list &steps, double factor, Array<T> vectors,
           Array<T> out, bool symmetric, int threads, long part, long parts) {
            product<T>(choose(set), terms, steps, factor, vectors, out, symmetric, checked(threads), part, parts);
        },
        py::arg("instruction_set"), py::arg("terms"), py::arg("steps"), py::arg("factor"),
        py::arg("vectors").noconvert(), py::arg("out").noconvert(), py::arg("symmetric"), py::arg("threads"),
        py::arg("part") = 0, py::arg("parts") = 1);
    define_dense<T, T>(module, "dense");
    module.def(
        "gradient",
        [](const std::string &set, const py::list &terms, const py::list &steps, Array<T> left,
           const py::object &right, long n, long m, bool symmetric, int threads) {
            return gradient<T>(choose(set), terms, steps, left, right, n, m, symmetric, checked(threads));
        },
        py::arg("instruction_set"), py::arg("terms"), py::arg("steps"), py::arg("left").noconvert(), py::arg("right"),
        py::arg("n"), py::arg("m"), py::arg("symmetric"), py::arg("threads"));
}

}  // namespace
}  // namespace gigagp

namespace gigagp {
void define_grid(py::module_ &module);          // grid_module.cpp
void define_neighbours(py::module_ &module);    // neighbours_module.cpp
void define_conditionals(py::module_ &module);  // conditionals_module.cpp
void define_stored(py::module_ &module);        // stored_module.cpp
void define_filter(py::module_ &module);        // filter_module.cpp

// The codes and constants that Python has too; tests/products/test_codes.py compares them.
void define_codes(py::module_ &module) {
    py::dict profiles, operations, constants;
#define GIGAGP_PROFILE(name) profiles[#name] = static_cast<int>(name);
#define GIGAGP_OPERATION(name) operations[#name] = static_cast<int>(name);
    GIGAGP_PROFILES(GIGAGP_PROFILE)
    GIGAGP_OPERATIONS(GIGAGP_OPERATION)
#undef GIGAGP_PROFILE
#undef GIGAGP_OPERATION
    constants["FARTHEST"] = FARTHEST;
    constants["NEAREST"] = py::make_tuple(NEAREST<float>, NEAREST<double>);
    module.attr("profiles") = profiles;
    module.attr("operations") = operations;
    module.attr("constants") = constants;
}
}  // namespace gigagp

PYBIND11_MODULE(_native, module) {
    module.doc() = "Kernel products on the CPU. The Python side is gigagp.products.native_tiles.";
    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const auto *set : gigagp::available()) names.push_back(set->name);
        return names;
    });
    gigagp::define<float>(module);
    gigagp::define<double>(module);
    gigagp::define_dense<double, float>(module, "rounded_dense");
    gigagp::define_grid(module);
    gigagp::define_neighbours(module);
    gigagp::define_conditionals(module);
    gigagp::define_stored(module);
    gigagp::define_filter(module);
    gigagp::define_codes(module);
}
