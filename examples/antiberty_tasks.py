"""A pretrained protein model learns three tasks of antibody and receptor genes, one by one.

AntiBERTy (a BERT of 8 layers, trained on antibodies) learns to tell human from mouse genes: of
heavy chains, of kappa chains, and of T-cell receptors' alpha chains. These are six classes, two at
a time, one pass each. Its head or its last block is trained on true and on corrected targets.

    pip install ".[huggingface]"
    pip install --no-deps antiberty==0.1.3 anarci

$ python examples/antiberty_tasks.py --part head --recipe sgd
$ python examples/antiberty_tasks.py --part block --recipe adamw --device cuda
$ python examples/antiberty_tasks.py --quick        # random genes and weights, to see that it runs
"""

import argparse
import copy
import importlib.util
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import retarget as rt
from retarget.errors import require_extra

CLASSES = {
    "species": ("H human", "H mouse", "K human", "K mouse", "A human", "A mouse"),
    "chains": ("H human", "H mouse", "K human", "L human", "A human", "B human"),
}
POOL, TRAIN, TEST = 80, 54, 18  # sequences of a class: at most, and of these in each part
LENGTH, BATCH, PASSES = 104, 4, 10


def folder(package: str) -> Path:
    """The folder of a package, without importing it: these two need old versions of others."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        sys.exit(f"{package} is missing: pip install --no-deps antiberty==0.1.3 anarci")
    return Path(found.origin).parent


def genes(names: tuple[str, ...]) -> list[list[tuple[str, str]]]:
    """(gene, sequence) of each class; alleles with the same sequence count once."""
    spec = importlib.util.spec_from_file_location("germlines", folder("anarci") / "germlines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = []
    for name in names:
        chain, species = name.split()
        alleles = module.all_germlines["V"][chain][species].items()
        once = {sequence.replace("-", ""): allele.split("*")[0] for allele, sequence in alleles}
        pairs = sorted((gene, sequence) for sequence, gene in once.items())
        rows = np.random.default_rng(0).permutation(len(pairs))[:POOL]
        found.append([pairs[row] for row in sorted(rows)])
    return found


def pretrained() -> tuple[nn.Module, dict[str, int]]:
    """AntiBERTy's encoder without dropout, and its vocabulary."""
    from transformers import BertConfig, BertModel

    models = folder("antiberty") / "trained_models"
    saved = json.loads((models / "AntiBERTy_md_smooth" / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes += ("intermediate_size", "max_position_embeddings", "layer_norm_eps", "hidden_act")
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = BertModel(BertConfig(**{name: saved[name] for name in sizes}, **options))
    file = models / "AntiBERTy_md_smooth" / "pytorch_model.bin"
    weights = torch.load(file, weights_only=True, map_location="cpu")
    mine = {name[5:]: value for name, value in weights.items() if name.startswith("bert.")}
    mine.pop("embeddings.position_ids")
    bert.load_state_dict(mine)
    tokens = (models / "vocab.txt").read_text().split()
    return bert.eval(), {token: number for number, token in enumerate(tokens)}


def made() -> tuple[nn.Module, dict[str, int], list[list[tuple[str, str]]]]:
    """A small random network, and random genes; each class has its own letters."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = BertModel(BertConfig(vocab_size=25, num_hidden_layers=2, **sizes, **options)).eval()
    letters, random = "ACDEFGHIKLMNPQRSTVWY", np.random.default_rng(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    classes = [
        [(f"gene{i}", "".join(random.choice(list(letters[3 * c :][:4]), 20))) for i in range(24)]
        for c in range(6)
    ]
    return bert, {token: number for number, token in enumerate(names)}, classes


@torch.no_grad()
def encoded(bert: nn.Module, vocabulary: dict[str, int], sequences: list[str], device: str) -> dict:
    """The outputs of the frozen layers for the sequences: before the last block, and pooled."""
    ids = torch.zeros(len(sequences), LENGTH, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens = ["[CLS]", *sequence, "[SEP]"]
        ids[row, : len(tokens)] = torch.tensor([vocabulary.get(t, 1) for t in tokens])
    hidden, pooled = [], []
    for part in ids.split(32):
        mask = (part > 0).long().to(device)
        result = bert(part.to(device), attention_mask=mask, output_hidden_states=True)
        hidden.append(result.hidden_states[-2])
        pooled.append(result.pooler_output)
    mask = (ids > 0).to(device)[:, None, None, :].float()
    added = (1 - mask) * torch.finfo(torch.float32).min
    return {"hidden": torch.cat(hidden), "mask": added, "pooled": torch.cat(pooled)}


class Head(nn.Module):
    """A linear layer on the encoder's output."""

    keys = ("pooled",)

    def __init__(self, bert: nn.Module, std: float) -> None:
        super().__init__()
        self.classifier = nn.Linear(bert.config.hidden_size, 6)
        nn.init.normal_(self.classifier.weight, std=std)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n, 6) the logits."""
        return self.classifier(pooled)


class Block(Head):
    """The last block, the pooler and a linear layer.

    The pooler reads only the first token, so only its row of the block is computed: the same
    function as BertLayer's, with a sixth of the work. Keys and values are frozen: 2.9 of 3.4
    million parameters are trained.
    """

    keys = ("hidden", "mask")

    def __init__(self, bert: nn.Module, std: float) -> None:
        super().__init__(bert, std)
        self.block, self.pooler = copy.deepcopy(bert.encoder.layer[-1]), copy.deepcopy(bert.pooler)
        self.heads = bert.config.num_attention_heads
        # with one row of the block, all gradients but these have one token: kernels in seconds
        self.block.attention.self.key.requires_grad_(False)
        self.block.attention.self.value.requires_grad_(False)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(n, 6) the logits."""
        first, own, layer = hidden[:, :1], self.block.attention.self, self.block
        query, key, value = own.query(first), own.key(hidden), own.value(hidden)
        split = [x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value)]
        seen = functional.scaled_dot_product_attention(*split, attn_mask=mask)
        mixed = layer.attention.output(seen.transpose(1, 2).flatten(2), first)
        return self.classifier(self.pooler(layer.output(layer.intermediate(mixed), mixed)))


