"""Fig. 8: a pretrained network of sentences learns new intents, one after another."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field
from rich.console import RenderableType
from rich.filesize import decimal
from torch import Tensor
from torch.nn import functional

from retarget.errors import InvalidInputError
from retarget.kernels import Linear
from retarget.lab.data.banking77 import LabeledTexts, load_banking77
from retarget.lab.data.cache import data_set_checksums
from retarget.lab.data.clinc150 import load_clinc150
from retarget.lab.data.fetch import find_data_set
from retarget.lab.data.minilm import WEIGHTS_CHECKSUM, embeddings, tangents
from retarget.lab.experiment import Config, Count, Family, Positive, one_by_one
from retarget.lab.figures.intent_learners import (
    BASELINES,
    IntentStream,
    Ridge,
    kept_bytes,
    learn_ridge,
    random_relu,
    ranking_quality,
)
from retarget.lab.figures.over_seeds import (
    draw_band,
    figure_style,
    legend_below,
    letter,
    mean_and_error,
    sweep_styles,
    table_of_numbers,
)
from retarget.streaming.ridge.learner import StreamingRidge

Source = Literal["banking77", "clinc150"]
FOLDS = 5
# What is known of a run; a number that was not asked for is null.
COLUMNS = {
    "data": pl.String,
    "learner": pl.String,
    "test": pl.String,
    "sentences": pl.Int64,
    "bytes": pl.Int64,
    "intents": pl.Int64,
    "accuracy": pl.Float64,
    "auroc": pl.Float64,
    "auroc_std": pl.Float64,
    "forgotten": pl.Int64,
    "difference": pl.Float64,
    "seconds": pl.Float64,
    "seconds_again": pl.Float64,
}
REMEMBERS = 0.5  # the accuracy from which a learner is drawn in full
SMALLEST_VARIANCE = 1e-6  # of rows of length 1, in float32
KINDS = "ridge", "random features", "tangents"  # of rows
RIDGES = *KINDS, "both", "one ridge on both"


class Intents(Config):
    """One learner on one order of the intents.

    Attributes:
        part: What is asked: accuracy along the stream, or what forgetting an intent takes.
        learner: Ridge regression on the embeddings, on random ReLU features of them, on tangents,
            or on both (the mean of two predictions, or one ridge); or a baseline on the embeddings.
        step: Intents between two points of the curve.
        features: Random features, and tangents.
        gamma: The ridge; every row of features has length 1.
        intents: How many of the intents; None for all.
        per_intent: How many sentences of each, in both sets; None for all.
        fold: None for the official test set, or which fifth of the training set is the test.
        combinations: Of the network's outputs, for the tangents.
        device: Where tangents, and ridge regressions on them and other rows, are computed.
    """

    data: Source
    part: Literal["curve", "forgetting"] = "curve"
    learner: Literal[
        "ridge", "random features", "tangents", "both", "one ridge on both",
        "class means", "SLDA", "SGD", "logistic",
    ]  # fmt: skip
    step: Count
    features: Count = 8192
    gamma: Positive = 0.1
    intents: Count | None = None
    per_intent: Count | None = None
    fold: int | None = Field(default=None, ge=0, lt=FOLDS)
    combinations: Count = 1
    device: str = "cpu"


def intent_checksums(data: Source) -> Mapping[str, str]:
    """Returns the checksums of the sentences and of the network's weights."""
    return {"MiniLM": WEIGHTS_CHECKSUM, **data_set_checksums(find_data_set(data))}


