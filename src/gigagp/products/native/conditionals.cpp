// Conditionals of rows given their neighbours, and products and solves with the sparse factor, for one instruction set;
// see variant.h.
#include "variant.h"

#include <cstring>

#include "conditionals.h"

namespace gigagp {
namespace {

#include "simd.h"
#include "profiles.h"

typedef Simd<double> S;
typedef S::Vector Vector;
constexpr int LANES = S::lanes;
// A row whose variance given the nearer ones is below this share of its own adds nothing but rounding errors.
constexpr double LOST = 1e-12;

INLINE long triangle(long i) { return i * (i + 1) / 2; }

// One group of problems, as many as lanes. Slots 0 .. m - 1 are the neighbours, slot m is the row itself.
struct Group {
    const ConditionalsWork &work;
    int slots;
    Vector *points;       // of all terms: [term][slot][left then right where they differ]
    Vector *factor;       // lower triangle by rows; the diagonal holds reciprocals, zero for slots that are left out
    Vector *row;          // one row of the covariance: [step][slot]
    Vector *slope, *by_alpha, *adjoint;  // [term][slot], [term][slot], [step][slot]
    Vector *u;            // the last column of the factor's inverse, transposed: L^-T e_m
    Vector *noise;        // [slot]
    Vector *diagonals;    // [slot][column]
    Vector *low;          // [slot][rank]
    Vector *z;            // whitened values [slot][column]
    Vector *moved;        // [slot][direction]: dH u, then L^-1 dH u
    Vector *present;      // [slot]: one, or zero where there is no neighbour

    static std::size_t vectors(const ConditionalsWork &work) {
        const std::size_t slots = work.m + 1;
        std::size_t coordinates = 0;
        for (int t = 0; t < work.n_terms; t++) coordinates += 2 * work.terms[t].all_inputs;
        return slots * (coordinates + work.n_steps * 2 + work.n_terms * 2 + work.rank + work.columns + work.n_diagonals +
                        work.n_directions + 3) +
               triangle(slots) + work.n_directions;
    }

    Group(const ConditionalsWork &work, double *scratch) : work(work), slots(work.m + 1) {
        Vector *next = reinterpret_cast<Vector *>(scratch);
        auto take = [&](std::size_t count) {
            Vector *found = next;
            next += count;
            return found;
        };
        std::size_t coordinates = 0;
        for (int t = 0; t < work.n_terms; t++) coordinates += 2 * work.terms[t].all_inputs;
        points = take(slots * coordinates);
        factor = take(triangle(slots));
        row = take(slots * work.n_steps);
        adjoint = take(slots * work.n_steps);
        slope = take(slots * work.n_terms);
        by_alpha = take(slots * work.n_terms);
        u = take(slots);
        noise = take(slots);
        present = take(slots);
        diagonals = take(slots * work.n_diagonals);
        low = take(slots * work.rank);
        z = take(slots * work.columns);
        moved = take(slots * work.n_directions);
    }

    // Copy rows of the pool into lanes. Lanes beyond the last row repeat it; empty slots repeat their own row.
    void gather(long first, long last) {
        std::int64_t index[LANES];
        for (int slot = 0; slot < slots; slot++) {
            for (int lane = 0; lane < LANES; lane++) {
                const long r = first + lane < last ? first + lane : last - 1;
                const std::int64_t own = work.targets[r];
                const std::int64_t found = slot < work.m ? work.neighbours[r * work.m + slot] : own;
                present[slot][lane] = found >= 0;
                index[lane] = found >= 0 ? found : own;
            }
            Vector *to = points;
            for (int t = 0; t < work.n_terms; t++) {
                const PoolTerm &term = work.terms[t];
                const int width = term.all_inputs;
                copy(to + slot * width, term.left, width, index);
                to += slots * width;
                if (term.right != term.left) copy(to + slot * width, term.right, width, index);
                to += slots * width;
            }
            copy(noise + slot, work.noise, 1, index);
            copy(diagonals + slot * work.n_diagonals, work.diagonals, work.n_diagonals, index);
            copy(low + slot * work.rank, work.low, work.rank, index);
            copy(z + slot * work.columns, work.values, work.columns, index);
        }
    }

    static void copy(Vector *to, const double *from, long width, const std::int64_t *index) {
        for (int lane = 0; lane < LANES; lane++) {
            const double *source = from + index[lane] * width;
            for (long c = 0; c < width; c++) to[c][lane] = source[c];
        }
    }

