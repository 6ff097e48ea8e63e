// The steps of a program as Python gives them (gigagp.products.program.ProgramStep).
#pragma once

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <vector>

#include "kernels.h"

namespace gigagp {

// Return checked steps from (operation, a, b, a_factor, b_factor): terms in order, and every value but the last used once.
template <class T>
std::vector<Step<T>> read_steps(const pybind11::list &given, int n_terms) {
    const auto refuse = [](const char *what) { throw std::invalid_argument(std::string("native kernel programs: ") + what); };
    std::vector<Step<T>> steps;
    std::vector<int> used(given.size(), 0);
    int next_term = 0;
    for (std::size_t k = 0; k < given.size(); k++) {
        const auto tuple = given[k].cast<pybind11::tuple>();
        if (tuple.size() != 5) refuse("a step has five parts");
        const Step<T> step = {tuple[0].cast<int>(), tuple[1].cast<int>(), tuple[2].cast<int>(),
                              static_cast<T>(tuple[3].cast<double>()), static_cast<T>(tuple[4].cast<double>())};
        if (step.operation == TERM) {
            if (step.a != next_term++ || next_term > n_terms) refuse("terms out of order");
        } else if (step.operation == ADD || step.operation == MULTIPLY) {
            for (int value : {step.a, step.b})
                if (value < 0 || value >= static_cast<int>(k) || used[value]++) refuse("a value used twice");
        } else if (step.operation != ONE) {
            refuse("unknown operation");
        }
        steps.push_back(step);
    }
    if (steps.empty() || next_term != n_terms) refuse("terms or steps are missing");
    for (std::size_t k = 0; k + 1 < steps.size(); k++)
        if (used[k] != 1) refuse("a value that is never used");
    return steps;
}

}  // namespace gigagp
