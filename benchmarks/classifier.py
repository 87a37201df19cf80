"""Ridge classifiers: which kernel, which features of a network, and what is rejected.

$ python benchmarks/classifier.py                          # data that scikit-learn brings along
$ pip install ".[text,figures]" && retarget data get banking77 && retarget data get clinc150
$ python benchmarks/classifier.py --sentences              # and embeddings of all-MiniLM-L6-v2
$ python benchmarks/classifier.py --network                # the whole rt.TangentClassifier

Accuracies and areas under curves are the same on every machine, up to the last digit; only
`--network` prints seconds, of the CPU. Tables of numbers are learned in their order and asked about
held-out rows. Embeddings and tangents are computed once and cached, about 20 ms of one core for
each sentence. For the last table, three quarters of Banking77's test sentences are learned.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.preprocessing import StandardScaler

import retarget as rt
from retarget.kernels.network_map import output_features
from retarget.lab.data.banking77 import LabeledTexts, load_banking77
from retarget.lab.data.clinc150 import load_clinc150
from retarget.lab.data.minilm import embeddings, load_minilm, minilm_folder, tangents
from retarget.streaming.ridge.calibration import expected_calibration_error, score_of

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
FEATURES = 4096


def bundled(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Split:
    """Three quarters of a table to learn, scaled, and the rest."""
    X, y = load(return_X_y=True)
    learned, held_out, own, true = train_test_split(X, y, random_state=0, stratify=y)
    scaler = StandardScaler().fit(learned)
    return scaler.transform(learned), scaler.transform(held_out), own, true


def embedded(learned: LabeledTexts, held_out: LabeledTexts) -> Split:
    """Sentences to learn, and others, as embeddings."""
    samples = [embeddings(part.texts).astype(np.float64) for part in (learned, held_out)]
    return (*samples, np.array(learned.intents), np.array(held_out.intents))


def compare_kernels(name: str, split: Split) -> None:
    """Prints accuracy and the error of calibration of the two usual kernels."""
    learned, held_out, own, true = split
    for kernel, features in (("linear", 1024), ("rbf", 1024), ("rbf", FEATURES)):
        model = rt.StreamingRidgeClassifier(kernel, features=features).fit(learned, own)
        probabilities = model.predict_proba(held_out)
        right = model.classes_[probabilities.argmax(1)] == true
        error = expected_calibration_error(probabilities, right)
        size = learned.shape[1] if kernel == "linear" else features
        print(f"{name:>14} {kernel:>7} {size:5} features: {right.mean():.3f}, ECE {error:.3f}")


def compare_scores(
    name: str, model: rt.StreamingRidgeClassifier, known: np.ndarray, unknown: np.ndarray
) -> None:
    """Prints how well three scores tell unknown samples from known ones, and what is rejected."""
    outputs = []
    spreads = []
    for samples in (known, unknown):
        features = model.learner_.prepare(samples)
        outputs.append(torch.from_numpy(model.learner_.predict(features)))
        spreads.append(model.learner_.spread(features))
    is_known = np.r_[np.ones(len(known)), np.zeros(len(unknown))]
    both = torch.cat(outputs)
    spread = torch.cat(spreads)
    for score, values in (
        ("largest output", both.amax(1)),
        ("variance", -spread),
        ("output / deviation", score_of(both, spread)),
    ):
        print(f"{name:>14} {score:>20}: AUROC {roc_auc_score(is_known, values.numpy()):.3f}")
    shares = [
        np.mean([label is None for label in model.predict(samples, reject=0.05)])
        for samples in (known, unknown)
    ]
    print(f"{name:>14} reject=.05: {shares[0]:.3f} of the known, {shares[1]:.3f} of the unknown")


def unknown_classes(name: str, split: Split) -> None:
    """Twenty classes are not learned, in three draws."""
    learned, held_out, own, true = split
    for seed in range(3):
        left_out = np.random.default_rng(seed).choice(np.unique(own), 20, replace=False)
        rows = ~np.isin(own, left_out)
        model = rt.StreamingRidgeClassifier("rbf", features=FEATURES).fit(learned[rows], own[rows])
        new = np.isin(true, left_out)
        compare_scores(f"{name} {seed}", model, held_out[~new], held_out[new])


def compare_features(name: str, sentences: LabeledTexts) -> None:
    """Tangents, random features of the outputs, one ridge on both, and the mean of two."""
    outputs = torch.from_numpy(embeddings(sentences.texts)).double()
    labels = np.array(sentences.intents)

    def tangent_features(count: int) -> torch.Tensor:
        rows = torch.from_numpy(tangents(sentences.texts, count)).double()
        return torch.nn.functional.normalize(rows, dim=1)

    half = FEATURES // 2
    kinds = {
        "outputs": output_features(outputs, FEATURES, 0),
        "tangents": tangent_features(FEATURES),
        "both, half of each": torch.cat(
            [tangent_features(half), output_features(outputs, half, 0)], 1
        ),
    }
    answers: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    true = []
    for rows, rest in StratifiedKFold(4, shuffle=True, random_state=0).split(outputs, labels):
        true.append(labels[rest])
        for kind, features in kinds.items():
            model = rt.StreamingRidgeClassifier(calibration=0).fit(features[rows], labels[rows])
            answers[kind].append(model.decision_function(features[rest]))
    names = np.unique(labels)
    scores = {kind: np.concatenate(each) for kind, each in answers.items()}
    scores["mean of two"] = scores["outputs"] + scores["tangents"]
    for kind, each in scores.items():
        right = names[each.argmax(1)] == np.concatenate(true)
        print(f"{name:>14} {kind:>20}: {right.mean():.4f}", flush=True)


def intent_by_intent() -> None:
    """The classifier with its defaults, taught one intent of Banking77 after the other."""
    from transformers import AutoTokenizer

    train, test = load_banking77()
    intents = np.array(train.intents)
    network = load_minilm()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = rt.TangentClassifier(network, prepare=tokenizer, params="network.encoder")
    clock = time.process_time()
    for name in np.random.default_rng(0).permutation(np.unique(intents)):
        texts = [train.texts[row] for row in np.flatnonzero(intents == name)]
        model.partial_fit(texts, [name] * len(texts))
    learned = time.process_time() - clock
    clock = time.process_time()
    model.predict(test.texts[:1])
    solved = time.process_time() - clock
    probabilities = model.predict_proba(test.texts)
    right = model.classes_[probabilities.argmax(1)] == np.array(test.intents)
    rejected = np.mean([label is None for label in model.predict(test.texts, reject=0.05)])
    print(
        f"accuracy {right.mean():.4f}, ECE {expected_calibration_error(probabilities, right):.3f}, "
        f"reject=.05: {rejected:.3f}, gamma {model.gamma_:.3g}, {model.nbytes / 1e6:.0f} MB, "
        f"learned in {learned:.0f} s, solved in {solved:.0f} s"
    )


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", action="store_true", help="all-MiniLM-L6-v2")
    parser.add_argument("--network", action="store_true", help="rt.TangentClassifier alone")
    options = parser.parse_args()
    if options.network:
        intent_by_intent()
        return
    tables = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
    for name, load in tables.items():
        compare_kernels(name, bundled(load))
    if not options.sentences:
        return
    train, test = load_banking77()
    banking77 = embedded(train, test)
    requests = load_clinc150()
    clinc150 = embedded(requests.train, requests.test)
    compare_kernels("banking77", banking77)
    compare_kernels("clinc150", clinc150)
    unknown_classes("banking77", banking77)
    learned, held_out, own, _ = clinc150
    model = rt.StreamingRidgeClassifier("rbf", features=FEATURES).fit(learned, own)
    unknown = embeddings(requests.out_of_scope.texts).astype(np.float64)
    compare_scores("clinc150", model, held_out, unknown)
    compare_features("banking77", test)


if __name__ == "__main__":
    main()
