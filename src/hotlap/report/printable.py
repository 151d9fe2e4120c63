"""Escapes control characters of what a script printed, before it is shown."""

_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""Return the text with control characters escaped, for anything that comes from a script.

    Newlines and tabs stay. What could move the cursor, recolour the terminal or turn the direction
    of writing does not.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(letter if _is_harmless(letter) else _escape(letter) for letter in text)


def _is_harmless(letter: str) -> bool:
    return letter in _KEPT or letter.isprintable() or (letter.isspace() and ord(letter) > 0x9F)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
