"""What each learner is called and which colour it has, in every figure, table and page."""

LABELS = {
    "offline": "offline",
    "online": "online",
    "corrected": "online, exactly corrected",
    "iterative": "online, iteratively corrected",
}
# Okabe and Ito's colours, distinguishable with any colour vision (jfly.uni-koeln.de/color).
COLOURS = {
    "truth": "#999999",
    "offline": "#0072B2",
    "online": "#E69F00",
    "corrected": "#009E73",
    "iterative": "#D55E00",
    "one step": "#CC79A7",
}
