// Covariance profiles g(p) of the squared distance p, and their derivatives; see gigagp/kernels/stationary.py for p.
#pragma once

// log(1 + p) for p >= 0. What 1 + p rounds away counts where alpha is large: log(u) p / (u - 1) for u = 1 + p as rounded
// has the errors of log(u) and u - 1 cancel (Goldberg 1991, Theorem 4).
template <class T>
INLINE typename Simd<T>::Vector logarithm_beyond_one(typename Simd<T>::Vector p) {
    typename Simd<T>::Vector u = p + T(1), rounded = u - T(1);
    return rounded > T(0) ? logarithm(u) * (p / rounded) : p;
}

template <int PROFILE, class T>
struct ProfileOf {
    typedef Simd<T> S;
    typedef typename S::Vector Vector;

    // Rounding makes small differences of norms negative; only distances by differences can be too large.
    INLINE Vector clamp(Vector p, bool direct) {
        p = larger(p, S::all(nearest(T())));
        return direct ? smaller(p, S::all(farthest(T()))) : p;
    }

    INLINE Vector value(Vector p, T alpha, bool direct) {
        if (PROFILE == DOT) return p;
        p = clamp(p, direct);
        if (PROFILE == RBF) return decay(p);
        if (PROFILE == RATIONAL_QUADRATIC) return decay(logarithm_beyond_one<T>(p) * alpha);
        Vector t = root(p), e = decay(t);
        if (PROFILE == MATERN_12) return e;
        if (PROFILE == MATERN_32) return t * e + e;
        return (t * (t * T(1.0 / 3) + T(1)) + T(1)) * e;
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
        if (PROFILE == RBF) {
            value = decay(p);
            slope = -value;
        } else if (PROFILE == RATIONAL_QUADRATIC) {
            Vector log = logarithm_beyond_one<T>(p), share = T(1) / (p + T(1));
            value = decay(log * alpha);
            slope = value * share * -alpha;
            by_alpha = value * (p * share - log);
        } else {
            // d/dp of the profile of order j is -1 / (4 j - 2) times that of order j - 1, for p = t^2, j = nu - 1/2
            Vector t = root(p), e = decay(t);
            if (PROFILE == MATERN_12) {
                value = e;
                slope = e / t * T(-0.5);
                slope = given > Vector{} ? slope : Vector{};  // infinite at coincident points; its factor is 0
            } else if (PROFILE == MATERN_32) {
                value = t * e + e;
                slope = e * T(-0.5);
            } else {
                slope = t * e + e;
                value = t * t * e * T(1.0 / 3) + slope;
                slope = slope * T(-1.0 / 6);
            }
        }
    }
};
