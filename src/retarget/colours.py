"""One colour a learner, in every figure and page, told apart by every eye."""

# Okabe and Ito's colours, distinguishable with any colour vision (jfly.uni-koeln.de/color).
COLOURS = {
    "truth": "#999999",
    "offline": "#0072B2",
    "online": "#E69F00",
    "corrected": "#009E73",
    "iterative": "#D55E00",
    "one step": "#CC79A7",
}
