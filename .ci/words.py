#!/usr/bin/env python3
"""Refuse words for which the glossary or plain English has a better one.

    .ci/words.py [FILE or FOLDER ...]     # none given: every tracked file

Read are the prose of Markdown (code left out), comments of protos, YAML, TOML and the Makefile,
templates, and in Python comments, every string literal with a space in it (docstrings and f-strings
included) and every name that is defined, word by word. A docstring begins with a verb or a noun
phrase. Text between backticks is code. A line that ends in `words: ok` is left alone.
docs/glossary.md says which words to use for the things of this project.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SKIPPED = (
    "protos/inference/",
    ".ci/words.py",
    "LICENSE",
    "tests/integration/test_words_check.py",
)

WORDS = {
    # Everyday verbs where the field has a precise one.
    r"foret(ell|old)(s|ing|er)?": "predict, prediction, predictor",
    r"tells?|telling|told": "report, send, say, notify, show, distinguish",
    r"ask(s|ed|ing)?": "request, query, call, poll; 'where asked for' -> 'on request'",
    r"forsak(e|es|en|ing)|forsook": "cancel, abandon",
    r"anew": "again; 'plan anew' -> 're-plan'",
    # Pronouns without a noun.
    r"whoever|whomever": "the caller, any client that ..., every service that ...",
    r"nobody|no one": "no client, no service, ...: say who",
    r"(by|for|from|of|than|to|with) who": "say who: 'of requests that ...'",
    r"(that|which|it) (is|are) no(?= [a-z])(?! (\w+er|more|less|worse)\b)": "is not a ..., invalid",
    # Turns of phrase that are translated.
    r"seldom": "rarely",
    r"beforehand": "in advance",
    r"of late(?=[,.;:)])": "recently",
    r"for want of": "for lack of",
    r"no cause (to|for)": "no reason to",
    r"(goes?|went|serves?|served) on(?=[.,;:)])": "continues, keeps serving",
    # Names that only we understood, and what they are called now.
    r"handouts?": "assigner, assignment",
    r"lanes?": "instance, instance state",
    r"rosters?": "instance pool",
    r"switchboard": "model registry",
    r"carriers?": "decision executor",
    r"journeys?": "pipeline request",
    r"tally|tallies": "statistics, model stats",
    r"rivals?": "baseline",
    r"keepers?": "worker supervisor, persistence",
    r"thrift": "energy floor",
    r"blueprints?": "worker configuration",
    r"mailbox": "report outbox",
    r"scenes?": "scenario",
    r"siting": "layout assignment",
    r"foresight": "forecast, horizon",
    r"(by|of) trying": "online search",
    r"conductor": "plan lifecycle",
    r"distrust(s|ed)?": "blocked variants",
    r"shelf|shelves": "LRU index",
    r"crew": "bounded executor",
}
PATTERN = re.compile(
    rf"\b(?:{'|'.join(f'(?P<w{n}>{word})' for n, word in enumerate(WORDS))})\b", re.IGNORECASE
)
ADVICE = list(WORDS.values())
COMMENT = {
    ".proto": re.compile(r"//(.*)"),
    ".md": re.compile(r"(.*)"),
    ".j2": re.compile(r"(.*)"),
}
HASH = re.compile(r"(?:^|\s)#+(.*)")
HASHED = {".yaml", ".toml", ".env", ".conf", ""}  # "": Makefile, Dockerfile

OPENING = re.compile(r"(What|Have|How|Whether|Let|Which|Who|Whose|Why)\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


class Text(NamedTuple):
    """A piece of a file's text.

    Attributes:
        line: Its first line, from 1.
        text: The piece.
        is_docstring: Whether it must begin with a verb or a noun phrase.
    """

    line: int
    text: str
    is_docstring: bool = False


class Finding(NamedTuple):
    """A word to replace, and the better ones."""

    line: int
    word: str
    advice: str


def main() -> int:
    """Print each finding as `file:line: word: advice`; return 1 where there is any."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; none: all tracked")
    given = parser.parse_args()
    root = Path(_git("rev-parse", "--show-toplevel").strip())
    found = [
        f"{path.relative_to(root)}:{line}: '{word}': {advice}"
        for path in _files(root, [each.resolve() for each in given.paths] or [root])
        for line, word, advice in sorted(_findings(path))
    ]
    for each in found:
        print(each)
    if found:
        print(f"{len(found)} to replace (.ci/words.py has the list, docs/glossary.md the words);")
    return 1 if found else 0


