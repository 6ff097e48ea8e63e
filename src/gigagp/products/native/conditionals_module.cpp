#include <pybind11/pybind11.h>

namespace gigagp {
void define_conditionals(pybind11::module_ &) {}
}  // namespace gigagp
