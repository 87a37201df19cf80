"""The shift and its correction on a curve: Fig. 1, to play with."""

from retarget.errors import require_extra

require_extra("this notebook", "explore,figures", "marimo", "matplotlib")
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # What an online learner really learns

    Forty noisy samples of a smooth curve come one by one. An **offline** learner sees them all at
    once (kernel ridge regression). An **online** learner takes one gradient step on each, once.

    They end up with different functions. But the online learner's function is also what the
    offline learner would have learned from *other targets*, the **effective targets**. Their
    distance from the true ones is the **shift**.
    """)
    return


@app.cell
def _():
    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np

    import retarget as rt
    from retarget.lab.data.toy import GRID, WIDTH, toy_curve

    return GRID, WIDTH, mo, np, plt, rt, toy_curve


@app.cell
def _(mo):
    lr = mo.ui.slider(0.1, 1.9, 0.1, value=0.5, label="rate", show_value=True)
    gamma = mo.ui.slider(0.1, 3.0, 0.1, value=1.0, label="ridge", show_value=True)
    order = mo.ui.dropdown(["as drawn", "left to right"], value="as drawn", label="order")
    mo.hstack([lr, gamma, order])
    return gamma, lr, order


@app.cell
def _(GRID, WIDTH, np, order, rt, toy_curve):
    toy = toy_curve(seed=69)
    stream = np.arange(40) if order.value == "as drawn" else np.argsort(toy.x_train)
    x, y = toy.x_train[stream], toy.y_train[stream]
    kernel = rt.RBF(WIDTH)
    K = kernel(x)  # samples are rows, in the order in which they are learned
    K_grid = kernel(GRID, x)
    return K, K_grid, x, y


@app.cell
def _(K, K_grid, gamma, lr, rt, y):
    learner = rt.SGD(lr=lr.value)
    offline = K_grid @ rt.offline_coefficients(K, y, gamma.value)
    online = K_grid @ rt.online_coefficients(K, y, learner)
    effective = rt.effective_targets(K, y, learner, gamma.value)
    return effective, learner, offline, online


@app.cell
def _(GRID, effective, offline, online, plt, x, y):
    shift_figure, _axes = plt.subplots(figsize=(7, 3.8))
    _axes.plot(GRID, offline, color="#0072B2", label="offline")
    _axes.plot(GRID, online, color="#E69F00", label="online")
    _axes.vlines(x, y, effective, color="#E69F00", lw=0.7)
    _axes.plot(x, y, "o", color="#0072B2", ms=4, label="true targets")
    _axes.plot(x, effective, "x", color="#E69F00", label="effective targets")
    _axes.legend(frameon=False)
    shift_figure
    return


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    This is exact: train the offline learner on the effective targets, and you get the online
    learner's function, up to rounding.
    """)
    return


@app.cell
def _(K, K_grid, effective, gamma, np, online, rt, y):
    retrained = K_grid @ rt.offline_coefficients(K, effective, gamma.value)
    identity_gap = np.abs(retrained - online).max()
    mean_shift = np.abs(effective - y).mean()
    print(f"targets shifted by {mean_shift:.3f} on average")
    print(f"offline on effective targets - online: {identity_gap:.0e}")
    return identity_gap, mean_shift


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## The correction

    Now the other way round: on which targets would the *online* learner match the offline one? If
    they are computed from the whole stream, it matches exactly at the end, at any rate. The
    **iterative** form uses only the past and the current block, so it works as the stream comes
    in.
    """)
    return


@app.cell
def _(K, K_grid, gamma, learner, np, offline, online, rt, y):
    targets = {
        "exact": rt.corrected_targets(K, y, learner, gamma.value),
        "iterative": rt.iterative_targets(K, y, learner, gamma.value, block_size=8, ridge=0.1),
    }
    distances = {"uncorrected": np.sqrt(np.mean((online - offline) ** 2))}
    for _name, _z in targets.items():
        _curve = K_grid @ rt.online_coefficients(K, _z, learner)
        distances[_name] = np.sqrt(np.mean((_curve - offline) ** 2))
    for _name, _distance in distances.items():
        print(f"online learner, {_name}: {_distance:.3f} from the offline learner")
    return (distances,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    Set the order to *left to right* and the rate to 1: the stream drifts, early samples are
    overwritten, and their effective targets show by how much. To drag points and watch step by
    step, use `retarget explore`. The formulas are in docs/theory.md.
    """)
    return


if __name__ == "__main__":
    app.run()
