// Nearest neighbours for one instruction set; see variant.h. The tree is described in neighbours.h.
//
// Depth first, the nearer child first. A subtree is left out if its box is further than the m-th point found so far, or
// as far and without a smaller index, or if it has no index below the limit.

#include "variant.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "neighbours.h"

// A product and a sum must round separately: then every instruction set, and torch, finds the same distances to the
// last bit and resolves ties in the same way.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

namespace gigagp {
namespace {

#include "simd.h"

typedef Simd<double> Panel;

// Bit j: whether a[j] <= b.
INLINE unsigned at_most(Doubles a, double b) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)Panel::all(b), _CMP_LE_OQ);
#elif defined(__AVX__)
    return _mm256_movemask_pd((__m256d)(a <= Panel::all(b)));
#else
    unsigned bits = 0;
    for (int j = 0; j < Panel::lanes; j++) bits |= static_cast<unsigned>(a[j] <= b) << j;
    return bits;
#endif
}

// Vectors for the corners of boxes, no longer than they need to be.
template <int LANES>
struct Lanes {};
#define GIGAGP_LANES(LANES)                                                                         \
    template <>                                                                                     \
    struct Lanes<LANES> {                                                                           \
        typedef double Vector __attribute__((vector_size(8 * LANES)));                              \
        typedef double Unaligned __attribute__((vector_size(8 * LANES), aligned(8), may_alias));    \
        INLINE Vector load(const double *p) { return *(const Unaligned *)p; }                       \
        INLINE double total(Vector a) {                                                             \
            for (int width = LANES / 2; width; width /= 2)                                          \
                for (int k = 0; k < width; k++) a[k] += a[k + width];                               \
            return a[0];                                                                            \
        }                                                                                           \
    };
GIGAGP_LANES(2)
#if GIGAGP_BYTES >= 32
GIGAGP_LANES(4)
#endif
#if GIGAGP_BYTES >= 64
GIGAGP_LANES(8)
#endif
#undef GIGAGP_LANES

struct Found {
    double distance;  // squared
    std::int32_t id;
};

INLINE bool before(double distance, std::int32_t id, const Found &other) {
    return distance < other.distance || (distance == other.distance && id < other.id);
}

// The nearest points so far in order.
class Nearest {
   public:
    explicit Nearest(int m) : size_(m), found_(m) {}

    void clear() { count_ = 0, worst_ = {std::numeric_limits<double>::infinity(), std::numeric_limits<std::int32_t>::max()}; }
    const Found &worst() const { return worst_; }

    void insert(double distance, std::int32_t id) {
        int j = count_ < size_ ? count_++ : size_ - 1;
        Found *found = found_.data();
        for (; j > 0 && before(distance, id, found[j - 1]); j--) found[j] = found[j - 1];
        found[j] = {distance, id};
        if (count_ == size_) worst_ = found[size_ - 1];
    }

    void write(std::int32_t *out, int m) const {
        for (int j = 0; j < count_; j++) out[j] = found_[j].id;
        std::fill(out + count_, out + m, -1);
    }

   private:
    int size_, count_ = 0;
    Found worst_;
    std::vector<Found> found_;
};

struct Branch {
    double distance;  // of the box, squared
    std::int32_t node, leaf, leaves;
};

// INPUTS: their number, or 0 if it is known at run time only. WIDTH: lanes of a vector of a box's corner.
template <int INPUTS, int WIDTH>
struct Search {
    typedef Lanes<WIDTH> Corner;

    const NeighbourTree &tree;
    const int inputs;
    const double *query;  // padded with zeros
    std::int32_t limit;
    Nearest nearest;
    // Sums over inputs are not in the same order as those of a point's distance, so that a box might seem to be further
    // than a point in it. (The terms cannot be larger: subtraction and multiplication are monotone.)
    const double shrink;

    Search(const NeighbourTree &tree, int m)
        : tree(tree), inputs(INPUTS ? INPUTS : tree.inputs), nearest(m), shrink(1.0 - 4e-16 * (tree.inputs + 2)) {}