class IntentData:
    """The chosen sentences of a data set, as numbers when they are needed.

    Attributes:
        names: The intents.
        parts: The texts of the training set, the test set, and those out of scope.
        intents: The intent of each text of the first two parts.
        learned: The rows to learn.
        asked: The rows to answer, whose intent is known.
        outside: The rows that are out of scope.
    """

    def __init__(
        self, data: Source, intents: int | None, per_intent: int | None, fold: int | None
    ) -> None:
        strangers: tuple[str, ...] = ()
        if data == "banking77":
            train, test = load_banking77()
        else:
            clinc = load_clinc150()
            train = clinc.train
            test = clinc.test
            strangers = clinc.out_of_scope.texts
        self.names = sorted(set(train.intents))[:intents]
        train, test = (_first(each, self.names, per_intent) for each in (train, test))
        if per_intent is not None:
            strangers = strangers[: 2 * per_intent]
        self.parts = train.texts, test.texts, strangers
        self.intents = np.array([*train.intents, *test.intents])
        ends = np.cumsum([len(texts) for texts in self.parts])
        self.learned = np.arange(ends[0])
        self.asked = np.arange(ends[0], ends[1])
        self.outside = np.arange(ends[1], ends[2])
        if fold is not None:
            places = _folds(train.intents)
            self.learned = np.flatnonzero(places != fold)
            self.asked = np.flatnonzero(places == fold)
            self.outside = self.outside[:0]

    def labels(self, seed: int) -> np.ndarray:
        """The place of each sentence's intent in the order that the seed draws."""
        order = np.random.default_rng(seed).permutation(len(self.names))
        place = {self.names[intent]: position for position, intent in enumerate(order)}
        return np.array([place[name] for name in self.intents])

    @property
    def text_bytes(self) -> int:
        """The size of the learned sentences."""
        return sum(len(self.parts[0][row].encode()) for row in self.learned)

    def embedded(self) -> Tensor:
        """(sentences, 384) the network's outputs for all parts, of length 1."""
        of_parts = [embeddings(texts) for texts in self.parts if texts]
        return torch.from_numpy(np.concatenate(of_parts))

    def rows(self, kind: str, features: int, combinations: int, device: str) -> Tensor:
        """(sentences, d) rows of length 1, of all parts."""
        if kind == "tangents":
            of_parts = [
                tangents(texts, features, combinations, device=device)
                for texts in self.parts
                if texts
            ]
            every = torch.from_numpy(np.concatenate(of_parts)).to(device)
            return functional.normalize(every, dim=1)
        embedded = self.embedded().to(device)
        return random_relu(embedded, features) if kind == "random features" else embedded


def stops(last: int, step: int) -> tuple[int, ...]:
    """After how many intents the queries are asked: every few, and at the end."""
    return (*range(step, last, step), last)


def _first(sentences: LabeledTexts, names: Sequence[str], per_intent: int | None) -> LabeledTexts:
    """The first few sentences of each of these intents."""
    taken = dict.fromkeys(names, 0)
    pairs = []
    for text, intent in zip(sentences.texts, sentences.intents, strict=True):
        if intent in taken and (per_intent is None or taken[intent] < per_intent):
            taken[intent] += 1
            pairs.append((text, intent))
    return LabeledTexts(tuple(text for text, _ in pairs), tuple(name for _, name in pairs))


def _folds(intents: Sequence[str]) -> np.ndarray:
    """Which fold each sentence is in: of every intent about equally many, drawn at random."""
    places = np.empty(len(intents), int)
    taken: dict[str, int] = {}
    for row in np.random.default_rng(0).permutation(len(intents)):
        taken[intents[row]] = taken.get(intents[row], -1) + 1
        places[row] = taken[intents[row]] % FOLDS
    return places


intent_data = lru_cache(maxsize=4)(IntentData)


def run(config: Intents) -> pl.DataFrame:
    """Computes accuracy after every few intents, or what it takes to forget one.

    Columns of a curve: intents, accuracy (on the queries of these intents), and at the end auroc
    and auroc_std (known against out of scope, by the largest score and by that over its standard
    deviation). Of forgetting: sentences, difference (to never having learned them, relative to the
    largest score), seconds (of forgetting and solving) and seconds_again (of learning all others).
    """
    data = intent_data(config.data, config.intents, config.per_intent, config.fold)
    stream, truth, rows = _stream(config, data)
    if config.part == "forgetting":
        if config.learner not in KINDS:
            raise InvalidInputError(
                f"learner is {config.learner!r} with part = 'forgetting'; expected one of "
                f"{', '.join(KINDS)}"
            )
        return _forgetting(config, data, stream, rows)
    variance = None
    if config.learner in RIDGES:
        scores, variance = _ridge_scores(config)
    else:
        scores = BASELINES[config.learner](stream, config.seed)
    width = stream.features.shape[1]
    known: dict[str, Any] = {
        "data": config.data,
        "learner": config.learner,
        "test": "official" if config.fold is None else "folds",
        "sentences": len(rows),
        "bytes": kept_bytes(config.learner, config.features, width, stream, data.text_bytes),
    }
    points: list[dict[str, Any]] = []
    for stop, each in zip(stream.stops, scores, strict=True):
        if each.shape[1]:
            asked = truth < stop
            right = each[: len(truth)][asked].argmax(1) == truth[asked]
            accuracy = right.double().mean().item()
            points.append({**known, "intents": stop, "accuracy": accuracy})
    if len(data.outside):
        best = scores[-1].max(1).values
        points[-1]["auroc"] = ranking_quality(best[: len(truth)], best[len(truth) :])
        if variance is not None:
            ratio = best / variance.clamp(min=SMALLEST_VARIANCE).sqrt()
            points[-1]["auroc_std"] = ranking_quality(ratio[: len(truth)], ratio[len(truth) :])
    return pl.DataFrame(points, schema=COLUMNS)


