"""CSV files, with or without a header, compressed or not, and error messages that name the bad row."""

from __future__ import annotations

import codecs
import io
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from gigagp.errors import EncodingWarning, InvalidInputError, warn
from gigagp.tables.cells import is_number
from gigagp.tables.files.table import INDEX

#: Separators that are recognised. The one that occurs most often in the first line is taken.
_SEPARATORS = ",;\t|"
#: Cells for missing values and booleans. They occur in data, but not as names in a header.
_DATA_WORDS = {"", "true", "false", "na", "n/a", "#n/a", "null"}
_HEAD_BYTES = 2**20


#: The byte order marks of UTF-16.
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: A cell of a line that is separated by blanks.
_BLANK_CELL = re.compile(r'"[^"]*"|\S+')


@dataclass(frozen=True)
class CsvStyle:
    """What cannot be detected of how a CSV file is written: decimal mark, and the mark with which comments begin."""

    decimal: str = "."
    comment: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise InvalidInputError(f"--decimal must be . or ,; got {self.decimal!r}.")
        if self.comment is not None and (not self.comment.strip() or {*self.comment} & set('",.;\r\n\t')):
            msg = f"--comment must be a mark such as #, and not a separator or a quote; got {self.comment!r}."
            raise InvalidInputError(msg)


#: The usual way.
PLAIN = CsvStyle()


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    ``names`` are ``column1``, ``column2``, ... if the first line is no ``header``, before which there are
    ``blank_lines``. ``has_rows`` says whether a second line follows. ``content`` is the file as pyarrow can read it, if
    it has comments, is separated by blanks, or is in UTF-16. The first of the names is made up if it ``is_unnamed``.
    """

    names: list[str]
    header: bool
    separator: str
    has_rows: bool
    blank_lines: int
    decimal: str = "."
    content: bytes | None = None
    is_unnamed: bool = False

    def open(self, path: Path) -> Any:
        """Return what pyarrow reads: the path, or the file as it was rewritten."""
        return path if self.content is None else pa.BufferReader(self.content)

    def parsing(self, **options: Any) -> pyarrow.csv.ParseOptions:
        """Return pyarrow's settings. A blank line is skipped, but in a table of one column it is an empty cell."""
        return pyarrow.csv.ParseOptions(delimiter=self.separator, ignore_empty_lines=len(self.names) > 1, **options)


def dialect(path: Path, header: bool | None = None, style: CsvStyle = PLAIN) -> Dialect:
    """Detect how a CSV file is written from its first lines; arguments and errors as for `read_delimited`."""
    content = _rewritten(path, style)
    text = _head(path) if content is None else content.decode()
    first, second, separator, blank = _first_rows(path, text, style)
    if header is None:
        header = _looks_like_header(first, second, style)
    names = list(first) if header else [f"column{place + 1}" for place in range(len(first))]
    is_unnamed = len(names) > 1 and not names[0]
    if is_unnamed:
        names[0] = INDEX if _counts_rows(text, separator, blank + 1) else "column1"
    return Dialect(names, header, separator, bool(second), blank, style.decimal, content, is_unnamed)


def read_delimited(path: Path, header: bool | None = None, style: CsvStyle = PLAIN) -> pa.Table:
    """Read a CSV file, compressed or not, into columns whose types are inferred from their cells.

    Without ``header``, the first line is taken for one if it has a cell that is not a number, unless other cells are
    numbers and the next line has text in the same places. Blanks as separators, and UTF-16, are detected. An error
    names the first row with more or fewer cells than the first line.
    """
    written = dialect(path, header, style)
    header = written.header
    size = block_size(path, written)
    read = pyarrow.csv.ReadOptions(autogenerate_column_names=not header, block_size=size)
    parse = written.parsing()
    # An empty cell is a missing number even in a column that holds text elsewhere.
    convert = pyarrow.csv.ConvertOptions(strings_can_be_null=True, decimal_point=written.decimal)
    if header and not written.has_rows:  # pyarrow reads a header without a newline as an empty file
        return pa.table({name: pa.array([], pa.float64()) for name in written.names})
    try:
        source = written.open(path)
        table = pyarrow.csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
        names = list(table.column_names)
    except UnicodeDecodeError:
        raise _not_text(path) from None
    except (pa.ArrowException, OSError) as error:
        raise _explained(path, written, size, error) from None
    if any(pa.types.is_binary(kind) for kind in table.schema.types):  # pyarrow's type for bytes that are not UTF-8
        raise _not_text(path)
    if not header:
        return table.rename_columns([f"column{place + 1}" for place in range(len(names))])
    names = [name.strip() for name in names]
    if written.is_unnamed:
        names[0] = written.names[0]
        warn_of_unnamed(path, names[0])
    return table.rename_columns(names)


