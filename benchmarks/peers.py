"""What other libraries and retarget say about the same rows, where both can be run.

    pip install . "cleanlab[datalab]" capymoa gpytorch scikit-learn-intelex    # CapyMOA needs Java
    python benchmarks/peers.py cleanlab capymoa gpytorch intelex retarget
    pip install evidently nannyml "pandas<3"    # in an environment of their own
    NML_DISABLE_USAGE_LOGGING=1 DO_NOT_TRACK=1 python benchmarks/peers.py evidently nannyml

The rows are scikit-learn's handwritten digits, shuffled or one class after the other, except for
the two libraries that solve the same equations: there both solve them, on generated rows.
"""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
X = images / 16
shuffled = np.random.default_rng(0).permutation(len(X))
ORDERS = {
    "shuffled": shuffled,
    "class by class": shuffled[np.argsort(labels[shuffled], kind="stable")],
}
COLUMNS = [f"pixel {i}" for i in range(X.shape[1])]


def retarget() -> None:
    """The verdict of the diagnosis."""
    import retarget as rt

    for name, rows in ORDERS.items():
        diagnosis = rt.diagnose(X[rows], labels[rows].astype(str))
        print(f"retarget, {name}: {diagnosis.verdict.kind}")


def cleanlab() -> None:
    """Are the rows independent draws?"""
    from cleanlab import Datalab

    for name, rows in ORDERS.items():
        lab = Datalab(data={"y": labels[rows]}, label_name="y", verbosity=0)
        lab.find_issues(features=X[rows], issue_types={"non_iid": {}})
        print(f"cleanlab, {name}: non_iid, p = {lab.get_info('non_iid')['p-value']:.2f}")


def evidently() -> None:
    """How many columns are distributed differently in the second half?"""
    import pandas as pd
    from evidently import Report
    from evidently.presets import DataDriftPreset

    for name, rows in ORDERS.items():
        table = pd.DataFrame(X[rows], columns=COLUMNS)
        report = Report([DataDriftPreset()]).run(table.iloc[900:], table.iloc[:900])
        drifted = report.dict()["metrics"][0]["value"]
        print(f"Evidently, {name}: {drifted['count']:.0f} of {len(COLUMNS)} columns drifted")


def nannyml() -> None:
    """In how many of the second half's portions of 150 rows does a column raise an alert?"""
    import nannyml
    import pandas as pd

    for name, rows in ORDERS.items():
        table = pd.DataFrame(X[rows], columns=COLUMNS)
        table = table.loc[:, table.nunique() > 1]
        drift = nannyml.UnivariateDriftCalculator(column_names=list(table), chunk_size=150)
        drift.fit(table.iloc[:900])
        found = drift.calculate(table.iloc[900:]).filter(period="analysis").to_df()
        alerts = found[[column for column in found if column[-1] == "alert"]].to_numpy(float)
        print(f"NannyML, {name}: alerts in {alerts.mean():.0%} of columns and portions")


def capymoa() -> None:
    """The accuracy on 497 rows after 1,300 others were learned one by one."""
    from capymoa.classifier import KNN, AdaptiveRandomForestClassifier, HoeffdingTree, NaiveBayes
    from capymoa.stream import NumpyStream

    def stream(rows: np.ndarray) -> Any:
        return NumpyStream(X[rows], labels[rows], target_type="categorical")

    test = np.arange(1300, len(X))
    schema = stream(test).get_schema()
    for model in (NaiveBayes, HoeffdingTree, KNN, AdaptiveRandomForestClassifier):
        for name, rows in ORDERS.items():
            learner, learned, right = model(schema), stream(rows[rows < 1300]), 0
            while learned.has_more_instances():
                learner.train(learned.next_instance())
            asked = stream(test)
            while asked.has_more_instances():
                row = asked.next_instance()
                right += learner.predict(row) == row.y_index
            print(f"CapyMOA's {model.__name__}, {name}: accuracy {right / len(test):.2f}")


def intelex() -> None:
    """The same ridge regression, fed in portions of 1,000 rows: predictions and CPU time."""
    from sklearnex.linear_model import IncrementalRidge

    import retarget as rt

    random = np.random.default_rng(0)
    rows = random.normal(size=(100_000, 200))
    targets = rows @ random.normal(size=200) + random.normal(size=len(rows))

    def fed(make: Callable[[], Any]) -> tuple[float, np.ndarray]:
        start, model = time.process_time(), make()
        for i in range(0, len(rows), 1000):
            model.partial_fit(rows[i : i + 1000], targets[i : i + 1000])
        predictions = model.predict(rows[:100])
        return time.process_time() - start, predictions

    ratios = []
    for _ in range(6):
        theirs, their_predictions = fed(lambda: IncrementalRidge(alpha=2.0))
        ours, our_predictions = fed(lambda: rt.StreamingRidgeRegressor(gamma=2.0))
        ratios.append(ours / theirs)
    gap = np.abs(our_predictions - their_predictions).max() / np.abs(their_predictions).max()
    times = f"{np.median(ratios[1:]):.1f} times the CPU time"
    print(f"IncrementalRidge and ours: {gap:.0e} apart; ours takes {times}")


def gpytorch() -> None:
    """A Gaussian process's mean is the offline learner of its kernel; the noise is the ridge."""
    import gpytorch
    import torch

    import retarget as rt

    random = np.random.default_rng(0)
    rows, queries = random.uniform(-2, 2, (1000, 2)), random.uniform(-2, 2, (100, 2))
    targets = np.sin(2 * rows[:, 0]) + rows[:, 1] ** 2 + 0.1 * random.normal(size=1000)
    width, gamma = 1.0, 0.1

    class Process(gpytorch.models.ExactGP):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, rows: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            mean, covariance = self.mean_module(rows), self.covar_module(rows)
            return gpytorch.distributions.MultivariateNormal(mean, covariance)

    noise = gpytorch.likelihoods.GaussianLikelihood().double()
    noise.noise = gamma
    process = Process(torch.tensor(rows), torch.tensor(targets), noise).double()
    process.covar_module.lengthscale = width / 2**0.5  # exp(-d²/(2 l²)) is our exp(-d²/width²)
    process.eval()
    kernel = rt.RBF(width=width)
    ours = kernel(queries, rows) @ rt.offline_coefficients(kernel(rows), targets, gamma)
    for name, fast in (("conjugate gradients, its default", True), ("a Cholesky factor", False)):
        process.train().eval()  # forgets what it has solved
        with torch.no_grad(), gpytorch.settings.fast_computations(fast, fast, fast):
            theirs = process(torch.tensor(queries)).mean.numpy()
        print(f"GPyTorch, by {name}: {np.abs(theirs - ours).max():.0e} from the offline learner")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for library in sys.argv[1:]:
        globals()[library]()