def _stream(config: Intents, data: IntentData) -> tuple[IntentStream, Tensor, np.ndarray]:
    """The stream in the seed's order, the places of the asked intents, and the learned rows."""
    labels = data.labels(config.seed)
    rows = data.learned[np.argsort(labels[data.learned], kind="stable")]
    last = len(data.names)
    counts = np.bincount(labels[rows], minlength=last)
    embedded = data.embedded()
    stream = IntentStream(
        features=embedded[rows],
        labels=torch.from_numpy(labels[rows]),
        queries=embedded[np.concatenate([data.asked, data.outside])],
        ends=tuple(counts.cumsum().tolist()),
        stops=stops(last, config.step),
    )
    return stream, torch.from_numpy(labels[data.asked]), rows


def _ridge_scores(config: Intents) -> tuple[list[Tensor], Tensor]:
    """Scores at each stop and the last variances; the mean of two learners for "both"."""
    kinds = ("tangents", "random features") if config.learner == "both" else (config.learner,)
    learned = [_learned(config.model_copy(update={"learner": kind})) for kind in kinds]
    scores = [torch.stack(each).mean(0) for each in zip(*(r.scores for r in learned), strict=True)]
    return scores, torch.stack([each.variance for each in learned]).mean(0)


@lru_cache(maxsize=2)  # "both" comes after its two learners: see `_together`
def _learned(config: Intents) -> Ridge:
    """One ridge regression on the stream in the seed's order."""
    data = intent_data(config.data, config.intents, config.per_intent, config.fold)
    stream, _, rows = _stream(config, data)
    kinds = KINDS[1:] if config.learner == "one ridge on both" else (config.learner,)
    chosen = config.data, config.intents, config.per_intent
    sizes = config.features, config.combinations
    gram_of = _products if config.learner == "ridge" else _kept_products
    grams = [gram_of(*chosen, kind, *sizes, config.device) for kind in kinds]
    gram = grams[0] if len(grams) == 1 else (grams[0] + grams[1]) / 2
    asked = np.concatenate([data.asked, data.outside])
    norms = gram.new_ones(len(asked))
    learned = learn_ridge(gram[rows][:, rows], gram[asked][:, rows], norms, stream, config.gamma)
    return Ridge([each.cpu() for each in learned.scores], learned.variance.cpu())


def _products(
    data: Source,
    intents: int | None,
    per_intent: int | None,
    kind: str,
    features: int,
    combinations: int,
    device: str,
) -> Tensor:
    """(sentences, n) products of all sentences' rows with those of the training set."""
    known = intent_data(data, intents, per_intent, None)
    Phi = known.rows(kind, features, combinations, device)
    return Phi @ Phi[known.learned].mT


_kept_products = lru_cache(maxsize=2)(_products)  # of random features, and of tangents


