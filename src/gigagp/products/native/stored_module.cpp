// Products of a stored matrix with a few columns, as Python calls them: checks every argument, packs the columns, and
// shares rows between threads. A row's sum has one order, so the results do not depend on the number of threads.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"
#include "stored.h"

namespace py = pybind11;

namespace gigagp {
namespace {

constexpr long ROWS = 192;  // of one task: a multiple of the rows in registers for every number of vectors

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native stored product: " + what); }

const StoredKernels &choose(const std::string &name) {
    static const auto sets = for_this_processor<StoredKernels>(GIGAGP_VARIANTS_OF(stored_kernels));
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

template <class T>
using Array = py::array_t<T, py::array::c_style>;

template <class T>
void multiply(const std::string &set, const py::array_t<T> &matrix, const Array<T> &columns, Array<T> out, int threads) {
    const StoredKernel<T> &kernel = choose(set).of<T>();
    if (matrix.ndim() != 2 || columns.ndim() != 2 || out.ndim() != 2) refuse("arrays must have two dimensions");
    const long n = matrix.shape(0), depth = matrix.shape(1), s = columns.shape(1);
    const long stride = matrix.strides(0) / static_cast<long>(sizeof(T));
    if (depth > 0 && n > 0 && (matrix.strides(1) != static_cast<long>(sizeof(T)) || stride < depth))
        refuse("rows of the matrix must be contiguous");
    if (columns.shape(0) != depth || out.shape(0) != n || out.shape(1) != s) refuse("shapes do not fit");
    if (threads < 1 || threads > 4096) refuse("threads must be between 1 and 4096");
    const T *entries = matrix.data(), *from = columns.data();
    T *to = out.mutable_data();
    py::gil_scoped_release release;
    for (long first = 0; first < s; first += STORED_VECTORS * kernel.lanes) {
        const long some = std::min<long>(s - first, STORED_VECTORS * kernel.lanes);
        const int vectors = static_cast<int>((some + kernel.lanes - 1) / kernel.lanes);
        const long width = static_cast<long>(vectors) * kernel.lanes;
        Aligned<T> packed(std::max(depth, 1L) * width);
        for (long k = 0; k < depth; k++) std::copy_n(from + k * s + first, some, &packed[k * width]);
        const long tasks = (n + ROWS - 1) / ROWS, used = std::max(1L, std::min<long>(threads, tasks));
        std::vector<Aligned<T>> sums;
        for (long thread = 0; thread < used; thread++) sums.emplace_back(ROWS * width);
        share(static_cast<int>(used), tasks, [&](long task, int thread) {
            const long begin = task * ROWS, rows = std::min(ROWS, n - begin);
            T *sum = sums[thread].get();
            std::fill_n(sum, rows * width, T(0));
            kernel.product(entries + begin * stride, stride, rows, depth, packed.get(), vectors, sum);
            for (long i = 0; i < rows; i++) std::copy_n(sum + i * width, some, to + (begin + i) * s + first);
        });
    }
}

template <class T>
void define(py::module_ &module) {
    module.def("stored_product", multiply<T>, py::arg("instruction_set"), py::arg("matrix").noconvert(),
               py::arg("columns").noconvert(), py::arg("out").noconvert(), py::arg("threads"));
}

}  // namespace

void define_stored(py::module_ &module) {
    define<float>(module);
    define<double>(module);
}

}  // namespace gigagp
