"""Texts that a pattern matches, drawn from the pattern itself: one at least for each of its alternatives."""

from __future__ import annotations

import itertools
import random
import re
import string
import sys

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

_WORD = string.ascii_letters + string.digits + "_"
_FEW = 4
"""Of a set with at most so many characters, such as `[ps]k_`, each is tried."""
_TRIES = 200
_MOST = 400


def samples(pattern, is_token, seed=0):
    """Return texts that `pattern` matches and `is_token` accepts, or fewer where chance does not find one."""
    chance = random.Random(f"{pattern}{seed}")
    tree = parser.parse(pattern, re.ASCII)
    compiled = re.compile(pattern, re.ASCII)
    found = {}
    for _ in range(_TRIES):
        for number, text in enumerate(_texts(tree, chance)):
            if number not in found and compiled.fullmatch(text) and is_token(text):
                found[number] = text
        if len(found) == number + 1:
            break
    return list(found.values()), number + 1


def _texts(tree, chance):
    """Return one text for each combination of alternatives."""
    parts = [_options(code, value, chance) for code, value in tree]
    return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), _MOST)]


def _options(code, value, chance):
    if code is codes.LITERAL:
        return [chr(value)]
    if code is codes.IN:
        characters = "".join(_characters(value))
        return list(characters) if len(characters) <= _FEW else [chance.choice(characters)]
    if code is codes.SUBPATTERN:
        return _texts(value[-1], chance)
    if code is codes.BRANCH:
        return [text for branch in value[1] for text in _texts(branch, chance)]
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        low, high, inner = value
        if high == 1:
            return ["", *_texts(inner, chance)] if low == 0 else _texts(inner, chance)
        times = low if high <= low + 1 else min(int(high), low + chance.randint(1, 8))
        return ["".join(chance.choice(_texts(inner, chance)) for _ in range(times))]
    if code in (codes.ASSERT, codes.ASSERT_NOT, codes.AT):
        return [""]
    raise NotImplementedError(f"{code} in a pattern: extend this generator")


def _characters(items):
    for code, value in items:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.RANGE:
            yield "".join(map(chr, range(value[0], value[1] + 1)))
        elif value is codes.CATEGORY_WORD:
            yield _WORD
        elif value is codes.CATEGORY_DIGIT:
            yield string.digits
        else:
            raise NotImplementedError(f"{code} {value} in a set: extend this generator")