def _forgetting(
    config: Intents, data: IntentData, stream: IntentStream, rows: np.ndarray
) -> pl.DataFrame:
    """Learns all, forgets the first intent, and compares with learning all others anew."""
    sizes = config.features, config.combinations
    Phi = data.rows(config.learner, *sizes, config.device).cpu().double()  # timed on the CPU
    X = Phi[rows]
    queries = Phi[data.asked]
    Y = functional.one_hot(stream.labels, len(stream.ends)).double()
    first = slice(0, stream.ends[0])
    others = slice(stream.ends[0], None)
    learner = StreamingRidge(Linear(), config.gamma).learn(X, Y)
    learner.predict(queries[:1])
    clock = time.process_time()
    learner.forget(X[first], Y[first])
    predictions = learner.predict(queries)
    seconds = time.process_time() - clock
    clock = time.process_time()
    never = StreamingRidge(Linear(), config.gamma).learn(X[others], Y[others]).predict(queries)
    again = time.process_time() - clock
    row = {
        "data": config.data,
        "learner": config.learner,
        "test": "official",
        "sentences": len(rows),
        "forgotten": stream.ends[0],
        "difference": ((predictions - never).abs().max() / never.abs().max()).item(),
        "seconds": seconds,
        "seconds_again": again,
    }
    return pl.DataFrame([row], schema=COLUMNS)


# What is drawn

COLORS = {
    "both": "#000000",
    "tangents": "#0072B2",
    "random features": "#009E73",
    "one ridge on both": "#7F7F7F",
    "ridge": "#56B4E9",
    "SLDA": "#E69F00",
    "class means": "#CC79A7",
    "logistic": "#D55E00",
    "SGD": "#F0A0A0",
    "joint": "#D55E00",
    "replay": "#8C564B",
    "fine-tuning": "#F0A0A0",
}
DASHES = "-", "--", ":", "-."  # of learners of one kind
TITLES = {"banking77": "Banking77", "clinc150": "CLINC150"}
NAMES = {
    "both": "mean of the next two",
    "ridge": "ridge on outputs",
    "logistic": "logistic, all kept",
    "SGD": "SGD on outputs",
    "joint": "joint, all kept",
    "replay": "replay",
    "fine-tuning": "fine-tuning",
}


