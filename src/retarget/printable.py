"""Text from files and file names, made fit for a terminal."""


def printable(text: str) -> str:
    r"""Text on one line, without what a terminal would take as a command, or cannot show.

    Example:
        >>> printable("red\x1b[31m, a line\n, a byte that is no text \udcff")
        'red·[31m, a line·, a byte that is no text ·'
    """
    return "".join(letter if letter.isprintable() else "·" for letter in text)
