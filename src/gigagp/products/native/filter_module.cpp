// Kalman filter and smoother of one observation at a time, as Python calls them (gigagp.products.filtering, which has the
// same loops in NumPy and says what the arrays are). A state has independent parts with transitions of their own, so
// that a transition is stored as the blocks on its diagonal. A single block of up to four numbers has loops of fixed length.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "module.h"

namespace py = pybind11;

namespace gigagp {
namespace {

typedef py::array_t<double, py::array::c_style> Array;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument("native filter: " + what); }

// The sizes of the blocks of a state of q numbers; Q > 0: one block of that size.
template <int Q>
struct Shape {
    const std::vector<int> &sizes;
    int total;
    int q() const { return Q ? Q : total; }
    template <class F>
    void each(F work) const {  // work(place of the block, its size, place of its entries)
        if (Q) return work(0, Q, 0);
        int at = 0, entry = 0;
        for (const int b : sizes) {
            work(at, b, entry);
            at += b, entry += b * b;
        }
    }
    // out = F A, or F' A with `transposed`, for A of `columns` columns
    template <bool transposed>
    void left(const double *F, const double *A, int columns, double *out) const {
        each([&](int at, int b, int entry) {
            for (int i = 0; i < b; i++) {
                double *row = out + (at + i) * columns;
                for (int j = 0; j < columns; j++) row[j] = 0;
                for (int k = 0; k < b; k++) {
                    const double f = transposed ? F[entry + k * b + i] : F[entry + i * b + k];
                    const double *from = A + (at + k) * columns;
                    for (int j = 0; j < columns; j++) row[j] += f * from[j];
                }
            }
        });
    }
    // out = A F', or A F with `transposed`, for square A
    template <bool transposed>
    void right(const double *A, const double *F, double *out) const {
        const int n = q();
        each([&](int at, int b, int entry) {
            for (int i = 0; i < n; i++)
                for (int j = 0; j < b; j++) {
                    double sum = 0;
                    for (int k = 0; k < b; k++)
                        sum += A[i * n + at + k] * (transposed ? F[entry + k * b + j] : F[entry + j * b + k]);
                    out[i * n + at + j] = sum;
                }
        });
    }
    void add_blocks(const double *F, double *to) const {
        const int n = q();
        each([&](int at, int b, int entry) {
            for (int i = 0; i < b; i++)
                for (int j = 0; j < b; j++) to[(at + i) * n + at + j] += F[entry + i * b + j];
        });
    }
};

struct Steps {
    long n;
    const double *transition, *spread, *seen, *noise, *values;  // (n, B), (n, B), (n, q), (n), (n, c)
    int entries, columns;
};

template <int Q>
void forward(const Shape<Q> &shape, const Steps &steps, double *mean, double *covariance, double *errors,
             double *variances, double *gains, double *means, double *covariances) {
    const int q = shape.q(), c = steps.columns;
    std::vector<double> A(q * q), P(q * q), m(q * c), u(q);
    for (long i = 0; i < steps.n; i++) {
        const double *F = steps.transition + i * steps.entries, *h = steps.seen + i * q;
        shape.template left<false>(F, mean, c, m.data());
        shape.template left<false>(F, covariance, q, A.data());
        shape.template right<false>(A.data(), F, P.data());
        shape.add_blocks(steps.spread + i * steps.entries, P.data());
        double variance = steps.noise[i];
        for (int a = 0; a < q; a++) {
            u[a] = 0;
            for (int b = 0; b < q; b++) u[a] += P[a * q + b] * h[b];
            variance += h[a] * u[a];
        }
        variances[i] = variance;
        double *gain = gains + i * q;
        for (int a = 0; a < q; a++) gain[a] = u[a] / variance;
        for (int j = 0; j < c; j++) {
            double error = steps.values[i * c + j];
            for (int a = 0; a < q; a++) error -= h[a] * m[a * c + j];
            errors[i * c + j] = error;
            for (int a = 0; a < q; a++) mean[a * c + j] = m[a * c + j] + gain[a] * error;
        }
        // (I - k h') P (I - k h')' + noise k k', which stays positive where the noise is tiny
        for (int a = 0; a < q; a++)
            for (int b = 0; b < q; b++) P[a * q + b] -= gain[a] * u[b];
        for (int a = 0; a < q; a++) {
            double left = -steps.noise[i] * gain[a];
            for (int b = 0; b < q; b++) left += P[a * q + b] * h[b];
            for (int b = 0; b < q; b++) A[a * q + b] = P[a * q + b] - left * gain[b];
        }
        for (int a = 0; a < q; a++)
            for (int b = 0; b < q; b++) covariance[a * q + b] = 0.5 * (A[a * q + b] + A[b * q + a]);
        if (means) std::copy_n(mean, q * c, means + i * q * c);
        if (covariances) std::copy_n(covariance, q * q, covariances + i * q * q);
    }
}

template <int Q>
void backward(const Shape<Q> &shape, const Steps &steps, const double *errors, const double *variances,
              const double *gains, double *pull, double *information, double *solutions, double *precisions,
              double *pulls, double *informations, const double *means, const double *covariances,
              double *by_transition, double *by_spread, double *by_seen) {
    const int q = shape.q(), c = steps.columns;
    std::vector<double> X(q * q), G(q * q), W(q * q), r(q * c), g(q), left(q);
    for (long i = steps.n - 1; i >= 0; i--) {
        const double *F = steps.transition + i * steps.entries, *h = steps.seen + i * q, *gain = gains + i * q;
        const double inverse = 1 / variances[i];
        double precision = inverse;
        for (int a = 0; a < q; a++) {
            g[a] = 0;
            for (int b = 0; b < q; b++) g[a] += information[a * q + b] * gain[b];
            precision += gain[a] * g[a];
        }
        precisions[i] = precision;
        for (int j = 0; j < c; j++) {
            double solution = errors[i * c + j] * inverse;
            for (int a = 0; a < q; a++) solution -= gain[a] * pull[a * c + j];
            solutions[i * c + j] = solution;
            for (int a = 0; a < q; a++) r[a * c + j] = pull[a * c + j] + h[a] * solution;
        }
        if (by_seen) {
            // the sum over columns of solution times smoothed state m + P pull, less c times (I - P N) k
            const double *m = means + (i + 1) * q * c, *P = covariances + (i + 1) * q * q;
            for (int a = 0; a < q; a++) {
                left[a] = c * g[a];
                for (int j = 0; j < c; j++) left[a] += pull[a * c + j] * solutions[i * c + j];
            }
            for (int a = 0; a < q; a++) {
                double sum = -c * gain[a];
                for (int j = 0; j < c; j++) sum += m[a * c + j] * solutions[i * c + j];
                for (int b = 0; b < q; b++) sum += P[a * q + b] * left[b];
                by_seen[i * q + a] = sum;
            }
        }
        // (I - h k') N (I - k h') + h h' / variance
        for (int a = 0; a < q; a++)
            for (int b = 0; b < q; b++) X[a * q + b] = information[a * q + b] - g[a] * h[b];
        for (int b = 0; b < q; b++) {
            double above = -h[b] * inverse;
            for (int a = 0; a < q; a++) above += gain[a] * X[a * q + b];
            for (int a = 0; a < q; a++) W[a * q + b] = X[a * q + b] - h[a] * above;
        }
        for (int a = 0; a < q; a++)
            for (int b = 0; b < q; b++) X[a * q + b] = 0.5 * (W[a * q + b] + W[b * q + a]);
        if (pulls) std::copy_n(r.data(), q * c, pulls + i * q * c);
        if (informations) std::copy_n(X.data(), q * q, informations + i * q * q);
        if (by_transition) {
            // the states before this row
            const double *m = means + i * q * c, *P = covariances + i * q * q;
            for (int a = 0; a < q; a++)
                for (int b = 0; b < q; b++) {
                    double sum = 0;
                    for (int j = 0; j < c; j++) sum += r[a * c + j] * r[b * c + j];
                    G[a * q + b] = 0.5 * (sum - c * X[a * q + b]);
                }
            shape.template left<false>(F, P, q, W.data());
            shape.each([&](int at, int b, int entry) {
                for (int k = 0; k < b; k++)
                    for (int l = 0; l < b; l++) {
                        double sum = 0, twice = 0;
                        for (int j = 0; j < c; j++) sum += r[(at + k) * c + j] * m[(at + l) * c + j];
                        for (int a = 0; a < q; a++) twice += G[(at + k) * q + a] * W[a * q + at + l];
                        by_transition[i * steps.entries + entry + k * b + l] = sum + 2 * twice;
                        by_spread[i * steps.entries + entry + k * b + l] = G[(at + k) * q + at + l];
                    }
            });
        }
        shape.template left<true>(F, r.data(), c, pull);
        shape.template left<true>(F, X.data(), q, W.data());
        shape.template right<true>(W.data(), F, information);
    }
}

template <int Q>
void accumulate(const Shape<Q> &shape, const Steps &steps, double *state, double *out) {
    const int q = shape.q(), c = steps.columns;
    std::vector<double> moved(q * c);
    for (long i = 0; i < steps.n; i++) {
        const double *more = steps.values + i * q * c;
        shape.template left<false>(steps.transition + i * steps.entries, state, c, moved.data());
        for (int a = 0; a < q * c; a++) state[a] = out[i * q * c + a] = moved[a] + more[a];
    }
}

template <int Q>
void transfer(const Shape<Q> &shape, const Steps &steps, const double *gains, const bool *begins, const std::int64_t *ends,
              double *state, double *out) {
    const int q = shape.q();
    std::vector<double> moved(q * q);
    for (long i = 0; i < steps.n; i++) {
        const double *h = steps.seen + i * q, *gain = gains + i * q;
        if (begins[i]) {
            for (int a = 0; a < q * q; a++) state[a] = a % (q + 1) == 0;
        } else {
            shape.template left<false>(steps.transition + i * steps.entries, state, q, moved.data());
            std::copy_n(moved.data(), q * q, state);
        }
        for (int b = 0; b < q; b++) {
            double seen = 0;
            for (int a = 0; a < q; a++) seen += h[a] * state[a * q + b];
            for (int a = 0; a < q; a++) state[a * q + b] -= gain[a] * seen;
        }
        if (ends[i] >= 0) std::copy_n(state, q * q, out + ends[i] * q * q);
    }
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

// Call work(shape) with loops of fixed length where there is one small block.
template <class F>
void with_shape(const std::vector<int> &sizes, int q, F work) {
    const int only = sizes.size() == 1 ? q : 0;
    switch (only) {
        case 1: return work(Shape<1>{sizes, q});
        case 2: return work(Shape<2>{sizes, q});
        case 3: return work(Shape<3>{sizes, q});
        case 4: return work(Shape<4>{sizes, q});
        default: return work(Shape<0>{sizes, q});
    }
}

struct Sizes {
    int q = 0, entries = 0;
    explicit Sizes(const std::vector<int> &sizes) {
        for (const int b : sizes) {
            if (b < 1 || b > 1000) refuse("sizes of blocks must be from 1 to 1000");
            q += b, entries += b * b;
        }
    }
};

}  // namespace

void define_filter(py::module_ &module) {
    module.def("filter_forward", [](const std::vector<int> &sizes, Array transition, py::object spread, py::object seen,
                                    py::object noise, py::object values, py::object mean, py::object covariance,
                                    py::object errors, py::object variances, py::object gains, py::object means,
                                    py::object covariances) {
        const Sizes size(sizes);
        const long n = transition.shape(0), q = size.q, c = py::reinterpret_borrow<Array>(mean).shape(1);
        py::object first = transition;
        const Steps steps{n, data_of(first, {n, size.entries}, "transition"), data_of(spread, {n, size.entries}, "spread"),
                          data_of(seen, {n, q}, "seen"), data_of(noise, {n}, "noise"), data_of(values, {n, c}, "values"),
                          size.entries, static_cast<int>(c)};
        double *m = data_of(mean, {q, c}, "mean"), *P = data_of(covariance, {q, q}, "covariance");
        double *e = data_of(errors, {n, c}, "errors"), *s = data_of(variances, {n}, "variances");
        double *k = data_of(gains, {n, q}, "gains"), *ms = data_of(means, {n, q, c}, "means");
        double *Ps = data_of(covariances, {n, q, q}, "covariances");
        py::gil_scoped_release release;
        with_shape(sizes, size.q, [&](const auto &shape) { forward(shape, steps, m, P, e, s, k, ms, Ps); });
    });
    module.def("filter_backward", [](const std::vector<int> &sizes, Array transition, py::object seen, py::object errors,
                                     py::object variances, py::object gains, py::object pull, py::object information,
                                     py::object solutions, py::object precisions, py::object pulls,
                                     py::object informations, py::object means, py::object covariances,
                                     py::object by_transition, py::object by_spread, py::object by_seen) {
        const Sizes size(sizes);
        const long n = transition.shape(0), q = size.q, c = py::reinterpret_borrow<Array>(pull).shape(1);
        py::object first = transition;
        const Steps steps{n, data_of(first, {n, size.entries}, "transition"), nullptr, data_of(seen, {n, q}, "seen"),
                          nullptr, nullptr, size.entries, static_cast<int>(c)};
        const double *e = data_of(errors, {n, c}, "errors"), *s = data_of(variances, {n}, "variances");
        const double *k = data_of(gains, {n, q}, "gains");
        double *r = data_of(pull, {q, c}, "pull"), *N = data_of(information, {q, q}, "information");
        double *u = data_of(solutions, {n, c}, "solutions"), *d = data_of(precisions, {n}, "precisions");
        double *rs = data_of(pulls, {n, q, c}, "pulls"), *Ns = data_of(informations, {n, q, q}, "informations");
        const double *ms = data_of(means, {n + 1, q, c}, "means");
        const double *Ps = data_of(covariances, {n + 1, q, q}, "covariances");
        double *F = data_of(by_transition, {n, size.entries}, "by_transition");
        double *Q = data_of(by_spread, {n, size.entries}, "by_spread");
        double *H = data_of(by_seen, {n, q}, "by_seen");
        if ((F || H) && !(ms && Ps && F && Q)) refuse("a gradient needs means, covariances, by_transition and by_spread");
        py::gil_scoped_release release;
        with_shape(sizes, size.q,
                   [&](const auto &shape) { backward(shape, steps, e, s, k, r, N, u, d, rs, Ns, ms, Ps, F, Q, H); });
    });
    module.def("filter_accumulate", [](const std::vector<int> &sizes, Array transition, py::object values,
                                       py::object state, py::object out) {
        const Sizes size(sizes);
        const long n = transition.shape(0), q = size.q, c = py::reinterpret_borrow<Array>(state).shape(1);
        py::object first = transition;
        const Steps steps{n, data_of(first, {n, size.entries}, "transition"), nullptr, nullptr, nullptr,
                          data_of(values, {n, q, c}, "values"), size.entries, static_cast<int>(c)};
        double *x = data_of(state, {q, c}, "state"), *to = data_of(out, {n, q, c}, "out");
        py::gil_scoped_release release;
        with_shape(sizes, size.q, [&](const auto &shape) { accumulate(shape, steps, x, to); });
    });
    module.def("filter_transfer", [](const std::vector<int> &sizes, Array transition, py::object seen, py::object gains,
                                     py::array_t<bool, py::array::c_style> begins,
                                     py::array_t<std::int64_t, py::array::c_style> ends, py::object state, py::object out) {
        const Sizes size(sizes);
        const long n = transition.shape(0), q = size.q, segments = py::reinterpret_borrow<Array>(out).shape(0);
        if (begins.size() != n || ends.size() != n) refuse("begins and ends must have a number for each row");
        for (long i = 0; i < n; i++)
            if (ends.data()[i] >= segments) refuse("ends must be below the number of segments");
        py::object first = transition;
        const Steps steps{n, data_of(first, {n, size.entries}, "transition"), nullptr, data_of(seen, {n, q}, "seen"),
                          nullptr, nullptr, size.entries, 0};
        const double *k = data_of(gains, {n, q}, "gains");
        double *x = data_of(state, {q, q}, "state"), *to = data_of(out, {segments, q, q}, "out");
        py::gil_scoped_release release;
        with_shape(sizes, size.q,
                   [&](const auto &shape) { transfer(shape, steps, k, begins.data(), ends.data(), x, to); });
    });
}

}  // namespace gigagp
