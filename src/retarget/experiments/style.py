"""How every figure looks."""

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
import matplotlib.colors
from matplotlib.axes import Axes

# For the values of a parameter that is swept (gamma, eta, batch): light to dark.
SWEEP_COLOURS = ("#56B4E9", "#0072B2", "#1B2A49")
SWEEP_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def sweep_styles(count: int) -> list[tuple[str, str]]:
    """A colour and a mark for each of so many values."""
    shades = mpl.colors.LinearSegmentedColormap.from_list("sweep", SWEEP_COLOURS)
    return [
        (
            mpl.colors.to_hex(shades(place / max(1, count - 1))),
            SWEEP_MARKERS[place % len(SWEEP_MARKERS)],
        )
        for place in range(count)
    ]


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for all our figures; independent of the user's own."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.use("agg")
        mpl.rcParams.update(
            {
                "font.size": 9,
                "axes.titlesize": 10,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "legend.frameon": False,
                "legend.fontsize": 8,
                "figure.dpi": 100,
                "savefig.dpi": 200,
                "figure.constrained_layout.use": True,
                "pdf.fonttype": 42,
            }
        )
        yield


def legend_below(axes: Axes) -> None:
    """The legend under the panel, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def letter(axes: Axes, name: str, title: str) -> None:
    """The panel's letter and title, above it on the left."""
    axes.set_title(f"$\\bf{{{name}}}$   {title}", loc="left")