def warn_of_unnamed(path: Path, name: str) -> None:
    """Say what becomes of the first column of a CSV file, which has no name in the header."""
    done = "counts the rows, so that it is left out. Give it a name if it is an input"
    if name != INDEX:
        done = f"does not count the rows, so that it is kept as {name!r}. Remove it if it numbers or names the rows"
    warn(f"{path}: the first column has no name in the header. It {done}.", EncodingWarning)


def block_size(path: Path, written: Dialect) -> int:
    """Return the number of bytes that must be read at a time for a row of a CSV file to fit."""
    if written.content is not None:
        return max(_HEAD_BYTES, min(len(written.content), 2**30))
    return max(_HEAD_BYTES, 4 * len(_head(path)))


def _first_rows(path: Path, text: str, style: CsvStyle) -> tuple[list[str], list[str], str, int]:
    """Return the cells of the first two lines that are not blank, their separator, and the blank lines before them."""
    # pyarrow's line endings only: Python's splitlines knows eight more characters.
    found = re.split(r"\r\n|\n|\r", text)
    lines = [line for line in found if line.strip()][:2]
    if not lines:
        raise InvalidInputError(f"{path} is empty.")
    bare = re.sub(r'"[^"]*"', "", lines[0])
    marks = _SEPARATORS.replace(style.decimal, "")
    separator = max(marks, key=lambda mark: (bare.count(mark), mark == marks[0]))
    first, second = ([_cells(line, separator, path) for line in lines] + [[]])[:2]
    return first, second, separator, found.index(lines[0])


def _counts_rows(text: str, separator: str, first: int) -> bool:
    """Whether the first cells of lines from the number ``first`` on are 0, 1, 2, ... or 1, 2, 3, ..."""
    lines = re.split(r"\r\n|\n|\r", text)[first:]
    # The last line may be cut, before the first separator too.
    cells = [line.split(separator, 1)[0].strip().strip('"') for line in lines if separator in line]
    return any(cells == [str(start + k) for k in range(len(cells))] for start in (0, 1))


def _head(path: Path) -> str:
    """Return the beginning of a file, at least its first two lines, without a byte order mark."""
    return _decoded(path, _head_bytes(path))


def _head_bytes(path: Path, *, whole: bool = False) -> bytes:
    """Return the bytes of the beginning of a file, or all of them if it is in UTF-16."""
    found = b""
    try:
        with pa.input_stream(path, compression="detect") as stream:
            while more := stream.read(_HEAD_BYTES):
                found += more
                whole = whole or found[:2] in _MARKS
                if b"\0" in more and found[:2] not in _MARKS:
                    raise _not_text(path)
                if not whole and sum(bool(line.strip()) for line in found.splitlines()) > 2:
                    break
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from None
    return found


def _is_wide(found: bytes) -> bool:
    """Whether these bytes are UTF-16, in which line ends have a zero byte."""
    return found[:2] in _MARKS and b"\0" in found


def _decoded(path: Path, found: bytes) -> str:
    try:
        if _is_wide(found):
            return found.decode("utf-16")
        # Incremental, because reading may have stopped within a character. The rest is checked when it is parsed.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(found)
    except UnicodeDecodeError:
        raise _not_text(path) from None