    // Squared distances, or inner products, of slot i and slots 0 .. i.
    static void distances(const Vector *own, const Vector *others, int width, int inputs, bool dot, int count, Vector *out) {
        int j = 0;
        for (; j + 4 <= count; j += 4) {
            Vector sums[4] = {};
            const Vector *other = others + static_cast<long>(j) * width;
            for (int c = 0; c < inputs; c++) {
                const Vector mine = own[c];
                for (int k = 0; k < 4; k++) {
                    const Vector theirs = other[k * width + c], x = mine - theirs;
                    sums[k] += dot ? mine * theirs : x * x;
                }
            }
            for (int k = 0; k < 4; k++) out[j + k] = sums[k];
        }
        for (; j < count; j++) {
            Vector sum{};
            for (int c = 0; c < inputs; c++) {
                const Vector theirs = others[static_cast<long>(j) * width + c], x = own[c] - theirs;
                sum += dot ? own[c] * theirs : x * x;
            }
            out[j] = sum;
        }
    }

    template <int PROFILE>
    static void profile(double alpha, int count, Vector *values, Vector *slope, Vector *by_alpha) {
        if (slope) {
            for (int j = 0; j < count; j++) {
                Vector value, down, shape{};
                ProfileOf<PROFILE, double>::derivatives(values[j], alpha, value, down, shape);
                values[j] = value;
                slope[j] = down;
                by_alpha[j] = shape;
            }
        } else {
            for (int j = 0; j < count; j++) values[j] = ProfileOf<PROFILE, double>::value(values[j], alpha, true);
        }
    }

    const Vector *left_points(int t) const {
        const Vector *at = points;
        for (int k = 0; k < t; k++) at += 2L * slots * work.terms[k].all_inputs;
        return at;
    }

    const Vector *right_points(int t) const {
        const PoolTerm &term = work.terms[t];
        return left_points(t) + (term.right == term.left ? 0 : static_cast<long>(slots) * term.all_inputs);
    }

    // Values of all steps between slot i and slots 0 .. count - 1.
    void evaluate(int i, int count, bool derivatives) {
        for (int k = 0; k < work.n_steps; k++) {
            const Step<double> &step = work.steps[k];
            Vector *to = row + static_cast<long>(k) * slots;
            if (step.operation == TERM) {
                const int t = step.a;
                const PoolTerm &term = work.terms[t];
                distances(left_points(t) + static_cast<long>(i) * term.all_inputs, right_points(t), term.all_inputs, term.inputs,
                          term.profile == DOT, count, to);
                Vector *down = derivatives ? slope + static_cast<long>(t) * slots : nullptr;
                Vector *shape = by_alpha + static_cast<long>(t) * slots;
                switch (term.profile) {
#define GIGAGP_CASE(PROFILE)                                            \
    case PROFILE:                                                       \
        profile<PROFILE>(term.alpha, count, to, down, shape);           \
        break;
                    GIGAGP_PROFILES(GIGAGP_CASE)
#undef GIGAGP_CASE
                }
            } else if (step.operation == ONE) {
                for (int j = 0; j < count; j++) to[j] = S::all(1);
            } else {
                const Vector *a = row + static_cast<long>(step.a) * slots, *b = row + static_cast<long>(step.b) * slots;
                if (step.operation == ADD)
                    for (int j = 0; j < count; j++) to[j] = a[j] * step.a_factor + b[j] * step.b_factor;
                else
                    for (int j = 0; j < count; j++) to[j] = a[j] * b[j];
            }
        }
    }

    // The covariance of slot i with slots 0 .. i, into the triangle.
    void covariance(int i) {
        evaluate(i, i + 1, false);
        const Vector *values = row + static_cast<long>(work.n_steps - 1) * slots;
        Vector *to = factor + triangle(i);
        for (int j = 0; j <= i; j++) to[j] = values[j] * work.factor;
        for (int j = 0; work.rank && j <= i; j++) {
            const Vector *a = low + static_cast<long>(i) * work.rank, *b = low + static_cast<long>(j) * work.rank;
            Vector sum{};
            for (int c = 0; c < work.rank; c++) sum += a[c] * b[c];
            to[j] -= sum;
        }
        to[i] += noise[i];
    }

    // The Cholesky factor, four rows at a time. A slot that is empty, or that the nearer ones determine, gets a zero
    // reciprocal: everything that is computed from its column is zero then, as if it were not there.
    Vector factorise() {
        Vector raised{};
        int i = 0;
        for (; i + BLOCK <= slots; i += BLOCK) raised = factorise_rows<BLOCK>(i);
        for (; i < slots; i++) raised = factorise_rows<1>(i);
        return raised;
    }

