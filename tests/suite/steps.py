"""Counts the steps of a regular expression: its time without a clock."""

from __future__ import annotations

import re
from re import _constants as c
from re import _parser

_CATEGORIES = {
    c.CATEGORY_DIGIT: str.isdecimal,
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_WORD: lambda each: each.isalnum() or each == "_",
}
_NOT = {
    c.CATEGORY_NOT_DIGIT: c.CATEGORY_DIGIT,
    c.CATEGORY_NOT_SPACE: c.CATEGORY_SPACE,
    c.CATEGORY_NOT_WORD: c.CATEGORY_WORD,
}
_ONE = {c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN}


def steps(pattern, text, *, searches=True):
    """Return how many steps it takes to find all matches, or to match from the beginning."""
    matcher = _Matcher(text)
    tree = list(_parser.parse(pattern.pattern, pattern.flags))
    caseless = bool(pattern.flags & re.IGNORECASE)
    at = 0
    while at <= len(text):
        end = next(matcher.run(tree, 0, at, caseless), None)
        if not searches:
            break
        at = at + 1 if end is None else max(end, at + 1)
    return matcher.count


class _Matcher:
    """Matches as Python's engine does: depth first, with backtracking."""

    def __init__(self, text):
        self.text, self.count = text, 0

    def run(self, nodes, first, at, caseless):  # noqa: C901, PLR0912 (a case for each operation)
        """Yield each end of a match of the nodes that begins at a place."""
        if first == len(nodes):
            yield at
            return
        self.count += 1
        operation, argument = nodes[first]

        def rest(at):
            return self.run(nodes, first + 1, at, caseless)

        if operation in _ONE:
            if at < len(self.text) and self._is(operation, argument, self.text[at], caseless):
                yield from rest(at + 1)
        elif operation is c.MAX_REPEAT:
            least, most, body = argument
            body = list(body)
            if len(body) == 1 and body[0][0] in _ONE:
                yield from self._run_of_one(body[0], least, most, at, caseless, rest)
            else:
                yield from self._repeat(body, 0, least, most, at, caseless, rest)
        elif operation is c.SUBPATTERN:
            _, on, off, body = argument
            inside = (caseless or bool(on & re.IGNORECASE)) and not off & re.IGNORECASE
            for end in self.run(list(body), 0, at, inside):
                yield from rest(end)
        elif operation is c.BRANCH:
            for body in argument[1]:
                for end in self.run(list(body), 0, at, caseless):
                    yield from rest(end)
        elif operation in {c.ASSERT, c.ASSERT_NOT}:
            direction, body = argument
            begin = at if direction > 0 else at - body.getwidth()[0]
            found = begin >= 0 and any(True for _ in self.run(list(body), 0, begin, caseless))
            if found == (operation is c.ASSERT):
                yield from rest(at)
        elif operation is c.AT:
            if self._is_at(argument, at):
                yield from rest(at)
        else:
            raise NotImplementedError(operation)

    def _run_of_one(self, node, least, most, at, caseless, rest):
        end = at
        while end < len(self.text) and end - at < most:
            self.count += 1
            if not self._is(*node, self.text[end], caseless):
                break
            end += 1
        for place in range(end, at + least - 1, -1):
            self.count += 1
            yield from rest(place)

    def _repeat(self, body, times, least, most, at, caseless, rest):
        if times < most:
            for end in self.run(body, 0, at, caseless):
                if end > at:
                    yield from self._repeat(body, times + 1, least, most, end, caseless, rest)
        if times >= least:
            yield from rest(at)

    def _is(self, operation, argument, letter, caseless):
        if operation is c.ANY:
            return letter != "\n"
        if operation in {c.LITERAL, c.NOT_LITERAL}:
            return self._is_in([(c.LITERAL, argument)], letter, caseless) == (
                operation is c.LITERAL
            )
        is_negated = argument[0][0] is c.NEGATE
        return self._is_in(argument[is_negated:], letter, caseless) != is_negated

    def _is_in(self, allowed, letter, caseless):
        letters = {letter.lower(), letter.upper()} if caseless else {letter}
        for operation, argument in allowed:
            if operation is c.CATEGORY:
                known = _CATEGORIES[_NOT.get(argument, argument)]
                if known(letter) != (argument in _NOT):
                    return True
            else:
                low, high = argument if operation is c.RANGE else (argument, argument)
                if any(low <= ord(each) <= high for each in letters):
                    return True
        return False

    def _is_at(self, argument, at):
        text = self.text
        if argument in {c.AT_BEGINNING, c.AT_BEGINNING_STRING}:
            return at == 0
        if argument is c.AT_END_STRING:
            return at == len(text)
        if argument is c.AT_END:
            return text[at:] in {"", "\n"}
        is_word = _CATEGORIES[c.CATEGORY_WORD]
        before = at > 0 and is_word(text[at - 1])
        after = at < len(text) and is_word(text[at])
        return (before != after) == (argument is c.AT_BOUNDARY)
