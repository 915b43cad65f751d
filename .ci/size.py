#!/usr/bin/env python3
"""Print the size of `services/` by folder: lines without docstrings, comments and blank lines.

    .ci/size.py [--files FOLDER]     # --files: each file of one folder, largest first

Generated code lies in `protos/` and is not counted. `make check` shows the table and never fails
because of it.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent / "services"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def lines_of_code(source: str) -> int:
    """Count the lines of a module that hold code: neither blank, a comment nor a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def main(arguments: list[str]) -> None:
    """Print a table by folder, or by file."""
    files = {path: lines_of_code(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    if arguments[:1] == ["--files"]:
        folder = (ROOT.parent / arguments[1]).resolve()
        chosen = {path: size for path, size in files.items() if folder in (path, *path.parents)}
        for path, size in sorted(chosen.items(), key=lambda item: -item[1]):
            print(f"{size:7,}  {path.relative_to(ROOT.parent)}")
        return
    folders: Counter[str] = Counter()
    for path, size in files.items():
        folders[path.relative_to(ROOT).parts[0]] += size
    for folder, size in folders.most_common():
        print(f"{size:7,}  services/{folder}")
    print(f"{sum(folders.values()):7,}  services (lines of code)")


if __name__ == "__main__":
    main(sys.argv[1:])