    static constexpr int BLOCK = 4;

    template <int ROWS>
    Vector factorise_rows(int first) {
        Vector *own[ROWS], diagonal[ROWS], raised{};
        for (int r = 0; r < ROWS; r++) {
            covariance(first + r);
            own[r] = factor + triangle(first + r);
            diagonal[r] = own[r][first + r];
        }
        // The columns left of the block, four at a time: what the columns before them explain, then among themselves.
        int j = 0;
        for (; j + BLOCK <= first; j += BLOCK) {
            const Vector *other[BLOCK];
            Vector sums[ROWS][BLOCK];
            for (int k = 0; k < BLOCK; k++) other[k] = factor + triangle(j + k);
            for (int r = 0; r < ROWS; r++)
                for (int k = 0; k < BLOCK; k++) sums[r][k] = own[r][j + k];
            for (int c = 0; c < j; c++)
                for (int r = 0; r < ROWS; r++) {
                    const Vector x = own[r][c];
                    for (int k = 0; k < BLOCK; k++) sums[r][k] -= x * other[k][c];
                }
            for (int r = 0; r < ROWS; r++)
                for (int k = 0; k < BLOCK; k++) {
                    Vector sum = sums[r][k];
                    for (int c = 0; c < k; c++) sum -= own[r][j + c] * other[k][j + c];
                    own[r][j + k] = sum * other[k][j + k];
                }
        }
        for (int r = 0; r < ROWS; r++) {
            const int i = first + r;
            for (int k = j; k < i; k++) {
                const Vector *other = factor + triangle(k);
                Vector sum = own[r][k];
                for (int c = 0; c < k; c++) sum -= own[r][c] * other[c];
                own[r][k] = sum * other[k];
            }
            Vector left = diagonal[r];
            for (int c = 0; c < i; c++) left -= own[r][c] * own[r][c];
            const Vector floor = diagonal[r] * LOST, inverse = S::all(1) / root(larger(left, floor));
            if (i < work.m) {
                own[r][i] = (left > floor ? inverse : Vector{}) * present[i];
            } else {
                raised = left > floor ? Vector{} : S::all(1);
                own[r][i] = inverse;
            }
        }
        return raised;
    }

    // L^-T e_m: minus the weights over the standard deviation, and its reciprocal.
    void last_column() {
        const Vector *last = factor + triangle(work.m);
        for (int i = 0; i < work.m; i++) u[i] = -last[i] * last[work.m];
        u[work.m] = last[work.m];
        for (int i = work.m - 1; i >= 0; i--) {
            const Vector *a = factor + triangle(i);
            u[i] *= a[i];
            const Vector x = u[i];
            for (int c = 0; c < i; c++) u[c] -= a[c] * x;
        }
    }

    // L^-1 of `count` columns side by side, in place.
    void whiten(Vector *values, int count) {
        for (int i = 0; i < slots; i++) {
            const Vector *a = factor + triangle(i);
            Vector *own = values + static_cast<long>(i) * count;
            int c = 0;
            for (; c + 4 <= i; c += 4) {
                const Vector *other = values + static_cast<long>(c) * count;
                const Vector a0 = a[c], a1 = a[c + 1], a2 = a[c + 2], a3 = a[c + 3];
                for (int k = 0; k < count; k++)
                    own[k] -= a0 * other[k] + a1 * other[count + k] + a2 * other[2 * count + k] + a3 * other[3 * count + k];
            }
            for (; c < i; c++)
                for (int k = 0; k < count; k++) own[k] -= a[c] * values[static_cast<long>(c) * count + k];
            for (int k = 0; k < count; k++) own[k] *= a[i];
        }
    }

