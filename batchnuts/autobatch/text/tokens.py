"""Lines of program text as tokens, and the errors that point into them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import NoReturn

from batchnuts.autobatch.errors import ProgramTextError, Source
from batchnuts.autobatch.ir.printer import PLAIN_NAME

TEXT = "<program text>"

_TOKEN = re.compile(
    rf"""(?P<name>{PLAIN_NAME.pattern})
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<sign>->|[,:=()\[\]*])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:([\\{}])|([ntr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})|(.?))")


@dataclass(frozen=True)
class Token:
    """kind is "name", "string", "braced", "sign" or "end"; a string's and a braced text's value is without escapes."""

    kind: str
    value: str
    column: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the line"
        return f"{{{self.value}}}" if self.kind == "braced" else repr(self.value)


class Line:
    """The tokens of one line, taken one after another."""

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        self.number = number
        self.tokens = self._split()
        self.position = 0

    def _split(self) -> list[Token]:
        tokens = []
        column = 0
        while column < len(self.text) and self.text[column] != "#":
            if self.text[column].isspace():
                column += 1
            elif self.text[column] == "{":
                token, column = self._braced(column)
                tokens.append(token)
            else:
                match = _TOKEN.match(self.text, column)
                if match is None:
                    if self.text[column] in "'\"":
                        self.fail(column, "this string does not end on its line")
                    self.fail(column, f"found {self.text[column]!r}; put names with such characters in quotes")
                kind = str(match.lastgroup)
                value = match.group()
                tokens.append(Token(kind, self._unquoted(value, column) if kind == "string" else value, column))
                column = match.end()
        tokens.append(Token("end", "", column))
        return tokens

    def _unquoted(self, quoted: str, column: int) -> str:
        try:
            return str(ast.literal_eval(quoted))
        except (SyntaxError, ValueError):
            self.fail(column, f"found {quoted}, which is not a Python string")

    def _braced(self, start: int) -> tuple[Token, int]:
        depth = 0
        column = start
        while column < len(self.text):
            character = self.text[column]
            if character == "\\":
                column += 1
            depth += (character == "{") - (character == "}")
            column += 1
            if depth == 0:
                return Token("braced", self._unescaped(self.text[start + 1 : column - 1], start + 1), start), column
        self.fail(start, "this brace is not closed on its line")

    def _unescaped(self, text: str, start: int) -> str:
        def plain(match: re.Match[str]) -> str:
            itself, code, _ = match.groups()
            if itself:
                return str(itself)
            if not code:
                self.fail(start + match.start(), "write a backslash within braces twice")
            return str(ast.literal_eval(f"'\\{code}'"))

        return _ESCAPE.sub(plain, text)

    # ---- taking tokens ------------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> Token:
        """A token that is still to be taken; after the last one only the end."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        """The next token."""
        token = self.peek()
        self.position += 1
        return token

    def next_is(self, sign: str, ahead: int = 0) -> bool:
        """Whether that sign comes next."""
        token = self.peek(ahead)
        return token.kind == "sign" and token.value == sign

    def word(self, *words: str) -> bool:
        """Whether one of these unquoted names comes next."""
        token = self.peek()
        return token.kind == "name" and token.value in words

    def accept(self, sign: str) -> bool:
        """Take the sign if it comes next."""
        is_next = self.next_is(sign)
        self.position += is_next
        return is_next

    def expect(self, sign: str) -> None:
        """Take the sign, which has to come next."""
        if not self.accept(sign):
            self.unexpected(repr(sign))

    def name(self, expected: str) -> str:
        """Take a name, quoted or not."""
        if self.peek().kind not in ("name", "string"):
            self.unexpected(expected)
        return self.take().value

    def names(self, expected: str) -> tuple[str, ...]:
        """Take names with commas between them, as many as there are."""
        names: list[str] = []
        if self.peek().kind in ("name", "string"):
            names.append(self.name(expected))
            while self.accept(","):
                names.append(self.name(expected))
        return tuple(names)

    def skip_text(self, start: int, text: str) -> bool:
        """Whether `text` stands at that column, up to the end of a token; if so, take all its tokens."""
        stop = start + len(text)
        after = [i for i, token in enumerate(self.tokens) if token.column >= stop]
        whole = self.tokens[after[0] - 1].column < stop and self.text[stop : stop + 1] in ("", " ")
        if not whole or not self.text.startswith(text, start):
            return False
        self.position = after[0]
        return True

    def end(self, expected: str = "the end of the line") -> None:
        """Nothing may be left."""
        if self.peek().kind != "end":
            self.unexpected(expected)

    def unexpected(self, expected: str) -> NoReturn:
        """Raise about the next token."""
        self.fail(self.peek().column, f"found {self.peek()}, expected {expected}")

    def fail(self, column: int, message: str) -> NoReturn:
        """Raise with the place in this line; line 0 is a type on its own."""
        if self.number == 0:
            raise ProgramTextError(f"type {self.text!r}, column {column + 1}: {message}.")
        raise ProgramTextError(f"{Source(TEXT, self.number, column, self.text)}\n{message}.")
