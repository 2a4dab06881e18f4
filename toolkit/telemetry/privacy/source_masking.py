"""Masks the secrets in Python code by what it does with a text: assigned, passed or compared under a telling name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of
from toolkit.telemetry.privacy.secret_shapes import HINTS_OF_NAMES, MASK, NO_SECRET, looks_generated


def mask_code(name: str, lines: list[str], mask_lines: Callable[[list[str]], list[str]]) -> list[str]:
    """Return as many lines of the file `name` without secrets: if it is Python, by what the code says, and by shape."""
    return mask_lines(mask_source(lines) if name.endswith((".py", ".pyi")) else lines)


def mask_source(lines: list[str]) -> list[str]:
    """Return as many lines of Python code, with `"***"` for each text that is a secret by its name.

    What cannot be parsed is looked at line by line. What only its shape gives away stays.
    """
    if not _says_secret("\n".join(lines)):
        return lines
    indented = next((line for line in lines if line), "")[:1].isspace()
    # A method is one in a class, and as well one below an `if`.
    masked = _mask_parsed(["if 1:", *lines] if indented else lines)
    if masked is not None:
        return masked[indented:]
    return [_mask_line(line) if _says_secret(line) else line for line in lines]


def begins_statement(line: str) -> bool:
    """Return whether a text may be cut before this line: nothing of what is before it goes on there."""
    return not line.strip() or _STATEMENT.match(line) is not None


def _says_secret(text: str) -> bool:
    small = text.lower()
    return any(hint in small for hint in HINTS_OF_NAMES) and any(
        secrecy_of(word) > Secrecy.IF_RANDOM for word in set(_WORD.findall(text))
    )


def _mask_line(line: str) -> str:
    code = line.lstrip()
    before = line[: len(line) - len(code)]
    for end in (" pass", "", "]", ")", "}"):
        # An `if` needs a body; a line of a mapping or a list is a part of one.
        begin = {"]": "[", ")": "f(", "}": "{"}.get(end, "")
        masked = _mask_parsed([begin + code + end])
        if masked is not None:
            return before + masked[0][len(begin) : len(masked[0]) - len(end)]
    return line


def _mask_parsed(lines: list[str]) -> list[str] | None:
    """Return the lines of code without secrets, or None if they cannot be parsed."""
    text = "\n".join(lines)
    if len(text) > _LONGEST:
        return None
    try:
        # An unknown escape sequence would be warned of on stderr. In its place is as much that is not one.
        tree = ast.parse(_ESCAPE.sub(lambda match: "//" if match[0] not in _ESCAPES else match[0], text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = [*lines]
    # From the end, so that what is in front stays where it was.
    for node in sorted(_secrets_in(tree), key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if last >= len(lines):
            # A carriage return ends a line for Python alone.
            return None
        before = lines[first].encode()[: node.col_offset].decode()
        rest = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [f'{before}"{MASK}"', *[""] * (last - first)]
        lines[last] += rest
    return lines


def _secrets_in(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield each text that is a secret, once."""
    found: dict[tuple[int, int], ast.expr] = {}
    for node in ast.walk(tree):
        for name, value in _named_values(node):
            secrecy = secrecy_of(name) if name else Secrecy.OPEN
            if value is not None and secrecy is not Secrecy.OPEN:
                for text in _texts_in(value):
                    if _is_secret(text, secrecy):
                        found[text.lineno, text.col_offset] = text
    yield from found.values()


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what the code assigns, passes or compares in `node`, and under which name."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        yield from _assigned(node.target, node.value)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from ((node.name, one.value) for one in ast.walk(node) if isinstance(one, ast.Return))
    elif isinstance(node, ast.keyword):
        yield node.arg or "", node.value
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((_name_of(key), value) for key, value in pairs if isinstance(key, ast.Constant))
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        defaults = positional[len(positional) - len(node.defaults) :]
        yield from ((one.arg, value) for one, value in zip(defaults, node.defaults, strict=True))
        yield from ((one.arg, value) for one, value in zip(node.kwonlyargs, node.kw_defaults, strict=True))
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        yield from ((_name_of(one), other) for one in sides if not _is_text(one) for other in sides)
    elif isinstance(node, (ast.Call, ast.List, ast.Tuple)):
        # Such as setdefault("API_KEY", "abc"), ["--api-key", "abc"] and ("api_key", "abc").
        items = node.args if isinstance(node, ast.Call) else node.elts
        is_pair = isinstance(node, ast.Tuple) and len(items) == 2
        if isinstance(node, ast.Call):
            options = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            yield from ((_name_of(item), value) for item in items if _is_text(item) for value in options)
        for one, other in pairwise(items):
            name = _name_of(one) if _is_text(one) else ""
            if (
                (name.startswith("-") or isinstance(node, ast.Call) or is_pair)
                and _is_text(other)
                and not _name_of(other).startswith("--")
            ):
                yield name, other


def _assigned(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    parts = (ast.Tuple, ast.List)
    if isinstance(target, parts) and isinstance(value, parts) and len(target.elts) == len(value.elts):
        for one, item in zip(target.elts, value.elts, strict=True):
            yield from _assigned(one, item)
    yield _name_of(target), value


def _name_of(node: ast.expr | None) -> str:
    """Return the name of a variable, an attribute or a key; of `config["db"]["password"]` the last."""
    if isinstance(node, ast.Subscript):
        return _name_of(node.slice) or _name_of(node.value)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and _NAME.fullmatch(node.value) else ""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _texts_in(node: ast.AST, *, is_sure: bool = True) -> Iterator[ast.expr]:
    """Yield the texts of which a value may be made; of those that a call is given, what looks random."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        if is_sure or looks_generated(str(getattr(node, "value", ""))):
            yield node
    elif not isinstance(node, (ast.Compare, ast.Subscript)):
        # SecretStr("abc") and "abc".encode() are the text, and input("Password: ") is not.
        name = _name_of(node.func) if isinstance(node, ast.Call) else "A"
        is_value = name[:1].isupper() or name in ("str", "bytes", "field")
        for child in ast.iter_child_nodes(node):
            is_object = isinstance(node, ast.Call) and child is node.func
            yield from _texts_in(child, is_sure=is_sure and (is_value or is_object))


def _is_secret(node: ast.expr, secrecy: Secrecy) -> bool:
    value = node.value if isinstance(node, ast.Constant) else "an f-string"
    if not isinstance(value, (str, bytes)):
        return False
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if secrecy is Secrecy.IF_RANDOM:
        return looks_generated(text)
    return bool(text) and (secrecy is Secrecy.ALWAYS or NO_SECRET.fullmatch(text) is None)


_STATEMENT: Final = re.compile(r"(?!(?:else|elif|except|finally)\b|[)\]}])\S")
_WORD: Final = re.compile(r"[A-Za-z][\w-]{2,}")
_LONGEST: Final = 10_000
"""Characters that are parsed at once: the interpreter's lock is held meanwhile."""
_NAME: Final = re.compile(r"[\w.-]{1,100}")
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_ESCAPES: Final = frozenset("\\" + character for character in "\n\\'\"abfnrtvxuUN0123")