def _rewritten(path: Path, style: CsvStyle) -> bytes | None:
    """Return a file without comments, separated by tabs, in UTF-8; None if pyarrow can read it as it is."""
    found = _head_bytes(path)
    is_wide = _is_wide(found)
    lines = _lines(_decoded(path, found), style)
    blanks = _is_separated_by_blanks(lines, style)
    if not (is_wide or blanks or style.comment):
        return None
    found = found if is_wide else _head_bytes(path, whole=True)
    lines = _lines(_decoded(path, found), style)
    if blanks:
        lines = ["\t".join(_BLANK_CELL.findall(line)) for line in lines]
    return "\n".join([*lines, ""]).encode()


def _lines(text: str, style: CsvStyle) -> list[str]:
    """Return the lines of a text, without comments and without the lines that hold nothing else."""
    lines = re.split(r"\r\n|\n|\r", text)
    mark = style.comment
    if mark is None:
        return lines
    cut = [line.split(mark, 1)[0] if '"' not in line or line.lstrip().startswith(mark) else line for line in lines]
    return [short for short, line in zip(cut, lines, strict=True) if short.strip() or not line.strip()]


def _is_separated_by_blanks(lines: list[str], style: CsvStyle) -> bool:
    """Whether the first two lines have the same number of cells between blanks, no other separator, and numbers."""
    first, second = [*(line for line in lines if line.strip()), "", ""][:2]
    bare = re.sub(r'"[^"]*"', "", first)
    if any(mark in bare for mark in _SEPARATORS.replace(style.decimal, "")):
        return False
    cells = _BLANK_CELL.findall(second)
    same = len(cells) == len(_BLANK_CELL.findall(first)) > 1
    return same and any(_is_data(cell, style) for cell in cells)


def _cells(line: str, separator: str, path: Path) -> list[str]:
    """Return the cells of a line as pyarrow will read them."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    read = pyarrow.csv.ReadOptions(autogenerate_column_names=True, block_size=max(_HEAD_BYTES, 8 * len(line)))
    parse = pyarrow.csv.ParseOptions(delimiter=separator)
    data = line.encode() + b"\n"
    try:
        names = pyarrow.csv.read_csv(io.BytesIO(data), read, parse).column_names
        convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), check_utf8=False)
        found = pyarrow.csv.read_csv(io.BytesIO(data), read, parse, convert)
    except pa.ArrowException as error:
        raise _refusal(path, error) from None
    return ["" if not column else str(column[0].as_py()).strip() for column in found.columns]


def _is_data(cell: str, style: CsvStyle) -> bool:
    return is_number(cell.replace(style.decimal, ".")) or cell.casefold() in _DATA_WORDS


def _looks_like_header(first: list[str], second: list[str], style: CsvStyle) -> bool:
    words = [place for place, cell in enumerate(first) if not _is_data(cell, style)]
    if not words:
        return False
    if len(words) == len(first):
        return True
    # A mixed line is a header with numbers as names ("depth,2010,2011"), or a row of data with a text column. In the
    # second case the next line has text in the same places.
    return not (len(second) == len(first) and all(not _is_data(second[place], style) for place in words))


def _not_text(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is not a table of text in UTF-8 or UTF-16. If it is a table of another kind, give it the file "
        "extension of that kind."
    )


def _refusal(path: Path, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{path} cannot be read as a table: {str(error).splitlines()[0].rstrip('.')}.")


def _explained(path: Path, written: Dialect, size: int, error: Exception) -> InvalidInputError:
    """Return an error that names the first row with a wrong number of cells, or repeats what pyarrow said."""
    rows: list[pyarrow.csv.InvalidRow] = []

    def remember(row: pyarrow.csv.InvalidRow) -> str:
        rows.append(row)
        return "error"

    read = pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=not written.header, block_size=size)
    parse = written.parsing(invalid_row_handler=remember)
    with suppress(pa.ArrowException, OSError, UnicodeDecodeError):
        pyarrow.csv.read_csv(written.open(path), read_options=read, parse_options=parse)
    if not rows:
        return _refusal(path, error)
    row = rows[0]
    number = row.number - 1 if written.header else row.number  # pyarrow counts the header too
    msg = (
        f"{path}: row {number} has {row.actual_columns} cells, the first line has {row.expected_columns}. Check its "
        f"separators and quotes; it begins {row.text[:40]!r}."
    )
    return InvalidInputError(msg)
