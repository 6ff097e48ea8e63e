// Kalman filter and smoother of one observation at a time, for one instruction set; see variant.h.
//
// A state has independent parts with transitions of their own, so that a transition is stored as the blocks on its
// diagonal. A single block of up to four numbers has loops of fixed length. Longer states have loops over whole rows of
// their matrices, which are symmetric. Rows at the same time as those before them have no transition.

#include "variant.h"

#include <algorithm>
#include <vector>

#include "filter.h"

namespace gigagp {
namespace {

#include "simd.h"

// sum of a_i b_i
template <int Q>
INLINE double dot(const double *a, const double *b, int n) {
    double sum = 0;
    if (Q) {
        for (int i = 0; i < Q; i++) sum += a[i] * b[i];
        return sum;
    }
    typedef Simd<double> S;
    Doubles sums = {};
    int i = 0;
    for (; i + S::lanes <= n; i += S::lanes) sums += S::load(a + i) * S::load(b + i);
    for (; i < n; i++) sum += a[i] * b[i];
    return sum + total(sums);
}

// to += f * from
INLINE void add(double f, const double *__restrict from, int n, double *__restrict to) {
    for (int i = 0; i < n; i++) to[i] += f * from[i];
}

// The sizes of the blocks of a state of q numbers; Q > 0: one block of that size.
template <int Q>
struct Shape {
    const FilterBlocks &blocks;
    std::vector<double> half;  // a matrix (q, q)

