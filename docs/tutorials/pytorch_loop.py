"""The correction in a PyTorch loop: one more line per task."""

from retarget.errors import require_extra

require_extra("this notebook", "explore", "marimo")
import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    # Corrected targets in a PyTorch loop

    A small network learns ten digits, two at a time, and sees each image once. Trained on the true
    labels, it forgets. Before each task, a `NetworkCorrector` computes corrected targets; the loop
    stays as it is.
    """)
    return


@app.cell
def _():
    import marimo as mo
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    import retarget as rt

    pixels, digit = (torch.from_numpy(_array) for _array in load_digits(return_X_y=True))
    X, Y = pixels.float() / 16, nn.functional.one_hot(digit, 10).float()
    held_out = torch.arange(len(X)) % 4 == 0  # every fourth image
    return X, Y, digit, held_out, mo, nn, rt, torch


@app.cell(hide_code=True)
def _(mo):
    mo.md(r"""
    The corrector must know the optimizer. `reduction` matters: a mean over the mini-batch, as
    here, takes the same steps as a sum with the rate divided by the batch size.
    """)
    return


@app.cell
def _(X, Y, digit, held_out, nn, rt, torch):
    rate, batch = 0.1, 4

    def train(corrected):
        """Accuracy on all ten digits after each of the five tasks."""
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(64, 500, bias=False), nn.ReLU(), nn.Linear(500, 10, bias=False)
        )
        optimizer = torch.optim.SGD(network.parameters(), lr=rate)
        learner = rt.SGD(rate, batch_size=batch, reduction="mean")
        corrector = rt.NetworkCorrector(network, learner)
        history = []
        for task in range(5):
            mine = ~held_out & (digit // 2 == task)
            inputs, targets = X[mine], Y[mine]
            if corrected:
                targets = corrector.correct(inputs, targets)  # the one line
            for x, target in zip(inputs.split(batch), targets.split(batch), strict=True):
                optimizer.zero_grad()
                loss = (network(x) - target).square().sum(1).mean() / 2
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                right = network(X[held_out]).argmax(1) == digit[held_out]
            history.append(right.float().mean().item())
        return history

    return (train,)


@app.cell
def _(train):
    accuracies = {"true labels": train(corrected=False), "corrected": train(corrected=True)}
    for _name, _history in accuracies.items():
        print(f"{_name:>12}:", " ".join(f"{_value:.2f}" for _value in _history))
    return (accuracies,)


@app.cell(hide_code=True)
def _(accuracies, mo):
    mo.md(rf"""
    After {len(accuracies["corrected"])} tasks the network gets
    **{accuracies["true labels"][-1]:.0%}** of all test images right if trained on true labels,
    and **{accuracies["corrected"][-1]:.0%}** on corrected targets, with the same rate and number
    of steps. How much targets are changed is tried out in each task; see docs/continual.md.
    """)
    return


if __name__ == "__main__":
    app.run()
