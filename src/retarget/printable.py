"""Text from files and file names, made fit for a terminal."""

from rich.console import Console
from rich.markup import escape


def printable(text: str) -> str:
    r"""Text on one line, without what a terminal would take as a command, or cannot show.

    Example:
        >>> printable("red\x1b[31m, a line\n, a byte that is no text \udcff")
        'red·[31m, a line·, a byte that is no text ·'
    """
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def show_error(error: Exception | str) -> None:
    """One line, on the error stream."""
    lines = "\n".join(printable(line) for line in str(error).splitlines())
    shown = f"[bold red]Error:[/bold red] {escape(lines)}"
    Console(stderr=True, emoji=False).print(shown, highlight=False, soft_wrap=True)
