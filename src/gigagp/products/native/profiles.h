// Covariance profiles g(p) of the squared distance p, and their derivatives. gigagp/kernels/stationary.py defines p.
#pragma once

// log(1 + p) for p >= 0. Where alpha is large, the digits of p that rounding 1 + p loses matter. With u = 1 + p as
// rounded, the errors of log(u) and u - 1 cancel in log(u) p / (u - 1) (Goldberg 1991, Theorem 4).
template <class T>
INLINE typename Simd<T>::Vector logarithm_beyond_one(typename Simd<T>::Vector p) {
    typename Simd<T>::Vector u = p + T(1), rounded = u - T(1);
    return rounded > T(0) ? logarithm(u) * (p / rounded) : p;
}

template <int PROFILE, class T>
struct ProfileOf {
    typedef Simd<T> S;
    typedef typename S::Vector Vector;

    // Differences of norms can be negative by rounding. Only sums of squared differences can be too large.
    INLINE Vector clamp(Vector p, bool direct) {
        p = larger(p, S::all(NEAREST<T>));
        return direct ? smaller(p, S::all(T(FARTHEST))) : p;
    }

    INLINE Vector value(Vector p, T alpha, bool direct) {
        if constexpr (PROFILE == DOT) {
            return p;
        } else if constexpr (PROFILE == RBF) {
            return decay(clamp(p, direct));
        } else if constexpr (PROFILE == RATIONAL_QUADRATIC) {
            return decay(logarithm_beyond_one<T>(clamp(p, direct)) * alpha);
        } else {
            Vector t = root(clamp(p, direct)), e = decay(t);
            if constexpr (PROFILE == MATERN_12) {
                return e;
            } else if constexpr (PROFILE == MATERN_32) {
                return t * e + e;
            } else {
                static_assert(PROFILE == MATERN_52, "a profile without a formula");
                return (t * (t * T(1.0 / 3) + T(1)) + T(1)) * e;
            }
        }
    }

    // The value, the slope dg/dp, and dg/dalpha at a fixed distance.
    INLINE void derivatives(Vector p, T alpha, Vector &value, Vector &slope, Vector &by_alpha) {
        if (PROFILE == DOT) {
            value = p;
            slope = S::all(1);
            return;
        }
        Vector given = p;
        p = clamp(p, true);
        if constexpr (PROFILE == RBF) {
            value = decay(p);
            slope = -value;
        } else if constexpr (PROFILE == RATIONAL_QUADRATIC) {
            Vector log = logarithm_beyond_one<T>(p), share = T(1) / (p + T(1));
            value = decay(log * alpha);
            slope = value * share * -alpha;
            by_alpha = value * (p * share - log);
        } else {
            // d/dp of the profile of order j is -1 / (4 j - 2) times that of order j - 1, for p = t^2, j = nu - 1/2
            Vector t = root(p), e = decay(t);
            if constexpr (PROFILE == MATERN_12) {
                value = e;
                slope = e / t * T(-0.5);
                slope = given > Vector{} ? slope : Vector{};  // infinite at coincident points, where its factor is 0
            } else if constexpr (PROFILE == MATERN_32) {
                value = t * e + e;
                slope = e * T(-0.5);
            } else {
                static_assert(PROFILE == MATERN_52 || PROFILE == DOT, "a profile without a formula");
                slope = t * e + e;
                value = t * t * e * T(1.0 / 3) + slope;
                slope = slope * T(-1.0 / 6);
            }
        }
    }
};
