#!/usr/bin/env python3
"""Refuse words in user-visible text for which the glossary or plain English has a better one.

    .ci/words.py [FILE or FOLDER ...]     # none given: every tracked file

Text is what somebody may read: prose of Markdown (code left out), comments of protos, YAML, TOML
and the Makefile, templates, and in Python every string literal with a space in it, docstrings and
f-strings included. Text between backticks is code. A line that ends in `words: ok` is left alone.
docs/glossary.md says which words to use for the things of this project.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SKIPPED = ("tests/", "protos/inference/", ".ci/words.py", "LICENSE")

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
    "|".join(rf"(?P<w{n}>\b(?:{word})\b)" for n, word in enumerate(WORDS)), re.IGNORECASE
)
ADVICE = list(WORDS.values())
COMMENT = {
    ".proto": re.compile(r"//(.*)"),
    ".md": re.compile(r"(.*)"),
    ".j2": re.compile(r"(.*)"),
}
HASH = re.compile(r"(?:^|\s)#+(.*)")
HASHED = {".yaml", ".toml", ".env", ".conf", ""}  # "": Makefile, Dockerfile

Line = tuple[int, str]


def main() -> int:
    """Print each finding as `file:line: word: advice`; return 1 where there is any."""
    found = 0
    root = Path(_git("rev-parse", "--show-toplevel").strip())
    for path in _files(root, [Path(each).resolve() for each in sys.argv[1:]] or [root]):
        source = path.read_text(encoding="utf-8")
        allowed = [line.rstrip("-> ").endswith("words: ok") for line in source.splitlines()]
        for start, text in _texts(path, source):
            for match in PATTERN.finditer(_without_code(text)):
                line = start + text.count("\n", 0, match.start())
                if not allowed[min(line, len(allowed)) - 1]:
                    found += 1
                    word = " ".join(match.group().split())
                    advice = ADVICE[int((match.lastgroup or "w0")[1:])]
                    print(f"{path.relative_to(root)}:{line}: '{word}': {advice}")
    if found:
        print(f"{found} words to replace (.ci/words.py has the list, docs/glossary.md the words)")
    return 1 if found else 0


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


def _texts(path: Path, source: str) -> Iterator[Line]:
    """Yield the texts of a file, each with the line that it starts on."""
    if path.suffix == ".py":
        yield from _literals(ast.parse(source))
    elif path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```", _blank, source, flags=re.MULTILINE | re.DOTALL)
    else:
        comment = COMMENT.get(path.suffix, HASH)
        for number, line in enumerate(source.splitlines(), 1):
            if match := comment.search(line):
                yield number, match.group(1)


def _literals(node: ast.AST) -> Iterator[Line]:
    """Yield string literals with a space in them; what an f-string inserts counts as a word."""
    if isinstance(node, ast.JoinedStr):
        parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
        text = "".join(str(part) for part in parts)
        inner: list[ast.AST] = [p for p in node.values if isinstance(p, ast.FormattedValue)]
    else:
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        inner = list(ast.iter_child_nodes(node))
    if " " in text:
        yield getattr(node, "lineno", 1), text
    for child in inner:
        yield from _literals(child)


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`|\]\([^)\s]*\)", _blank, text)


def _blank(match: re.Match[str]) -> str:
    """Return as many spaces, line for line, so that places stay what they were."""
    return re.sub(r"[^\n]", " ", match.group())


if __name__ == "__main__":
    sys.exit(main())