def draw(table: pl.DataFrame) -> Figure:
    """Draws A and B: accuracy along the stream; C: out of scope; D: what forgetting takes.

    Panels without a run are left out.
    """
    curves = _known(table, "accuracy").filter(test="official")
    panels: list[tuple[Callable[[Axes, str, pl.DataFrame], None], pl.DataFrame]] = [
        (_draw_curves, curves.filter(data=source)) for source in TITLES
    ]
    panels.append((_draw_out_of_scope, _known(table, "auroc")))
    panels.append((_draw_forgetting, _known(table, "seconds_again")))
    panels = [(panel, part) for panel, part in panels if not part.is_empty()]
    with figure_style():
        rows = -(-len(panels) // 2)
        figure = Figure(figsize=(11, 4.6 * rows))
        every = figure.subplots(rows, min(2, len(panels)), squeeze=False).flatten()
        for axes, name, (panel, part) in zip(every, "ABCD", panels, strict=False):
            panel(axes, name, part)
        for axes in every[len(panels) :]:
            axes.remove()
    return figure


def _known(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rows that have this number."""
    return table.filter(pl.col(column).is_not_null())


def _draw_curves(axes: Axes, name: str, curves: pl.DataFrame) -> None:
    title = TITLES[curves["data"][0]]
    sentences = int(_mean(curves["sentences"]))
    last = curves["intents"].to_numpy().max()
    letter(axes, name, f"{title}: {last} intents, {sentences:,} sentences")
    ends = {
        learner: _mean(part.filter(intents=last)["accuracy"])
        for learner, part in _by_learner(curves)
    }
    remembered = [end for end in ends.values() if end > REMEMBERS]
    dashes = {kind: itertools.cycle(DASHES) for kind in COLORS}
    for learner, part in _by_learner(curves):
        kind = _kind(learner)
        label = f"{_name(learner)}: {ends[learner]:.3f}"
        if remembered and ends[learner] <= REMEMBERS:
            label += ", below"
        line = {"label": label, "lw": 1.8 if learner == "both" else 1.3, "ls": next(dashes[kind])}
        draw_band(axes, part.sort("intents"), "intents", "accuracy", COLORS[kind], **line)
    axes.set_xlabel("intents learned, one after another")
    axes.set_ylabel("accuracy on the test sentences of these")
    if remembered:  # who forgets nearly everything leaves the picture, so that the others differ
        axes.set_ylim(min(remembered) - 0.1, 1.005)
    legend_below(axes)


def _mean(numbers: pl.Series) -> float:
    return float(numbers.to_numpy().mean())


def _by_learner(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    present = table["learner"].unique(maintain_order=True).to_list()
    ordered = sorted(present, key=lambda learner: list(COLORS).index(_kind(learner)))
    return [(learner, table.filter(learner=learner)) for learner in ordered]


def _kind(learner: str) -> str:
    """The learner without what follows the comma, which tells those of one kind apart."""
    return learner.partition(",")[0]


def _name(learner: str) -> str:
    kind, comma, rest = learner.partition(",")
    return NAMES.get(kind, kind) + comma + rest


def _draw_out_of_scope(axes: Axes, name: str, asked: pl.DataFrame) -> None:
    letter(axes, name, "sentences without any of the intents")
    by_learner = _by_learner(asked)
    for place, (learner, part) in enumerate(by_learner):
        color = COLORS[_kind(learner)]
        axes.plot(_mean(part["auroc"]), place, "o", color=color, clip_on=False)
        by_ratio = part["auroc_std"].drop_nulls()
        if len(by_ratio):
            axes.plot(_mean(by_ratio), place, "D", color=color, mfc="none", clip_on=False)
    axes.set_yticks(range(len(by_learner)), [_name(learner) for learner, _ in by_learner])
    axes.set_xlim(right=1)
    axes.set_xlabel("AUROC of the largest score (diamonds: score / standard deviation)")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def _draw_forgetting(axes: Axes, name: str, taken: pl.DataFrame) -> None:
    letter(axes, name, f"{taken['forgotten'][0]} sentences of one intent are deleted")
    ways = {"forget them": "seconds", "learn all others anew": "seconds_again"}
    for place, (column, (color, mark)) in enumerate(
        zip(ways.values(), sweep_styles(len(ways)), strict=True)
    ):
        seconds = _mean(taken[column])
        axes.plot([0, seconds], [place, place], color=color, lw=3)
        axes.plot(seconds, place, mark, color=color)
        axes.annotate(f"{seconds:.2g} s", (seconds, place), (0, 7), textcoords="offset points")
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set_ylim(len(ways) - 0.3, -0.7)
    axes.set_xlim(left=0)
    axes.margins(x=0.15)
    gap = taken["difference"].to_numpy().max()
    axes.set_xlabel(f"CPU seconds (the scores differ by at most {gap:.0e})")


def summarize(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows accuracy after all intents, what was kept, AUROC, and what forgetting took."""
    shown: list[RenderableType] = []
    last = _known(table, "accuracy")
    last = last.filter(pl.col("intents") == pl.col("intents").max().over("data"))
    kinds = {"official": "official test set", "folds": f"{FOLDS} folds of the training set"}
    for source, test in last.select("data", "test").unique(maintain_order=True).rows():
        title = f"{TITLES[source]}, {kinds[test]}: after all intents"
        shown.append(_accuracies(title, last.filter(data=source, test=test)))
    shown += [
        f"{TITLES[row['data']]}, {row['learner']}: forgetting {row['forgotten']} of "
        f"{row['sentences']:,} sentences took {row['seconds']:.2g} s, learning all others anew "
        f"{row['seconds_again']:.2g} s; largest difference {row['difference']:.1e}."
        for row in _known(table, "seconds_again").iter_rows(named=True)
    ]
    return shown


def _accuracies(title: str, part: pl.DataFrame) -> RenderableType:
    shown = table_of_numbers(title, ["learner"], ["accuracy", "AUROC", "score / std", "kept"])
    for learner, rows in _by_learner(part):
        numbers = [
            mean_and_error(rows[name].drop_nulls()) for name in ("accuracy", "auroc", "auroc_std")
        ]
        shown.add_row(_name(learner), *numbers, decimal(int(rows["bytes"][0])))
    return shown


def _notice(configs: Sequence[Any]) -> str:
    slow = ("tangents", "both", "one ridge on both")
    if any(config.learner in slow and config.device == "cpu" for config in configs):
        return "Tangents are computed once and cached: about 20 ms of one core for each sentence."
    return ""


def _together(config: Intents) -> str | None:
    """One process computes the ridge regressions of one order, so that "both" finds its two."""
    return config.model_dump_json(exclude={"learner"}) if config.learner in RIDGES else None


FAMILIES = {
    "intents": Family(
        Intents,
        one_by_one(run),
        draw,
        summarize,
        intent_checksums,
        together=_together,
        notice=_notice,
    )
}
