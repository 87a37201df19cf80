"""A stream of your own: the embedded digits, class by class, instead of your file."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # Your own stream

    You have rows in time order and a model that learned from each of them once. Three arrays are
    all you need: features `X`, targets `Y` (one-hot for classes), both in the order of learning,
    and a kernel that says which rows are alike. Here the rows are 1,348 images of digits: all
    zeros first, then all ones, and so on. Put your own arrays in the next cell.
    """)
    return


@app.cell
def _():
    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np

    import retarget as rt
    from retarget.engine.losses import one_hot
    from retarget.lab.data.digits import digits_stream

    digits = digits_stream(seed=0)
    X, labels = digits.x_train, digits.labels_train
    Y = one_hot(labels, 10)
    X_test, labels_test = digits.x_test, digits.labels_test
    return X, X_test, Y, labels, labels_test, mo, np, plt, rt


@app.cell
def _(X, X_test, rt):
    kernel = rt.RBF(width=4.0)
    learner = rt.SGD(lr=0.1)  # describes your optimizer; batch_size, momentum... go here too
    gamma = 1.0  # ridge of the batch model that you compare with
    K, K_test = kernel(X), kernel(X_test, X)
    return K, K_test, gamma, kernel, learner


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## How far is it from the batch model?

    One call per learner gives its coefficients. A prediction is the kernel between queries and
    stream, times the coefficients.
    """)
    return


@app.cell
def _(K, K_test, Y, gamma, labels_test, learner, np, rt):
    coefficients = {
        "offline": rt.offline_coefficients(K, Y, gamma),
        "online": rt.online_coefficients(K, Y, learner),
    }
    accuracy = {
        _name: np.mean((K_test @ _A).argmax(axis=1) == labels_test)
        for _name, _A in coefficients.items()
    }
    for _name, _value in accuracy.items():
        print(f"{_name}: {_value:.1%} of the test images right")
    return (accuracy,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Which rows were overwritten?

    The effective targets show what the learner really learned from each row. For an image of a
    zero, the target of the output "zero" was 1. The picture shows, for each class, the mean
    effective target of each output. The diagonal is what it remembers; the last column is what the
    nines, learned last, replaced it with.
    """)
    return


@app.cell
def _(K, Y, gamma, labels, learner, np, plt, rt):
    effective = rt.effective_targets(K, Y, learner, gamma)
    shift = np.linalg.norm(effective - Y, axis=1)
    class_means = np.array([effective[labels == _k].mean(axis=0) for _k in range(10)])
    class_shift = np.array([shift[labels == _k].mean() for _k in range(10)])
    print("shift by class:", " ".join(f"{_value:.2f}" for _value in class_shift))
    shift_figure, _axes = plt.subplots(figsize=(4.6, 3.8))
    _bound = np.abs(class_means).max()
    _image = _axes.imshow(class_means, cmap="RdBu", vmin=-_bound, vmax=_bound)
    _axes.set(xlabel="output", ylabel="true class, in order of arrival")
    shift_figure.colorbar(_image, label="mean effective target")
    shift_figure
    return class_means, class_shift, effective


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    ## Would corrected targets have helped?

    The exact ones need the whole stream in advance. A `TargetCorrector` computes causal ones
    as the stream comes in, in portions of any size; train your model on what it returns.
    """)
    return


@app.cell
def _(K, K_test, X, Y, gamma, kernel, labels_test, learner, np, rt):
    exact = rt.corrected_targets(K, Y, learner, gamma)
    corrector = rt.TargetCorrector(kernel, learner, gamma, block_size=32)
    portions = [corrector.correct(X[_i : _i + 50], Y[_i : _i + 50]) for _i in range(0, len(X), 50)]
    causal = np.concatenate([*portions, corrector.flush()])
    corrected_accuracy = {}
    for _name, _Z in {"exactly": exact, "as it comes in": causal}.items():
        _prediction = K_test @ rt.online_coefficients(K, _Z, learner)
        corrected_accuracy[_name] = np.mean(_prediction.argmax(axis=1) == labels_test)
        print(f"online, corrected {_name}: {corrected_accuracy[_name]:.1%}")
    return (corrected_accuracy,)


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    From the command line, for a file and with a report: `retarget diagnose FILE --target COL`.
    """)
    return


if __name__ == "__main__":
    app.run()
