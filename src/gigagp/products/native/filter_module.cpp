// Kalman filter and smoother, as Python calls them (gigagp.products.filtering): checks every argument.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "filter.h"
#include "module.h"

namespace py = pybind11;

namespace gigagp {
namespace {

typedef py::array_t<double, py::array::c_style> Array;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native filter: " + what); }

const FilterKernels &choose(const std::string &name) {
    static const auto sets = for_this_processor<FilterKernels>(GIGAGP_VARIANTS_OF(filter_kernels));
    if (const auto *set = named(sets, name)) return *set;
    refuse("this processor or build has no instruction set " + name);
}

double *data_of(py::object &array, const std::vector<long> &shape, const char *name) {
    if (array.is_none()) return nullptr;
    if (!py::isinstance<Array>(array)) refuse(std::string(name) + " must be a contiguous array of float64");
    Array found = py::reinterpret_borrow<Array>(array);
    bool fits = found.ndim() == static_cast<long>(shape.size());
    for (std::size_t k = 0; fits && k < shape.size(); k++) fits = found.shape(k) == shape[k];
    if (!fits) refuse(std::string("the shape of ") + name + " does not fit");
    return found.mutable_data();
}

FilterBlocks blocks_of(const std::vector<int> &sizes) {
    FilterBlocks found{sizes.data(), static_cast<int>(sizes.size()), 0, 0};
    for (const int b : sizes) {
        if (b < 1 || b > 1000) refuse("sizes of blocks must be from 1 to 1000");
        found.q += b, found.entries += b * b;
    }
    return found;
}

long columns_of(const py::object &array) { return py::reinterpret_borrow<Array>(array).shape(1); }

}  // namespace

void define_filter(py::module_ &module) {
    module.def("filter_forward", [](const std::string &set, const std::vector<int> &sizes, Array transition,
                                    py::object spread, py::object seen, py::object noise, py::object values,
                                    py::object mean, py::object covariance, py::object errors, py::object variances,
                                    py::object gains, py::object means, py::object covariances) {
        const FilterKernels &kernels = choose(set);
        const FilterBlocks blocks = blocks_of(sizes);
        const long n = transition.shape(0), q = blocks.q, c = columns_of(mean);
        py::object first = transition;
        const FilterSteps steps{n,
                                data_of(first, {n, blocks.entries}, "transition"),
                                data_of(spread, {n, blocks.entries}, "spread"),
                                data_of(seen, {n, q}, "seen"),
                                data_of(noise, {n}, "noise"),
                                data_of(values, {n, c}, "values"),
                                static_cast<int>(c)};
        double *m = data_of(mean, {q, c}, "mean"), *P = data_of(covariance, {q, q}, "covariance");
        const FilterFound found{data_of(errors, {n, c}, "errors"), data_of(variances, {n}, "variances"),
                                data_of(gains, {n, q}, "gains"), data_of(means, {n, q, c}, "means"),
                                data_of(covariances, {n, q, q}, "covariances")};
        py::gil_scoped_release release;
        kernels.forward(blocks, steps, m, P, found);
    });
    module.def("filter_backward", [](const std::string &set, const std::vector<int> &sizes, Array transition,
                                     py::object seen, py::object errors, py::object variances, py::object gains,
                                     py::object pull, py::object information, py::object solutions,
                                     py::object precisions, py::object pulls, py::object informations,
                                     py::object means, py::object covariances, py::object by_transition,
                                     py::object by_spread, py::object by_seen) {
        const FilterKernels &kernels = choose(set);
        const FilterBlocks blocks = blocks_of(sizes);
        const long n = transition.shape(0), q = blocks.q, c = columns_of(pull);
        py::object first = transition;
        const FilterSteps steps{n,       data_of(first, {n, blocks.entries}, "transition"), nullptr,
                                data_of(seen, {n, q}, "seen"), nullptr, nullptr, static_cast<int>(c)};
        const FilterFound found{data_of(errors, {n, c}, "errors"), data_of(variances, {n}, "variances"),
                                data_of(gains, {n, q}, "gains"), nullptr, nullptr};
        double *r = data_of(pull, {q, c}, "pull"), *N = data_of(information, {q, q}, "information");
        const FilterSmoothed smoothed{data_of(solutions, {n, c}, "solutions"),
                                      data_of(precisions, {n}, "precisions"),
                                      data_of(pulls, {n, q, c}, "pulls"),
                                      data_of(informations, {n, q, q}, "informations"),
                                      data_of(by_transition, {n, blocks.entries}, "by_transition"),
                                      data_of(by_spread, {n, blocks.entries}, "by_spread"),
                                      data_of(by_seen, {n, q}, "by_seen")};
        const double *ms = data_of(means, {n + 1, q, c}, "means");
        const double *Ps = data_of(covariances, {n + 1, q, q}, "covariances");
        const bool has_gradient = smoothed.by_transition || smoothed.by_seen;
        if (has_gradient && !(ms && Ps && smoothed.by_transition && smoothed.by_spread))
            refuse("a gradient needs means, covariances, by_transition and by_spread");
        py::gil_scoped_release release;
        kernels.backward(blocks, steps, found, r, N, ms, Ps, smoothed);
    });
    module.def("filter_accumulate", [](const std::string &set, const std::vector<int> &sizes, Array transition,
                                       py::object values, py::object state, py::object out) {
        const FilterKernels &kernels = choose(set);
        const FilterBlocks blocks = blocks_of(sizes);
        const long n = transition.shape(0), q = blocks.q, c = columns_of(state);
        py::object first = transition;
        const FilterSteps steps{n,       data_of(first, {n, blocks.entries}, "transition"), nullptr, nullptr, nullptr,
                                data_of(values, {n, q, c}, "values"), static_cast<int>(c)};
        double *x = data_of(state, {q, c}, "state"), *to = data_of(out, {n, q, c}, "out");
        py::gil_scoped_release release;
        kernels.accumulate(blocks, steps, x, to);
    });
    module.def("filter_transfer", [](const std::string &set, const std::vector<int> &sizes, Array transition,
                                     py::object seen, py::object gains, py::array_t<bool, py::array::c_style> begins,
                                     py::array_t<std::int64_t, py::array::c_style> ends, py::object state,
                                     py::object out) {
        const FilterKernels &kernels = choose(set);
        const FilterBlocks blocks = blocks_of(sizes);
        const long n = transition.shape(0), q = blocks.q, segments = py::reinterpret_borrow<Array>(out).shape(0);
        if (begins.size() != n || ends.size() != n) refuse("begins and ends must have a number for each row");
        for (long i = 0; i < n; i++)
            if (ends.data()[i] >= segments) refuse("ends must be below the number of segments");
        py::object first = transition;
        const FilterSteps steps{n, data_of(first, {n, blocks.entries}, "transition"), nullptr,
                                data_of(seen, {n, q}, "seen"), nullptr, nullptr, 0};
        const double *k = data_of(gains, {n, q}, "gains");
        double *x = data_of(state, {q, q}, "state"), *to = data_of(out, {segments, q, q}, "out");
        py::gil_scoped_release release;
        kernels.transfer(blocks, steps, k, begins.data(), ends.data(), x, to);
    });
}

}  // namespace gigagp