    explicit Shape(const FilterBlocks &given) : blocks(given), half(given.q * given.q) {}
    int q() const { return Q ? Q : blocks.q; }
    template <class F>
    void each(const F &work) const {  // work(place of the block, its size, place of its entries)
        if (Q) return work(0, Q, 0);
        int at = 0, entry = 0;
        for (int k = 0; k < blocks.count; k++) {
            const int b = blocks.sizes[k];
            work(at, b, entry);
            at += b, entry += b * b;
        }
    }
    // Whether a transition is the identity.
    bool stays(const double *F) const {
        if (Q) return false;
        bool same = true;
        each([&](int, int b, int entry) {
            for (int k = 0; k < b * b; k++) same = same && F[entry + k] == (k % (b + 1) == 0);
        });
        return same;
    }
    // out = F A, or F' A with `transposed`, for A of `columns` columns
    template <bool transposed>
    void left(const double *F, const double *A, int columns, double *out) const {
        each([&](int at, int b, int entry) {
            for (int i = 0; i < b; i++) {
                double *row = out + (at + i) * columns;
                const double first = transposed ? F[entry + i] : F[entry + i * b];
                for (int j = 0; j < columns; j++) row[j] = first * A[at * columns + j];
                for (int k = 1; k < b; k++)
                    add(transposed ? F[entry + k * b + i] : F[entry + i * b + k], A + (at + k) * columns, columns, row);
            }
        });
    }
    // S becomes F S F', or F' S F with `transposed`, for a symmetric S
    template <bool transposed>
    void both(const double *F, double *S) {
        left<transposed>(F, S, q(), half.data());
        transpose(half.data());
        left<transposed>(F, half.data(), q(), S);
    }
    void transpose(double *A) const {
        const int n = q();
        for (int i = 0; i < n; i++)
            for (int j = 0; j < i; j++) std::swap(A[i * n + j], A[j * n + i]);
    }
    void add_blocks(const double *F, double *to) const {
        const int n = q();
        each([&](int at, int b, int entry) {
            for (int i = 0; i < b; i++)
                for (int j = 0; j < b; j++) to[(at + i) * n + at + j] += F[entry + i * b + j];
        });
    }
};

// A becomes (A + A') / 2.
INLINE void symmetrise(double *A, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) A[i * n + j] = A[j * n + i] = 0.5 * (A[i * n + j] + A[j * n + i]);
}

// Whether a matrix is made symmetric after a row. Rounding changes its symmetry slowly: at every transition is enough, and
// now and then among the rows of one time.
INLINE bool is_due(long row, bool stays) { return !stays || row % 8 == 0; }

template <int Q>
void forward_of(const FilterBlocks &blocks, const FilterSteps &steps, double *mean, double *covariance,
                const FilterFound &found) {
    Shape<Q> shape(blocks);
    const int q = shape.q(), c = steps.columns;
    std::vector<double> m(q * c), u(q);
    for (long i = 0; i < steps.n; i++) {
        const double *F = steps.transition + i * blocks.entries, *h = steps.seen + i * q;
        const bool stays = shape.stays(F);
        if (stays) {
            std::copy_n(mean, q * c, m.data());
        } else {
            shape.template left<false>(F, mean, c, m.data());
            shape.template both<false>(F, covariance);
        }
        shape.add_blocks(steps.spread + i * blocks.entries, covariance);
        std::fill(u.begin(), u.end(), 0.0);
        for (int a = 0; a < q; a++)
            if (h[a] != 0) add(h[a], covariance + a * q, q, u.data());
        const double variance = steps.noise[i] + dot<Q>(h, u.data(), q);
        found.variances[i] = variance;
        double *gain = found.gains + i * q;
        for (int a = 0; a < q; a++) gain[a] = u[a] / variance;
        for (int j = 0; j < c; j++) {
            double error = steps.values[i * c + j];
            for (int a = 0; a < q; a++) error -= h[a] * m[a * c + j];
            found.errors[i * c + j] = error;
            for (int a = 0; a < q; a++) mean[a * c + j] = m[a * c + j] + gain[a] * error;
        }
        // (I - k h') P (I - k h')' + noise k k', which stays positive where the noise is tiny
        for (int a = 0; a < q; a++) {
            double *row = covariance + a * q;
            add(-gain[a], u.data(), q, row);
            const double left = dot<Q>(row, h, q) - steps.noise[i] * gain[a];
            add(-left, gain, q, row);
        }
        if (is_due(i, stays)) symmetrise(covariance, q);
        if (found.means) std::copy_n(mean, q * c, found.means + i * q * c);
        if (found.covariances) std::copy_n(covariance, q * q, found.covariances + i * q * q);
    }
}

template <int Q>
void backward_of(const FilterBlocks &blocks, const FilterSteps &steps, const FilterFound &found, double *pull,
                 double *information, const double *means, const double *covariances, const FilterSmoothed &smoothed) {
    Shape<Q> shape(blocks);
    const int q = shape.q(), c = steps.columns;
    std::vector<double> r(q * c), g(q), left(q), above(q), row(q), moved(q * q);
    for (long i = steps.n - 1; i >= 0; i--) {
        const double *F = steps.transition + i * blocks.entries, *h = steps.seen + i * q, *gain = found.gains + i * q;
        const double inverse = 1 / found.variances[i];
        double *solutions = smoothed.solutions + i * c;
        for (int a = 0; a < q; a++) g[a] = dot<Q>(information + a * q, gain, q);
        smoothed.precisions[i] = inverse + dot<Q>(gain, g.data(), q);
        for (int j = 0; j < c; j++) {
            double solution = found.errors[i * c + j] * inverse;
            for (int a = 0; a < q; a++) solution -= gain[a] * pull[a * c + j];
            solutions[j] = solution;
            for (int a = 0; a < q; a++) r[a * c + j] = pull[a * c + j] + h[a] * solution;
        }
        if (smoothed.by_seen) {
            // the sum over columns of solution times smoothed state m + P pull, less c times (I - P N) k
            const double *m = means + (i + 1) * q * c, *P = covariances + (i + 1) * q * q;
            for (int a = 0; a < q; a++) left[a] = c * g[a] + dot<0>(pull + a * c, solutions, c);
            for (int a = 0; a < q; a++)
                smoothed.by_seen[i * q + a] =
                    dot<0>(m + a * c, solutions, c) - c * gain[a] + dot<Q>(P + a * q, left.data(), q);
        }
        // (I - h k') N (I - k h') + h h' / variance
        for (int b = 0; b < q; b++) above[b] = -h[b] * inverse;
        for (int a = 0; a < q; a++) {
            add(-g[a], h, q, information + a * q);
            add(gain[a], information + a * q, q, above.data());
        }
        for (int a = 0; a < q; a++)
            if (h[a] != 0) add(-h[a], above.data(), q, information + a * q);
        const bool stays = shape.stays(F);
        if (is_due(i, stays)) symmetrise(information, q);
        if (smoothed.pulls) std::copy_n(r.data(), q * c, smoothed.pulls + i * q * c);
        if (smoothed.informations) std::copy_n(information, q * q, smoothed.informations + i * q * q);
        if (smoothed.by_transition) {
            // the states before this row
            const double *m = means + i * q * c, *P = covariances + i * q * q;
            double *by_transition = smoothed.by_transition + i * blocks.entries;
            double *by_spread = smoothed.by_spread + i * blocks.entries;
            if (!stays) {  // P F', by rows
                shape.template left<false>(F, P, q, moved.data());
                shape.transpose(moved.data());
            }
            const double *after = stays ? P : moved.data();
            shape.each([&](int at, int b, int entry) {
                for (int k = 0; k < b; k++) {
                    // a row of G = (r r' - c N) / 2
                    for (int a = 0; a < q; a++) row[a] = -0.5 * c * information[(at + k) * q + a];
                    for (int j = 0; j < c; j++) {
                        const double of_row = 0.5 * r[(at + k) * c + j];
                        for (int a = 0; a < q; a++) row[a] += of_row * r[a * c + j];
                    }
                    for (int l = 0; l < b; l++) {
                        const double sum = dot<0>(&r[(at + k) * c], m + (at + l) * c, c);
                        by_transition[entry + k * b + l] = sum + 2 * dot<Q>(row.data(), after + (at + l) * q, q);
                        by_spread[entry + k * b + l] = row[at + l];
                    }
                }
            });
        }
        if (stays) {
            std::copy_n(r.data(), q * c, pull);
        } else {
            shape.template left<true>(F, r.data(), c, pull);
            shape.template both<true>(F, information);
        }
    }
}

template <int Q>
void accumulate_of(const FilterBlocks &blocks, const FilterSteps &steps, double *state, double *out) {
    Shape<Q> shape(blocks);
    const int q = shape.q(), c = steps.columns;
    std::vector<double> moved(q * c);
    for (long i = 0; i < steps.n; i++) {
        const double *more = steps.values + i * q * c;
        shape.template left<false>(steps.transition + i * blocks.entries, state, c, moved.data());
        for (int a = 0; a < q * c; a++) state[a] = out[i * q * c + a] = moved[a] + more[a];
    }
}

template <int Q>
void transfer_of(const FilterBlocks &blocks, const FilterSteps &steps, const double *gains, const bool *begins,
                 const std::int64_t *ends, double *state, double *out) {
    Shape<Q> shape(blocks);
    const int q = shape.q();
    std::vector<double> moved(q * q), seen(q);
    for (long i = 0; i < steps.n; i++) {
        const double *F = steps.transition + i * blocks.entries, *h = steps.seen + i * q, *gain = gains + i * q;
        if (begins[i]) {
            for (int a = 0; a < q * q; a++) state[a] = a % (q + 1) == 0;
        } else if (!shape.stays(F)) {
            shape.template left<false>(F, state, q, moved.data());
            std::copy_n(moved.data(), q * q, state);
        }
        std::fill(seen.begin(), seen.end(), 0.0);
        for (int a = 0; a < q; a++)
            if (h[a] != 0) add(h[a], state + a * q, q, seen.data());
        for (int a = 0; a < q; a++) add(-gain[a], seen.data(), q, state + a * q);
        if (ends[i] >= 0) std::copy_n(state, q * q, out + ends[i] * q * q);
    }
}

// The function NAME_of with loops of fixed length where there is one small block.
#define GIGAGP_OF_SHAPE(NAME, ...)                     \
    switch (blocks.count == 1 ? blocks.q : 0) {        \
        case 1: return NAME##_of<1>(blocks, __VA_ARGS__); \
        case 2: return NAME##_of<2>(blocks, __VA_ARGS__); \
        case 3: return NAME##_of<3>(blocks, __VA_ARGS__); \
        case 4: return NAME##_of<4>(blocks, __VA_ARGS__); \
        default: return NAME##_of<0>(blocks, __VA_ARGS__); \
    }

void forward(const FilterBlocks &blocks, const FilterSteps &steps, double *mean, double *covariance,
             const FilterFound &found) {
    GIGAGP_OF_SHAPE(forward, steps, mean, covariance, found)
}

void backward(const FilterBlocks &blocks, const FilterSteps &steps, const FilterFound &found, double *pull,
              double *information, const double *means, const double *covariances, const FilterSmoothed &smoothed) {
    GIGAGP_OF_SHAPE(backward, steps, found, pull, information, means, covariances, smoothed)
}

void accumulate(const FilterBlocks &blocks, const FilterSteps &steps, double *state, double *out) {
    GIGAGP_OF_SHAPE(accumulate, steps, state, out)
}

void transfer(const FilterBlocks &blocks, const FilterSteps &steps, const double *gains, const bool *begins,
              const std::int64_t *ends, double *state, double *out) {
    GIGAGP_OF_SHAPE(transfer, steps, gains, begins, ends, state, out)
}

const FilterKernels TABLE = {GIGAGP_VARIANT_WORDS, forward, backward, accumulate, transfer};

}  // namespace

const FilterKernels &GIGAGP_VARIANT_NAMED(filter_kernels)() { return TABLE; }

}  // namespace gigagp
