"""Markdown tables for terminals and reports."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table whose columns are also aligned in plain text.

    Args:
        header: The names of the columns. The first column is aligned left, all other columns right.
        rows: The cells of each row, one per column.

    Returns:
        The table, without a final line break.

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