    double box_distance(long node) const {
        const double *low = tree.boxes + node * 2 * tree.corner, *high = low + tree.corner;
        typename Corner::Vector sum{};
        for (int k = 0; k < inputs; k += WIDTH) {
            const auto q = Corner::load(query + k), below = Corner::load(low + k) - q, above = q - Corner::load(high + k);
            auto outside = below > above ? below : above;
            outside = outside > 0.0 ? outside : outside - outside;
            sum += outside * outside;
        }
        return Corner::total(sum) * shrink;
    }

    bool useless(double distance, long node) const {
        return tree.least[node] >= limit || !before(distance, tree.least[node], nearest.worst());
    }

    void scan(long leaf) {
        const std::int32_t *ids = tree.ids + leaf * LEAF;
        const double *panel = tree.panels + leaf * LEAF * inputs;
        for (int start = 0; start < LEAF; start += PANEL, panel += PANEL * inputs) {
            if (ids[start] >= limit) return;
            for (int part = 0; part < PANEL; part += Panel::lanes) {
                const double *x = panel + part;
                Doubles sum{};
                unsigned close;
                for (int k = 0;;) {
                    const int end = std::min(inputs, k + 8);
                    for (; k < end; k++) {
                        const Doubles difference = Panel::load(x + k * PANEL) - Panel::all(query[k]);
                        sum += difference * difference;
                    }
                    close = at_most(sum, nearest.worst().distance);
                    if (!close || k == inputs) break;
                }
                if (!close) continue;
                double distances[Panel::lanes];
                Panel::store(distances, sum);
                for (; close; close &= close - 1) {
                    const int j = __builtin_ctz(close), id = ids[start + part + j];
                    if (id < limit && before(distances[j], id, nearest.worst())) nearest.insert(distances[j], id);
                }
            }
        }
    }

    void run(std::int32_t *out, int m) {
        Branch stack[64];
        int height = 0;
        nearest.clear();
        stack[height++] = {0.0, 0, 0, static_cast<std::int32_t>(tree.leaves)};
        while (height) {
            Branch at = stack[--height];
            while (!useless(at.distance, at.node)) {
                if (at.leaves == 1) {
                    scan(at.leaf);
                    break;
                }
                const int left = at.leaves / 2;
                Branch near = {0.0, at.node + 1, at.leaf, left};
                Branch far = {0.0, at.node + 2 * left, at.leaf + left, at.leaves - left};
                near.distance = box_distance(near.node), far.distance = box_distance(far.node);
                if (before(far.distance, tree.least[far.node], {near.distance, tree.least[near.node]}))
                    std::swap(near, far);
                stack[height++] = far;
                at = near;
            }
        }
        nearest.write(out, m);
    }
};

template <int INPUTS, int WIDTH>
void search_all(const NeighbourTree &tree, const double *queries, const std::int32_t *limits, const std::int32_t *order,
                long first, long last, int m, std::int32_t *out) {
    Search<INPUTS, WIDTH> search(tree, static_cast<int>(std::min<long>(m, tree.n)));
    std::vector<double> query(tree.corner, 0.0);
    search.query = query.data();
    for (long i = first; i < last; i++) {
        const double *from = queries + static_cast<long>(order[i]) * tree.inputs;
        std::copy(from, from + tree.inputs, query.begin());
        search.limit = limits[order[i]];
        search.run(out + static_cast<long>(order[i]) * m, m);
    }
}

void search(const NeighbourTree &tree, const double *queries, const std::int32_t *limits, const std::int32_t *order,
            long first, long last, int m, std::int32_t *out) {
    constexpr int four = std::min(4, Panel::lanes);
    switch (tree.inputs) {
        case 1: return search_all<1, 2>(tree, queries, limits, order, first, last, m, out);
        case 2: return search_all<2, 2>(tree, queries, limits, order, first, last, m, out);
        case 3: return search_all<3, four>(tree, queries, limits, order, first, last, m, out);
        case 4: return search_all<4, four>(tree, queries, limits, order, first, last, m, out);
        default: return search_all<0, Panel::lanes>(tree, queries, limits, order, first, last, m, out);
    }
}

}  // namespace

const NeighbourKernels &GIGAGP_VARIANT_NAMED(neighbour_kernels)() {
    static const NeighbourKernels kernels = {GIGAGP_VARIANT_WORDS, search};
    return kernels;
}

}  // namespace gigagp
