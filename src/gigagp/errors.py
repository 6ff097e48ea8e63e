"""Every error and warning that gigagp raises on purpose.

::

    Exception
     └─ GigaGPError
         ├─ InvalidInputError (also ValueError)      bad data or a bad argument, found before anything is computed
         │   ├─ CellTypeError (also TypeError)       a cell contains an object that is not a number
         │   ├─ RowError                             a row has a value that its column must not have
         │   └─ UnreadableRowsError                  rows on disk turn out to be damaged during a fit
         ├─ MemoryBudgetError (also MemoryError)     the job cannot fit; carries the number of bytes
         ├─ NotPositiveDefiniteError (also ArithmeticError)   a Cholesky factor does not exist
         ├─ NonFiniteError (also ArithmeticError)    NaN or infinity at the first step of a fit or in a prediction
         ├─ ModelFileError (also ValueError)         a saved model is missing, damaged or of another kind
         └─ ProcessFailedError                       another process of a distributed fit failed or does not answer

    UserWarning
     └─ GigaGPWarning
         ├─ SolverWarning                            a solve did not reach its tolerance
         ├─ EncodingWarning                          columns were left out, or hold what the fit has not seen
         └─ FitWarning                               a fit stopped before its end, or the data do not suit its settings
             └─ FitInterruptedWarning                Ctrl-C ended it
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


class GigaGPError(Exception):
    """Base of all errors of this package."""


class InvalidInputError(GigaGPError, ValueError):
    """An argument or a table cannot be used; the message says which, what is allowed and what was got."""


class CellTypeError(InvalidInputError, TypeError):
    """A cell of a table holds an object that is not a number; the message names the argument, column and row."""


class RowError(InvalidInputError):
    """A row has a value that its column must not have, such as a negative count.

    Attributes
    ----------
    rule : str
        What is allowed, as the beginning of a sentence.
    got : str
        The value.
    row : int
        The number of the row in what the method was given, counted from 0.
    name : str
        The argument: ``"y"`` or ``"exposure"``.
    """

    def __init__(self, rule: str, got: str, row: int, name: str = "y") -> None:
        super().__init__(rule, got, row, name)  # all of them, so that the error can be sent to another process
        self.rule, self.got, self.row, self.name = rule, got, row, name

    def __str__(self) -> str:
        return f"{self.rule}; got {self.got} in row {self.row}."

    def of_table(self, source: str, column: str, row: int) -> InvalidInputError:
        """Return the error for a table with this column, whose rows are counted from 1, as in its other errors."""
        return InvalidInputError(f"{source}: column '{column}', row {row + 1}: {self.rule}; got {self.got}.")


class UnreadableRowsError(InvalidInputError):
    """Rows that are read during a fit cannot be used; the message names the file. The fit can be resumed."""


class MemoryBudgetError(GigaGPError, MemoryError):
    """A job does not fit into the memory budget, which is checked before allocation, or the machine has no more."""


class NotPositiveDefiniteError(GigaGPError, ArithmeticError):
    """A matrix that must be positive definite is not, in the working precision."""


class NonFiniteError(GigaGPError, ArithmeticError):
    """NaN or infinity occurred where a fit cannot continue and has no earlier state to keep."""


#: What hyperparameters raise whose matrix has no factor or whose likelihood is not finite; a search leaves them out.
UNUSABLE = (NonFiniteError, NotPositiveDefiniteError)


class ModelFileError(GigaGPError, ValueError):
    """A model file is missing, damaged, truncated, or was not written by gigagp."""


class ProcessFailedError(GigaGPError):
    """Another process of a distributed fit failed, or this one has lost contact with it.

    Attributes
    ----------
    lost : bool
        Whether contact is lost; otherwise the message is that of the other process.
    """

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


class GigaGPWarning(UserWarning):
    """Base of all warnings of this package."""


class SolverWarning(GigaGPWarning):
    """A linear solve stopped before its tolerance; the message contains the numbers and a remedy."""


class EncodingWarning(GigaGPWarning):
    """A column of a table was left out, or has categories or missing cells that the fit has not seen."""


class FitWarning(GigaGPWarning):
    """A fit stopped before its end and kept the best state, or the data do not suit its settings; see the message."""


class FitInterruptedWarning(FitWarning):
    """Ctrl-C ended a fit; the estimator is fitted at the best hyperparameters so far.

    The warning is issued after the estimator has its result, so that nothing is lost if warnings are errors. In a loop
    of fits, ``warnings.simplefilter("error", FitInterruptedWarning)`` lets the first Ctrl-C end the loop.
    """


#: Returns what the work at hand is about, for messages; `gigagp.runtime.run` knows it, and sets this.
subject: Callable[[], str] = str
#: Takes the text of each warning; `gigagp.runtime.run` keeps those of a fit, and sets this.
note: Callable[[str], object] = str


def warn(message: str, category: type[GigaGPWarning]) -> None:
    """Issue a warning at the line that called into this package, however deep the call stack is."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "gigagp":
        level, frame = level + 1, frame.f_back
    named = subject()
    warnings.warn(f"{named}: {message}" if named else message, category, stacklevel=level)
    note(message)
