"""Tables for terminals and reports."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a markdown table whose columns are aligned as text, too.

    Args:
        header: The columns' names; the first column is aligned left, the others right.
        rows: The cells of each row, as many as there are columns.

    Returns:
        The table, without a line break at its end.

    Example:
        >>> print(markdown_table(["method", "loss"], [["plain GP", "0.25"]]))
        | method   | loss |
        |:---------|-----:|
        | plain GP | 0.25 |
    """
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    rule = ["-" * (width + 1) for width in widths]
    rule = [":" + rule[0], *(dashes + ":" for dashes in rule[1:])]
    lines = [_line(row, widths) for row in (header, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    aligned = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(aligned)} |"