    // dH u for every direction.
    void move() {
        const int count = work.n_directions;
        for (long k = 0; k < static_cast<long>(slots) * count; k++) moved[k] = Vector{};
        for (int i = 0; i < slots; i++) {
            evaluate(i, i + 1, true);
            backward(i + 1);
            Vector *own = moved + static_cast<long>(i) * count;
            int at = 0;
            for (int k = 0; k < work.n_steps; k++) {
                if (work.steps[k].operation != TERM && work.steps[k].operation != ONE) continue;
                const Vector *values = row + static_cast<long>(k) * slots, *by = adjoint + static_cast<long>(k) * slots;
                for (int j = 0; j <= i; j++) spread(i, j, at, by[j] * values[j]);
                at++;
            }
            for (int t = 0, k = 0; t < work.n_terms; t++, k++) {
                while (work.steps[k].operation != TERM) k++;
                const Vector *by = adjoint + static_cast<long>(k) * slots, *shape = by_alpha + static_cast<long>(t) * slots;
                if (work.terms[t].profile == RATIONAL_QUADRATIC)
                    for (int j = 0; j <= i; j++) spread(i, j, at, by[j] * shape[j]);
                at++;
            }
            for (int t = 0, k = 0; t < work.n_terms; t++, k++) {
                while (work.steps[k].operation != TERM) k++;
                const PoolTerm &term = work.terms[t];
                const int squares = term.profile == DOT ? 0 : term.inputs, width = term.all_inputs;
                const Vector *by = adjoint + static_cast<long>(k) * slots, *down = slope + static_cast<long>(t) * slots;
                const Vector *e = left_points(t) + static_cast<long>(i) * width, *others = right_points(t);
                for (int j = 0; j <= i; j++) {
                    const Vector weight = by[j] * down[j], mine = weight * u[j], theirs = j < i ? weight * u[i] : Vector{};
                    const Vector *f = others + static_cast<long>(j) * width;
                    Vector *other = moved + static_cast<long>(j) * count + at, *to = own + at;
                    for (int c = 0; c < squares; c++) {
                        const Vector x = e[c] - f[c], square = x * x;
                        to[c] += square * mine;
                        other[c] += square * theirs;
                    }
                    for (int c = squares; c < width; c++) {
                        const Vector product = e[c] * f[c];
                        to[c] += product * mine;
                        other[c] += product * theirs;
                    }
                }
                at += width;
            }
            for (int c = 0; c < work.n_diagonals; c++) own[at + c] += diagonals[static_cast<long>(i) * work.n_diagonals + c] * u[i];
        }
    }

    INLINE void spread_to(Vector *moved, int count, int i, int j, int at, Vector value, const Vector *u) {
        moved[static_cast<long>(i) * count + at] += value * u[j];
        if (j < i) moved[static_cast<long>(j) * count + at] += value * u[i];
    }
    void spread(int i, int j, int at, Vector value) { spread_to(moved, work.n_directions, i, j, at, value, u); }

    // dK / dvalue of every step, from the last one back, where the kernel is `factor` times K.
    void backward(int count) {
        Vector *last = adjoint + static_cast<long>(work.n_steps - 1) * slots;
        for (int j = 0; j < count; j++) last[j] = S::all(1);
        for (int k = work.n_steps - 1; k >= 0; k--) {
            const Step<double> &step = work.steps[k];
            if (step.operation != ADD && step.operation != MULTIPLY) continue;
            const Vector *own = adjoint + static_cast<long>(k) * slots;
            Vector *a = adjoint + static_cast<long>(step.a) * slots, *b = adjoint + static_cast<long>(step.b) * slots;
            const Vector *x = row + static_cast<long>(step.a) * slots, *y = row + static_cast<long>(step.b) * slots;
            for (int j = 0; j < count; j++) {
                a[j] = step.operation == ADD ? own[j] * step.a_factor : own[j] * y[j];
                b[j] = step.operation == ADD ? own[j] * step.b_factor : own[j] * x[j];
            }
        }
    }