def stream(classes: list, seed: int) -> tuple[list[list[int]], list[int], Tensor]:
    """Rows of each task, rows of the test set, and the labels of all rows, in order of the tasks.

    A quarter of the genes, with all their alleles, is the test set.
    """
    random = np.random.default_rng(seed)
    starts = np.cumsum([0, *map(len, classes)])
    labels = torch.zeros(int(starts[-1]), dtype=torch.long)
    tasks, test = [], []
    for place, task in enumerate(random.permutation(3)):
        rows = []
        for local in range(2):
            mine, start = classes[2 * task + local], int(starts[2 * task + local])
            labels[start : start + len(mine)] = 2 * place + local
            names = random.permutation(sorted({gene for gene, _ in mine}))
            held_out = set(names[: len(names) // 4])
            shuffled = random.permutation(len(mine)).tolist()
            rows += [start + r for r in shuffled if mine[r][0] not in held_out][:TRAIN]
            test += [start + r for r in shuffled if mine[r][0] in held_out][:TEST]
        rows = random.permutation(rows).tolist()
        tasks.append(rows[: len(rows) // BATCH * BATCH])  # whole mini-batches
    return tasks, test, labels


class Problem:
    """One seed: its stream, its initial network, and every method to learn it."""

    def __init__(self, data, classes, bert, options, seed: int) -> None:
        self.options, self.seed, self.bert = options, seed, bert
        self.kind = Head if options.part == "head" else Block
        self.data = {key: data[key] for key in self.kind.keys}
        self.tasks, self.test, labels = stream(classes, seed)
        self.labels = labels.to(data["pooled"].device)
        self.Y = functional.one_hot(self.labels, 6).to(data["pooled"])
        self.loss = options.loss

    def network(self) -> nn.Module:
        """The initial network, the same at every call."""
        torch.manual_seed(self.seed)
        return self.kind(self.bert, self.options.std).to(self.Y.device)

    def samples(self, rows: list[int]) -> dict[str, Tensor]:
        """The network's inputs for some rows."""
        return {key: value[rows] for key, value in self.data.items()}

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the recipe."""
        trained = [value for value in network.parameters() if value.requires_grad]
        if self.options.recipe == "sgd":
            return torch.optim.SGD(trained, lr=self.options.lr)
        return torch.optim.AdamW(trained, lr=self.options.lr, weight_decay=0.0)

    def step(self, network, optimizer, samples, targets) -> None:
        """Trains on one mini-batch."""
        optimizer.zero_grad()
        logits = network(**samples)
        if self.loss == "squared":
            loss = (logits - targets).square().sum(1).mean() / 2
        else:
            loss = functional.cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()

    def score(self, outputs: Tensor) -> float:
        """Accuracy on the test genes of all six classes."""
        return (outputs.argmax(1) == self.labels[self.test]).double().mean().item()

    @torch.no_grad()
    def accuracy(self, network: nn.Module) -> float:
        """The accuracy of a network."""
        return self.score(network(**self.samples(self.test)))

    def true_targets(self) -> float:
        """One pass over each task, on true targets."""
        return self.passes(self.tasks)

    def joint(self) -> float:
        """Several shuffled passes over all tasks at once, which no stream allows."""
        every = [row for task in self.tasks for row in task]
        random = np.random.default_rng(self.seed)
        return self.passes([random.permutation(every).tolist() for _ in range(PASSES)])

    def passes(self, tasks: list[list[int]]) -> float:
        """Trains on true targets; returns the accuracy."""
        network = self.network()
        optimizer = self.optimizer(network)
        for task in tasks:
            for first in range(0, len(task), BATCH):
                rows = task[first : first + BATCH]
                self.step(network, optimizer, self.samples(rows), self.Y[rows])
        return self.accuracy(network)

    def corrected(self) -> float:
        """One pass over each task with `TargetCorrectionTrainer`."""
        from transformers import TrainingArguments

        from retarget.integrations.huggingface import TargetCorrectionTrainer

        options, network = self.options, self.network()
        make = partial(
            rt.NetworkCorrector,
            gamma=options.gamma,
            block_size=options.block,
            ridge=options.ridge,
            loss=self.loss,
        )
        with tempfile.TemporaryDirectory() as place:
            arguments = TrainingArguments(
                place,
                per_device_train_batch_size=BATCH,
                learning_rate=options.lr,
                optim="sgd" if options.recipe == "sgd" else "adamw_torch",
                lr_scheduler_type="constant",
                train_sampling_strategy="sequential",
                max_grad_norm=0.0,
                num_train_epochs=1,
                label_names=["labels"],
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                logging_strategy="no",
                dataloader_pin_memory=False,
                use_cpu=self.Y.device.type == "cpu",
                log_level="error",
            )
            trainer = TargetCorrectionTrainer(network, arguments, corrector=make)
            trainer.callback_handler.callbacks = [
                each
                for each in trainer.callback_handler.callbacks
                if type(each).__name__ != "PrinterCallback"
            ]
            self.log = []
            for task in self.tasks:
                samples = self.samples(task)
                trainer.train_dataset = [
                    {key: value[i] for key, value in samples.items()} | {"labels": label}
                    for i, label in enumerate(self.labels[task].tolist())
                ]
                trainer.train()
                self.log += [each for each in trainer.state.log_history if "target_shift" in each]
        return self.accuracy(network)

    def closed_loop(self) -> float:
        """Follows a tangent learner, with 100 stored samples."""
        network = self.network()
        optimizer = self.optimizer(network)
        learner = rt.SGD(self.options.lr, BATCH, reduction="mean")
        corrector = rt.ClosedLoopCorrector(network, learner, "auto", 1024, 20, replay=100)
        corrector.trust()
        for task in self.tasks:
            for first in range(0, len(task), 20):
                rows = task[first : first + 20]
                X, Z = corrector.next_block(self.samples(rows), self.Y[rows])
                for part in range(0, len(Z), BATCH):
                    batch = slice(part, part + BATCH)
                    self.step(network, optimizer, {k: v[batch] for k, v in X.items()}, Z[batch])
        return self.accuracy(network)

    def batch_kernel(self) -> float:
        """Ridge regression with the initial tangent kernel, which corrected targets follow."""
        network, every = self.network(), [row for task in self.tasks for row in task]
        kernel, train, test = rt.EmpiricalNTK(network), self.samples(every), self.samples(self.test)
        K = kernel(train).double()
        A = rt.offline_coefficients(K, self.Y[every].double(), self.options.gamma)
        return self.score(kernel(test, train).double() @ A)

    def tangent(self) -> float:
        """A `TangentLearner`, task by task."""
        learner = rt.TangentLearner(self.network(), features=1024)
        for task in self.tasks:
            learner.learn(self.samples(task), self.Y[task])
        return self.score(learner.predict(self.samples(self.test)))


def main() -> None:
    """Trains with every method and prints the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["head", "block"], default="head")
    parser.add_argument("--recipe", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--loss", choices=["squared", "cross-entropy"], help="squared for sgd")
    parser.add_argument("--classes", choices=list(CLASSES), default="species")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", type=float, help="3e-3 for sgd, 1e-3 for adamw")
    parser.add_argument("--gamma", type=float, help="1e3 for sgd, 1e4 for adamw")
    parser.add_argument("--ridge", type=float, help="0 for sgd, 1e4 for adamw")
    parser.add_argument("--block", type=int, default=20, help="samples corrected together")
    parser.add_argument("--std", type=float, default=0.0, help="of the initial classifier")
    parser.add_argument("--only", nargs="+", help="some of the methods")
    parser.add_argument("--cache", type=Path, help="file for the outputs of the frozen layers")
    parser.add_argument("--picture", type=Path, help="file for a picture of the accuracies")
    parser.add_argument("--quick", action="store_true", help="random genes and weights, one seed")
    options = parser.parse_args()
    require_extra("this script", "huggingface", "transformers")
    if options.picture:
        require_extra("the picture", "figures", "matplotlib")
    sgd = options.recipe == "sgd"
    options.loss = options.loss or ("squared" if sgd else "cross-entropy")
    for name, value in {"lr": (3e-3, 1e-3), "gamma": (1e3, 1e4), "ridge": (0.0, 1e4)}.items():
        if getattr(options, name) is None:
            setattr(options, name, value[0] if sgd else value[1])
    if not options.quick and importlib.util.find_spec("antiberty") is None:
        print("antiberty is not installed (see the top of this file): random genes and weights")
        options.quick = True
    if options.quick:
        (bert, vocabulary, classes), options.seeds = made(), [0]
        options.gamma, options.ridge = 1.0, 1.0  # its features are few and small
    else:
        (bert, vocabulary), classes = pretrained(), genes(CLASSES[options.classes])
    bert.requires_grad_(False).to(options.device)
    sequences = [sequence for each in classes for _, sequence in each]
    if options.cache and options.cache.exists():
        data = torch.load(options.cache, weights_only=True, map_location=options.device)
    else:
        data = encoded(bert, vocabulary, sequences, options.device)
    if options.cache and not options.cache.exists():
        torch.save(data, options.cache)
    bert.requires_grad_(True)
    methods = ["true_targets", "corrected", "tangent", "joint"]
    methods += ["closed_loop", "batch_kernel"] if sgd and options.loss == "squared" else []
    scores: dict[str, list[float]] = {name: [] for name in options.only or methods}
    for seed in options.seeds:
        problem = Problem(data, classes, bert, options, seed)
        for name, found in scores.items():
            found.append(getattr(problem, name)())
            if name == "corrected":
                print([{k: round(v, 3) for k, v in each.items()} for each in problem.log])
        print(seed, {name: round(found[-1], 3) for name, found in scores.items()}, flush=True)
    print(vars(options))
    for name, found in scores.items():
        sem = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
        print(f"{name:12} {statistics.mean(found):.3f} ± {sem:.3f}")
    if options.picture:
        draw(scores, options.picture)


def draw(scores: dict[str, list[float]], path: Path) -> None:
    """Draws a dot for each seed, and a line at the mean."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.45 * len(scores) + 1), layout="constrained")
    for row, found in enumerate(reversed(scores.values())):
        axes.plot(found, [row] * len(found), "o", alpha=0.6)
        axes.plot([statistics.mean(found)] * 2, [row - 0.3, row + 0.3], "k-")
    axes.set_yticks(range(len(scores)), [name.replace("_", " ") for name in reversed(scores)])
    axes.set_xlabel("accuracy on all six classes, one dot a seed")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