def _findings(path: Path) -> Iterator[Finding]:
    source = path.read_text(encoding="utf-8")
    allowed = [line.rstrip("-> ").endswith("words: ok") for line in source.splitlines()]

    def at(start: int, text: str, place: int) -> tuple[int, bool]:
        line = start + text.count("\n", 0, place)
        return line, not allowed[min(line, len(allowed)) - 1]

    for start, text, is_docstring in _texts(path, source):
        if is_docstring and (opening := OPENING.match(text)):
            line, counts = at(start, text, 0)
            if counts:
                advice = "a docstring begins with a verb or a noun phrase"
                yield Finding(line, f"{opening.group()} ...", advice)
        for match in PATTERN.finditer(_without_code(text)):
            line, counts = at(start, text, match.start())
            if counts:
                word = " ".join(match.group().split())
                advice = ADVICE[int((match.lastgroup or "w0")[1:])]
                yield Finding(line, word, advice)


def _files(root: Path, wanted: list[Path]) -> Iterator[Path]:
    listed = _git(
        "ls-files", "--cached", "--others", "--exclude-standard", "--full-name", str(root)
    )
    for name in sorted(listed.splitlines()):
        path = root / name
        chosen = any(path == each or each in path.parents for each in wanted)
        if chosen and path.is_file() and not name.startswith(SKIPPED) and _is_text(path):
            yield path


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout


def _is_text(path: Path) -> bool:
    return "_pb2" not in path.name and path.suffix in {".py", *COMMENT, *HASHED}


def _texts(path: Path, source: str) -> Iterator[Text]:
    if path.suffix == ".py":
        yield from _parts(ast.parse(source))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield Text(token.start[0], token.string)
    elif path.suffix == ".md":
        yield Text(1, re.sub(r"^```.*?^```", _blank, source, flags=re.MULTILINE | re.DOTALL))
    else:
        comment = COMMENT.get(path.suffix, HASH)
        for number, line in enumerate(source.splitlines(), 1):
            if match := comment.search(line):
                yield Text(number, match.group(1))


def _parts(tree: ast.Module) -> Iterator[Text]:
    """Yield string literals with a space in them, and names, word by word, where one is defined.

    What an f-string inserts counts as a word. Uses of a name are mended with its definition.
    """
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, documents = stack.pop()
        inner = ast.iter_child_nodes(node)
        match node:
            case ast.JoinedStr():
                parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
                yield Text(node.lineno, "".join(str(part) for part in parts))
                inner = (p for p in node.values if isinstance(p, ast.FormattedValue))
            case ast.Constant(value=str(text)) if " " in text:
                yield Text(node.lineno, text, is_docstring=documents)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield _name(node.lineno, name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield _name(node.lineno, name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield _name(node.lineno, name)
        documents = isinstance(node, DOCUMENTED) or (documents and isinstance(node, ast.Expr))
        stack.extend((child, documents) for child in inner)


def _name(line: int, name: str) -> Text:
    return Text(line, " ".join(PART.findall(name)))


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)", _blank, text)


def _blank(match: re.Match[str]) -> str:
    """Return equally long blank text with the same line breaks, so that positions stay valid."""
    return re.sub(r"[^\n]", " ", match.group())


if __name__ == "__main__":
    sys.exit(main())