    // Add the gradient and the information of all live lanes (Guinness 2021, eq. 6 and 7). With a_j the last row of
    // L^-1 dH_j L^-T, that is L^-1 dH_j u, they are sum_t z_m (a_j' z - a_jm z_m / 2) - a_jm / 2 for each column of
    // values and a_j' a_k - a_jm a_km / 2.
    void add_derivatives(Vector live, ConditionalsSums &sums) {
        const int count = work.n_directions, m = work.m;
        const Vector *last = moved + static_cast<long>(m) * count;
        for (int k = 0; k < count; k++) {
            Vector total_of{};
            for (int t = 0; t < work.columns; t++) {
                const Vector own = z[static_cast<long>(m) * work.columns + t];
                Vector sum = 0.5 * last[k] * own;
                for (int c = 0; c < m; c++) sum += moved[static_cast<long>(c) * count + k] * z[static_cast<long>(c) * work.columns + t];
                total_of += own * sum - 0.5 * last[k];
            }
            sums.gradient[k] += total(total_of * live);
        }
        double *to = sums.information;
        for (int k = 0; k < count; k++) {
            for (int l = k; l < count; l++) {
                Vector sum = 0.5 * last[k] * last[l];
                for (int c = 0; c < m; c++) sum += moved[static_cast<long>(c) * count + k] * moved[static_cast<long>(c) * count + l];
                *to++ += total(sum * live);
            }
        }
    }
};

std::size_t scratch(const ConditionalsWork &work) { return Group::vectors(work) * LANES; }

void rows(const ConditionalsWork &work, long first, long last, ConditionalsSums &sums, double *memory) {
    Group group(work, memory);
    const int m = work.m;
    for (long start = first; start < last; start += LANES) {
        const long live_rows = last - start < LANES ? last - start : LANES;
        Vector live{};
        for (int lane = 0; lane < live_rows; lane++) live[lane] = 1;
        group.gather(start, last);
        const Vector raised = group.factorise();
        group.last_column();
        if (work.columns) group.whiten(group.z, work.columns);
        const Vector deviation = S::all(1) / group.u[m];
        for (int lane = 0; lane < live_rows; lane++) {
            const long r = start + lane;
            sums.raised += raised[lane] != 0;
            work.variance[r] = deviation[lane] * deviation[lane];
            sums.log_variance += 2 * __builtin_log(deviation[lane]);
            if (work.weights)
                for (int j = 0; j < m; j++) work.weights[r * m + j] = -group.u[j][lane] * deviation[lane];
            if (work.residual)
                for (int t = 0; t < work.columns; t++)
                    work.residual[r * work.columns + t] = group.z[static_cast<long>(m) * work.columns + t][lane] * deviation[lane];
        }
        if (work.n_directions) {
            group.move();
            group.whiten(group.moved, work.n_directions);
            group.add_derivatives(live, sums);
        }
    }
}

// Sparse products and solves. Vectors are rows of s numbers, so that a row's columns are contiguous.

INLINE void subtract(double *to, const double *from, double weight, long s) {
    long c = 0;
    for (; c + LANES <= s; c += LANES) S::store(to + c, S::load(to + c) - S::load(from + c) * weight);
    for (; c < s; c++) to[c] -= weight * from[c];
}

void residuals(const SparseRows &matrix, const double *v, long s, long first, long last, double *out) {
    for (long i = first; i < last; i++) {
        double *to = out + i * s;
        std::memcpy(to, v + i * s, sizeof(double) * s);
        const std::int32_t *neighbours = matrix.neighbours + i * matrix.m;
        const double *weights = matrix.weights + i * matrix.m;
        for (int j = 0; j < matrix.m; j++)
            if (neighbours[j] >= 0) subtract(to, v + neighbours[j] * s, weights[j], s);
    }
}

void transposed(const SparseColumns &matrix, const double *v, long s, long first, long last, double *out) {
    for (long i = first; i < last; i++) {
        double *to = out + i * s;
        std::memcpy(to, v + i * s, sizeof(double) * s);
        for (std::int64_t k = matrix.starts[i]; k < matrix.starts[i + 1]; k++)
            subtract(to, v + matrix.rows[k] * s, matrix.weights[k], s);
    }
}

void solve(const SparseRows &matrix, const std::int64_t *order, double *v, long s, long first, long last) {
    for (long k = 0; k < matrix.n; k++) {
        const std::int64_t i = order[k];
        const std::int32_t *neighbours = matrix.neighbours + i * matrix.m;
        const double *weights = matrix.weights + i * matrix.m;
        for (int j = 0; j < matrix.m; j++)
            if (neighbours[j] >= 0) subtract(v + i * s + first, v + neighbours[j] * s + first, -weights[j], last - first);
    }
}

void solve_transposed(const SparseColumns &matrix, long n, const std::int64_t *order, double *v, long s, long first,
                      long last) {
    for (long k = n - 1; k >= 0; k--) {
        const std::int64_t i = order[k];
        for (std::int64_t p = matrix.starts[i]; p < matrix.starts[i + 1]; p++)
            subtract(v + i * s + first, v + matrix.rows[p] * s + first, -matrix.weights[p], last - first);
    }
}

}  // namespace

const ConditionalsKernels &GIGAGP_VARIANT_NAMED(conditionals)() {
    static const ConditionalsKernels kernels = {GIGAGP_VARIANT_WORDS, LANES, scratch, rows, residuals, transposed, solve,
                                                solve_transposed};
    return kernels;
}

}  // namespace gigagp
