// Products of a stored matrix with a few columns.
#pragma once

namespace gigagp {

constexpr int STORED_VECTORS = 3;  // SIMD vectors of columns that are multiplied at a time

template <class T>
struct StoredKernel {
    int lanes;  // numbers in a SIMD vector
    // out[i][.] += sum_k matrix[i][k] columns[k][.] for `rows` rows and `depth` entries of each, with `stride` numbers
    // between rows. Rows of `columns` and `out` have `vectors` SIMD vectors, aligned; at most STORED_VECTORS.
    void (*product)(const T *matrix, long stride, long rows, long depth, const T *columns, int vectors, T *out);
};

struct StoredKernels {
    const char *name;
    StoredKernel<float> floats;
    StoredKernel<double> doubles;
    template <class T>
    const StoredKernel<T> &of() const;
};
template <>
inline const StoredKernel<float> &StoredKernels::of<float>() const { return floats; }
template <>
inline const StoredKernel<double> &StoredKernels::of<double>() const { return doubles; }

const StoredKernels &avx512_stored_kernels();
const StoredKernels &avx2_stored_kernels();
const StoredKernels &baseline_stored_kernels();

}  // namespace gigagp
